//! Allocations and frees.
//!
//! What is freed in the order of a stream is given back when the stream has come there; the same stream may have it again
//! at once, as it works in order.

use crate::agent::{self, Agent, lock};
use crate::card::{Address, Event, Stream};
use crate::export::export;
use crate::memory::{self, KEPT};
use crate::real::{INVALID_VALUE, OUT_OF_MEMORY, Status, driver};
use crate::{arena, gate};
use std::ffi::c_uint;
use std::ptr::null_mut;
use std::sync::Mutex;

/// A free whose stream has not come there yet.
struct Pending {
    address: Address,
    bytes: u64,
    stream: Stream,
    per_thread: bool,
    event: Event,
}

// SAFETY: the driver's handles may be used on every thread.
unsafe impl Send for Pending {}

static PENDING: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

/// Allocates of ours, or as the driver does where the card is not the managed one.
fn allocate(out: *mut Address, bytes: u64, driver: impl FnOnce() -> Status) -> Status {
    let Some(agent) = agent::get() else {
        return driver();
    };
    if out.is_null() {
        return INVALID_VALUE;
    }
    if let Err(status) = agent.enter() {
        return status;
    }
    let result = with_pending(agent, bytes);
    gate::leave();
    match result {
        Ok(Some(address)) => {
            // SAFETY: the program gave the place, and it is not null.
            unsafe { *out = address };
            0
        }
        Ok(None) => driver(),
        Err(status) => status,
    }
}

/// Allocates; when there is no memory, once more with what streams have freed.
fn with_pending(agent: &Agent, bytes: u64) -> Result<Option<Address>, Status> {
    sweep(false);
    let first = memory::get().allocate(agent, bytes);
    if first != Err(OUT_OF_MEMORY) || lock(&PENDING).is_empty() {
        return first;
    }
    memory::wait_for_card();
    sweep(true);
    memory::get().allocate(agent, bytes)
}

/// Gives back what streams have come past; all of it where the card has been waited for.
fn sweep(all: bool) {
    let mut pending = lock(&PENDING);
    if pending.is_empty() {
        return;
    }
    let mut memory = memory::get();
    let kept = if all { 0 } else { KEPT };
    pending.retain(|p| {
        let done = all || driver!(cuEventQuery(p.event => Event)) == 0;
        if done {
            memory.free(p.address, kept);
            let _ = driver!(cuEventDestroy_v2(p.event => Event));
        }
        !done
    });
}

/// What the same stream freed before and is of the same size.
fn again(bytes: u64, stream: Stream, per_thread: bool) -> Option<Address> {
    let bytes = bytes.max(1).checked_next_multiple_of(arena::ALIGN)?;
    let mut pending = lock(&PENDING);
    let same = |p: &Pending| p.stream == stream && p.per_thread == per_thread && p.bytes == bytes;
    // A default stream of each thread has no name that says whose it is.
    let found = pending.iter().position(|p| !per_thread && same(p))?;
    let found = pending.swap_remove(found);
    let _ = driver!(cuEventDestroy_v2(found.event => Event));
    Some(found.address)
}

fn is_capturing(stream: Stream, per_thread: bool) -> bool {
    let mut status: c_uint = 0;
    let asked = match per_thread {
        true => driver!(cuStreamIsCapturing_ptsz(stream => Stream, &raw mut status => *mut c_uint)),
        false => driver!(cuStreamIsCapturing(stream => Stream, &raw mut status => *mut c_uint)),
    };
    asked == 0 && status != 0
}

fn allocate_in_order(
    out: *mut Address,
    bytes: u64,
    stream: Stream,
    per_thread: bool,
    driver: impl FnOnce() -> Status,
) -> Status {
    // A capture makes a node of a graph from it.
    if agent::get().is_none() || out.is_null() || is_capturing(stream, per_thread) {
        return driver();
    }
    if let Some(address) = again(bytes, stream, per_thread) {
        // SAFETY: the program gave the place, and it is not null.
        unsafe { *out = address };
        return 0;
    }
    allocate(out, bytes, driver)
}

fn free_in_order(address: Address, stream: Stream, per_thread: bool) -> Option<Status> {
    let (_, bytes) = memory::get()
        .find(address)
        .filter(|&(start, _)| start == address)?;
    let mut event: Event = null_mut();
    const WITHOUT_TIMING: c_uint = 2;
    let made = driver!(cuEventCreate(&raw mut event => *mut Event, WITHOUT_TIMING => c_uint));
    let recorded = match (made, per_thread) {
        (0, true) => driver!(cuEventRecord_ptsz(event => Event, stream => Stream)),
        (0, false) => driver!(cuEventRecord(event => Event, stream => Stream)),
        (status, _) => status,
    };
    if recorded != 0 {
        return Some(recorded);
    }
    lock(&PENDING).push(Pending {
        address,
        bytes,
        stream,
        per_thread,
        event,
    });
    Some(0)
}

