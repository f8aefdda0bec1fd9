//! Where each step's operands are, worked out once when a session opens, with every check that
//! running then relies on.

use crate::RuntimeError;
use crate::buffer_uses::check_uses;
use crate::results::DirectBuffers;
use crate::rows::Table;
use neap_ir::panel::PanelFormat;
use neap_ir::program::Storage;
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, DType, Layout, Node, NodeId, Op, Program, ValueId, infer};
use neap_kernels::simd::Isa;
use neap_ops::{Choice, OperandForm, WeightForm};
use neap_plan::{
    Area, BufferId, ByteRange, ExecutionPlan, Place, SpaceId, StepId, StepSpec, Workload,
};
use std::ops::Range;

/// Operands of all steps.
pub(crate) struct Tables {
    pub steps: Vec<Step>,
    /// Of all steps, inputs then outputs; a step's are ranges of it.
    pub operands: Vec<PlacedOperand>,
    /// Where each graph output is when a run ends.
    pub outputs: Vec<Location>,
    /// Most inputs and outputs of any one step.
    pub max_inputs: usize,
    pub max_outputs: usize,
}

pub(crate) struct Step {
    pub node: NodeId,
    pub inputs: Range<u32>,
    pub outputs: Range<u32>,
    pub panel_bytes: u64,
    pub panel_format: PanelFormat,
    pub choice: Choice,
    /// Where it is, and its bytes.
    pub workspace: (Place, u64),
    pub rows: Option<RowStep>,
}

/// What a `GatherRows` step needs beside its operands.
#[derive(Clone, Copy)]
pub(crate) struct RowStep {
    pub table: Table,
    /// The part of the workspace that windows are read to, and its bytes.
    pub window_space: (Place, u64),
}

#[derive(Clone, Copy)]
pub(crate) struct PlacedOperand {
    /// Meaningless when the place is [`Location::Absent`].
    pub value: ValueId,
    pub place: Location,
}

#[derive(Clone, Copy)]
pub(crate) enum Location {
    /// An optional operand that is left out.
    Absent,
    /// Memory of the plan.
    Memory(Place),
    /// The caller's memory for an output, and the bytes to skip in it; or else memory of the plan, if there is some.
    Result {
        output: u32,
        skip_bytes: u64,
        place: Option<Place>,
    },
    /// The caller's memory, by position.
    Input(u32),
    /// The graph's literal of that value.
    Inline(ValueId),
    /// An extent of the step, which the compute says the address of, and the bytes to skip in it.
    Extent { index: u32, skip_bytes: u64 },
}

/// Outputs that have no memory of the plan, each a long way from the others.
const CALLERS: SpaceId = SpaceId(u8::MAX);
const APART_BITS: u32 = 48;

impl Location {
    /// The memory that is written, or may be.
    fn area(self, bytes: u64) -> Option<Area> {
        match self {
            Location::Memory(place) => Some(place.area(bytes)),
            Location::Result {
                place: Some(place), ..
            } => Some(place.area(bytes)),
            Location::Result {
                output, skip_bytes, ..
            } => {
                let begin = (u64::from(output) << APART_BITS).saturating_add(skip_bytes);
                let range = ByteRange::at(begin, bytes);
                Some(Area {
                    space: CALLERS,
                    range,
                })
            }
            _ => None,
        }
    }
}

impl Tables {
    /// `program` and `plan` have passed their own checks; here they are checked against each other.
    pub fn new(
        program: &Program,
        workload: &Workload,
        plan: &ExecutionPlan,
        workers: usize,
        isa: Isa,
    ) -> Result<Tables, RuntimeError> {
        check_counts(program, workload)?;
        let direct = &DirectBuffers::of(program, workload, plan);
        check_buffers(program, workload, direct)?;
        check_uses(program, workload, plan)?;
        let mut tables = Tables {
            steps: Vec::with_capacity(program.steps.len()),
            operands: Vec::new(),
            outputs: Vec::with_capacity(program.graph.outputs.len()),
            max_inputs: 0,
            max_outputs: 0,
        };
        for (index, &node_id) in program.steps.iter().enumerate() {
            let step = Resolver {
                program,
                plan,
                direct,
                node: &program.graph.nodes[node_id.index()],
                spec: &workload.steps[index],
                index,
            };
            step.check_op(workers, isa)?;
            tables.add(&step, node_id)?;
        }
        for &input in &program.graph.inputs {
            check_plain(program, input)?;
        }
        for &output in &program.graph.outputs {
            check_plain(program, output)?;
            let place = match program.storage[output.index()] {
                Storage::Packed | Storage::None => Err(mismatch(
                    "program",
                    format!("output '{}' is never in memory", name(program, output)),
                )),
                _ => place_of(program, plan, output, None),
            }?;
            let storage = program.storage[output.index()];
            tables.outputs.push(direct.location(storage, place));
        }
        Ok(tables)
    }

