//! Copies and fills. They take as long as a link would.

use crate::api::api;
use crate::status::*;
use crate::streams::{self, Work};
use crate::{card, space};
use std::ffi::{c_uchar, c_uint};
use std::sync::Arc;
use std::time::Duration;

/// Copies so small take no time of their own.
const SMALL: u64 = 64 << 10;

fn copy(to: u64, from: u64, bytes: u64) -> Work {
    Arc::new(move || {
        let device = |at| space::with(|s| s.is_device(at));
        let ranges: Vec<(u64, u64)> = [to, from]
            .into_iter()
            .filter(|&at| device(at))
            .map(|at| (at, bytes))
            .collect();
        space::using("a copy", &ranges, || {
            if bytes > SMALL {
                let seconds = bytes as f64 / card::get().bytes_per_second as f64;
                std::thread::sleep(Duration::from_secs_f64(seconds));
            }
            // SAFETY: memory of the card is mapped while this runs; the host's is the program's.
            unsafe { (from as *const u8).copy_to(to as *mut u8, bytes as usize) };
        });
    })
}

fn fill(to: u64, value: u64, width: u64, count: u64) -> Work {
    Arc::new(move || {
        space::using("a fill", &[(to, count * width)], || {
            for i in 0..count * width {
                let byte = value.to_le_bytes()[(i % width) as usize];
                // SAFETY: the range is mapped while this runs.
                unsafe { ((to + i) as *mut u8).write(byte) };
            }
        });
    })
}

/// Gives work to a stream; work on pageable memory of the host is done before the call returns, as the driver's is.
fn give(stream: usize, work: Work, host: Option<u64>) -> Status {
    let is_pageable = host.is_some_and(|at| !space::with(|s| s.is_host(at)));
    let was_given = streams::give(stream, work);
    if is_pageable && was_given && !streams::is_captured(stream) {
        streams::wait(stream);
    }
    if was_given { SUCCESS } else { INVALID_VALUE }
}

fn now(work: &Work) -> Status {
    streams::wait_for_all();
    work();
    SUCCESS
}

api! {
    fn [cuMemcpy cuMemcpy_ptds cuMemcpyHtoD_v2 cuMemcpyHtoD_v2_ptds cuMemcpyDtoH_v2 cuMemcpyDtoH_v2_ptds
        cuMemcpyDtoD_v2 cuMemcpyDtoD_v2_ptds](to: u64, from: u64, bytes: u64) {
        now(&copy(to, from, bytes))
    }

    fn [cuMemcpyAsync cuMemcpyAsync_ptsz cuMemcpyDtoDAsync_v2 cuMemcpyDtoDAsync_v2_ptsz]
        (to: u64, from: u64, bytes: u64, stream: usize) {
        give(stream, copy(to, from, bytes), None)
    }

    fn [cuMemcpyHtoDAsync_v2 cuMemcpyHtoDAsync_v2_ptsz](to: u64, from: u64, bytes: u64, stream: usize) {
        give(stream, copy(to, from, bytes), Some(from))
    }

    fn [cuMemcpyDtoHAsync_v2 cuMemcpyDtoHAsync_v2_ptsz](to: u64, from: u64, bytes: u64, stream: usize) {
        give(stream, copy(to, from, bytes), Some(to))
    }

    fn [cuMemsetD8_v2 cuMemsetD8_v2_ptds](to: u64, value: c_uchar, count: u64) {
        now(&fill(to, value.into(), 1, count))
    }

    fn [cuMemsetD32_v2 cuMemsetD32_v2_ptds](to: u64, value: c_uint, count: u64) {
        now(&fill(to, value.into(), 4, count))
    }

    fn [cuMemsetD8Async cuMemsetD8Async_ptsz](to: u64, value: c_uchar, count: u64, stream: usize) {
        give(stream, fill(to, value.into(), 1, count), None)
    }

    fn [cuMemsetD32Async cuMemsetD32Async_ptsz](to: u64, value: c_uint, count: u64, stream: usize) {
        give(stream, fill(to, value.into(), 4, count), None)
    }
}
