//! A program and a machine make a workload: sizes, live ranges and costs without operators.

use crate::chains::{self, Chain};
use crate::kernels::{self, Kernels};
use crate::operands::{operands, step_facts};
use crate::target::Target;
use neap_ir::bands::Bands;
use neap_ir::panel::{PanelElement, PanelFormat, PanelScales};
use neap_ir::program::Storage;
use neap_ir::recipe::{Packed, PackedForm};
use neap_ir::{Const, Node, Op, PackedId, Program, TensorType, ValueId};
use neap_kernels::panel::preferred_panels;
use neap_ops::{Choice, Kernel, OperandForm, ScratchKernel};
use neap_plan::{
    BLOCK_BYTES, BufferId, BufferSpec, Extent, KernelId, PanelSpec, RowTable, StepRange, StepSpec,
    Workload, whole_blocks,
};
use neap_rewrite::live_bytes;
use std::collections::HashSet;

/// Rows of a table read from storage at once: enough to keep the device busy.
const ROWS_PER_BATCH: usize = 64;

/// Arena alignment of activations: a cache line.
const BUFFER_ALIGN: u64 = 64;

/// The workload of a program whose steps are computed by the kernels that `kernels` picks.
pub fn workload(program: &Program, target: Target, kernels: Kernels) -> Workload {
    let live = live_bytes(program);
    let node = |step: usize| &program.graph.nodes[program.steps[step].index()];
    let mut steps: Vec<StepSpec> = (0..program.steps.len())
        .map(|at| step(program, node(at), target, kernels.room(live[at])))
        .collect();
    // Chains in row bands are there to save memory: they need little more than other steps do, or they
    // themselves do by direct kernels.
    let needs = steps.iter().zip(&live);
    let highest = needs.map(|(s, &live)| live.saturating_add(least_bytes(s)));
    let highest = highest.max().unwrap_or(0);
    let most = highest.saturating_add(highest / 2);
    for (at, spec) in steps.iter_mut().enumerate() {
        let (Some(bands), Some(room)) = (chains::of(&node(at).op), kernels.room(live[at])) else {
            continue;
        };
        let inputs = operands(program, &node(at).inputs);
        let facts = step_facts(program, at, target);
        let room = room.min(most.saturating_sub(live[at]));
        let chain = Chain {
            bands,
            inputs: &inputs,
            target,
        };
        *spec = chain.fastest(spec.clone(), &facts, room);
    }
    let mut buffers: Vec<BufferSpec> = program
        .buffers
        .iter()
        .zip(buffer_names(program))
        .map(|(buffer, name)| BufferSpec {
            name: name.to_owned(),
            bytes: buffer.bytes,
            align: BUFFER_ALIGN,
            live: StepRange::new(buffer.live.start, buffer.live.end),
            kept: false,
        })
        .collect();
    let states = states(program, &mut buffers);
    let constants_bytes = program
        .graph
        .consts
        .iter()
        .map(|c| match c {
            Const::Inline(literal) => literal.len_bytes() as u64,
            _ => 0,
        })
        .sum();
    let mut workload = Workload {
        digest: String::new(),
        steps,
        buffers,
        constants_bytes,
        states,
    };
    name_kernels(&mut workload, program);
    workload
}

/// The buffers that survive runs, which take whole blocks.
fn states(program: &Program, buffers: &mut [BufferSpec]) -> Vec<BufferId> {
    let mut states = Vec::with_capacity(program.graph.states.len());
    for state in &program.graph.states {
        let Some(id) = program.buffer_of(state) else {
            continue;
        };
        let spec = &mut buffers[id as usize];
        spec.name.clone_from(&program.graph.value(state.value).name);
        spec.bytes = whole_blocks(spec.bytes.max(1));
        spec.align = BLOCK_BYTES;
        states.push(BufferId(id));
    }
    states.sort_unstable();
    states
}

/// Puts the kernels of its steps into a workload's digest: plans for others need other workspaces.
pub(crate) fn name_kernels(workload: &mut Workload, program: &Program) {
    let mut digest = program.digest.clone();
    let kernels = || workload.steps.iter().map(|s| s.kernel);
    if kernels().any(|kernel| kernel != KernelId::DIRECT) {
        let mut hasher = blake3::Hasher::new();
        for KernelId(id) in kernels() {
            hasher.update(&id.to_le_bytes());
        }
        digest.push('+');
        digest.push_str(&hasher.finalize().to_hex()[..32]);
    }
    workload.digest = digest;
}

