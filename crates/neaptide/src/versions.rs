//! Versions of what packed files hold.

/// Changes with the code that makes what packed files hold, from which the build script derives it; part of every file.
pub(crate) const CODE_VERSION: u32 = number(env!("NEAPTIDE_CODE_VERSION"));

/// The same of weights, their table and the skeleton alone. Programs can be made of these in another build too.
pub(crate) const WEIGHTS_VERSION: u32 = number(env!("NEAPTIDE_WEIGHTS_VERSION"));

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(version) => version,
        Err(_) => panic!("the build script gives a number"),
    }
}
