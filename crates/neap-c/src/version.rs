//! Which version the library is of.

use std::ffi::{CStr, c_char};

/// The library's version, as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn neap_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
