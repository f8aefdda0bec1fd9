//! Options of `neap run` that let the budget change, and that show what comes of it.

use super::follow::Follow;
use super::schedule::{Schedule, parse_time};
use clap::Args;
use neaptide::parse_bytes;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Args)]
#[command(next_help_heading = "Budgets that change")]
pub struct ChangeArgs {
    /// Budgets over time, such as 0s:200MiB,5s:60MiB,10s:120MiB; runs until the last has been held as
    /// long as the one before it, or as --duration or --iterations say
    #[arg(long, value_name = "TIME:SIZE,...", value_parser = crate::cgroup::limits::schedule, conflicts_with_all = ["follow", "memory_budget"])]
    pub budget_schedule: Option<Schedule>,
    /// Let the budget follow what the system can spare, --memory-budget at most; runs until interrupted,
    /// or as --duration or --iterations say
    #[arg(long, value_name = "WHAT")]
    pub follow: Option<Follow>,
    /// With --follow, the smallest budget to go down to [default: the smallest feasible one]
    #[arg(long, value_name = "SIZE", requires = "follow", value_parser = parse_bytes)]
    pub min_budget: Option<u64>,
    /// Run again and again for so long
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub duration: Option<Duration>,
    /// Show memory, budget and latency over time on standard error
    #[arg(long)]
    pub live: bool,
    /// Write time, latency, budget and memory of every run to a .csv or .json file
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

impl ChangeArgs {
    /// Whether the budget may change while the model runs.
    pub fn any(&self) -> bool {
        self.budget_schedule.is_some() || self.follow.is_some()
    }

    /// The budget changes no more often, where that is known.
    pub fn most_changes(&self) -> usize {
        match (&self.budget_schedule, self.follow) {
            (Some(schedule), _) => schedule.budgets().count(),
            (None, Some(_)) => usize::MAX,
            (None, None) => 0,
        }
    }
}
