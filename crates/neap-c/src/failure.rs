//! What went wrong, as C is told. No panic leaves the library.

use neaptide::{Error, Need};
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// How a call ended. Numbers below 100 are also the `neap` command's exit codes for the same.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NeapStatus {
    Ok = 0,
    /// The model, an input or an argument is not what it should be, or a file cannot be read or written.
    BadInput = 2,
    /// The model cannot run in this much memory: neap_error_smallest_bytes names the smallest budget.
    Infeasible = 3,
    /// A defect of the library.
    Defect = 70,
    /// The model has something that the library does not compute.
    Unsupported = 100,
    /// A run failed after it had begun: its file cannot be read or was damaged, or its values cannot be computed with.
    Run = 101,
    /// A NeapCancel ended the run.
    Cancelled = 102,
}

/// Why a call failed.
pub struct NeapError {
    message: CString,
    smallest_bytes: u64,
}

/// One line that says what is wrong. It lives as long as the error; NULL for NULL.
///
/// # Safety
/// `error` is NULL or an error of this library that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_error_message(error: *const NeapError) -> *const c_char {
    // SAFETY: the caller gives an error or NULL.
    match unsafe { error.as_ref() } {
        Some(error) => error.message.as_ptr(),
        None => ptr::null(),
    }
}

/// The smallest budget in bytes that the model can run in, where the status is NEAP_STATUS_INFEASIBLE; otherwise 0.
///
/// # Safety
/// As `neap_error_message`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_error_smallest_bytes(error: *const NeapError) -> u64 {
    // SAFETY: the caller gives an error or NULL.
    unsafe { error.as_ref() }.map_or(0, |error| error.smallest_bytes)
}

/// Frees an error.
///
/// # Safety
/// As `neap_error_message`; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_error_free(error: *mut NeapError) {
    if !error.is_null() {
        // SAFETY: errors are boxes, and this one is the caller's to give up.
        drop(unsafe { Box::from_raw(error) });
    }
}

/// Does the work, and tells C how it ended. Nothing is left at `error` when it ended well.
///
/// # Safety
/// `error` is NULL or a place for a pointer, which need not be initialised.
pub(crate) unsafe fn told(
    error: *mut *mut NeapError,
    work: impl FnOnce() -> Result<(), Error>,
) -> NeapStatus {
    let ended = catch_unwind(AssertUnwindSafe(work));
    let ended = ended.unwrap_or_else(|_| Err(Error::Defect("the library panicked".into())));
    let (status, failure) = match ended {
        Ok(()) => (NeapStatus::Ok, ptr::null_mut()),
        Err(failure) => (status_of(&failure), in_c(&failure)),
    };
    if error.is_null() {
        // SAFETY: nobody else has it.
        unsafe { neap_error_free(failure) };
    } else {
        // SAFETY: the caller gives a place to write to.
        unsafe { error.write(failure) };
    }
    status
}

fn status_of(error: &Error) -> NeapStatus {
    match error {
        Error::BadInput(_)
        | Error::Unbound {
            need: Need::Shape { .. },
            ..
        } => NeapStatus::BadInput,
        Error::Unsupported(_) | Error::Unbound { .. } => NeapStatus::Unsupported,
        Error::Infeasible { .. } => NeapStatus::Infeasible,
        Error::Run(_) | Error::Machine(_) | Error::DamagedCache(_) => NeapStatus::Run,
        Error::Cancelled => NeapStatus::Cancelled,
        Error::Defect(_) => NeapStatus::Defect,
    }
}

fn in_c(error: &Error) -> *mut NeapError {
    // Names in a model may hold anything.
    let text: Vec<u8> = error.to_string().into_bytes();
    let text: Vec<u8> = text.into_iter().filter(|&byte| byte != 0).collect();
    let smallest_bytes = match error {
        Error::Infeasible { smallest_bytes, .. } => *smallest_bytes,
        _ => 0,
    };
    Box::into_raw(Box::new(NeapError {
        message: CString::new(text).unwrap_or_default(),
        smallest_bytes,
    }))
}
