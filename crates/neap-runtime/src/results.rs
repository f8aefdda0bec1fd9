//! Results that are computed where the caller wants them.
//!
//! ```text
//!   plan    buffer 7 at work 0x4000: logits, then probabilities over them = output 0
//!   run     computes that write or read them use the caller's memory instead; nothing is left to copy
//! ```
//! That is possible for a buffer that holds one output and, perhaps, parts or earlier contents of it. Its planned memory stands
//! by: for a device that only sees the plan's memory results are computed there, and copied.

use crate::resolve::Location;
use neap_ir::program::Storage;
use neap_ir::{Layout, Program};
use neap_plan::{BufferId, ExecutionPlan, Workload};

/// By buffer, the output that it may be computed for directly.
pub(crate) struct DirectBuffers(Vec<Option<u32>>);

impl DirectBuffers {
    pub(crate) fn of(program: &Program, workload: &Workload, plan: &ExecutionPlan) -> Self {
        let graph = &program.graph;
        let mut of_buffer = vec![None; workload.buffers.len()];
        let mut is_out = vec![false; workload.buffers.len()];
        let moved = (plan.stores.iter().map(|s| s.buffer))
            .chain(plan.returns.iter().map(|r| r.buffer))
            .map(BufferId::index);
        let kept = (0..workload.buffers.len()).filter(|&b| workload.buffers[b].kept);
        for buffer in moved.chain(kept) {
            is_out[buffer] = true;
        }
        for (index, &output) in graph.outputs.iter().enumerate() {
            if let Storage::Buffer {
                buffer,
                offset_bytes,
            } = program.storage[output.index()]
            {
                let buffer = buffer as usize;
                let is_first = of_buffer[buffer].replace(index as u32).is_none();
                is_out[buffer] |= !is_first || offset_bytes != 0;
            }
        }
        // Whatever else lies in the buffer must find room in the caller's tensor.
        for (index, storage) in program.storage.iter().enumerate() {
            if let &Storage::Buffer {
                buffer,
                offset_bytes,
            } = storage
                && let Some(output) = of_buffer[buffer as usize]
            {
                let result = graph.ty(graph.outputs[output as usize]);
                let value = &graph.values[index];
                let end = offset_bytes.saturating_add(value.len_bytes() as u64);
                let element_bytes = value.ty.dtype.size_bytes();
                // The caller's memory is aligned to the result's elements, and not more.
                let is_aligned = element_bytes <= result.dtype.size_bytes()
                    && offset_bytes.is_multiple_of(element_bytes as u64);
                let fits = end <= result.len_bytes() as u64;
                is_out[buffer as usize] |= !fits || !is_aligned || value.layout != Layout::Plain;
            }
        }
        for (output, is_out) in of_buffer.iter_mut().zip(is_out) {
            *output = output.filter(|_| !is_out);
        }
        DirectBuffers(of_buffer)
    }

    /// The place of a value that is stored so, where the plan has it at `at`.
    pub(crate) fn location(&self, storage: Storage, at: Location) -> Location {
        match (storage, at) {
            (
                Storage::Buffer {
                    buffer,
                    offset_bytes,
                },
                Location::Memory(place),
            ) => match self.0[buffer as usize] {
                Some(output) => Location::Result {
                    output,
                    skip_bytes: offset_bytes,
                    place,
                },
                None => at,
            },
            _ => at,
        }
    }
}