    fn add(&mut self, step: &Resolver, node: NodeId) -> Result<(), RuntimeError> {
        let begin = self.operands.len();
        for &input in &step.node.inputs {
            self.operands.push(step.operand(input)?);
        }
        let middle = self.operands.len();
        for &output in &step.node.outputs {
            self.operands.push(step.operand(output)?);
        }
        let end = self.operands.len();
        check_overlaps(
            step,
            &self.operands[begin..middle],
            &self.operands[middle..end],
        )?;
        self.max_inputs = self.max_inputs.max(middle - begin);
        self.max_outputs = self.max_outputs.max(end - middle);
        self.steps.push(Step {
            node,
            inputs: begin as u32..middle as u32,
            outputs: middle as u32..end as u32,
            panel_bytes: step.panel_bytes()?,
            panel_format: step.panel_format(),
            choice: step.choice()?,
            workspace: (step.plan.workspaces[step.index], step.spec.workspace_bytes),
            rows: step.rows()?,
        });
        Ok(())
    }
}

/// One step while it is resolved.
struct Resolver<'a> {
    program: &'a Program,
    plan: &'a ExecutionPlan,
    direct: &'a DirectBuffers,
    node: &'a Node,
    spec: &'a StepSpec,
    index: usize,
}

impl Resolver<'_> {
    fn mismatch(&self, reason: impl std::fmt::Display) -> RuntimeError {
        mismatch("workload", format!("step '{}': {reason}", self.node.name))
    }

    /// The operator can compute this, and has the scratch that it needs.
    fn check_op(&self, workers: usize, isa: Isa) -> Result<(), RuntimeError> {
        if let Op::GatherRows { .. } = self.node.op {
            return Ok(());
        }
        let graph = &self.program.graph;
        let describe = |v: &Option<ValueId>| -> OperandForm<'_> {
            v.map(|v| (graph.ty(v), graph.value(v).layout))
        };
        let inputs: Vec<_> = self.node.inputs.iter().map(describe).collect();
        let outputs: Vec<_> = self.node.outputs.iter().map(describe).collect();
        self.check_types()?;
        neap_ops::supported(&self.node.op, &inputs, &outputs).map_err(|source| {
            RuntimeError::Unsupported {
                node: self.node.name.clone(),
                source,
            }
        })?;
        self.check_prepared()?;
        let needed = self.workspace_bytes(&inputs, &outputs, workers, isa)?;
        if needed as u64 > self.spec.workspace_bytes {
            return Err(self.mismatch(format!(
                "it needs {needed} bytes of workspace with {workers} threads, {} are planned",
                self.spec.workspace_bytes
            )));
        }
        Ok(())
    }

    fn choice(&self) -> Result<Choice, RuntimeError> {
        Choice::try_from(self.spec.kernel).map_err(|unknown| self.mismatch(unknown.to_string()))
    }

    /// Prepared panels are as large as the kernel takes them.
    fn check_prepared(&self) -> Result<(), RuntimeError> {
        let choice = self.choice()?;
        let panel_bytes = match choice.weights {
            WeightForm::Raw => 0,
            WeightForm::Prepared => neap_ops::prepared_panel_bytes(&self.node.op, choice.kernel)
                .ok_or_else(|| self.mismatch("its kernel takes no prepared panels"))?,
        };
        let planned = self.spec.prepared_panel_bytes;
        if planned == panel_bytes as u64 {
            return Ok(());
        }
        Err(self.mismatch(format!(
            "a prepared panel is {panel_bytes} bytes, {planned} are planned"
        )))
    }

    /// What the chosen kernel needs for the largest slice of the plan.
    fn workspace_bytes(
        &self,
        inputs: &[OperandForm],
        outputs: &[OperandForm],
        workers: usize,
        isa: Isa,
    ) -> Result<usize, RuntimeError> {
        let op = &self.node.op;
        let choice = self.choice()?;
        if choice.is_direct() {
            return Ok(neap_ops::workspace_bytes(op, inputs, outputs, workers, isa));
        }
        if choice == Choice::DEVICE_WINOGRAD {
            // The device makes do with what it gets, or refuses the job.
            return Ok(0);
        }
        let slices = self.plan.computes.iter();
        let slices = slices.filter(|c| c.step.index() == self.index);
        let panels = slices.map(|c| c.panels.len()).max().unwrap_or(0);
        neap_ops::kernels(op, inputs, outputs, workers, isa)
            .iter()
            .find(|facts| facts.kernel == choice.kernel)
            .and_then(|facts| facts.form(choice.weights))
            .map(|form| form.slice_workspace_bytes(panels as usize))
            .ok_or_else(|| self.mismatch("its kernel cannot compute it"))
    }

    /// Operators trust the types of their operands.
    fn check_types(&self) -> Result<(), RuntimeError> {
        let graph = &self.program.graph;
        let inputs = graph.input_types(self.node);
        let count = self.node.outputs.len();
        let inferred =
            infer::output_types(&self.node.op, &inputs, count).map_err(|e| self.mismatch(e))?;
        for (output, ty) in self.node.outputs.iter().zip(&inferred) {
            if let Some(output) = *output
                && graph.ty(output) != ty
            {
                let stated = graph.ty(output);
                return Err(mismatch(
                    "program",
                    format!(
                        "'{}' is {}{:?}, its operator gives {}{:?}",
                        name(self.program, output),
                        stated.dtype,
                        stated.shape,
                        ty.dtype,
                        ty.shape
                    ),
                ));
            }
        }
        Ok(())
    }

    fn operand(&self, value: Option<ValueId>) -> Result<PlacedOperand, RuntimeError> {
        let Some(value) = value else {
            return Ok(PlacedOperand {
                value: ValueId(0),
                place: Location::Absent,
            });
        };
        let place = place_of(self.program, self.plan, value, Some(self))?;
        // A base address is a multiple of 4096, a literal's of 8.
        let offset = match place {
            Location::Memory(at) => at.offset,
            Location::Extent { index, skip_bytes } => {
                skip_bytes + self.spec.extents[index as usize].file_offset
            }
            _ => 0,
        };
        let size_bytes = self.program.graph.ty(value).dtype.size_bytes() as u64;
        if !offset.is_multiple_of(size_bytes) {
            return Err(self.mismatch(format!(
                "'{}' is not aligned to its elements",
                name(self.program, value)
            )));
        }
        let place = (self.direct).location(self.program.storage[value.index()], place);
        Ok(PlacedOperand { value, place })
    }

    /// The extent of the step that holds a packed value.
    fn extent(&self, value: ValueId) -> Result<Location, RuntimeError> {
        let Some(&Const::Packed(id)) = self.program.graph.constant(value) else {
            return Err(self.mismatch(format!("'{}' is not packed", name(self.program, value))));
        };
        let packed = &self.program.packed[id.index()];
        let wanted = ByteRange::at(packed.offset, packed.bytes);
        self.spec
            .extents
            .iter()
            .position(|e| e.file_range().holds(wanted))
            .map(|index| Location::Extent {
                index: index as u32,
                skip_bytes: wanted.begin - self.spec.extents[index].file_offset,
            })
            .ok_or_else(|| self.mismatch(format!("no extent holds '{}'", packed.name)))
    }

    /// Bytes of one panel; 0 for a step without panels.
    fn panel_bytes(&self) -> Result<u64, RuntimeError> {
        let packed = self.node.panels.map(|id| &self.program.packed[id.index()]);
        match (packed, &self.spec.panels) {
            (None, None) => Ok(0),
            (Some(packed), Some(spec)) => match packed.form {
                PackedForm::Panels {
                    panels,
                    panel_bytes,
                    ..
                } if (packed.offset, panels, panel_bytes)
                    == (spec.file_offset, spec.panels, spec.panel_bytes)
                    && panel_bytes.is_multiple_of(4)
                    && packed.offset.is_multiple_of(4) =>
                {
                    Ok(panel_bytes)
                }
                _ => Err(self.mismatch("its panels are elsewhere in the packed file")),
            },
            _ => Err(self.mismatch("only one of program and workload gives it panels")),
        }
    }

    /// Of its panels; of no importance for a step without any.
    fn panel_format(&self) -> PanelFormat {
        let packed = self
            .node
            .panels
            .map(|id| &self.program.packed[id.index()].form);
        match packed {
            Some(&PackedForm::Panels { format, .. }) => format,
            _ => PanelFormat::default(),
        }
    }

    fn rows(&self) -> Result<Option<RowStep>, RuntimeError> {
        let Op::GatherRows {
            table,
            rows,
            row_elements,
            stored,
        } = self.node.op
        else {
            return match self.spec.rows {
                None => Ok(None),
                Some(_) => Err(self.mismatch("it reads no rows of a table")),
            };
        };
        let packed = &self.program.packed[table.index()];
        let Some(spec) = self.spec.rows else {
            return Err(self.mismatch("it has no table"));
        };
        if (spec.file_offset, spec.bytes) != (packed.offset, packed.bytes) {
            return Err(self.mismatch("its table is elsewhere in the packed file"));
        }
        let table_bytes = row_elements
            .checked_mul(stored.size_bytes())
            .and_then(|b| b.checked_mul(rows));
        if table_bytes.is_none_or(|b| b as u64 != packed.bytes) {
            return Err(self.mismatch("its table has another size"));
        }
        let table = Table {
            file_offset: packed.offset,
            rows,
            row_bytes: row_elements * stored.size_bytes(),
            stored,
        };
        self.check_gather(row_elements, stored)?;
        let from_storage = self
            .plan
            .computes
            .iter()
            .any(|c| c.step.index() == self.index && c.weights.table.is_none());
        let window_bytes = table.window_bytes().map_or(u64::MAX, |b| b as u64);
        if from_storage && rows > 0 && spec.rows_workspace_bytes < window_bytes {
            return Err(self.mismatch(format!(
                "one row takes {window_bytes} bytes to read, {} are planned",
                spec.rows_workspace_bytes
            )));
        }
        let workspace = self.plan.workspaces[self.index];
        let at = workspace.checked_add(self.spec.rows_workspace_offset());
        Ok(Some(RowStep {
            table,
            window_space: (at.unwrap_or(workspace), spec.rows_workspace_bytes),
        }))
    }

    /// `GatherRows` is computed here and not by an operator, so its types are checked here too.
    fn check_gather(&self, row_elements: usize, stored: DType) -> Result<(), RuntimeError> {
        let graph = &self.program.graph;
        let (&[Some(indices)], &[Some(output)]) = (&self.node.inputs[..], &self.node.outputs[..])
        else {
            return Err(self.mismatch("it needs one input and one output"));
        };
        let (indices, output) = (graph.value(indices), graph.value(output));
        let mut shape = indices.ty.shape.clone();
        shape.push(row_elements);
        let fits = matches!(indices.ty.dtype, DType::I32 | DType::I64)
            && indices.layout == Layout::Plain
            && output.layout == Layout::Plain
            && output.ty.dtype == Table::row_type(stored)
            && output.ty.shape == shape;
        if fits {
            return Ok(());
        }
        Err(self.mismatch("the types of its indices, rows and output do not fit together"))
    }
}

