//! Which steps of a program the device computes.

use crate::dispatch::{Dispatch, Panels, Span};
use crate::kernel::{Kernel, Kernels};
use crate::limits::Limits;
use crate::operators::{Call, dispatches};
use neap_ir::program::Storage;
use neap_ir::recipe::PackedForm;
use neap_ir::{NodeId, Op, Program, ValueId};
use neap_ops::{Choice, TensorMut, TensorRef};
use std::cell::RefCell;

/// What there is for dispatches.
#[derive(Clone, Copy)]
pub(crate) struct Offer<'a> {
    pub limits: &'a Limits,
    pub kernels: Kernels,
    pub lanes: bool,
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
    kernels
}

/// Each step's dispatches, `None` for those of the processor. Operands are anywhere: buffers far apart.
pub(crate) fn each_step(
    program: &Program,
    offer: Offer<'_>,
    take: &mut dyn FnMut(Option<&[Dispatch]>),
) {
    let table = RefCell::new(Vec::new());
    let mut out = Vec::new();
    for &step in &program.steps {
        let is_here = is_here(program, step, offer, &table, &mut out).is_some();
        take(is_here.then_some(&out));
    }
}

fn is_here(
    program: &Program,
    step: NodeId,
    offer: Offer<'_>,
    table: &RefCell<Vec<u32>>,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let node = &program.graph.nodes[step.index()];
    if matches!(node.op, Op::GatherRows { .. } | Op::Late(_)) {
        return None;
    }
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
        limits: offer.limits,
        kernels: offer.kernels,
        lanes: offer.lanes,
        table,
    };
    dispatches(&call, Choice::default(), out)
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
