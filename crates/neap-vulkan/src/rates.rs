//! How fast a device is: its kernels, a few times each, in memory of their own that is gone when they have run.

use crate::block::Block;
use crate::costs::{self, CHANNELS, Costs, SIZE, Work};
use crate::dispatch::{Dispatch, Span};
use crate::error::VulkanError;
use crate::gpu::Gpu;
use crate::imports::Imports;
use crate::kernel::Kernel;
use crate::known;
use crate::link::VulkanLink;
use crate::slots::Slots;
use crate::tiles::Way;
use crate::words::Words;
use neap_ir::Program;
use neap_runtime::{DeviceRates, Link, LinkRates, Transfer};
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is too short to time is repeated until it takes so long.
const LEAST: Duration = Duration::from_millis(2);
const MOST_REPEATS: u32 = 1 << 10;

/// Of what is timed, the least of so many rounds counts.
const ROUNDS: usize = 3;

/// The largest operands of what is timed: rows, panels, and an image.
const INPUT_BYTES: usize = 2 * OUTPUT_BYTES;
const WEIGHT_BYTES: usize = 132 << 10;
const OUTPUT_BYTES: usize = (CHANNELS * SIZE * SIZE) as usize * 4;

/// Copied: more than a binding of a small device would be no measure of it.
const COPY_BYTES: usize = 96 << 10;

/// So often it is timed how long a wait takes.
const WAITS: usize = 15;

const ALIGN: usize = 64 << 10;
const BYTES: usize = 512 << 10;
const _: () = assert!(INPUT_BYTES + WEIGHT_BYTES + OUTPUT_BYTES <= BYTES);
/// Where a program's own dispatches are timed, in the host's memory and in the device's own; and copied there.
const PROGRAM_BYTES: [usize; 2] = [8 << 20, 64 << 20];
const PROGRAM_COPY_BYTES: usize = 2 << 20;
/// Copied over a link: more than the slots of its ring together, so that starting is as nothing.
const BLOCK_BYTES: u64 = 4 << 20;

/// Pages that the device imports, or memory of its own.
pub(crate) struct Memory {
    start: *mut u8,
    bytes: usize,
    /// `None`: it is part of a block.
    layout: Option<Layout>,
}

impl Memory {
    fn new(bytes: usize) -> Result<Memory, VulkanError> {
        let layout = Layout::from_size_align(bytes, ALIGN)
            .map_err(|e| VulkanError::NoDevice(e.to_string()))?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            handle_alloc_error(layout);
        }
        Ok(Memory {
            start,
            bytes,
            layout: Some(layout),
        })
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    pub(crate) fn span(&self, at: usize, bytes: usize) -> Span {
        Span {
            start: self.start.wrapping_add(at).cast_const(),
            bytes: bytes as u64,
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: it was allocated so.
            unsafe { dealloc(self.start, layout) };
        }
    }
}

/// With a program, of its dispatches; but a driver that computes on the processor follows the rule of `costs`, and has no memory aside.
pub(crate) fn measure(
    gpu: &Arc<Gpu>,
    program: Option<&Program>,
    slots: &mut Slots,
) -> Result<(DeviceRates, Costs), VulkanError> {
    let program = program.filter(|_| gpu.offer().way != Way::Lanes);
    match gpu.has_own_memory() {
        true => in_own_memory(gpu, program, slots),
        false => in_host_memory(gpu, program, slots),
    }
}

