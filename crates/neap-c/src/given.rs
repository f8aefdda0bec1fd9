//! What C gives, checked as far as it can be.

use neaptide::{Error, Result};
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

/// The error of an argument that is NULL.
pub(crate) fn is_null(what: &str) -> Error {
    Error::BadInput(format!("{what} is NULL"))
}

/// # Errors
/// For NULL and for other encodings than UTF-8.
///
/// # Safety
/// `text` is NULL or ends with a zero, and lives as long as what is given.
pub(crate) unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str> {
    if text.is_null() {
        return Err(is_null(what));
    }
    // SAFETY: it ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str()
        .map_err(|_| Error::BadInput(format!("{what} is not UTF-8")))
}

/// A path, which need not be UTF-8.
///
/// # Errors
/// For NULL.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn path<'a>(path: *const c_char, what: &str) -> Result<&'a Path> {
    if path.is_null() {
        return Err(is_null(what));
    }
    // SAFETY: it ends with a zero.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes();
    Ok(Path::new(OsStr::from_bytes(bytes)))
}

/// An array; NULL is an empty one.
///
/// # Errors
/// For NULL with a length.
///
/// # Safety
/// `first` is NULL or the first of `count` initialised elements that nobody writes while what is given lives.
pub(crate) unsafe fn array<'a, T>(first: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    match (first.is_null(), count) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(is_null(what)),
        // SAFETY: the caller says so.
        (false, _) => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}