fn place_of(
    program: &Program,
    plan: &ExecutionPlan,
    value: ValueId,
    step: Option<&Resolver>,
) -> Result<Location, RuntimeError> {
    let nowhere = || {
        mismatch(
            "program",
            format!("'{}' is nowhere in memory", name(program, value)),
        )
    };
    match program.storage[value.index()] {
        Storage::None => Err(nowhere()),
        Storage::Input(index) => Ok(Location::Input(index)),
        Storage::Inline => Ok(Location::Inline(value)),
        Storage::Packed => step.ok_or_else(nowhere)?.extent(value),
        Storage::Buffer {
            buffer,
            offset_bytes,
        } => {
            let at = step.map_or(StepId(u32::MAX), |step| StepId(step.index as u32));
            plan.buffer_at(BufferId(buffer), at)
                .and_then(|begin| begin.checked_add(offset_bytes))
                .map(Location::Memory)
                .ok_or_else(nowhere)
        }
    }
}

fn check_counts(program: &Program, workload: &Workload) -> Result<(), RuntimeError> {
    // Behind a plus is the choice of kernels, which steps are checked for one by one.
    let of_program = workload.digest.split('+').next();
    if of_program != Some(&*program.digest) {
        return Err(mismatch(
            "workload",
            format!("its digest is {}, not {}", workload.digest, program.digest),
        ));
    }
    for (what, found, expected) in [
        ("steps", workload.steps.len(), program.steps.len()),
        ("buffers", workload.buffers.len(), program.buffers.len()),
    ] {
        if found != expected {
            return Err(mismatch(
                "workload",
                format!("it has {found} {what}, not {expected}"),
            ));
        }
    }
    Ok(())
}

