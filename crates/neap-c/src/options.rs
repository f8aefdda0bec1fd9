//! How a session is opened.

use crate::failure::{NeapError, NeapStatus, told};
use crate::given::{array, is_null, path, text};
use neaptide::{Budget, Cache, Error, OpenOptions, Progress, Result, RunOptions};
use std::ffi::{c_char, c_void};

/// How a session is opened. A session keeps none of it: it can be changed, used again and freed.
#[derive(Default)]
pub struct NeapOptions {
    pub(crate) open: OpenOptions,
    pub(crate) run: RunOptions,
    pub(crate) progress: Option<Listener>,
}

/// Hears how far reading or packing a model is.
pub type NeapProgress = Option<extern "C" fn(user: *mut c_void, done_bytes: u64, total_bytes: u64)>;

#[derive(Clone, Copy)]
pub(crate) struct Listener {
    hear: extern "C" fn(*mut c_void, u64, u64),
    user: *mut c_void,
}

impl NeapOptions {
    pub(crate) fn listener(&self) -> impl FnMut(Progress) + use<> {
        let listener = self.progress;
        move |progress: Progress| {
            if let Some(listener) = listener {
                (listener.hear)(listener.user, progress.done_bytes, progress.total_bytes);
            }
        }
    }
}

/// Options as they are by default: no limit on memory, all processors.
#[unsafe(no_mangle)]
pub extern "C" fn neap_options_new() -> *mut NeapOptions {
    Box::into_raw(Box::default())
}

/// Frees options.
///
/// # Safety
/// `options` is NULL, or options that were not freed and are not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_free(options: *mut NeapOptions) {
    if !options.is_null() {
        // SAFETY: options are boxes, and these are the caller's to give up.
        drop(unsafe { Box::from_raw(options) });
    }
}

/// How much memory a session may take: "40MiB" or a number of bytes; "25%" of what the session takes with all weights in
/// memory; "none". It counts the library's own memory: weights, activations, threads, and what it knows of the model. Not the
/// caller's tensors, and not what packing a model takes for a while.
///
/// # Safety
/// `options` are options that were not freed, `budget` ends with a zero, `error` is NULL or a place for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_memory_budget(
    options: *mut NeapOptions,
    budget: *const c_char,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            changed(options)?.run.budget = budget_of(text(budget, "the memory budget")?)?;
            Ok(())
        })
    }
}

/// How many threads compute, the caller's included; 0 for all processors.
///
/// # Safety
/// As `neap_options_set_memory_budget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_threads(
    options: *mut NeapOptions,
    threads: usize,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            changed(options)?.run.threads = match threads {
                0 => RunOptions::default().threads,
                threads => threads,
            };
            Ok(())
        })
    }
}

/// The folder in which packed models are kept. Without it that is beside the model, or in the user's cache folder.
///
/// # Safety
/// As `neap_options_set_memory_budget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_cache_folder(
    options: *mut NeapOptions,
    folder: *const c_char,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            let folder = path(folder, "the cache folder")?.to_path_buf();
            changed(options)?.open.cache = Cache::Folder(folder);
            Ok(())
        })
    }
}

/// Whether results have the same bits whatever the budget. It may cost some speed.
///
/// # Safety
/// As `neap_options_set_memory_budget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_exact(
    options: *mut NeapOptions,
    exact: bool,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            changed(options)?.run.exact = exact;
            Ok(())
        })
    }
}

/// The shape of an input whose dimensions the model leaves open. The session is then ready when it is opened.
///
/// # Safety
/// As `neap_options_set_memory_budget`; there are as many `dims` as the rank says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_shape(
    options: *mut NeapOptions,
    input: *const c_char,
    dims: *const usize,
    rank: usize,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            let name = text(input, "the input's name")?.to_string();
            let shape = array(dims, rank, "dims")?.to_vec();
            changed(options)?.open.shapes.insert(name, shape);
            Ok(())
        })
    }
}

/// The most that a size can be that only the data say, where nothing in the model bounds it: by the name of the result that the
/// refusal tells. Without it such a model does not run.
///
/// # Safety
/// As `neap_options_set_memory_budget`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_bound(
    options: *mut NeapOptions,
    result: *const c_char,
    most: usize,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            let name = text(result, "the result's name")?.to_string();
            changed(options)?.open.size_bounds.insert(name, most);
            Ok(())
        })
    }
}

/// Has `hear` called while a model is read and packed, on the thread that opens or runs; NULL for nobody. It must return, and not
/// use the session.
///
/// # Safety
/// As `neap_options_set_memory_budget`; `hear` may be called with `user` as long as a session lives that was opened with it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_options_set_progress(
    options: *mut NeapOptions,
    hear: NeapProgress,
    user: *mut c_void,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            changed(options)?.progress = hear.map(|hear| Listener { hear, user });
            Ok(())
        })
    }
}

pub(crate) fn budget_of(text: &str) -> Result<Budget> {
    text.parse()
        .map_err(|e| Error::BadInput(format!("the memory budget: {e}")))
}

/// # Safety
/// `options` is NULL or options that were not freed, which no one else uses.
unsafe fn changed<'a>(options: *mut NeapOptions) -> Result<&'a mut NeapOptions> {
    // SAFETY: the caller says so.
    unsafe { options.as_mut() }.ok_or_else(|| is_null("options"))
}
