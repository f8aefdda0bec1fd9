//! What becomes of activations that a step has no room for.

use crate::calibrate::CostSource;
use crate::train::OtherTrainStrategy;
use std::fmt;
use std::str::FromStr;

/// How a training makes do with less memory than it would take. All give the same bits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum TrainStrategy {
    /// Whichever of the others is predicted to take the least time.
    #[default]
    Auto,
    /// Everything stays in memory.
    Keep,
    /// Activations, parameters and moments go to a file and come back (the means of SwapAdvisor: Huang et al., ASPLOS 2020).
    Swap,
    /// Activations that cost next to nothing are computed again; what else has no room is swapped.
    Cheap,
    /// Segments of about √n steps are computed again from what crosses their borders; nothing is swapped (Chen et al.,
    /// 2016).
    Sqrt,
    /// An integer program decides which are computed again and which swapped (as Checkmate: Jain et al., MLSys 2020, and POET:
    /// Patil et al., ICML 2022).
    Optimal,
    /// As somebody else's planner says; [`TrainStrategy::Auto`] does not try it.
    Other(&'static dyn OtherTrainStrategy),
}

impl TrainStrategy {
    /// Those that are built in, in the order in which they are explained.
    pub const ALL: [TrainStrategy; 6] = [
        TrainStrategy::Auto,
        TrainStrategy::Keep,
        TrainStrategy::Swap,
        TrainStrategy::Cheap,
        TrainStrategy::Sqrt,
        TrainStrategy::Optimal,
    ];

    /// How many programs of a step it holds at a time, while it chooses.
    pub(crate) fn programs(self) -> u64 {
        match self {
            TrainStrategy::Keep | TrainStrategy::Swap => 1,
            TrainStrategy::Other(_) | TrainStrategy::Cheap | TrainStrategy::Sqrt => 2,
            TrainStrategy::Auto | TrainStrategy::Optimal => 3,
        }
    }

    /// As `--strategy` of `neap train` has it, and [`str::parse`] takes it.
    pub fn name(self) -> &'static str {
        match self {
            TrainStrategy::Auto => "auto",
            TrainStrategy::Keep => "keep",
            TrainStrategy::Swap => "swap",
            TrainStrategy::Cheap => "cheap",
            TrainStrategy::Sqrt => "sqrt",
            TrainStrategy::Optimal => "optimal",
            TrainStrategy::Other(other) => other.name(),
        }
    }
}

impl fmt::Display for TrainStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for TrainStrategy {
    type Err = String;

    /// One that is built in.
    fn from_str(name: &str) -> Result<TrainStrategy, String> {
        let found = TrainStrategy::ALL.into_iter().find(|s| s.name() == name);
        found.ok_or_else(|| {
            let names = TrainStrategy::ALL.map(TrainStrategy::name).join(", ");
            format!("unknown strategy {name:?}: there are {names}")
        })
    }
}

/// What a step's plan came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepSummary {
    /// The one that was asked for, or the one that [`TrainStrategy::Auto`] took.
    pub strategy: TrainStrategy,
    /// Planned peak of the whole process, or of the engine.
    pub high_water_bytes: u64,
    /// Of a step, by costs from this source: built in, they are those of a modest machine.
    pub predicted_ns: u64,
    pub cost_source: CostSource,
    /// What a step stores and loads: activations and states.
    pub stored_bytes: u64,
    pub loaded_bytes: u64,
    /// Operators that are computed a second time; many of them, such as ReLU, count as no operations.
    pub recomputed_steps: usize,
    /// Operations of these.
    pub recomputed_flops: u64,
    /// Whether the integer program was solved to its end, where there was one.
    pub is_proven: bool,
}