/// The processor computes those steps that a device would.
pub(crate) fn leave(workload: &mut Workload, program: &Program, left: &[bool]) {
    for (step, _) in (workload.steps.iter_mut().zip(left)).filter(|(_, left)| **left) {
        if step.kernel == KernelId::DIRECT {
            step.kernel = Choice::ON_PROCESSOR.into();
        }
    }
    name_kernels(workload, program);
}

/// A device computes steps by kernels that take scratch.
pub(crate) fn give_scratch(
    workload: &mut Workload,
    program: &Program,
    kernels: &[Option<ScratchKernel>],
) {
    for (step, kernel) in workload.steps.iter_mut().zip(kernels) {
        if let (KernelId::DIRECT, Some(kernel)) = (step.kernel, kernel) {
            step.kernel = kernel.choice.into();
            step.workspace_bytes = kernel.workspace_bytes;
        }
    }
    name_kernels(workload, program);
}

/// Every activation lives on to the end of the run and is kept; outputs are taken then, as ever.
pub fn keep_activations(workload: &mut Workload, program: &Program) {
    let end = workload.steps.len() as u32;
    let mut is_output = vec![false; workload.buffers.len()];
    for output in &program.graph.outputs {
        if let Storage::Buffer { buffer, .. } = program.storage[output.index()] {
            is_output[buffer as usize] = true;
        }
    }
    for (buffer, is_output) in workload.buffers.iter_mut().zip(is_output) {
        if !is_output && !buffer.live.is_empty() {
            buffer.live.end = end;
            buffer.kept = true;
        }
    }
}

/// Outputs that may be computed in the caller's memory take none of the plan.
pub(crate) fn leave_results(workload: &mut Workload, program: &Program) {
    let is_callers = program.outputs_in_place();
    let is_planned = |id: &BufferId| is_callers[id.index()].is_none();
    for step in &mut workload.steps {
        step.reads.retain(is_planned);
        step.writes.retain(is_planned);
    }
    for (buffer, output) in workload.buffers.iter_mut().zip(&is_callers) {
        if output.is_some() {
            buffer.bytes = 0;
        }
    }
}

/// Buffers that hold any of these values, each once.
fn buffers(program: &Program, ids: &[Option<ValueId>]) -> Vec<BufferId> {
    let mut buffers: Vec<BufferId> = ids
        .iter()
        .flatten()
        .filter_map(|v| match program.storage[v.index()] {
            Storage::Buffer { buffer, .. } => Some(BufferId(buffer)),
            _ => None,
        })
        .collect();
    buffers.sort_unstable();
    buffers.dedup();
    buffers
}

/// `room_bytes` is for the step's workspace and one panel.
fn step(program: &Program, node: &Node, target: Target, room_bytes: Option<u64>) -> StepSpec {
    let (inputs, outputs) = (
        operands(program, &node.inputs),
        operands(program, &node.outputs),
    );
    let packed = |id: PackedId| &program.packed[id.index()];
    let panels = node
        .panels
        .map(packed)
        .and_then(|p| panel_spec(p, preferred_panels(target.isa) as u32));
    let mut extents: Vec<Extent> = node
        .present_inputs()
        .filter(|v| program.storage[v.index()] == Storage::Packed)
        .filter_map(|v| match program.graph.constant(v) {
            Some(Const::Packed(id)) => Some(packed(*id)),
            _ => None,
        })
        .map(|p| Extent {
            file_offset: p.offset,
            bytes: p.bytes,
        })
        .collect();
    // A loop may take one weight as its first state and in its passes.
    let mut seen = HashSet::new();
    extents.retain(|e| seen.insert((e.file_offset, e.bytes)));
    let rows = match node.op {
        Op::GatherRows {
            table,
            row_elements,
            stored,
            ..
        } => {
            let indices = inputs[0].map_or(0, |(ty, _)| ty.elements());
            Some(RowTable {
                file_offset: packed(table).offset,
                bytes: packed(table).bytes,
                rows_workspace_bytes: rows_workspace_bytes(
                    indices,
                    row_elements * stored.size_bytes(),
                ),
            })
        }
        _ => None,
    };
    let bytes = |operands: &[OperandForm]| -> u64 {
        operands
            .iter()
            .flatten()
            .map(|(ty, layout)| ty.layout_bytes(*layout) as u64)
            .sum()
    };
    let weights = panels.map_or(0, |p| p.panel_bytes * u64::from(p.panels));
    let flops = counted_flops(program, node, [&inputs, &outputs], target);
    let mut touched_bytes = bytes(&inputs) + bytes(&outputs) + weights;
    touched_bytes -= neap_ops::untouched_bytes(&node.op, &inputs).min(touched_bytes);
    touched_bytes = touched_bytes.saturating_add(neap_ops::inner_bytes(&node.op, &inputs));
    let (reads, writes) = (
        buffers(program, &node.inputs),
        buffers(program, &node.outputs),
    );
    let (threads, isa) = (target.threads, target.isa);
    let workspace_bytes =
        neap_ops::workspace_bytes(&node.op, &inputs, &outputs, threads, isa) as u64;
    let direct = StepSpec {
        name: node.name.clone(),
        workspace_bytes,
        flops,
        touched_bytes,
        slice_touched_bytes: 0,
        panels,
        extents,
        rows,
        kernel: KernelId::DIRECT,
        prepared_panel_bytes: 0,
        reads,
        writes,
    };
    if chains::of(&node.op).is_some() {
        return chains::direct(direct);
    }
    let Some(room_bytes) = room_bytes else {
        return direct;
    };
    let mut facts = neap_ops::kernels(&node.op, &inputs, &outputs, target.threads, target.isa);
    if !node.panels.map(packed).is_some_and(is_bf16) {
        facts.retain(|facts| facts.kernel != Kernel::Pairs);
    }
    kernels::fastest(direct, &facts, room_bytes)
}

