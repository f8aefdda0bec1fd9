//! What a model's latency is predicted to be under each of many budgets.

use crate::budget::Budget;
use crate::calibrate;
use crate::error::{Error, Result};
use crate::ledger::Ledger;
use crate::model::Model;
use crate::options::RunOptions;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Predicted latency under budgets of the whole process, in ascending order of budgets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencyCurve {
    /// The smallest feasible budget, part by part.
    pub smallest: Ledger,
    /// With everything resident: what `100%` means.
    pub unlimited_bytes: u64,
    pub points: Vec<CurvePoint>,
}

/// One budget, and the latency of the plan for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct CurvePoint {
    pub budget_bytes: u64,
    pub latency_ns: u64,
}

impl Model {
    /// Plans for `points` budgets (two at least) from the smallest feasible one to that with everything
    /// resident, evenly on a scale of ratios, and for those of `more` that are feasible. The budget of
    /// `options` is not looked at.
    ///
    /// # Errors
    /// As [`Model::plan`], but for budgets that are too small.
    pub fn latency_curve(
        &self,
        options: &RunOptions,
        points: usize,
        more: &[u64],
    ) -> Result<LatencyCurve> {
        let bounds = self.bounds(options);
        // What the caller sets aside is no part of the model.
        let unlimited_bytes = bounds.unlimited_high_water_bytes();
        let most_bytes = unlimited_bytes.saturating_add(options.reserve_bytes);
        // Costs are found once: those that are estimated would differ from budget to budget.
        let known = calibrate::known(
            self,
            &RunOptions {
                budget: Budget::Bytes(most_bytes),
                ..options.clone()
            },
        )?;
        let latency_ns = |budget_bytes: u64| {
            let options = RunOptions {
                budget: Budget::Bytes(budget_bytes),
                ..options.clone()
            };
            let plan = self.plan_knowing(&known, &options, Instant::now());
            plan.map(|plan| plan.prediction.latency_ns)
        };
        let mut smallest = bounds.smallest;
        let mut at_least = latency_ns(smallest.total_bytes());
        // Bounds are those of slices; some strategies need more.
        if let Err(Error::Infeasible { parts, .. }) = at_least {
            smallest = *parts;
            at_least = latency_ns(smallest.total_bytes());
        }
        let least_bytes = smallest.total_bytes();
        let mut found = vec![CurvePoint {
            budget_bytes: least_bytes,
            latency_ns: at_least?,
        }];
        let ratio = most_bytes.max(least_bytes) as f64 / least_bytes as f64;
        let steps = points.saturating_sub(1).max(1);
        let between = (1..steps).map(|i| {
            let share = i as f64 / steps as f64;
            (least_bytes as f64 * ratio.powf(share)) as u64
        });
        let mut budgets: Vec<u64> = between
            .chain([most_bytes])
            .chain(more.iter().copied())
            .filter(|&bytes| bytes > least_bytes)
            .collect();
        budgets.sort_unstable();
        budgets.dedup();
        for budget_bytes in budgets {
            match latency_ns(budget_bytes) {
                Ok(latency_ns) => found.push(CurvePoint {
                    budget_bytes,
                    latency_ns,
                }),
                Err(Error::Infeasible { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(LatencyCurve {
            smallest,
            unlimited_bytes,
            points: found,
        })
    }
}