/// Memory of the driver's own that cannot leave the card; it is counted.
fn fixed(out: *mut Address, bytes: u64, driver: impl FnOnce() -> Status) -> Status {
    let Some(agent) = agent::get() else {
        return driver();
    };
    if let Err(status) = agent.enter() {
        return status;
    }
    let status = match memory::need(agent, bytes, true) {
        Err(status) => status,
        Ok(()) => match driver() {
            0 => {
                // SAFETY: the driver has written there.
                memory::get().add_fixed(unsafe { *out }, bytes);
                0
            }
            status => {
                memory::decline(bytes, true);
                status
            }
        },
    };
    gate::leave();
    status
}

/// A row's bytes when rows begin where the card likes it.
fn pitch(width: u64) -> Option<u64> {
    width.checked_next_multiple_of(512)
}

/// Gives an allocation back after the card's work is done. `None` where it is not ours.
fn free(address: Address) -> Option<Status> {
    agent::connected()?;
    if !memory::get().is_ours(address) {
        return None;
    }
    memory::wait_before_free();
    memory::get().free(address, 0);
    Some(0)
}

export! {
    fn cuMemAlloc_v2(out: *mut Address, bytes: u64) {
        allocate(out, bytes, || driver!(cuMemAlloc_v2(out => *mut Address, bytes => u64)))
    }

    fn cuMemAllocPitch_v2(out: *mut Address, row: *mut u64, width: u64, height: u64, element: c_uint) {
        let plain = || driver!(cuMemAllocPitch_v2(
            out => *mut Address, row => *mut u64, width => u64, height => u64, element => c_uint
        ));
        if agent::get().is_none() {
            return plain();
        }
        let bytes = pitch(width).and_then(|pitch| Some((pitch, pitch.checked_mul(height)?)));
        let (false, Some((pitch, bytes))) = (row.is_null(), bytes) else {
            return INVALID_VALUE;
        };
        let status = allocate(out, bytes, plain);
        // SAFETY: the program gave the places, which are not null. What the driver allocated is not ours.
        unsafe {
            if status == 0 && memory::get().is_ours(*out) {
                *row = pitch;
            }
        }
        status
    }

    fn cuMemAllocManaged(out: *mut Address, bytes: u64, flags: c_uint) {
        fixed(out, bytes, || driver!(cuMemAllocManaged(
            out => *mut Address, bytes => u64, flags => c_uint
        )))
    }

    fn cuMemFree_v2(address: Address) {
        if let Some(status) = free(address) {
            return status;
        }
        let status = driver!(cuMemFree_v2(address => Address));
        if status == 0 && agent::connected().is_some() {
            memory::get().remove_fixed(address);
        }
        status
    }

    fn cuMemAllocAsync(out: *mut Address, bytes: u64, stream: Stream) {
        allocate_in_order(out, bytes, stream, false, || driver!(cuMemAllocAsync(
            out => *mut Address, bytes => u64, stream => Stream
        )))
    }

    fn cuMemAllocAsync_ptsz(out: *mut Address, bytes: u64, stream: Stream) {
        allocate_in_order(out, bytes, stream, true, || driver!(cuMemAllocAsync_ptsz(
            out => *mut Address, bytes => u64, stream => Stream
        )))
    }

    fn cuMemAllocFromPoolAsync(out: *mut Address, bytes: u64, pool: usize, stream: Stream) {
        allocate_in_order(out, bytes, stream, false, || driver!(cuMemAllocFromPoolAsync(
            out => *mut Address, bytes => u64, pool => usize, stream => Stream
        )))
    }

    fn cuMemAllocFromPoolAsync_ptsz(out: *mut Address, bytes: u64, pool: usize, stream: Stream) {
        allocate_in_order(out, bytes, stream, true, || driver!(cuMemAllocFromPoolAsync_ptsz(
            out => *mut Address, bytes => u64, pool => usize, stream => Stream
        )))
    }

    fn cuMemFreeAsync(address: Address, stream: Stream) {
        let freed = agent::connected().and_then(|_| free_in_order(address, stream, false));
        freed.unwrap_or_else(|| driver!(cuMemFreeAsync(address => Address, stream => Stream)))
    }

    fn cuMemFreeAsync_ptsz(address: Address, stream: Stream) {
        let freed = agent::connected().and_then(|_| free_in_order(address, stream, true));
        freed.unwrap_or_else(|| driver!(cuMemFreeAsync_ptsz(address => Address, stream => Stream)))
    }

    fn cuMemPoolTrimTo(pool: usize, kept: u64) {
        if agent::connected().is_some() {
            sweep(false);
            memory::get().trim(0);
        }
        driver!(cuMemPoolTrimTo(pool => usize, kept => u64))
    }
}
