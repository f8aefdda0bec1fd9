//! The driver's functions, by the names of its headers.

use crate::status::*;
use crate::streams::{self, Event, Work};
use crate::{card, kernels, space};
use std::cell::RefCell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::size_of;
use std::sync::atomic::{AtomicI32, Ordering::*};
use std::sync::{Arc, Mutex};

/// Functions with their other names, and the table of all.
macro_rules! api {
    ($(fn [$($name:ident)+] $arguments:tt $body:block)*) => {
        $($(crate::api::api! { @one $name $arguments $body })+)*

        pub static ENTRIES: &[crate::api::Entry] = &[
            $($(crate::api::Entry(stringify!($name), $name as *const ())),+),*
        ];
    };
    (@one $name:ident ($($argument:ident: $type:ty),* $(,)?) $body:block) => {
        /// # Safety
        /// As the driver's headers say.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> Status $body
    };
}
pub(crate) use api;

pub struct Entry(pub &'static str, pub *const ());

// SAFETY: functions may be called on every thread.
unsafe impl Sync for Entry {}

/// The one context that the card has.
const CONTEXT: usize = 0xc0de;

/// How often the context was retained.
static RETAINED: AtomicI32 = AtomicI32::new(0);

thread_local! {
    static STACK: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

fn current() -> usize {
    STACK.with_borrow(|stack| stack.last().copied().unwrap_or(0))
}

fn set_current(context: usize) {
    STACK.with_borrow_mut(|stack| {
        stack.pop();
        stack.push(context);
    });
}

/// Writes a result to the program's place.
///
/// # Safety
/// `out` is null or a place for the value.
pub unsafe fn put<T>(out: *mut T, value: T) -> Status {
    if out.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller says so.
    unsafe { out.write(value) };
    SUCCESS
}

/// # Safety
/// As [`put`].
pub unsafe fn put_result<T>(out: *mut T, result: Result<T, Status>) -> Status {
    match result {
        // SAFETY: the caller says so.
        Ok(value) => unsafe { put(out, value) },
        Err(status) => status,
    }
}

fn in_context(result: impl FnOnce() -> Status) -> Status {
    match current() {
        0 => INVALID_CONTEXT,
        _ => result(),
    }
}

fn given(was: bool) -> Status {
    if was { SUCCESS } else { INVALID_VALUE }
}

/// # Safety
/// `handle` is null or came from `cuEventCreate`.
unsafe fn event(handle: usize) -> Option<&'static Event> {
    // SAFETY: events are made by Box::leak.
    unsafe { (handle as *const Event).as_ref() }
}

type Graph = Mutex<Vec<Work>>;

/// What the driver's headers call attributes of a device, as far as programs here ask.
fn attribute(which: c_int) -> c_int {
    match which {
        1 => 1024,
        2..=4 => 1024,
        5..=7 => 65535,
        8 => 48 << 10,
        9 => 64 << 10,
        10 => 32,
        14 | 51 => 512,
        16 => 4,
        39 => 2048,
        40 => 2,
        41 | 102 | 115 => 1,
        75 => 8,
        76 => 6,
        _ => 0,
    }
}

api! {
    fn [cuInit](_flags: c_uint) {
        SUCCESS
    }

    fn [cuDriverGetVersion](out: *mut c_int) {
        // SAFETY: the program's place.
        unsafe { put(out, 12090) }
    }

    fn [cuDeviceGetCount](out: *mut c_int) {
        // SAFETY: the program's place.
        unsafe { put(out, 1) }
    }

    fn [cuDeviceGet](out: *mut c_int, ordinal: c_int) {
        if ordinal != 0 {
            return 101;
        }
        // SAFETY: the program's place.
        unsafe { put(out, 0) }
    }

    fn [cuDeviceGetName](out: *mut c_char, length: c_int, _device: c_int) {
        let name = c"stand-in".to_bytes_with_nul();
        let length = (length.max(0) as usize).min(name.len());
        // SAFETY: the program's place has `length` bytes.
        unsafe { name.as_ptr().cast::<c_char>().copy_to(out, length) };
        SUCCESS
    }

    fn [cuDeviceGetUuid cuDeviceGetUuid_v2](out: *mut [u8; 16], _device: c_int) {
        // SAFETY: the program's place.
        unsafe { put(out, *b"neaptide standin") }
    }

    fn [cuDeviceGetAttribute](out: *mut c_int, which: c_int, _device: c_int) {
        // SAFETY: the program's place.
        unsafe { put(out, attribute(which)) }
    }

    fn [cuDeviceTotalMem_v2](out: *mut u64, _device: c_int) {
        // SAFETY: the program's place.
        unsafe { put(out, card::get().bytes) }
    }

    fn [cuDevicePrimaryCtxRetain](out: *mut usize, _device: c_int) {
        RETAINED.fetch_add(1, Relaxed);
        // SAFETY: the program's place.
        unsafe { put(out, CONTEXT) }
    }

    fn [cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2](_device: c_int) {
        if RETAINED.fetch_sub(1, Relaxed) == 1 {
            streams::wait_for_all();
            space::with(|space| space.reset());
        }
        SUCCESS
    }

    fn [cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2](_device: c_int) {
        RETAINED.store(0, Relaxed);
        streams::wait_for_all();
        space::with(|space| space.reset());
        SUCCESS
    }

    fn [cuDevicePrimaryCtxGetState](_device: c_int, flags: *mut c_uint, active: *mut c_int) {
        // SAFETY: the program's places.
        unsafe {
            put(flags, 0);
            put(active, c_int::from(RETAINED.load(Relaxed) > 0))
        }
    }

    fn [cuDevicePrimaryCtxSetFlags cuDevicePrimaryCtxSetFlags_v2](_device: c_int, _flags: c_uint) {
        SUCCESS
    }

    fn [cuCtxCreate_v2](out: *mut usize, _flags: c_uint, _device: c_int) {
        RETAINED.fetch_add(1, Relaxed);
        STACK.with_borrow_mut(|stack| stack.push(CONTEXT));
        // SAFETY: the program's place.
        unsafe { put(out, CONTEXT) }
    }

    fn [cuCtxDestroy_v2](_context: usize) {
        set_current(0);
        RETAINED.store(0, Relaxed);
        streams::wait_for_all();
        space::with(|space| space.reset());
        SUCCESS
    }

    fn [cuCtxSetCurrent](context: usize) {
        set_current(context);
        SUCCESS
    }

    fn [cuCtxGetCurrent](out: *mut usize) {
        // SAFETY: the program's place.
        unsafe { put(out, current()) }
    }

    fn [cuCtxPushCurrent_v2](context: usize) {
        STACK.with_borrow_mut(|stack| stack.push(context));
        SUCCESS
    }

    fn [cuCtxPopCurrent_v2](out: *mut usize) {
        let popped = STACK.with_borrow_mut(Vec::pop).unwrap_or(0);
        // SAFETY: the program's place.
        unsafe { put(out, popped) }
    }

    fn [cuCtxGetDevice](out: *mut c_int) {
        // SAFETY: the program's place.
        in_context(|| unsafe { put(out, 0) })
    }

    fn [cuCtxSynchronize]() {
        streams::wait_for_all();
        SUCCESS
    }

    fn [cuThreadExchangeStreamCaptureMode](mode: *mut c_int) {
        // SAFETY: the program's place.
        unsafe { put(mode, 0) }
    }

    fn [cuMemGetInfo_v2](free: *mut u64, total: *mut u64) {
        // SAFETY: the program's places.
        in_context(|| unsafe {
            put(total, card::get().bytes);
            put(free, card::get().free_bytes())
        })
    }

    fn [cuMemAlloc_v2](out: *mut u64, bytes: u64) {
        // SAFETY: the program's place.
        in_context(|| unsafe { put_result(out, space::with(|s| s.allocate(bytes))) })
    }

    fn [cuMemAllocPitch_v2](out: *mut u64, row: *mut u64, width: u64, height: u64, _element: c_uint) {
        let pitch = width.next_multiple_of(512);
        // SAFETY: the program's places.
        in_context(|| unsafe {
            put(row, pitch);
            put_result(out, space::with(|s| s.allocate(pitch * height)))
        })
    }

    fn [cuIpcGetMemHandle](_out: *mut c_void, _at: u64) {
        NOT_SUPPORTED
    }

    fn [cuMemExportToShareableHandle](_out: *mut c_void, _handle: u64, _kind: c_int, _flags: u64) {
        NOT_SUPPORTED
    }

    fn [cuMemAllocManaged](out: *mut u64, bytes: u64, _flags: c_uint) {
        // SAFETY: the program's place.
        in_context(|| unsafe { put_result(out, space::with(|s| s.allocate(bytes))) })
    }

    fn [cuMemAllocAsync cuMemAllocAsync_ptsz](out: *mut u64, bytes: u64, _stream: usize) {
        // SAFETY: the program's place.
        unsafe { put_result(out, space::with(|s| s.allocate(bytes))) }
    }

    fn [cuMemFree_v2](at: u64) {
        streams::wait_for_all();
        of(space::with(|s| s.free(at)))
    }

    fn [cuMemFreeAsync cuMemFreeAsync_ptsz](at: u64, stream: usize) {
        given(streams::give(stream, Arc::new(move || {
            let _ = space::with(|s| s.free(at));
        })))
    }

    fn [cuMemGetAddressRange_v2](start: *mut u64, bytes: *mut u64, at: u64) {
        match space::with(|s| s.range(at)) {
            None => INVALID_VALUE,
            Some((found, length)) => {
                // SAFETY: the program's places, either of which may be null.
                unsafe {
                    put(start, found);
                    put(bytes, length);
                }
                SUCCESS
            }
        }
    }

    fn [cuMemAddressReserve](out: *mut u64, bytes: u64, _align: u64, _wish: u64, _flags: u64) {
        // SAFETY: the program's place.
        unsafe { put_result(out, space::with(|s| s.reserve(bytes))) }
    }

    fn [cuMemAddressFree](at: u64, bytes: u64) {
        of(space::with(|s| s.free_reserved(at, bytes)))
    }

    fn [cuMemCreate](out: *mut u64, bytes: u64, _properties: *const c_void, _flags: u64) {
        // SAFETY: the program's place.
        unsafe { put_result(out, space::with(|s| s.create(bytes))) }
    }

    fn [cuMemRelease](handle: u64) {
        of(space::with(|s| s.release(handle)))
    }

    fn [cuMemMap](at: u64, bytes: u64, offset: u64, handle: u64, _flags: u64) {
        of(space::with(|s| s.map(at, bytes, offset, handle)))
    }

    fn [cuMemUnmap](at: u64, bytes: u64) {
        of(space::with(|s| s.unmap(at, bytes)))
    }

    fn [cuMemSetAccess](at: u64, bytes: u64, _access: *const c_void, _count: u64) {
        of(space::with(|s| s.set_access(at, bytes)))
    }

    fn [cuMemRetainAllocationHandle](out: *mut u64, at: u64) {
        // SAFETY: the program's place.
        unsafe { put_result(out, space::with(|s| s.retain(at))) }
    }

    fn [cuMemGetAllocationGranularity](out: *mut u64, _properties: *const c_void, _which: c_int) {
        // SAFETY: the program's place.
        unsafe { put(out, space::GRANULE) }
    }

    fn [cuMemHostAlloc](out: *mut u64, bytes: u64, _flags: c_uint) {
        // SAFETY: the program's place.
        unsafe { put_result(out, space::with(|s| s.pin_host(bytes))) }
    }

    fn [cuMemAllocHost_v2](out: *mut u64, bytes: u64) {
        // SAFETY: the program's place.
        unsafe { put_result(out, space::with(|s| s.pin_host(bytes))) }
    }

    fn [cuMemFreeHost](at: u64) {
        of(space::with(|s| s.free_host(at)))
    }

    fn [cuPointerGetAttribute](out: *mut c_void, which: c_int, at: u64) {
        let found = space::with(|s| s.range(at));
        let Some((start, bytes)) = found else {
            return INVALID_VALUE;
        };
        // SAFETY: the program's place, of the attribute's size.
        unsafe {
            match which {
                1 => put(out.cast(), CONTEXT),
                2 => put(out.cast(), 2),
                3 => put(out.cast(), at),
                8 | 9 => put(out.cast(), 0),
                11 => put(out.cast(), start),
                12 => put(out.cast(), bytes),
                _ => INVALID_VALUE,
            }
        }
    }

    fn [cuStreamCreate](out: *mut usize, _flags: c_uint) {
        // SAFETY: the program's place.
        in_context(|| unsafe { put(out, streams::create()) })
    }

    fn [cuStreamCreateWithPriority](out: *mut usize, _flags: c_uint, _priority: c_int) {
        // SAFETY: the program's place.
        in_context(|| unsafe { put(out, streams::create()) })
    }

    fn [cuStreamDestroy_v2](stream: usize) {
        given(streams::destroy(stream))
    }

    fn [cuStreamSynchronize cuStreamSynchronize_ptsz](stream: usize) {
        given(streams::wait(stream))
    }

    fn [cuStreamQuery cuStreamQuery_ptsz](stream: usize) {
        if streams::is_idle(stream) { SUCCESS } else { NOT_READY }
    }

    fn [cuStreamIsCapturing cuStreamIsCapturing_ptsz](stream: usize, out: *mut c_uint) {
        // SAFETY: the program's place.
        unsafe { put(out, c_uint::from(streams::is_captured(stream))) }
    }

    fn [cuStreamWaitEvent cuStreamWaitEvent_ptsz](stream: usize, handle: usize, _flags: c_uint) {
        // SAFETY: the program's handle.
        let event = unsafe { event(handle) };
        event.map_or(INVALID_VALUE, |event| given(streams::give(stream, Arc::new(move || event.wait()))))
    }

    fn [cuStreamBeginCapture_v2 cuStreamBeginCapture_v2_ptsz](stream: usize, _mode: c_int) {
        streams::begin_capture(stream);
        SUCCESS
    }

    fn [cuStreamEndCapture cuStreamEndCapture_ptsz](stream: usize, out: *mut usize) {
        let captured = streams::end_capture(stream).ok_or(INVALID_VALUE);
        let graph = captured.map(|works| Box::leak(Box::new(Graph::new(works))) as *const Graph as usize);
        // SAFETY: the program's place.
        unsafe { put_result(out, graph) }
    }

    fn [cuGraphInstantiateWithFlags](out: *mut usize, graph: usize, _flags: u64) {
        // SAFETY: the program's place. A graph is its own executable.
        unsafe { put(out, graph) }
    }

    fn [cuGraphLaunch cuGraphLaunch_ptsz](graph: usize, stream: usize) {
        // SAFETY: the handle came from the end of a capture, and graphs stay.
        let Some(graph) = (unsafe { (graph as *const Graph).as_ref() }) else {
            return INVALID_VALUE;
        };
        let works = graph.lock().unwrap_or_else(|p| p.into_inner()).clone();
        given(works.into_iter().all(|work| streams::give(stream, work)))
    }

    fn [cuGraphDestroy](_graph: usize) {
        SUCCESS
    }

    fn [cuGraphExecDestroy](_graph: usize) {
        SUCCESS
    }

    fn [cuEventCreate](out: *mut usize, _flags: c_uint) {
        let made = Box::leak(Box::new(Event::default())) as *const Event as usize;
        // SAFETY: the program's place.
        in_context(|| unsafe { put(out, made) })
    }

    fn [cuEventDestroy_v2](_event: usize) {
        // A stream may still hold it.
        SUCCESS
    }

    fn [cuEventRecord cuEventRecord_ptsz](handle: usize, stream: usize) {
        // SAFETY: the program's handle.
        let event = unsafe { event(handle) };
        event.map_or(INVALID_VALUE, |event| {
            event.record(stream);
            SUCCESS
        })
    }

    fn [cuEventQuery](handle: usize) {
        // SAFETY: the program's handle.
        match unsafe { event(handle) } {
            Some(event) if event.is_done() => SUCCESS,
            Some(_) => NOT_READY,
            None => INVALID_VALUE,
        }
    }

    fn [cuEventSynchronize](handle: usize) {
        // SAFETY: the program's handle.
        let event = unsafe { event(handle) };
        event.map_or(INVALID_VALUE, |event| {
            event.wait();
            SUCCESS
        })
    }

    fn [cuEventElapsedTime cuEventElapsedTime_v2](out: *mut f32, from: usize, to: usize) {
        // SAFETY: the program's handles and place.
        unsafe {
            match (event(from).and_then(Event::at), event(to).and_then(Event::at)) {
                (Some(from), Some(to)) => put(out, to.saturating_duration_since(from).as_secs_f32() * 1e3),
                _ => NOT_READY,
            }
        }
    }

    fn [cuModuleLoadData](out: *mut usize, _image: *const c_void) {
        // SAFETY: the program's place. All modules hold the kernels that are known.
        unsafe { put(out, 1) }
    }

    fn [cuModuleLoadDataEx](out: *mut usize, _image: *const c_void, _n: c_uint, _o: *mut c_int, _v: *mut *mut c_void) {
        // SAFETY: the program's place.
        unsafe { put(out, 1) }
    }

    fn [cuModuleUnload](_module: usize) {
        SUCCESS
    }

    fn [cuModuleGetFunction](out: *mut usize, _module: usize, name: *const c_char) {
        // SAFETY: the program's name ends with a zero.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
        let kernel = kernels::by_name(&name).ok_or(NOT_FOUND);
        // SAFETY: the program's place.
        unsafe { put_result(out, kernel.map(|k| k as usize)) }
    }

    fn [cuLaunchKernel cuLaunchKernel_ptsz](
        function: usize, _gx: c_uint, _gy: c_uint, _gz: c_uint, _bx: c_uint, _by: c_uint, _bz: c_uint,
        _shared: c_uint, stream: usize, parameters: *const *const c_void, _extra: *mut *mut c_void,
    ) {
        let Some(kernel) = kernels::by_handle(function) else {
            return 400;
        };
        // SAFETY: the program gives as many parameters as the kernel takes.
        given(streams::give(stream, unsafe { kernels::launch(kernel, parameters) }))
    }

    fn [cuGetProcAddress](name: *const c_char, out: *mut *const (), _version: c_int, flags: u64) {
        // SAFETY: the program's name and place.
        unsafe { find(name, out, flags) }
    }

    fn [cuGetProcAddress_v2](name: *const c_char, out: *mut *const (), _version: c_int, flags: u64, how: *mut c_int) {
        // SAFETY: the program's name and places.
        unsafe {
            let status = find(name, out, flags);
            put(how, c_int::from(status != SUCCESS));
            status
        }
    }

    fn [cuGetErrorString cuGetErrorName](status: Status, out: *mut *const c_char) {
        let text = match status {
            SUCCESS => c"no error",
            OUT_OF_MEMORY => c"out of memory",
            _ => c"an error",
        };
        // SAFETY: the program's place.
        unsafe { put(out, text.as_ptr()) }
    }

    fn [nvmlInit_v2]() {
        SUCCESS
    }

    fn [nvmlDeviceGetHandleByIndex_v2](_index: c_uint, out: *mut usize) {
        // SAFETY: the program's place.
        unsafe { put(out, 1) }
    }

    fn [nvmlDeviceGetMemoryInfo](_device: usize, out: *mut [u64; 3]) {
        let (total, free) = (card::get().bytes, card::get().free_bytes());
        // SAFETY: the program's place.
        unsafe { put(out, [total, free, total - free]) }
    }
}

/// # Safety
/// The name ends with a zero; `out` is a place.
unsafe fn find(name: *const c_char, out: *mut *const (), flags: u64) -> Status {
    // SAFETY: the caller says so.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let ends: &[&str] = match flags & 2 {
        0 => &["_v2", ""],
        _ => &["_v2_ptsz", "_v2_ptds", "_ptsz", "_ptds", "_v2", ""],
    };
    let all = || ENTRIES.iter().chain(crate::copies::ENTRIES);
    let found = ends
        .iter()
        .find_map(|end| all().find(|e| e.0 == format!("{name}{end}")));
    debug_assert_eq!(size_of::<*const ()>(), 8);
    // SAFETY: the caller says so.
    unsafe { put_result(out, found.map(|e| e.1).ok_or(NOT_FOUND)) }
}
