//! A plan, and the extremes between which plans are.

use crate::calibrate::{CostSource, Known};
use crate::ledger::Ledger;
use neap_compile::{BandCount, count_bands, kernel_counts};
use neap_ir::Program;
use neap_ops::Choice;
use neap_plan::{Checked, ExecutionPlan, Timeline, Verdict, Workload};
use neap_sim::{CostProfile, Prediction};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A plan with the figures around it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which of the model's programs it is for.
    pub program: Arc<Program>,
    /// With its workload, and what the independent validator found.
    pub checked: Checked,
    pub prediction: Prediction,
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// Where the planned peak goes, part by part.
    pub ledger: Ledger,
    pub costs: CostProfile,
    /// By step, whether an accelerator computes it; `None` without one.
    pub on_device: Option<Vec<bool>>,
    /// What `costs` came from, for plans of other programs and budgets.
    pub(crate) known: Known,
    pub planning_ns: u64,
}

impl Plan {
    pub fn workload(&self) -> &Workload {
        self.checked.workload()
    }

    pub fn execution(&self) -> &ExecutionPlan {
        self.checked.plan()
    }

    /// What the independent validator found.
    pub fn verdict(&self) -> Verdict {
        self.checked.verdict()
    }

    /// Planned peak of the whole process, or of the engine.
    pub fn high_water_bytes(&self) -> u64 {
        self.ledger.total_bytes()
    }

    /// The same without the arena.
    pub fn base_overhead_bytes(&self) -> u64 {
        self.ledger.base_bytes()
    }

    /// No plan can have a lower peak with these live ranges.
    pub fn lower_bound_bytes(&self) -> u64 {
        let arena_bytes = match self.ledger.device {
            None => self.verdict().lower_bound_bytes,
            Some(_) => 0,
        };
        self.base_overhead_bytes() + arena_bytes
    }

    /// Least time in which a run's bytes come from the drive and go to it.
    pub fn moving_ns(&self) -> u64 {
        self.costs.moving_ns(self.execution())
    }

    /// No run of this plan is predicted to take less: computing without a wait, or moving bytes without a pause.
    pub fn bound_ns(&self) -> u64 {
        self.prediction.compute_ns.max(self.moving_ns())
    }

    /// Where the costs came from.
    pub fn cost_source(&self) -> CostSource {
        self.known.source
    }

    /// What the user should hear about calibration, such as that its cache is damaged.
    pub fn cost_remark(&self) -> Option<&str> {
        self.known.remark.as_deref()
    }

    /// Row bands in force.
    pub fn bands(&self) -> BandCount {
        count_bands(&self.program)
    }

    /// How many layers with panel weights each kernel computes, by its name; each layer of a chain in row bands
    /// counts.
    pub fn kernels(&self) -> BTreeMap<&'static str, usize> {
        kernel_counts(&self.program, self.workload())
    }

    /// Writes a timeline of this plan as trace events (JSON), which Perfetto opens; `title` names the process
    /// in it.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_trace(
        &self,
        out: &mut impl std::io::Write,
        title: &str,
        timeline: &Timeline,
    ) -> std::io::Result<()> {
        let kernel = |id| {
            let choice = Choice::try_from(id).unwrap_or_default();
            choice.kernel.label().to_owned()
        };
        let (workload, plan) = (self.workload(), self.execution());
        neap_plan::render::write_trace(out, title, workload, plan, timeline, kernel)
    }

    /// Draws it as one page for a browser, which needs nothing else; `timeline` is [`Plan::simulate`]'s or a session's, and its
    /// last run is shown.
    pub fn page(&self, title: &str, timeline: &Timeline) -> String {
        let (workload, plan) = (self.workload(), self.execution());
        neap_plan::render::html(
            title,
            workload,
            plan,
            &self.verdict(),
            timeline,
            self.on_device.as_deref(),
        )
    }

    /// What is predicted to happen in `runs` runs, the first from a standing start.
    pub fn simulate(&self, runs: u32) -> Timeline {
        neap_sim::simulate(self.workload(), self.execution(), &self.costs, runs)
    }
}

/// The memory a model needs, at the extremes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The smallest budget that will be accepted, with slack for a later process.
    pub smallest: Ledger,
    /// What this process needs, without slack: the smallest budget that it accepts itself. A size that another process
    /// named has its slack already.
    pub needed: Ledger,
    /// Everything resident: what `100%` means. The same in every process, and without what the caller sets aside.
    pub whole: Ledger,
}

impl Bounds {
    /// The smallest budget that will be accepted.
    pub fn smallest_feasible_bytes(&self) -> u64 {
        self.smallest.total_bytes()
    }

    /// With everything resident.
    pub fn unlimited_high_water_bytes(&self) -> u64 {
        self.whole.total_bytes()
    }

    /// What is taken without an arena and its page tables, in this process.
    pub fn base_overhead_bytes(&self) -> u64 {
        self.smallest.base_bytes() - self.smallest.tables_bytes
    }
}
