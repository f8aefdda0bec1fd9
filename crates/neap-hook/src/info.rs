//! What the program is told of its memory.

use crate::agent;
use crate::card::{self, Address};
use crate::export::export;
use crate::memory;
use crate::real::{INVALID_VALUE, Real, Status, driver};
use crate::work::pass;
use std::ffi::{c_int, c_uint, c_void};

/// What the program may think: free and all of the card's bytes.
fn view(free: u64, total: u64) -> (u64, u64) {
    let Some(agent) = agent::get() else {
        return (free, total);
    };
    let total = match agent.memory_bytes() {
        0 => total,
        own => own.min(total),
    };
    let held = memory::held();
    let used = held.resident + held.away + held.fixed;
    (total.saturating_sub(used), total)
}

/// Attributes of a pointer that only the hook knows.
const RANGE_START: c_int = 11;
const RANGE_SIZE: c_int = 12;

/// The start and length of an allocation of ours.
fn range_of(address: Address) -> Option<(Address, u64)> {
    agent::connected()?;
    memory::get().find(address)
}

/// Writes the start or the length of an allocation of ours over what the driver said.
///
/// # Safety
/// `out` is a place for the attribute.
unsafe fn correct(out: *mut c_void, attribute: c_int, address: Address) {
    if !matches!(attribute, RANGE_START | RANGE_SIZE) || out.is_null() {
        return;
    }
    if let Some((start, bytes)) = range_of(address) {
        let value = if attribute == RANGE_START {
            start
        } else {
            bytes
        };
        // SAFETY: both attributes have this size.
        unsafe { out.cast::<u64>().write(value) };
    }
}

/// `nvmlMemory_t`.
#[repr(C)]
pub struct Nvml {
    total: u64,
    free: u64,
    used: u64,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub struct NvmlV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

type Query<T> = unsafe extern "C" fn(*mut c_void, *mut T) -> Status;

/// Asks the management library, by the name of its function.
fn nvml<T>(real: &Real, device: *mut c_void, out: *mut T) -> Status {
    const NOT_FOUND: Status = 13;
    let found = real.get();
    if found.is_null() {
        return NOT_FOUND;
    }
    // SAFETY: the library's header gives both functions this type.
    let query = unsafe { std::mem::transmute::<*mut c_void, Query<T>>(found) };
    // SAFETY: the arguments are the program's own.
    unsafe { query(device, out) }
}

const NVML: &std::ffi::CStr = c"libnvidia-ml.so.1";

export! {
    fn cuMemGetInfo_v2(free: *mut u64, total: *mut u64) {
        if agent::get().is_none() || free.is_null() || total.is_null() {
            return driver!(cuMemGetInfo_v2(free => *mut u64, total => *mut u64));
        }
        match card::memory_info() {
            Ok((real_free, real_total)) => {
                let (own_free, own_total) = view(real_free, real_total);
                // SAFETY: the program gave the places, and they are not null.
                unsafe { (*free, *total) = (own_free, own_total) };
                0
            }
            Err(status) => status,
        }
    }

    fn cuDeviceTotalMem_v2(out: *mut u64, device: c_int) {
        let status = driver!(cuDeviceTotalMem_v2(out => *mut u64, device => c_int));
        if status == 0 && agent::get().is_some() {
            // SAFETY: the driver has written there.
            unsafe { *out = view(0, *out).1 };
        }
        status
    }

    fn cuMemGetAddressRange_v2(start: *mut Address, bytes: *mut u64, address: Address) {
        let Some(found) = range_of(address) else {
            return driver!(cuMemGetAddressRange_v2(
                start => *mut Address, bytes => *mut u64, address => Address
            ));
        };
        if !start.is_null() {
            // SAFETY: the program gave the place, and it is not null.
            unsafe { *start = found.0 };
        }
        if !bytes.is_null() {
            // SAFETY: the program gave the place, and it is not null.
            unsafe { *bytes = found.1 };
        }
        0
    }

    fn cuPointerGetAttribute(out: *mut c_void, attribute: c_int, address: Address) {
        let status = pass(|| driver!(cuPointerGetAttribute(
            out => *mut c_void, attribute => c_int, address => Address
        )));
        if status == 0 {
            // SAFETY: the driver has written there.
            unsafe { correct(out, attribute, address) };
        }
        status
    }

    fn cuPointerGetAttributes(
        count: c_uint, attributes: *const c_int, out: *const *mut c_void, address: Address,
    ) {
        let status = pass(|| driver!(cuPointerGetAttributes(
            count => c_uint, attributes => *const c_int, out => *const *mut c_void, address => Address
        )));
        if attributes.is_null() || out.is_null() {
            return if status == 0 { INVALID_VALUE } else { status };
        }
        if status == 0 {
            for i in 0..count as usize {
                // SAFETY: the program gave so many attributes and places, and the driver has used them.
                unsafe { correct(*out.add(i), *attributes.add(i), address) };
            }
        }
        status
    }

    fn nvmlDeviceGetMemoryInfo(device: *mut c_void, out: *mut Nvml) {
        static REAL: Real = Real::of(c"nvmlDeviceGetMemoryInfo", NVML);
        let status = nvml(&REAL, device, out);
        if status == 0 && agent::connected().is_some() {
            // SAFETY: the library has written there.
            let out = unsafe { &mut *out };
            (out.free, out.total) = view(out.free, out.total);
            out.used = out.total - out.free;
        }
        status
    }

    fn nvmlDeviceGetMemoryInfo_v2(device: *mut c_void, out: *mut NvmlV2) {
        static REAL: Real = Real::of(c"nvmlDeviceGetMemoryInfo_v2", NVML);
        let status = nvml(&REAL, device, out);
        if status == 0 && agent::connected().is_some() {
            // SAFETY: the library has written there.
            let out = unsafe { &mut *out };
            (out.free, out.total) = view(out.free, out.total);
            (out.reserved, out.used) = (0, out.total - out.free);
        }
        status
    }
}
