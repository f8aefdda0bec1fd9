//! What onnxruntime asks the library for: which hardware it can use, and a provider for each session.

use crate::host::{Host, Object, Result, Status, guarded};
use crate::provider;
use crate::tables::{EpTable, FactoryTable, VERSION};
use neaptide::{Budget, Cache, OpenOptions, RunOptions};
use std::ffi::{CStr, c_char};
use std::ptr;

pub const NAME: &CStr = c"NeaptideExecutionProvider";
const VENDOR: &CStr = c"Neaptide";

/// Of options of a session: onnxruntime puts the provider's name in lower case before them.
const PREFIX: &str = "ep.neaptideexecutionprovider.";

/// onnxruntime sees the table, which is first.
#[repr(C)]
struct Factory {
    table: FactoryTable,
    host: Host,
    version: std::ffi::CString,
}

pub fn create(host: Host) -> *mut FactoryTable {
    let table = FactoryTable {
        version: VERSION,
        name,
        vendor,
        supported_devices,
        create_ep,
        release_ep,
        vendor_id,
        own_version,
        validate_compiled: None,
        create_allocator: create_nothing,
        release_allocator,
        create_data_transfer,
        is_stream_aware,
        create_stream: create_nothing,
    };
    let version = std::ffi::CString::new(env!("CARGO_PKG_VERSION")).unwrap_or_default();
    let factory = Factory {
        table,
        host,
        version,
    };
    Box::into_raw(Box::new(factory)).cast()
}

/// # Safety
/// It was made by [`create`], and is not used again.
pub unsafe fn release(factory: *mut FactoryTable) {
    if !factory.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(factory.cast::<Factory>()) });
    }
}

extern "C" fn name(_: *const FactoryTable) -> *const c_char {
    NAME.as_ptr()
}

extern "C" fn vendor(_: *const FactoryTable) -> *const c_char {
    VENDOR.as_ptr()
}

extern "C" fn vendor_id(_: *const FactoryTable) -> u32 {
    0
}

extern "C" fn own_version(factory: *const FactoryTable) -> *const c_char {
    // SAFETY: onnxruntime hands its factory back.
    unsafe { (*factory.cast::<Factory>()).version.as_ptr() }
}

extern "C" fn is_stream_aware(_: *const FactoryTable) -> bool {
    false
}

/// onnxruntime's own allocator does, and there are no streams.
unsafe extern "C" fn create_nothing(
    _: *mut FactoryTable,
    _: Object,
    _: Object,
    made: *mut Object,
) -> Status {
    // SAFETY: a place for what is made.
    unsafe { *made = ptr::null() };
    ptr::null_mut()
}

extern "C" fn release_allocator(_: *mut FactoryTable, _: Object) {}

/// Tensors are in the processor's memory: nothing is moved.
unsafe extern "C" fn create_data_transfer(_: *mut FactoryTable, made: *mut Object) -> Status {
    // SAFETY: a place for what is made.
    unsafe { *made = ptr::null() };
    ptr::null_mut()
}

unsafe extern "C" fn supported_devices(
    factory: *mut FactoryTable,
    devices: *const Object,
    count: usize,
    found: *mut Object,
    most: usize,
    found_count: *mut usize,
) -> Status {
    // SAFETY: onnxruntime hands its factory back.
    let host = unsafe { (*factory.cast::<Factory>()).host };
    guarded(host, || {
        // SAFETY: lists of so many devices, with room for `most` results.
        unsafe {
            *found_count = 0;
            for index in 0..count {
                let device = *devices.add(index);
                if *found_count < most && host.is_cpu(device) {
                    *found.add(*found_count) = host.ep_device(factory.cast(), device)?;
                    *found_count += 1;
                }
            }
        }
        Ok(())
    })
}

unsafe extern "C" fn create_ep(
    factory: *mut FactoryTable,
    _devices: *const Object,
    _metadata: *const Object,
    _count: usize,
    options: Object,
    _logger: Object,
    made: *mut *mut EpTable,
) -> Status {
    // SAFETY: onnxruntime hands its factory back.
    let host = unsafe { (*factory.cast::<Factory>()).host };
    guarded(host, || {
        // SAFETY: options of a session, and a place for the provider.
        unsafe {
            *made = provider::create(host, read(host, options));
        }
        Ok(())
    })
}

unsafe extern "C" fn release_ep(_: *mut FactoryTable, ep: *mut EpTable) {
    // SAFETY: onnxruntime gives back what it got.
    unsafe { provider::release(ep) };
}

/// All that a session's options may say.
const KNOWN: [&str; 4] = ["memory_budget", "threads", "cache_dir", "bounds"];

/// Budget, threads and cache folder: the session's options, else the environment's. A budget that is misspelt is none.
unsafe fn read(host: Host, options: Object) -> Result<(OpenOptions, RunOptions)> {
    // SAFETY: options of a session, as the caller says.
    let given = unsafe { host.keys(options, PREFIX)? };
    if let Some(unknown) = given.iter().find(|key| !KNOWN.contains(&key.as_str())) {
        let known = KNOWN.join(", ");
        return Err(format!("there is no option '{unknown}': there are {known}"));
    }
    let value = |key: &str, variable: &str| -> Result<Option<String>> {
        // SAFETY: options of a session, as the caller says.
        let given = unsafe { host.entry(options, &format!("{PREFIX}{key}"))? };
        Ok(given
            .or_else(|| std::env::var(variable).ok())
            .filter(|text| !text.is_empty()))
    };
    let mut run = RunOptions::default();
    if let Some(text) = value("memory_budget", "NEAPTIDE_MEMORY_BUDGET")? {
        run.budget = text
            .parse::<Budget>()
            .map_err(|e| format!("memory_budget: {e}"))?;
    }
    if let Some(text) = value("threads", "NEAPTIDE_THREADS")? {
        let threads = text
            .parse()
            .ok()
            .filter(|&n: &usize| (1..=256).contains(&n));
        run.threads =
            threads.ok_or_else(|| format!("threads: '{text}' is no number from 1 to 256"))?;
    }
    let cache = value("cache_dir", "NEAPTIDE_CACHE_DIR")?;
    // SAFETY: options of a session, as the caller says.
    let bounds = unsafe { host.entry(options, &format!("{PREFIX}bounds"))? };
    let size_bounds = neaptide::parse_bounds(&bounds.unwrap_or_default());
    let size_bounds = size_bounds.map_err(|e| e.to_string())?;
    let open = OpenOptions {
        size_bounds,
        cache: cache.map_or(Cache::Auto, |folder| Cache::Folder(folder.into())),
        ..OpenOptions::default()
    };
    Ok((open, run))
}
