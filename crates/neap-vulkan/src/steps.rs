//! Which steps of a program the device computes.

use crate::dispatch::{Dispatch, Panels, Span};
use crate::kernel::{Kernel, Kernels};
use crate::limits::Limits;
use crate::operators::{Call, dispatches};
use crate::scratch::each_with_scratch;
use crate::tiles::Way;
use neap_ir::program::Storage;
use neap_ir::recipe::PackedForm;
use neap_ir::{Node, Op, Program, ValueId};
use neap_ops::{Choice, TensorMut, TensorRef};
use std::cell::RefCell;

/// What there is for dispatches.
#[derive(Clone, Copy)]
pub(crate) struct Offer<'a> {
    pub limits: &'a Limits,
    pub kernels: Kernels,
    pub way: Way,
    /// Steps may have kernels that take scratch.
    pub scratch: bool,
}

/// By step. It follows from operators, types and sizes.
pub(crate) fn computed_here(program: &Program, offer: Offer<'_>) -> Vec<bool> {
    let mut here = Vec::with_capacity(program.steps.len());
    each_step(program, offer, &mut |dispatches| {
        here.push(dispatches.is_some())
    });
    here
}

/// What its steps need, of what the device has.
pub(crate) fn kernels_of(program: &Program, offer: Offer<'_>) -> Kernels {
    let mut kernels = Kernels::default();
    // How long that takes is measured, whatever the program needs.
    kernels.add(Kernel::Copy);
    each_step(program, offer, &mut |dispatches| {
        let dispatches = dispatches.iter().flat_map(|all| all.iter());
        dispatches.for_each(|one| kernels.add(one.kernel));
    });
    each_with_scratch(program, offer, &mut |found| {
        let dispatches = found.iter().flat_map(|(_, all)| all.iter());
        dispatches.for_each(|one| kernels.add(one.kernel));
    });
    kernels
}

/// Each step's dispatches, `None` for those of the processor. Operands are anywhere: buffers far apart.
pub(crate) fn each_step(
    program: &Program,
    offer: Offer<'_>,
    take: &mut dyn FnMut(Option<&[Dispatch]>),
) {
    let mut out = Vec::new();
    each_call(program, offer, &mut |_, call| {
        let listed = call.and_then(|call| dispatches(call, Choice::default(), &mut out));
        take(listed.is_some().then_some(&out));
    });
}

/// Each step's dispatches for its first panel alone, `None` for those without panels.
pub(crate) fn each_slice(
    program: &Program,
    offer: Offer<'_>,
    take: &mut dyn FnMut(Option<&[Dispatch]>),
) {
    let mut out = Vec::new();
    each_call(program, offer, &mut |_, call| {
        let listed = call.and_then(|call| {
            let mut call = call.clone();
            let panels = call.panels.as_mut()?;
            panels.all.bytes /= panels.range.len().max(1) as u64;
            panels.range = 0..panels.range.len().min(1);
            dispatches(&call, Choice::default(), &mut out)
        });
        take(listed.is_some().then_some(&out));
    });
}

/// Each step as a job of all its panels, without scratch; `None` for those that only the processor can compute.
pub(crate) fn each_call(
    program: &Program,
    offer: Offer<'_>,
    take: &mut dyn FnMut(usize, Option<&Call>),
) {
    let table = RefCell::new(Vec::new());
    for (at, &step) in program.steps.iter().enumerate() {
        let node = &program.graph.nodes[step.index()];
        match node.op {
            Op::GatherRows { .. } | Op::Late(_) => take(at, None),
            _ => with_call(program, node, offer, &table, &mut |call| take(at, call)),
        }
    }
}

fn with_call(
    program: &Program,
    node: &Node,
    offer: Offer<'_>,
    table: &RefCell<Vec<u32>>,
    take: &mut dyn FnMut(Option<&Call>),
) {
    let value = |id: ValueId| (&program.graph.values[id.index()], place(program, id));
    let inputs: Vec<_> = (node.inputs.iter())
        .map(|input| {
            let (value, at) = value((*input)?);
            // SAFETY: nobody reads it.
            Some(unsafe { TensorRef::new(&value.ty, value.layout, at) })
        })
        .collect();
    let outputs: Vec<_> = (node.outputs.iter())
        .map(|output| {
            let (value, at) = value((*output)?);
            // SAFETY: nobody writes it.
            Some(unsafe { TensorMut::new(&value.ty, value.layout, at.cast_mut()) })
        })
        .collect();
    let panels = node.panels.and_then(|id| {
        let packed = program.packed.get(id.index())?;
        let PackedForm::Panels { panels, format, .. } = packed.form else {
            return None;
        };
        Some(Panels {
            range: 0..panels as usize,
            format,
            all: Span {
                start: std::ptr::without_provenance(1 << 20),
                bytes: packed.bytes,
            },
        })
    });
    let call = Call {
        op: &node.op,
        inputs: &inputs,
        outputs: &outputs,
        panels,
        scratch: None,
        limits: offer.limits,
        kernels: offer.kernels,
        way: offer.way,
        table,
    };
    take(Some(&call));
}

/// Values share an address where they share a place.
fn place(program: &Program, id: ValueId) -> *const u8 {
    const APART: usize = 1 << 40;
    let at = match program.storage[id.index()] {
        Storage::Buffer {
            buffer,
            offset_bytes,
        } => (buffer as usize + 1) * APART + offset_bytes as usize,
        // Written by nobody.
        _ => APART / 2 + id.index() * 64,
    };
    std::ptr::without_provenance(at)
}
