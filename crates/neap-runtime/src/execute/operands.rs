//! Where a compute's operands are: from places of the plan to addresses, and lists of tensors for its operator.

use crate::RuntimeError;
use crate::arena::ArenaMap;
use crate::device::PreparedSlice;
use crate::late::LateTypes;
use crate::load_lane::address_in;
use crate::prepared::Slot;
use crate::resolve::{Location, PlacedOperand, Step, Tables};
use crate::tensors::InputTensor;
use neap_ir::{Program, ValueId};
use neap_ops::{PanelSlice, TensorMut, TensorRef};
use neap_plan::{Compute, Place};

/// What a compute's places mean just now.
pub(super) struct Memory<'a> {
    pub program: &'a Program,
    pub arena: &'a ArenaMap,
    pub compute: &'a Compute,
    pub inputs: &'a [InputTensor<'a>],
    /// By output, the caller's memory, if the device can use it.
    pub results: &'a [Option<TensorMut<'a>>],
    pub late: &'a LateTypes,
}

impl<'a> Memory<'a> {
    pub(super) fn at(&self, at: Place, bytes: u64) -> Result<*mut u8, RuntimeError> {
        address_in(self.arena, at, bytes)
    }

    /// Address of an operand that is there, in full.
    pub(super) fn read(&self, operand: &PlacedOperand) -> Result<*const u8, RuntimeError> {
        let bytes = self.program.graph.value(operand.value).len_bytes() as u64;
        Ok(match operand.place {
            Location::Memory(at) => self.at(at, bytes)?,
            Location::Result {
                output,
                skip_bytes,
                place,
            } => self.result(operand, (output, skip_bytes, place), bytes)?,
            // The caller's pointer to nothing need not be aligned; operators' must be.
            Location::Input(_) if bytes == 0 => std::ptr::dangling::<u64>().cast(),
            Location::Input(index) => self.inputs[index as usize].bytes.as_ptr(),
            Location::Inline(value) => literal(self.program, value)?.as_ptr(),
            Location::Extent { index, skip_bytes } => {
                let extent = self.compute.weights.extents[index as usize];
                let at = extent.checked_add(skip_bytes);
                self.at(at.ok_or_else(|| lost(self.program, operand.value))?, bytes)?
            }
            Location::Absent => return Err(lost(self.program, operand.value)),
        })
    }

    /// Address of a result; those are in the arena, or where the caller wants them.
    pub(super) fn write(&self, operand: &PlacedOperand) -> Result<*mut u8, RuntimeError> {
        let bytes = self.program.graph.value(operand.value).len_bytes() as u64;
        match operand.place {
            Location::Memory(at) => self.at(at, bytes),
            Location::Result {
                output,
                skip_bytes,
                place,
            } => self.result(operand, (output, skip_bytes, place), bytes),
            _ => Err(lost(self.program, operand.value)),
        }
    }

    fn result(
        &self,
        operand: &PlacedOperand,
        (output, skip_bytes, place): (u32, u64, Option<Place>),
        bytes: u64,
    ) -> Result<*mut u8, RuntimeError> {
        match self.results.get(output as usize).and_then(Option::as_ref) {
            // The caller's pointer to nothing need not be aligned, as above.
            Some(_) if bytes == 0 => Ok(std::ptr::dangling_mut::<u64>().cast()),
            // It was checked that the value lies within the output.
            Some(result) => Ok(result.as_ptr().wrapping_add(skip_bytes as usize)),
            None => self.at(
                place.ok_or_else(|| lost(self.program, operand.value))?,
                bytes,
            ),
        }
    }

