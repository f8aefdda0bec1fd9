//! Which steps are computed in scratch, and how much of it they get.
//!
//! ```text
//!   bytes   ┌─ highest step
//!           │ ▄▄▄ ░░░ ▄▄▄      ▄ live in a step, with one panel of its weights
//!           │ ███ ▄▄▄ ███ ░░░  ░ room for its scratch
//!           └─────────────────
//! ```
//! A step gets what the program's highest step needs more than it: so no arena has to be larger for scratch. That follows from the
//! program alone, and with it the kernels and their bits.

use crate::dispatch::{Dispatch, Span};
use crate::operators::{Call, Gain, convolution_ns, dispatches, gain};
use crate::steps::{Offer, each_call};
use neap_ir::program::Storage;
use neap_ir::recipe::PackedForm;
use neap_ir::{Node, Program};
use neap_ops::Choice;

/// Where scratch is while nothing runs: as far from buffers as they are from each other.
const ANYWHERE: *const u8 = std::ptr::without_provenance(1 << 30);

/// Kernels more take memory of the driver, in all budgets. So a program has them only if they save this part of what its convolutions
/// take.
const SAVES_ONE_OF: u64 = 4;

/// Bytes of scratch, and what computes all panels of a step in it.
type InScratch<'a> = (u64, &'a [Dispatch]);

/// By step: bytes of scratch, and the dispatches of all its panels in it; `None` where it has the direct kernel.
pub(crate) fn each_with_scratch(
    program: &Program,
    offer: Offer<'_>,
    take: &mut dyn FnMut(Option<InScratch<'_>>),
) {
    let gains = gains(program, offer);
    let mut out = Vec::new();
    each_call(program, offer, &mut |step, call| {
        let bytes = gains
            .get(step)
            .copied()
            .flatten()
            .map(|gain| gain.scratch_bytes);
        let bytes = bytes.filter(|&bytes| {
            let listed = call.and_then(|call| listed(call, bytes, &mut out));
            listed.is_some()
        });
        take(bytes.map(|bytes| (bytes, out.as_slice())));
    });
}

/// By step; empty where they are not worth it.
fn gains(program: &Program, offer: Offer<'_>) -> Vec<Option<Gain>> {
    if !offer.scratch {
        return Vec::new();
    }
    let rooms = rooms(program);
    let mut gains = Vec::with_capacity(rooms.len());
    let mut direct_ns = 0u64;
    each_call(program, offer, &mut |step, call| {
        direct_ns = direct_ns.saturating_add(call.map_or(0, convolution_ns));
        gains.push(call.and_then(|call| gain(call, rooms[step])));
    });
    let saved = gains.iter().flatten().map(|gain| gain.saved_ns);
    let saved_ns = saved.fold(0, u64::saturating_add);
    match saved_ns >= direct_ns / SAVES_ONE_OF {
        true => gains,
        false => Vec::new(),
    }
}

fn listed(call: &Call, scratch_bytes: u64, out: &mut Vec<Dispatch>) -> Option<()> {
    let call = Call {
        scratch: Some(Span {
            start: ANYWHERE,
            bytes: scratch_bytes,
        }),
        ..call.clone()
    };
    dispatches(&call, Choice::DEVICE_WINOGRAD, out)
}

/// By step: what it may have, whether activations that it does not use stay in memory or are stored meanwhile.
fn rooms(program: &Program) -> Vec<u64> {
    let nodes = || (program.steps.iter()).map(|step| &program.graph.nodes[step.index()]);
    let mut live = vec![0u64; program.steps.len()];
    for buffer in &program.buffers {
        let steps = buffer.live.start as usize..buffer.live.end as usize;
        for bytes in live.get_mut(steps).into_iter().flatten() {
            *bytes = bytes.saturating_add(buffer.bytes);
        }
    }
    let used: Vec<u64> = nodes().map(|node| used_bytes(program, node)).collect();
    let weights: Vec<u64> = nodes().map(|node| weight_bytes(program, node)).collect();
    let highest = |activations: &[u64]| {
        let all = activations.iter().zip(&weights);
        all.map(|(a, w)| a.saturating_add(*w)).max().unwrap_or(0)
    };
    let (most_live, most_used) = (highest(&live), highest(&used));
    let each = live.iter().zip(&used).zip(&weights);
    each.map(|((live, used), weights)| {
        let left = |most: u64, own: u64| most.saturating_sub(own.saturating_add(*weights));
        left(most_live, *live).min(left(most_used, *used))
    })
    .collect()
}

/// Of the buffers that a step reads and writes.
fn used_bytes(program: &Program, node: &Node) -> u64 {
    let values = node.inputs.iter().chain(&node.outputs).flatten();
    let buffers = values.filter_map(|id| match program.storage[id.index()] {
        Storage::Buffer { buffer, .. } => Some(buffer),
        _ => None,
    });
    let mut buffers: Vec<u32> = buffers.collect();
    buffers.sort_unstable();
    buffers.dedup();
    let bytes = (buffers.iter()).map(|&buffer| program.buffers[buffer as usize].bytes);
    bytes.fold(0, u64::saturating_add)
}

/// Of the least weights that a step computes with.
fn weight_bytes(program: &Program, node: &Node) -> u64 {
    let packed = node.panels.and_then(|id| program.packed.get(id.index()));
    match packed.map(|packed| &packed.form) {
        Some(PackedForm::Panels { panel_bytes, .. }) => *panel_bytes,
        _ => 0,
    }
}
