//! How fast a device is: three kernels, a few times each, in memory of their own that is gone when they have run.

use crate::block::Block;
use crate::dispatch::{Dispatch, Span};
use crate::error::VulkanError;
use crate::gpu::Gpu;
use crate::imports::Imports;
use crate::kernel::Kernel;
use crate::link::VulkanLink;
use crate::slots::Slots;
use crate::words::Words;
use neap_runtime::{DeviceRates, Link, LinkRates, Transfer};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is too short to time is repeated until it takes so long.
const LEAST: Duration = Duration::from_millis(4);
const MOST_REPEATS: u32 = 1 << 10;

/// A 3x3 convolution: so many channels in and out, and places along each axis.
const CHANNELS: usize = 32;
const SIZE: usize = 28;
const FLOPS: usize = 2 * 9 * CHANNELS * CHANNELS * SIZE * SIZE;
const IMAGE_BYTES: usize = CHANNELS * SIZE * SIZE * 4;
const PANELS: usize = CHANNELS / 16;
const WEIGHT_BYTES: usize = PANELS * (1 + 9 * CHANNELS) * 64;

/// Copied: more than a binding of a small device would be no measure of it.
const COPY_BYTES: usize = 96 << 10;

const ALIGN: usize = 64 << 10;
const BYTES: usize = 512 << 10;
/// Copied over a link: more than the slots of its ring together, so that starting is as nothing.
const BLOCK_BYTES: u64 = 4 << 20;

/// Pages that the device imports, or memory of its own.
struct Memory {
    start: *mut u8,
    /// If not, it is part of a block.
    owns: bool,
}

impl Memory {
    const LAYOUT: Layout = match Layout::from_size_align(BYTES, ALIGN) {
        Ok(layout) => layout,
        Err(_) => panic!("a small size"),
    };

    fn new() -> Memory {
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(Self::LAYOUT) };
        if start.is_null() {
            handle_alloc_error(Self::LAYOUT);
        }
        Memory { start, owns: true }
    }

    fn span(&self, at: usize, bytes: usize) -> Span {
        Span {
            start: self.start.wrapping_add(at).cast_const(),
            bytes: bytes as u64,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.owns {
            // SAFETY: it was allocated so.
            unsafe { dealloc(self.start, Self::LAYOUT) };
        }
    }
}

pub(crate) fn measure(gpu: &Arc<Gpu>, slots: &mut Slots) -> Result<DeviceRates, VulkanError> {
    match gpu.has_own_memory() {
        true => in_own_memory(gpu, slots),
        false => in_host_memory(gpu, slots),
    }
}

fn in_own_memory(gpu: &Arc<Gpu>, slots: &mut Slots) -> Result<DeviceRates, VulkanError> {
    let block = Block::new(gpu, BLOCK_BYTES.max(BYTES as u64))?;
    let start = neap_runtime::Block::range(&block).start;
    let mut imports = Imports::default();
    // SAFETY: it is a block, which is not imported.
    unsafe { imports.add(gpu, start, BYTES as u64)? };
    let measured = of_kernels(
        &Memory { start, owns: false },
        gpu.lanes(),
        slots,
        &mut imports,
    );
    if let Err(e) = slots.wait_for(slots.last()) {
        // Lost: it may still use all of this.
        std::mem::forget(block);
        return Err(e);
    }
    let link = of_link(gpu, start)?;
    Ok(DeviceRates {
        link: Some(link),
        ..measured?
    })
}

/// Copies to a block that begins there, and from it.
fn of_link(gpu: &Arc<Gpu>, block: *mut u8) -> Result<LinkRates, VulkanError> {
    let told = VulkanError::NoDevice;
    let mut link = VulkanLink::new(gpu, None)?;
    let host = link.pin(BLOCK_BYTES).map_err(told)?.start;
    let mut seconds = |from: *const u8, to: *mut u8, bytes: u64| {
        let transfer = [Transfer { from, to, bytes }];
        let mut repeats = 2;
        loop {
            let started = Instant::now();
            let mut ticket = 0;
            for _ in 0..repeats {
                // SAFETY: nothing else uses either memory, and both live until the link is gone.
                ticket = unsafe { link.copy(&transfer) }.map_err(told)?;
            }
            link.wait(ticket).map_err(told)?;
            let taken = started.elapsed();
            if taken >= LEAST || repeats >= MOST_REPEATS {
                return Ok::<_, VulkanError>(taken.as_secs_f64() / f64::from(repeats));
            }
            repeats *= 4;
        }
    };
    let nothing = seconds(host, block, 4096)?;
    let mut rate = |from: *const u8, to: *mut u8| {
        let taken = seconds(from, to, BLOCK_BYTES)?;
        Ok::<_, VulkanError>(BLOCK_BYTES as f64 / (taken - nothing).max(taken / 16.0).max(1e-9))
    };
    Ok(LinkRates {
        to_device_bytes_per_second: rate(host, block)?,
        to_host_bytes_per_second: rate(block, host)?,
        latency_ns: (nothing * 1e9) as u64,
    })
}

