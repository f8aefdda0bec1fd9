//! Activations that stay to be read after each run.

use super::Session;
use crate::RuntimeError;
use crate::clock::Clock;
use neap_plan::{BufferId, ExecutionPlan, Place, Workload};

/// An activation that the workload keeps after the run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    pub name: String,
    pub bytes: u64,
    place: Place,
}

impl<C: Clock> Session<C> {
    /// The activations that stay to be read after each run, in the order of the program's buffers.
    pub fn kept(&self) -> &[Kept] {
        &self.kept
    }

    /// Hands the bytes that the last run left in a kept activation to `visit`, in order and in pieces:
    /// raw, in the layout in which the program holds them.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Mismatch`] when no run has ended well since the session was opened, went over to
    /// another plan or rested; [`RuntimeError::Store`] when the spill file cannot be read.
    pub fn read_kept(
        &mut self,
        index: usize,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RuntimeError> {
        let kept = self.kept.get(index).filter(|_| self.has_kept);
        let kept = kept.ok_or_else(|| RuntimeError::Mismatch {
            what: "session",
            reason: format!("there is no kept activation {index}"),
        })?;
        self.lane.read_kept(kept.place, kept.bytes, visit)
    }
}

pub(super) fn kept_of(workload: &Workload, plan: &ExecutionPlan) -> Vec<Kept> {
    let buffers = workload.buffers.iter().enumerate();
    let kept = buffers.filter(|(_, b)| b.kept && b.bytes > 0 && !b.live.is_empty());
    kept.map(|(i, b)| Kept {
        name: b.name.clone(),
        bytes: b.bytes,
        place: plan.kept_at(workload, BufferId(i as u32)),
    })
    .collect()
}