fn in_own_memory(
    gpu: &Arc<Gpu>,
    program: Option<&Program>,
    slots: &mut Slots,
) -> Result<(DeviceRates, Costs), VulkanError> {
    let bytes = match program {
        Some(_) => PROGRAM_BYTES[1].min(gpu.own_bytes() as usize / 4),
        None => BYTES.max(BLOCK_BYTES as usize),
    };
    let block = Block::new(gpu, bytes as u64)?;
    let start = neap_runtime::Block::range(&block).start;
    let memory = Memory {
        start,
        bytes,
        layout: None,
    };
    let mut imports = Imports::default();
    // SAFETY: it is a block, which is not imported.
    unsafe { imports.add(gpu, start, bytes as u64)? };
    let measured = of_kernels(&memory, gpu, program, slots, &mut imports);
    if let Err(e) = slots.wait_for(slots.last()) {
        // Lost: it may still use all of this.
        std::mem::forget(block);
        return Err(e);
    }
    let link = of_link(gpu, start)?;
    let (rates, costs) = measured?;
    let rates = DeviceRates {
        link: Some(link),
        ..rates
    };
    Ok((rates, costs))
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

fn in_host_memory(
    gpu: &Arc<Gpu>,
    program: Option<&Program>,
    slots: &mut Slots,
) -> Result<(DeviceRates, Costs), VulkanError> {
    let memory = Memory::new(program.map_or(BYTES, |_| PROGRAM_BYTES[0]))?;
    let mut imports = Imports::default();
    // SAFETY: the memory lives until the imports are gone, below: by then nothing is in flight.
    unsafe { imports.add(gpu, memory.start, memory.bytes())? };
    let measured = of_kernels(&memory, gpu, program, slots, &mut imports);
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
    gpu: &Gpu,
    program: Option<&Program>,
    slots: &mut Slots,
    imports: &mut Imports,
) -> Result<(DeviceRates, Costs), VulkanError> {
    let copy = |bytes: usize| {
        let words = (bytes / 4) as u32;
        Dispatch {
            kernel: Kernel::Copy,
            words: Words::new(&[1, words, words, words]),
            groups: [words.div_ceil(64).min(32_768), 1, 1],
            reads: [Some(memory.span(0, bytes)), None, None],
            writes: memory.span(memory.bytes / 2, bytes),
            mask: None,
        }
    };
    let waiting = waited(&copy(256), slots, imports)?;
    let mut seconds = |dispatch: &Dispatch| timed(dispatch, slots, imports);
    let overhead = seconds(&copy(256))?;
    let copy_bytes = program.map_or(COPY_BYTES, |_| PROGRAM_COPY_BYTES);
    let copying = seconds(&copy(copy_bytes))?;
    let beyond = |seconds: f64| (seconds - overhead).max(seconds / 16.0);
    let memory_bytes_per_second = (2 * copy_bytes) as f64 / beyond(copying);
    let mut rates = DeviceRates {
        flops_per_second: memory_bytes_per_second / 4.0,
        memory_bytes_per_second,
        job_overhead_ns: (overhead * 1e9) as u64,
        wait_ns: ((waiting - overhead).max(0.0) * 1e9) as u64,
        link: None,
    };
    if let Some(program) = program {
        let costs = known::measure(program, memory, gpu, slots, imports, &mut rates)?;
        return Ok((rates, costs));
    }
    let mut costs = Costs::default();
    // One operation with each number, where there is no kernel that does more.
    for kernel in Kernel::ALL.into_iter().filter(|&kernel| gpu.has(kernel)) {
        let Some(samples) = costs::timed(kernel) else {
            continue;
        };
        let mut found = Vec::with_capacity(samples.len());
        for (words, groups) in samples {
            let dispatch = sample(kernel, words, groups, memory);
            if let Some(work) = Work::of(&dispatch) {
                let taken = beyond(seconds(&dispatch)?);
                rates.flops_per_second = rates.flops_per_second.max(work.flops / taken);
                found.push((work, taken * 1e9));
            }
        }
        if let Ok(all) = <[(Work, f64); 3]>::try_from(found) {
            costs.add(kernel, all);
        }
    }
    Ok((rates, costs))
}

/// Operands are at the beginnings of parts that are large enough for all that is timed.
fn sample(kernel: Kernel, words: Words, groups: [u32; 3], memory: &Memory) -> Dispatch {
    Dispatch {
        kernel,
        words,
        groups,
        reads: [
            Some(memory.span(0, INPUT_BYTES)),
            Some(memory.span(INPUT_BYTES, WEIGHT_BYTES)),
            None,
        ],
        writes: memory.span(INPUT_BYTES + WEIGHT_BYTES, OUTPUT_BYTES),
        mask: None,
    }
}

/// Seconds that one takes that is waited for, the middle of many: as a processor waits that needs what it computes.
fn waited(
    dispatch: &Dispatch,
    slots: &mut Slots,
    imports: &mut Imports,
) -> Result<f64, VulkanError> {
    let mut taken = [0.0; WAITS];
    for taken in &mut taken {
        let started = Instant::now();
        // SAFETY: the memory that it names lives until nothing is in flight, and nothing else uses it.
        unsafe { slots.dispatch(dispatch, imports)? };
        slots.wait_for(slots.last())?;
        *taken = started.elapsed().as_secs_f64();
    }
    taken.sort_by(f64::total_cmp);
    Ok(taken[WAITS / 2])
}

/// The same in few rounds, which are short: there are many to time.
pub(crate) fn soon(
    dispatch: &Dispatch,
    slots: &mut Slots,
    imports: &mut Imports,
) -> Result<f64, VulkanError> {
    timed_for(dispatch, slots, imports, LEAST / 5, 2)
}

/// Seconds that one takes of many, one after the other: the least of some rounds, as others may use the device.
fn timed(
    dispatch: &Dispatch,
    slots: &mut Slots,
    imports: &mut Imports,
) -> Result<f64, VulkanError> {
    timed_for(dispatch, slots, imports, LEAST, ROUNDS)
}

fn timed_for(
    dispatch: &Dispatch,
    slots: &mut Slots,
    imports: &mut Imports,
    least_taken: Duration,
    wanted: usize,
) -> Result<f64, VulkanError> {
    let mut repeats = 4;
    let mut least = f64::MAX;
    let mut rounds = 0;
    while rounds < wanted {
        let started = Instant::now();
        for _ in 0..repeats {
            // SAFETY: the memory that it names lives until nothing is in flight, and nothing else uses it.
            unsafe { slots.dispatch(dispatch, imports)? };
        }
        slots.wait_for(slots.last())?;
        let taken = started.elapsed();
        if taken >= least_taken || repeats >= MOST_REPEATS {
            least = least.min(taken.as_secs_f64() / f64::from(repeats));
            rounds += 1;
        } else {
            repeats *= 4;
        }
    }
    Ok(least.max(1e-9))
}