/// What the steps need that are no chains in row bands, each with what lives beside it, at the most.
pub(crate) fn highest_beside_chains(program: &Program, workload: &Workload) -> u64 {
    let live = live_bytes(program);
    let steps = program.steps.iter().zip(&workload.steps).zip(live);
    let others = steps.filter(|((step, _), _)| {
        let node = &program.graph.nodes[step.index()];
        chains::of(&node.op).is_none()
    });
    let needs = others.map(|((_, spec), live)| live.saturating_add(least_bytes(spec)));
    needs.max().unwrap_or(0)
}

/// The least that a step computes with, beside activations.
fn least_bytes(step: &StepSpec) -> u64 {
    let weights = step.extents.iter().map(|e| e.bytes).sum::<u64>();
    let panel = step.panels.map_or(0, |p| p.panel_bytes);
    step.workspace_bytes
        .saturating_add(weights)
        .saturating_add(panel)
}

/// Operations in floats in whose time the step computes, given its inputs and outputs.
fn counted_flops(
    program: &Program,
    node: &Node,
    operands: [&[OperandForm]; 2],
    target: Target,
) -> u64 {
    let [inputs, outputs] = operands;
    let flops = neap_ops::flops(&node.op, inputs, outputs);
    let result = outputs.first().copied().flatten().map(|(ty, _)| ty);
    let in_integers = chains::of(&node.op).is_some_and(Bands::is_in_integers);
    if node.op.is_in_integers() || in_integers {
        let results = result.map_or(0, |ty| ty.elements() as u64);
        kernels::of_integers(flops, results, target.isa)
    } else if program.is_rounded(node) {
        kernels::of_rounded(flops, target.isa)
    } else if program.has_blocks(node) {
        kernels::of_blocks(flops, result.map_or(0, rows_of))
    } else {
        flops
    }
}

/// Rows of a matrix, or of several.
fn rows_of(ty: &TensorType) -> u64 {
    let rows = ty.shape.split_last().map_or(&[][..], |(_, rows)| rows);
    rows.iter().fold(1, |n, &d| n.saturating_mul(d as u64))
}

/// Room for a batch of rows, each in the blocks that hold it.
fn rows_workspace_bytes(rows: usize, row_bytes: usize) -> u64 {
    let block = BLOCK_BYTES as usize;
    let window = (row_bytes + 2 * (block - 1)) / block * block;
    (rows.clamp(1, ROWS_PER_BATCH) * window) as u64
}

/// Whether panels hold weights of bfloat16 as they are.
fn is_bf16(packed: &Packed) -> bool {
    let of = PanelFormat {
        element: PanelElement::BF16,
        scales: PanelScales::None,
    };
    matches!(packed.form, PackedForm::Panels { format, .. } if format == of)
}

fn panel_spec(packed: &Packed, granule: u32) -> Option<PanelSpec> {
    match packed.form {
        PackedForm::Panels {
            panels,
            panel_bytes,
            ..
        } => Some(PanelSpec {
            file_offset: packed.offset,
            panel_bytes,
            panels,
            granule: granule.min(panels),
        }),
        PackedForm::Raw => None,
    }
}

/// By buffer: the first value in it names it.
fn buffer_names(program: &Program) -> Vec<&str> {
    let mut names = vec![None; program.buffers.len()];
    for (value, storage) in program.graph.values.iter().zip(&program.storage) {
        if let Storage::Buffer { buffer, .. } = storage
            && let Some(name) = names.get_mut(*buffer as usize)
        {
            name.get_or_insert(value.name.as_str());
        }
    }
    names.into_iter().map(Option::unwrap_or_default).collect()
}
