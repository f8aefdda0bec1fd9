//! `--enforce`: the run in a cgroup of its own, and what is done where the kernel ended it.

use super::{RunArgs, opened};
use crate::budgets::schedule::Schedule;
use crate::cgroup::supervise::{self, Ended};
use crate::failure::{Failure, Outcome, bad};
use neaptide::Budget;

/// Has this command run in a cgroup of its own.
pub(super) fn enforced(args: &RunArgs, quiet: bool) -> Outcome {
    let schedule = args.change.budget_schedule.iter();
    if let Some((_, budget)) = schedule
        .flat_map(Schedule::budgets)
        .find(|(_, budget)| *budget == Budget::Unlimited)
    {
        return Err(bad(format!(
            "--enforce needs sizes in --budget-schedule, '{budget}' is none"
        )));
    }
    let limit_bytes = match args.first_budget() {
        Budget::Bytes(bytes) => Some(bytes),
        budget => {
            let (model, options, _) = opened(args, quiet)?;
            model.budget_bytes(budget, &options)
        }
    };
    let Some(limit_bytes) = limit_bytes else {
        return Err(bad("--enforce needs a limit: give --memory-budget SIZE"));
    };
    match supervise::run_again(limit_bytes)? {
        Ended::Well => Ok(()),
        Ended::OutOfMemory => out_of_memory(args, limit_bytes, quiet),
    }
}

/// After the kernel ended the run. This process has no limit: what takes much memory the first time only is done here, and the run
/// begins again, as it would if it were asked for once more.
fn out_of_memory(args: &RunArgs, limit_bytes: u64, quiet: bool) -> Outcome {
    let (model, options, was_packed) = opened(args, quiet)?;
    if was_packed && let Ended::Well = supervise::run_again(limit_bytes)? {
        return Ok(());
    }
    // A budget so small that not even the refusal fits into it.
    let smallest = model.bounds(&options).smallest;
    if limit_bytes < smallest.total_bytes() {
        return Err(neaptide::Error::infeasible(limit_bytes, smallest).into());
    }
    // Drivers take much memory to compile kernels the first time, and keep what they have compiled.
    if args.device.is_some()
        && !was_packed
        && let Ended::Well = supervise::run_again(limit_bytes)?
    {
        return Ok(());
    }
    Err(Failure::Internal(supervise::out_of_memory(limit_bytes)))
}
