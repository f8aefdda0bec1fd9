//! The few things that the hook itself asks of the card.

use crate::real::{Status, driver};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{from_ref, null_mut};

/// An address on the card.
pub type Address = u64;
pub type Handle = u64;
pub type Context = *mut c_void;
pub type Stream = *mut c_void;
pub type Event = *mut c_void;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Location {
    pub kind: c_int,
    pub id: c_int,
}

/// Of a location: memory of a card.
pub const ON_DEVICE: c_int = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Properties {
    pub kind: c_int,
    pub handle_types: c_int,
    pub location: Location,
    pub metadata: *mut c_void,
    pub flags: u64,
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Access {
    pub location: Location,
    pub flags: c_int,
}

/// A card, and how the hook talks to it.
pub struct Device {
    pub ordinal: c_int,
    pub context: Context,
    pub stream: Stream,
}

// SAFETY: the driver's handles may be used on every thread.
unsafe impl Send for Device {}

const PINNED: c_int = 1;
const READ_WRITE: c_int = 3;

impl Properties {
    /// Plain memory of this card.
    pub fn plain(device: c_int) -> Properties {
        Properties {
            kind: PINNED,
            handle_types: 0,
            location: on(device),
            metadata: null_mut(),
            flags: 0,
        }
    }
}

fn on(device: c_int) -> Location {
    Location {
        kind: ON_DEVICE,
        id: device,
    }
}

/// Reading and writing, from this card.
pub fn own(device: c_int) -> Access {
    Access {
        location: on(device),
        flags: READ_WRITE,
    }
}

fn result<T>(value: T, status: Status) -> Result<T, Status> {
    match status {
        0 => Ok(value),
        status => Err(status),
    }
}

pub fn current_context() -> Result<Context, Status> {
    let mut context: Context = null_mut();
    let status = driver!(cuCtxGetCurrent(&raw mut context => *mut Context));
    result(context, status)
}

pub fn current_device() -> Result<c_int, Status> {
    let mut device = 0;
    let status = driver!(cuCtxGetDevice(&raw mut device => *mut c_int));
    result(device, status)
}

pub fn total_bytes(device: c_int) -> Result<u64, Status> {
    let mut bytes = 0u64;
    let status = driver!(cuDeviceTotalMem_v2(&raw mut bytes => *mut u64, device => c_int));
    result(bytes, status)
}

/// Free and all memory of the current context's card.
pub fn memory_info() -> Result<(u64, u64), Status> {
    let (mut free, mut total) = (0u64, 0u64);
    let status = driver!(cuMemGetInfo_v2(&raw mut free => *mut u64, &raw mut total => *mut u64));
    result((free, total), status)
}

pub fn reserve(bytes: u64) -> Result<Address, Status> {
    let mut base = 0;
    let status = driver!(cuMemAddressReserve(
        &raw mut base => *mut Address, bytes => u64, 0 => u64, 0 => Address, 0 => u64
    ));
    result(base, status)
}

pub fn free_reserved(at: Address, bytes: u64) -> Result<(), Status> {
    result((), driver!(cuMemAddressFree(at => Address, bytes => u64)))
}

pub fn create(bytes: u64, properties: &Properties) -> Result<Handle, Status> {
    let mut handle = 0;
    let status = driver!(cuMemCreate(
        &raw mut handle => *mut Handle, bytes => u64, from_ref(properties) => *const Properties, 0 => u64
    ));
    result(handle, status)
}

pub fn map(at: Address, bytes: u64, offset: u64, handle: Handle) -> Result<(), Status> {
    let status = driver!(cuMemMap(
        at => Address, bytes => u64, offset => u64, handle => Handle, 0 => u64
    ));
    result((), status)
}

pub fn set_access(at: Address, bytes: u64, access: &[Access]) -> Result<(), Status> {
    let status = driver!(cuMemSetAccess(
        at => Address, bytes => u64, access.as_ptr() => *const Access, access.len() as u64 => u64
    ));
    result((), status)
}

pub fn unmap(at: Address, bytes: u64) -> Result<(), Status> {
    result((), driver!(cuMemUnmap(at => Address, bytes => u64)))
}

pub fn release(handle: Handle) -> Result<(), Status> {
    result((), driver!(cuMemRelease(handle => Handle)))
}

/// Pinned memory of the host, for all contexts.
pub fn host_memory(bytes: u64) -> Result<*mut c_void, Status> {
    const PORTABLE: c_uint = 1;
    let mut memory = null_mut();
    let status = driver!(cuMemHostAlloc(
        &raw mut memory => *mut *mut c_void, bytes => u64, PORTABLE => c_uint
    ));
    result(memory, status)
}

pub fn free_host_memory(memory: *mut c_void) {
    let _ = driver!(cuMemFreeHost(memory => *mut c_void));
}

/// Waits for all work of the current context.
pub fn synchronize() -> Result<(), Status> {
    result((), driver!(cuCtxSynchronize()))
}

pub fn new_stream() -> Result<Stream, Status> {
    const NON_BLOCKING: c_uint = 1;
    let mut stream = null_mut();
    let status = driver!(cuStreamCreate(&raw mut stream => *mut Stream, NON_BLOCKING => c_uint));
    result(stream, status)
}

pub fn wait_for(stream: Stream) -> Result<(), Status> {
    result((), driver!(cuStreamSynchronize(stream => Stream)))
}

pub fn copy_out(to: *mut c_void, from: Address, bytes: u64, stream: Stream) -> Result<(), Status> {
    let status = driver!(cuMemcpyDtoHAsync_v2(
        to => *mut c_void, from => Address, bytes => u64, stream => Stream
    ));
    result((), status)
}

pub fn copy_in(to: Address, from: *mut c_void, bytes: u64, stream: Stream) -> Result<(), Status> {
    let status = driver!(cuMemcpyHtoDAsync_v2(
        to => Address, from => *mut c_void, bytes => u64, stream => Stream
    ));
    result((), status)
}

/// Does something in a context, on whatever thread.
pub fn within<T>(context: Context, act: impl FnOnce() -> T) -> Result<T, Status> {
    result((), driver!(cuCtxPushCurrent_v2(context => Context)))?;
    let done = act();
    let mut popped = null_mut();
    let status = driver!(cuCtxPopCurrent_v2(&raw mut popped => *mut Context));
    result(done, status)
}

/// What this thread asks of the card does not disturb graphs that others capture.
pub fn relax_captures() {
    let mut mode: c_int = 2;
    let _ = driver!(cuThreadExchangeStreamCaptureMode(&raw mut mode => *mut c_int));
}
