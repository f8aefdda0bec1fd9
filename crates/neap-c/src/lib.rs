//! The C library: opaque handles over [`neaptide::Runner`], status codes, no global state.
//!
//! ```text
//!   C's pointers ─► checked (given) ─► Runner │ errors and panics ─► NeapStatus, NeapError (failure)
//! ```
//! `include/neaptide.h` is made from these files by `cargo xtask test --part c`, which also builds and runs the examples.
//! Names of functions and layouts of structures that are here stay; what is new gets new names.

mod cancel;
mod failure;
mod given;
mod options;
mod session;
mod tensor;

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
