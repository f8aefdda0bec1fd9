//! Ending a run early, from another thread.

use neaptide::CancelToken;

/// Asks a run to end early.
pub struct NeapCancel {
    pub(crate) token: CancelToken,
}

/// A request that nobody has made yet.
#[unsafe(no_mangle)]
pub extern "C" fn neap_cancel_new() -> *mut NeapCancel {
    Box::into_raw(Box::new(NeapCancel {
        token: CancelToken::new(),
    }))
}

/// Makes the request, from any thread, also while a run looks at it. Runs that were given it end before their next step, with
/// NEAP_STATUS_CANCELLED; their session can run again, with another request.
///
/// # Safety
/// `cancel` is NULL or a request that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_cancel_request(cancel: *const NeapCancel) {
    // SAFETY: the caller gives one or NULL.
    if let Some(cancel) = unsafe { cancel.as_ref() } {
        cancel.token.cancel();
    }
}

/// Frees a request, which no run looks at any more.
///
/// # Safety
/// As `neap_cancel_request`; it is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_cancel_free(cancel: *mut NeapCancel) {
    if !cancel.is_null() {
        // SAFETY: requests are boxes, and this one is the caller's to give up.
        drop(unsafe { Box::from_raw(cancel) });
    }
}