/// The plan keeps buffers apart as the workload describes them, so that must not be too small; but of those that the caller's memory
/// does for, there may be nothing.
fn check_buffers(
    program: &Program,
    workload: &Workload,
    direct: &DirectBuffers,
) -> Result<(), RuntimeError> {
    let steps = program.steps.len() as u32;
    for (i, (spec, buffer)) in workload.buffers.iter().zip(&program.buffers).enumerate() {
        let lives = spec.live.begin <= buffer.live.start && spec.live.end >= buffer.live.end;
        let is_callers = spec.bytes == 0 && direct.holds(i);
        if spec.bytes < buffer.bytes && !is_callers || !lives {
            return Err(mismatch(
                "workload",
                format!("buffer {i} is smaller or lives shorter than it must"),
            ));
        }
    }
    for &output in &program.graph.outputs {
        if let Storage::Buffer { buffer, .. } = program.storage[output.index()]
            && workload.buffers[buffer as usize].live.end < steps
        {
            return Err(mismatch(
                "workload",
                format!(
                    "output '{}' dies before the run ends",
                    name(program, output)
                ),
            ));
        }
    }
    Ok(())
}

/// An output may lie on an input only where its operator says so, or where it does nothing but move
/// data (a part of a concatenation that is in place already).
fn check_overlaps(
    step: &Resolver,
    inputs: &[PlacedOperand],
    outputs: &[PlacedOperand],
) -> Result<(), RuntimeError> {
    let graph = &step.program.graph;
    let moves = matches!(
        step.node.op,
        Op::Concat { .. } | Op::Split { .. } | Op::Slice { .. } | Op::Reshape { .. }
    );
    let range = |o: &PlacedOperand| -> Option<Area> {
        let area = o.place.area(graph.value(o.value).len_bytes() as u64)?;
        (!area.range.is_empty()).then_some(area)
    };
    let overlap = |a: &PlacedOperand, b: &PlacedOperand| match (range(a), range(b)) {
        (Some(a), Some(b)) => a.overlaps(b),
        _ => false,
    };
    // By address two that overlap are neighbours, or one of them overlaps its neighbour.
    let mut areas: Vec<Area> = outputs.iter().filter_map(range).collect();
    areas.sort_unstable_by_key(|area| (area.space, area.range.begin));
    if areas.windows(2).any(|pair| pair[0].overlaps(pair[1])) {
        return Err(step.mismatch("two of its outputs overlap"));
    }
    if moves {
        return Ok(());
    }
    for (o, output) in outputs.iter().enumerate() {
        let mut allowed: Option<Vec<usize>> = None;
        for (i, input) in inputs.iter().enumerate() {
            if !overlap(output, input) {
                continue;
            }
            let allowed = allowed.get_or_insert_with(|| {
                let describe = |v: &Option<ValueId>| -> OperandForm<'_> {
                    v.map(|v| (graph.ty(v), graph.value(v).layout))
                };
                let ins: Vec<_> = step.node.inputs.iter().map(describe).collect();
                let outs: Vec<_> = step.node.outputs.iter().map(describe).collect();
                neap_ops::may_be_overwritten_by(&step.node.op, o, &ins, &outs)
            });
            if !allowed.contains(&i) || range(output) != range(input) {
                return Err(step.mismatch("an output lies on an input that it may not overwrite"));
            }
        }
    }
    Ok(())
}

fn check_plain(program: &Program, value: ValueId) -> Result<(), RuntimeError> {
    match program.graph.value(value).layout {
        Layout::Plain => Ok(()),
        Layout::Blocked => Err(mismatch(
            "program",
            format!(
                "'{}' is channel-blocked at the border",
                name(program, value)
            ),
        )),
    }
}

fn name(program: &Program, value: ValueId) -> &str {
    &program.graph.value(value).name
}

fn mismatch(what: &'static str, reason: String) -> RuntimeError {
    RuntimeError::Mismatch { what, reason }
}
