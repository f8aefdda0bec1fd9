//! The caller's outputs: computed where they are wanted, or copied there.

use super::Executor;
use super::operands::{literal, lost, recycle_muts};
use crate::RuntimeError;
use crate::load_lane::{LoadLane, address_in};
use crate::resolve::Location;
use crate::tensors::{InputTensor, OutputTensor};
use neap_ir::Layout;
use neap_ops::TensorMut;

impl Executor {
    /// By output, where the device can compute it for the caller; empty for a device that only sees the plan's memory.
    pub(super) fn callers_memory<'a>(
        &mut self,
        outputs: &mut [OutputTensor<'a>],
    ) -> Vec<Option<TensorMut<'a>>> {
        let mut results = recycle_muts(std::mem::take(&mut self.results));
        if self.is_direct() {
            results.extend(outputs.iter_mut().map(|output| {
                let start = output.bytes.as_mut_ptr();
                // SAFETY: the memory was checked to be of the output's size and aligned to its elements. It is the caller's for
                // `'a`, and nothing touches it by `output` before the run's computes are complete, or were drained.
                Some(unsafe { TensorMut::new(output.ty, Layout::Plain, start) })
            }));
        }
        results
    }

    /// Whether jobs may write to memory that is not the plan's: never when one may go on after a run that failed.
    fn is_direct(&self) -> bool {
        !self.device.imports_memory() && self.device.most_in_flight() == 1
    }

    /// Results from where they are to the caller's memory, before anything may overwrite them.
    pub(super) fn copy_outputs(
        &self,
        lane: &mut LoadLane,
        inputs: &[InputTensor],
        outputs: &mut [OutputTensor],
    ) -> Result<(), RuntimeError> {
        let graph = &self.work.program.graph;
        for ((output, &place), &value) in outputs
            .iter_mut()
            .zip(&self.work.tables.outputs)
            .zip(&graph.outputs)
        {
            let len_bytes = match self.late.actual(value) {
                Some(ty) => ty.len_bytes().min(output.bytes.len()),
                None => output.bytes.len(),
            };
            let output = &mut output.bytes[..len_bytes];
            let from = match place {
                Location::Result { .. } if self.is_direct() => continue,
                Location::Memory(at)
                | Location::Result {
                    place: Some(at), ..
                } => {
                    let start = address_in(&lane.map(), at, len_bytes as u64)?;
                    // SAFETY: the range lies in the arena, and outputs live until they are taken: no
                    // compute is running, and loads that may overwrite them start after this.
                    unsafe { lane.fetch(start, output)? };
                    continue;
                }
                Location::Input(index) => inputs[index as usize].bytes,
                Location::Inline(value) => literal(&self.work.program, value)?,
                Location::Absent
                | Location::Extent { .. }
                | Location::Result { place: None, .. } => {
                    return Err(lost(&self.work.program, value));
                }
            };
            let len_bytes = len_bytes.min(from.len());
            output[..len_bytes].copy_from_slice(&from[..len_bytes]);
        }
        Ok(())
    }
}
