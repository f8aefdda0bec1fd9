//! Panels in the form that kernels take: made of the stored ones by the compute that first uses them, and kept.
//!
//! ```text
//!   first run    stored panels ──► prepared panels ──► compute       ▓ kept for as long as the plan is in force
//!   later runs                     ▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓ ──► compute         and the session does not rest
//! ```

use neap_plan::{ExecutionPlan, Place, Workload};

/// By compute of a plan.
#[derive(Debug, Default)]
pub(crate) struct Prepared {
    /// Empty where no compute takes its panels so.
    slots: Box<[Option<Slot>]>,
}

/// The panels of one compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub at: Place,
    pub bytes: u64,
    pub is_made: bool,
}

impl Prepared {
    /// `plan` is valid for `workload`; nothing is made yet.
    pub(crate) fn new(workload: &Workload, plan: &ExecutionPlan) -> Prepared {
        if plan.prepared.is_empty() {
            return Prepared::default();
        }
        let slots = plan.computes.iter().map(|compute| {
            let panel_bytes = workload.steps[compute.step.index()].prepared_panel_bytes;
            let begin = plan.prepared_at(compute.step)?;
            Some(Slot {
                at: begin.checked_add(u64::from(compute.panels.begin) * panel_bytes)?,
                bytes: u64::from(compute.panels.len()) * panel_bytes,
                is_made: false,
            })
        });
        Prepared {
            slots: slots.collect(),
        }
    }

    /// What a compute takes; `None` where that is its panels as they are stored.
    pub(crate) fn slot(&self, compute: usize) -> Option<Slot> {
        self.slots.get(compute).copied().flatten()
    }

    /// The compute has made its panels.
    pub(crate) fn made(&mut self, compute: usize) {
        if let Some(Some(slot)) = self.slots.get_mut(compute) {
            slot.is_made = true;
        }
    }

    /// The memory was given back.
    pub(crate) fn forget(&mut self) {
        for slot in self.slots.iter_mut().flatten() {
            slot.is_made = false;
        }
    }
}
