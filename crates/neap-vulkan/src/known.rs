//! `Known`: what the dispatches of a program take on a device, each timed in memory that is gone afterwards.
//!
//! Where a device has groups of invocations beside each other, what a dispatch takes follows no simple rule of its sizes. So those of the
//! program itself are timed: of all panels of a step, and of one, which tells what a slice takes at least.

use crate::costs::{self, Costs};
use crate::dispatch::{Dispatch, Span};
use crate::error::VulkanError;
use crate::gpu::Gpu;
use crate::imports::Imports;
use crate::rates::{self, Memory};
use crate::slots::Slots;
use crate::steps::{each_slice, each_step};
use neap_ir::Program;
use neap_runtime::DeviceRates;
use std::time::{Duration, Instant};

/// All of it ends about then. What was not timed until then follows from rates.
const MOST: Duration = Duration::from_millis(250);

/// By dispatch: those that differ in where operands are alone take as long.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known(Vec<(Dispatch, f64)>);

// SAFETY: addresses of what was timed are never used again.
unsafe impl Send for Known {}
// SAFETY: as above.
unsafe impl Sync for Known {}

impl Known {
    /// Beside what any dispatch takes.
    pub(crate) fn ns(&self, dispatch: &Dispatch) -> Option<f64> {
        let mut all = self.0.iter();
        all.find(|(known, _)| is_same(known, dispatch))
            .map(|(_, ns)| *ns)
    }
}

fn is_same(a: &Dispatch, b: &Dispatch) -> bool {
    a.kernel == b.kernel && a.groups == b.groups && a.words.shape() == b.words.shape()
}

/// Times the program's dispatches in `memory`, which the device sees. What an empty one takes is `overhead`.
pub(crate) fn measure(
    program: &Program,
    memory: &Memory,
    gpu: &Gpu,
    slots: &mut Slots,
    imports: &mut Imports,
    rates: &mut DeviceRates,
) -> Result<Costs, VulkanError> {
    let mut wanted: Vec<Dispatch> = Vec::new();
    let mut want = |dispatches: Option<&[Dispatch]>| {
        for one in dispatches.unwrap_or_default() {
            if !wanted.iter().any(|other| is_same(other, one)) {
                wanted.push(*one);
            }
        }
    };
    each_step(program, gpu.offer(), &mut want);
    each_slice(program, gpu.offer(), &mut want);
    let started = Instant::now();
    let overhead = rates.job_overhead_ns as f64;
    let mut known = Known::default();
    for dispatch in wanted {
        if started.elapsed() > MOST {
            break;
        }
        let Some((part, share)) = placed(&dispatch, memory) else {
            continue;
        };
        let taken = rates::soon(&part, slots, imports)? * 1e9;
        let ns = (taken - overhead).max(taken / 16.0) * share;
        let flops = costs::flops(&dispatch);
        rates.flops_per_second = rates.flops_per_second.max(flops / ns * 1e9);
        known.0.push((dispatch, ns));
    }
    Ok(Costs::of_known(known))
}

/// A dispatch in that memory, of fewer panels where there is no room for all of them, and how many times longer all of it takes. What is
/// read may overlap.
fn placed(dispatch: &Dispatch, memory: &Memory) -> Option<(Dispatch, f64)> {
    let mut part = *dispatch;
    let mut share = 1.0;
    let written = dispatch.writes.bytes.next_multiple_of(256);
    let room = memory.bytes().checked_sub(written)?;
    if let Some(weights) = part.reads[1].as_mut().filter(|w| w.bytes > room) {
        let all = u64::from(part.groups[1]);
        let some = all * room / weights.bytes;
        if some == 0 || !dispatch.kernel.has_panels() {
            return None;
        }
        share = all as f64 / some as f64;
        part.groups[1] = some as u32;
        weights.bytes = room / 256 * 256;
    }
    let reads = (part.reads.iter_mut()).chain([&mut part.mask]);
    for span in reads.flatten() {
        (span.bytes <= room).then_some(())?;
        *span = memory.span(written as usize, span.bytes as usize);
    }
    part.writes = Span {
        bytes: dispatch.writes.bytes,
        ..memory.span(0, 0)
    };
    Some((part, share))
}
