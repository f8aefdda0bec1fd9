//! Between runs: another plan, rest, and waiting for all weights.

use super::kept::kept_of;
use super::{Session, States};
use crate::RuntimeError;
use crate::arena::Needs;
use crate::clock::Clock;
use crate::execute::Work;
use crate::fit::{check_same_model, check_spill_room};
use crate::gates;
use crate::moves::{self, Moves};
use crate::prepared::Prepared;
use crate::resolve::Tables;
use neap_ir::Program;
use neap_plan::{Checked, Held, Transition, validate_transition};
use neap_store::Spill;
use std::sync::Arc;

/// Resident weights when one plan followed another.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Stayed in memory.
    pub kept_bytes: u64,
    /// Went, their memory given back to the kernel.
    pub released_bytes: u64,
    /// Will be read from storage beside the next run.
    pub read_bytes: u64,
}

impl<C: Clock> Session<C> {
    /// What another plan may go on with: what is in memory of resident weights. Waits for loads in flight, which are
    /// dropped; nothing is read until the next run, [`Session::replace`] or [`Session::wake`].
    ///
    /// # Errors
    /// [`RuntimeError::Unusable`] when storage has failed for good.
    pub fn held(&mut self) -> Result<Held, RuntimeError> {
        self.has_kept = false;
        self.executor.detach();
        self.forget_stale()?;
        let held = self.lane.held();
        self.recorder.lane_restarted();
        held
    }

    /// Goes over to another plan between runs, for a changed budget: of the same program or of another
    /// over the same packed file, with the same inputs and outputs, maybe in other shapes. `transition` says what stays in memory of what is
    /// [`Session::held`], and is checked for that: the process never takes more than the larger plan. A `spill` file
    /// replaces the one that there is; a plan that stores activations needs one that is large enough. Nothing is read
    /// before the next run, or [`Session::wake`].
    ///
    /// # Errors
    ///
    /// When the plan is not for this session, the transition not valid, or its memory cannot be had, the old plan stays in
    /// force.
    pub fn replace(
        &mut self,
        program: Arc<Program>,
        plan: Checked,
        transition: &Transition,
        spill: Option<Box<dyn Spill>>,
    ) -> Result<Replaced, RuntimeError> {
        if self.lane.is_on_device() {
            return Err(RuntimeError::Mismatch {
                what: "new plan",
                reason: "a device's own memory is for one plan".into(),
            });
        }
        if !Arc::ptr_eq(&program, self.program()) {
            program.check()?;
            check_same_model(self.program(), &program)?;
        }
        let (workload, mut plan, verdict) = plan.into_parts();
        moves::check_lanes(&plan)?;
        let room_bytes = match &spill {
            Some(spill) => spill.len_bytes(),
            None => self.lane.spill_room_bytes(),
        };
        check_spill_room(&verdict, room_bytes)?;
        let tables = Tables::new(&program, &workload, &plan, self.threads, self.isa)?;
        let held = self.held()?;
        validate_transition(&held, &plan, transition)?;
        let kept = kept_of(&workload, &plan);
        let states = States::of(&workload, &plan);
        self.states.leave(&states, &self.lane)?;
        let needs = Needs::of(&plan);
        let (gates, gated) = gates::find(&program, &workload, &plan);
        let moves = Moves::take(&mut plan);
        self.executor.forget_prepared();
        let released_bytes = self.lane.replace(needs, &transition.keeps, spill, moves)?;
        self.lane.expect(&transition.reads, &plan.computes);
        self.lane.gate(gated);
        self.executor.replace(Work {
            program,
            tables,
            prepared: Prepared::new(&workload, &plan),
            computes: plan.computes.into_boxed_slice(),
            gates,
        });
        self.verdict = verdict;
        self.kept = kept;
        self.states.succeed(states);
        Ok(Replaced {
            kept_bytes: transition.kept_bytes(),
            released_bytes,
            read_bytes: transition.read_bytes(),
        })
    }

    /// Waits until all resident weights are in memory. The first run after a plan came into force does that
    /// by itself, weight by weight; this is for those who want it to be like any other (but for prepared panels,
    /// which it makes), or to know now whether they can be read.
    ///
    /// # Errors
    ///
    /// [`RuntimeError::Store`] when they cannot be read: the next run, or settling again, tries once more.
    pub fn settle(&mut self) -> Result<(), RuntimeError> {
        if self.lane.is_broken() {
            return Err(RuntimeError::Unusable);
        }
        self.forget_stale()?;
        self.lane.prepare();
        let result = self.lane.settle(&self.clock, &mut self.recorder);
        let result = self.check_file().and(result);
        if result.is_err() {
            self.restart();
        }
        result
    }

    /// Waits for loads in flight, and gives the memory of everything but resident weights back to the
    /// kernel until the next run or plan takes it again. States go to their file; where that fails they are lost, as the
    /// next run says.
    pub fn rest(&mut self) {
        self.has_kept = false;
        self.executor.detach();
        self.executor.forget_prepared();
        if self.states.save(&self.lane).is_err() {
            self.states.lose();
        }
        self.lane.rest();
        self.recorder.lane_restarted();
    }

    /// After [`Session::rest`] or a change of plans: starts loads of the next run, which would do it by itself.
    /// Storage that is busy may take its time to accept them.
    pub fn wake(&mut self) {
        self.prefetch();
    }
}
