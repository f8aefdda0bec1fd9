//! Budgets that change while a model runs: from a schedule, or after what the system can spare.

use super::RunArgs;
use crate::budgets::follow::{Follow, LimitWatch, PressureWatch, Range};
use crate::budgets::repeat::Budgets;
use crate::cgroup;
use crate::failure::{Failure, Outcome, bad};
use neaptide::{Budget, Model, RunOptions};

/// Where budgets come from; the options' budget becomes the first of them. Refuses budgets that
/// cannot be met before anything runs.
pub(super) fn budgets(args: &RunArgs, model: &Model, options: &mut RunOptions) -> Outcome<Budgets> {
    if !args.change.any() {
        return Ok(Budgets::Fixed);
    }
    let bounds = model.bounds(options);
    // Without slack: the size may be one that another process named, with slack of its own.
    let needed_bytes = bounds.needed.total_bytes();
    let check = |budget_bytes: u64, what: &dyn std::fmt::Display| {
        if budget_bytes >= needed_bytes {
            return Ok(());
        }
        let error = neaptide::Error::infeasible(budget_bytes, bounds.smallest);
        Err(Failure::Infeasible(format!("{what}: {error}")))
    };
    if let Some(schedule) = &args.change.budget_schedule {
        let schedule = schedule.in_bytes(|budget| model.budget_bytes(budget, options));
        for (time, budget) in schedule.budgets() {
            if let Budget::Bytes(bytes) = budget {
                check(
                    bytes,
                    &format_args!("--budget-schedule at {}s", time.as_secs_f64()),
                )?;
            }
        }
        return Ok(Budgets::Schedule(schedule));
    }
    let most_bytes = model.budget_bytes(options.budget, options).unwrap_or(
        // Everything resident, and what this command sets aside.
        bounds.unlimited_high_water_bytes() + options.reserve_bytes,
    );
    check(most_bytes, &"--follow")?;
    let least_bytes = match args.change.min_budget {
        Some(bytes) if bytes >= needed_bytes => bytes,
        _ => bounds.smallest_feasible_bytes().min(most_bytes),
    };
    // Without a budget the most is what the model can use, and that may be less than what was named.
    let least_bytes = match options.budget {
        Budget::Unlimited => least_bytes.min(most_bytes),
        _ if least_bytes > most_bytes => {
            return Err(bad("--min-budget is above --memory-budget"));
        }
        _ => least_bytes,
    };
    let range = Range {
        least_bytes,
        most_bytes,
    };
    let budgets = match args.change.follow {
        Some(Follow::Cgroup) => {
            let found = cgroup::find().map_err(|e| bad(format!("--follow cgroup: {e}")))?;
            let watch = LimitWatch::new(found, range);
            options.budget = Budget::Bytes(watch.budget_bytes());
            Budgets::Limit(watch)
        }
        _ => {
            let found = cgroup::find().ok();
            let watch = PressureWatch::new(found.as_ref(), range, most_bytes)
                .map_err(|e| bad(format!("--follow psi: {e}")))?;
            options.budget = Budget::Bytes(most_bytes);
            Budgets::Pressure(watch)
        }
    };
    Ok(budgets)
}
