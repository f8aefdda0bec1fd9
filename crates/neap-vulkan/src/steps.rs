//! Which steps of a program the device computes.

use crate::dispatch::{Dispatch, Panels, Span};
use crate::gpu::Gpu;
use crate::operators::{Call, dispatches};
use neap_ir::program::Storage;
use neap_ir::recipe::PackedForm;
use neap_ir::{NodeId, Op, Program, ValueId};
use neap_ops::{Choice, TensorMut, TensorRef};
use std::cell::RefCell;

/// By step. It follows from operators, types and sizes, so operands are anywhere here: buffers far apart.
pub(crate) fn computed_here(program: &Program, gpu: &Gpu) -> Vec<bool> {
    let table = RefCell::new(Vec::new());
    let mut out = Vec::new();
    let steps = program.steps.iter();
    steps
        .map(|&step| is_here(program, step, gpu, &table, &mut out).is_some())
        .collect()
}

fn is_here(
    program: &Program,
    step: NodeId,
    gpu: &Gpu,
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
        limits: &gpu.limits,
        f32_only: gpu.f32_only(),
        no_gathers: gpu.no_gathers(),
        lanes: gpu.lanes(),
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