fn in_host_memory(gpu: &Arc<Gpu>, slots: &mut Slots) -> Result<DeviceRates, VulkanError> {
    let memory = Memory::new();
    let mut imports = Imports::default();
    // SAFETY: the memory lives until the imports are gone, below: by then nothing is in flight.
    unsafe { imports.add(gpu, memory.start, BYTES as u64)? };
    let measured = of_kernels(&memory, gpu.lanes(), slots, &mut imports);
    let settled = slots.wait_for(slots.last());
    if settled.is_err() {
        // Lost: it may still use all of this.
        std::mem::forget((memory, imports));
        settled?;
        return measured;
    }
    drop(imports);
    measured
}

fn of_kernels(
    memory: &Memory,
    lanes: bool,
    slots: &mut Slots,
    imports: &mut Imports,
) -> Result<DeviceRates, VulkanError> {
    let copy = |bytes: usize| {
        let words = (bytes / 4) as u32;
        Dispatch {
            kernel: Kernel::Copy,
            words: Words::new(&[1, words, words, words]),
            groups: [words.div_ceil(64), 1, 1],
            reads: [Some(memory.span(0, bytes)), None, None],
            writes: memory.span(BYTES / 2, bytes),
            mask: None,
        }
    };
    let mut seconds = |dispatch: &Dispatch| timed(dispatch, slots, imports);
    let overhead = seconds(&copy(256))?;
    let copying = seconds(&copy(COPY_BYTES))?;
    let convolving = seconds(&convolution(memory, lanes))?;
    let beyond = |seconds: f64| (seconds - overhead).max(seconds / 16.0);
    Ok(DeviceRates {
        flops_per_second: FLOPS as f64 / beyond(convolving),
        memory_bytes_per_second: (2 * COPY_BYTES) as f64 / beyond(copying),
        job_overhead_ns: (overhead * 1e9) as u64,
        link: None,
    })
}

fn convolution(memory: &Memory, lanes: bool) -> Dispatch {
    let (c, s) = (CHANNELS as u32, SIZE as u32);
    let sizes = [
        1,
        c,
        c,
        1,
        s,
        s,
        s,
        s,
        3,
        3,
        1,
        1,
        1,
        1,
        1,
        1,
        s + 2,
        s + 2,
        0,
        0,
    ];
    Dispatch {
        kernel: if lanes {
            Kernel::ConvLanes
        } else {
            Kernel::Conv
        },
        words: Words::new(&sizes),
        groups: [((SIZE * SIZE) as u32 / 4).div_ceil(64), PANELS as u32, 1],
        reads: [
            Some(memory.span(0, IMAGE_BYTES)),
            Some(memory.span(IMAGE_BYTES.next_multiple_of(4096), WEIGHT_BYTES)),
            None,
        ],
        writes: memory.span(BYTES / 2, IMAGE_BYTES),
        mask: None,
    }
}

/// Seconds that one takes of many, one after the other.
fn timed(
    dispatch: &Dispatch,
    slots: &mut Slots,
    imports: &mut Imports,
) -> Result<f64, VulkanError> {
    let mut repeats = 4;
    loop {
        let started = Instant::now();
        for _ in 0..repeats {
            // SAFETY: the memory that it names lives until nothing is in flight, and nothing else uses it.
            unsafe { slots.dispatch(dispatch, imports)? };
        }
        slots.wait_for(slots.last())?;
        let taken = started.elapsed();
        if taken >= LEAST || repeats >= MOST_REPEATS {
            return Ok((taken.as_secs_f64() / f64::from(repeats)).max(1e-9));
        }
        repeats *= 4;
    }
}
