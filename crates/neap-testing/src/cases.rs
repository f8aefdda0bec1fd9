//! How many random cases a test draws.

/// So many, or a quarter of them in a build with debug assertions, which is several times slower.
pub fn cases(usual: u32) -> u32 {
    match cfg!(debug_assertions) {
        true => usual.div_ceil(4),
        false => usual,
    }
}
