//! One total of memory for several models that run at once: who gets how much.
//!
//! ```text
//!   paper    SwapNet, Equation 1: by demand, and by performance score
//!   curves   the largest weighted latency as small as can be, by what each model's planner predicts; or the
//!            largest weighted slowdown, with latencies relative to those with all memory
//!   equal    the same for all
//! ```
//! Budgets are those of whole processes. None is below what its model needs, none above what it can use,
//! and together they are at most the total.

use thiserror::Error;

/// A model as Equation 1 sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// The smallest feasible budget.
    pub least_bytes: u64,
    /// With everything resident; the latency is that then.
    pub memory_bytes: u64,
    pub latency_ns: u64,
    /// How much more its latency matters than another's.
    pub urgency: f64,
}

/// Latency by budget: a step function, as good as at the largest point that is affordable.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Ascending budgets, descending latencies.
    points: Vec<(u64, u64)>,
    urgency: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum AllocateError {
    #[error("the smallest feasible budgets are {least_bytes} bytes together")]
    Infeasible { least_bytes: u64 },
}

/// SwapNet's Equation 1 (Section 6.2.2): all but an n-th of the memory in proportion to demand, the rest to
/// the performance score `PS = u · latency ÷ memory`. When all demands can be met, they are. Where it gives
/// a model less than it needs or more than it can use, everyone's part is scaled until the sum is right.
///
/// # Errors
/// When the total is below the sum of the smallest feasible budgets.
pub fn paper(demands: &[Demand], total_bytes: u64) -> Result<Vec<u64>, AllocateError> {
    let n = demands.len().max(1) as f64;
    let total = total_bytes as f64;
    let memory = |d: &Demand| d.memory_bytes as f64;
    let score = |d: &Demand| d.urgency * d.latency_ns as f64 / memory(d).max(1.0);
    let all_memory: f64 = demands.iter().map(memory).sum();
    let all_scores: f64 = demands.iter().map(score).sum();
    let part = |of: f64, all: f64| if all > 0.0 { of / all } else { 1.0 / n };
    let wanted: Vec<f64> = demands
        .iter()
        .map(|d| {
            part(memory(d), all_memory) * (1.0 - 1.0 / n) * total
                + part(score(d), all_scores) / n * total
        })
        .collect();
    scaled(demands, &wanted, total_bytes)
}

/// The same for every model, but for what some need and others cannot use.
///
/// # Errors
/// When the total is below the sum of the smallest feasible budgets.
pub fn equal(demands: &[Demand], total_bytes: u64) -> Result<Vec<u64>, AllocateError> {
    let wanted = vec![total_bytes as f64 / demands.len().max(1) as f64; demands.len()];
    scaled(demands, &wanted, total_bytes)
}