    pub(super) fn panels(&self, step: &Step) -> Result<Option<PanelSlice<'a>>, RuntimeError> {
        let Some(at) = self.compute.weights.panels else {
            return Ok(None);
        };
        let range = self.compute.panels;
        let bytes = u64::from(range.len()) * step.panel_bytes;
        let start = self.at(at, bytes)?;
        // SAFETY: the range lies in the arena. The loads that the compute needs have arrived, and the
        // plan is valid: they hold these panels, and nothing overwrites them before the compute ends.
        let bytes = unsafe { std::slice::from_raw_parts(start, bytes as usize) };
        Ok(Some(PanelSlice {
            format: step.panel_format,
            range: range.begin as usize..range.end as usize,
            bytes,
        }))
    }

    /// Where the compute's panels are, or will be, in the form that its kernel takes.
    pub(super) fn prepared(&self, slot: Slot) -> Result<PreparedSlice<'a>, RuntimeError> {
        let start = self.at(slot.at, slot.bytes)?;
        // SAFETY: the range lies in the arena, whose bytes are always initialised. The plan is valid: nothing
        // but this compute uses it.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, slot.bytes as usize) };
        Ok(PreparedSlice {
            bytes,
            is_made: slot.is_made,
        })
    }
}

/// Lists a step's operands for its operator.
pub(super) fn fill<'a>(
    memory: &Memory<'a>,
    tables: &Tables,
    step: &Step,
    refs: &mut Vec<Option<TensorRef<'a>>>,
    muts: &mut Vec<Option<TensorMut<'a>>>,
) -> Result<(), RuntimeError> {
    let graph = &memory.program.graph;
    for operand in &tables.operands[step.inputs.start as usize..step.inputs.end as usize] {
        refs.push(if let Location::Absent = operand.place {
            None
        } else {
            let value = graph.value(operand.value);
            let start = memory.read(operand)?;
            let ty = memory.late.actual(operand.value).unwrap_or(&value.ty);
            // SAFETY: `read` gives memory of the value's size, which is the most that a late one has, and alignment was checked when the
            // session opened (for the caller's memory, when the run began). The plan is valid: while
            // the step runs, only its own outputs may lie there, and only as its operator allows.
            Some(unsafe { TensorRef::new(ty, value.layout, start) })
        });
    }
    for operand in &tables.operands[step.outputs.start as usize..step.outputs.end as usize] {
        muts.push(if let Location::Absent = operand.place {
            None
        } else {
            let value = graph.value(operand.value);
            let start = memory.write(operand)?;
            // SAFETY: as above; outputs were checked not to overlap each other.
            Some(unsafe { TensorMut::new(&value.ty, value.layout, start) })
        });
    }
    Ok(())
}

/// The memory of a list, emptied, for a list of another lifetime.
pub(super) fn recycle_refs<'a>(mut list: Vec<Option<TensorRef<'_>>>) -> Vec<Option<TensorRef<'a>>> {
    list.clear();
    let mut list = std::mem::ManuallyDrop::new(list);
    // SAFETY: the allocation is a vector's of the same element but for its lifetime, which has no
    // part in size or alignment; there are no elements.
    unsafe { Vec::from_raw_parts(list.as_mut_ptr().cast(), 0, list.capacity()) }
}

/// As [`recycle_refs`].
pub(super) fn recycle_muts<'a>(mut list: Vec<Option<TensorMut<'_>>>) -> Vec<Option<TensorMut<'a>>> {
    list.clear();
    let mut list = std::mem::ManuallyDrop::new(list);
    // SAFETY: as in `recycle_refs`.
    unsafe { Vec::from_raw_parts(list.as_mut_ptr().cast(), 0, list.capacity()) }
}

pub(super) fn literal(program: &Program, value: ValueId) -> Result<&[u8], RuntimeError> {
    let literal = program.graph.literal(value);
    literal
        .map(|l| l.bytes())
        .ok_or_else(|| lost(program, value))
}

pub(super) fn lost(program: &Program, value: ValueId) -> RuntimeError {
    RuntimeError::Mismatch {
        what: "program",
        reason: format!("'{}' is nowhere in memory", program.graph.value(value).name),
    }
}
