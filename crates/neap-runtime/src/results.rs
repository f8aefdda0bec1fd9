//! Results that are computed where the caller wants them.
//!
//! ```text
//!   plan    buffer 7 at work 0x4000: logits, then probabilities over them = output 0
//!   run     computes that write or read them use the caller's memory instead; nothing is left to copy
//! ```
//! That is possible for a buffer that holds one output and, perhaps, parts or earlier contents of it. Its planned memory stands
//! by: for a device that only sees the plan's memory results are computed there, and copied. A workload may have no bytes for such
//! a buffer; then there is none, and the caller's has to do.

use crate::resolve::Location;
use neap_ir::Program;
use neap_ir::program::Storage;
use neap_plan::{BufferId, ExecutionPlan, Workload};

/// By buffer, the output that it may be computed for directly.
pub(crate) struct DirectBuffers(Vec<Option<Direct>>);

#[derive(Clone, Copy)]
struct Direct {
    output: u32,
    /// The plan has memory for it, too.
    is_planned: bool,
}

impl DirectBuffers {
    pub(crate) fn of(program: &Program, workload: &Workload, plan: &ExecutionPlan) -> Self {
        let mut of_buffer = program.outputs_in_place();
        let moved = (plan.stores.iter().map(|s| s.buffer))
            .chain(plan.returns.iter().map(|r| r.buffer))
            .map(BufferId::index);
        let kept = (0..workload.buffers.len()).filter(|&b| workload.buffers[b].kept);
        for buffer in moved.chain(kept) {
            of_buffer[buffer] = None;
        }
        let sizes = program.buffers.iter().zip(&workload.buffers);
        let direct = of_buffer.into_iter().zip(sizes);
        let direct = direct.map(|(output, (buffer, spec))| {
            output.map(|output| Direct {
                output,
                is_planned: spec.bytes >= buffer.bytes,
            })
        });
        DirectBuffers(direct.collect())
    }

    /// Whether a buffer needs no memory of the plan.
    pub(crate) fn holds(&self, buffer: usize) -> bool {
        self.0[buffer].is_some()
    }

    /// The place of a value that is stored so, where the plan has it at `at`.
    pub(crate) fn location(&self, storage: Storage, at: Location) -> Location {
        let (
            Storage::Buffer {
                buffer,
                offset_bytes: skip_bytes,
            },
            Location::Memory(place),
        ) = (storage, at)
        else {
            return at;
        };
        match self.0[buffer as usize] {
            Some(Direct { output, is_planned }) => Location::Result {
                output,
                skip_bytes,
                place: Some(place).filter(|_| is_planned),
            },
            None => at,
        }
    }
}