/// `wanted`, scaled by one factor for all, between what each needs and can use, so that the sum is as much
/// of the total as possible.
fn scaled(demands: &[Demand], wanted: &[f64], total: u64) -> Result<Vec<u64>, AllocateError> {
    check(demands.iter().map(|d| d.least_bytes), total)?;
    let at = |factor: f64| -> Vec<u64> {
        let amounts = demands.iter().zip(wanted);
        amounts
            .map(|(d, w)| {
                ((w * factor) as u64).clamp(d.least_bytes, d.memory_bytes.max(d.least_bytes))
            })
            .collect()
    };
    let fits = |amounts: &[u64]| sum(amounts.iter().copied()) <= total;
    let is_untouched = |amounts: &[u64]| amounts.iter().zip(wanted).all(|(a, w)| *a == *w as u64);
    let plain = at(1.0);
    if is_untouched(&plain) && fits(&plain) {
        return Ok(plain);
    }
    // So large that everyone has what it can use, so small that everyone has what it needs.
    let (mut low, mut high) = (0.0, 1.0);
    while !demands
        .iter()
        .zip(at(high))
        .all(|(d, a)| a >= d.memory_bytes)
        && high < 1e12
    {
        high *= 2.0;
    }
    if fits(&at(high)) {
        return Ok(at(high));
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if fits(&at(middle)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(at(low))
}

impl Curve {
    /// From (budget, latency) in any order; `None` without any. A budget for which more was predicted than
    /// for a smaller one is as good as that.
    pub fn new(mut points: Vec<(u64, u64)>, urgency: f64) -> Option<Curve> {
        points.sort_unstable();
        let mut least = u64::MAX;
        points.retain(|&(_, ns)| {
            let better = ns < least;
            least = least.min(ns);
            better
        });
        (!points.is_empty()).then_some(Curve { points, urgency })
    }

    /// The same, weighed by how much slower it is than with all memory: with it alone in mind, 1 is the best.
    pub fn relative(&self) -> Curve {
        let fastest = self.points.last().map_or(1, |p| p.1.max(1));
        Curve {
            points: self.points.clone(),
            urgency: self.urgency / fastest as f64,
        }
    }

    pub fn least_bytes(&self) -> u64 {
        self.points[0].0
    }

    /// Latency within a budget; `None` when it is infeasible.
    pub fn latency_ns(&self, budget_bytes: u64) -> Option<u64> {
        let affordable = self.points.partition_point(|p| p.0 <= budget_bytes);
        affordable.checked_sub(1).map(|i| self.points[i].1)
    }

    /// Urgency times latency.
    pub fn weighted(&self, budget_bytes: u64) -> Option<f64> {
        self.latency_ns(budget_bytes).map(|ns| self.weigh(ns))
    }

    fn weigh(&self, ns: u64) -> f64 {
        self.urgency * ns as f64
    }

    /// The smallest budget with which the weighted latency is at most `most`.
    fn need(&self, most: f64) -> Option<u64> {
        let too_slow = self.points.partition_point(|p| self.weigh(p.1) > most);
        self.points.get(too_slow).map(|p| p.0)
    }
}

/// The budgets with the smallest largest weighted latency; of those, the ones with the smallest second
/// largest, and so on. Exact: the answer is one of the values that the curves have, found by bisection.
///
/// # Errors
/// When the total is below the sum of the smallest feasible budgets.
pub fn curves(curves: &[Curve], total_bytes: u64) -> Result<Vec<u64>, AllocateError> {
    check(curves.iter().map(Curve::least_bytes), total_bytes)?;
    let mut budgets: Vec<Option<u64>> = vec![None; curves.len()];
    let mut room = total_bytes;
    loop {
        let open: Vec<usize> = (0..curves.len())
            .filter(|&i| budgets[i].is_none())
            .collect();
        let needs = |most: f64| -> Option<u64> {
            let each = open.iter().map(|&i| curves[i].need(most));
            each.sum::<Option<u64>>().filter(|&bytes| bytes <= room)
        };
        let points = open.iter().flat_map(|&i| {
            let curve = &curves[i];
            curve.points.iter().map(|p| curve.weigh(p.1))
        });
        let mut values: Vec<f64> = points.collect();
        values.sort_unstable_by(f64::total_cmp);
        // Feasible from some value on: the largest asks for no more than the least budgets.
        let least = values.partition_point(|&value| needs(value).is_none());
        let Some(&value) = values.get(least) else {
            break;
        };
        let before = room;
        for &i in &open {
            let Some(bytes) = curves[i].need(value) else {
                continue;
            };
            // Those that are as slow cannot be faster; what the others need less is seen next.
            if curves[i].weighted(bytes).is_some_and(|w| w >= value) {
                budgets[i] = Some(bytes);
                room -= bytes;
            }
        }
        if room == before {
            break;
        }
    }
    let given = budgets.iter().zip(curves);
    Ok(given
        .map(|(budget, curve)| budget.unwrap_or_else(|| curve.least_bytes()))
        .collect())
}

/// The largest weighted latency under the given budgets; `None` when one is infeasible.
pub fn largest_weighted(curves: &[Curve], budgets: &[u64]) -> Option<f64> {
    let each = curves.iter().zip(budgets);
    each.map(|(curve, &bytes)| curve.weighted(bytes))
        .try_fold(0.0, |most: f64, w| Some(most.max(w?)))
}

fn check(least: impl Iterator<Item = u64>, total_bytes: u64) -> Result<(), AllocateError> {
    let least_bytes = sum(least);
    if least_bytes > total_bytes {
        return Err(AllocateError::Infeasible { least_bytes });
    }
    Ok(())
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}
