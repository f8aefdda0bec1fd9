//! `--slower`: the smallest budget that costs no more than a share of the time.

use crate::failure::Outcome;
use crate::progress::note;
use crate::report::ms;
use neaptide::{Bytes, CurvePoint, LatencyCurve, Model, RunOptions};
use std::str::FromStr;

/// How much longer a run may take than with the fastest budget: 0.1 is a tenth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slower(f64);

/// Budgets that are looked at, from the smallest to all of the model's memory.
const BUDGETS: usize = 16;

impl Slower {
    pub const A_TENTH: Slower = Slower(0.1);

    /// The smallest budget of a curve that is slow enough only by this share, and the fastest of all.
    pub fn smallest(self, curve: &LatencyCurve) -> Option<(CurvePoint, CurvePoint)> {
        let fastest = *curve.points.iter().min_by_key(|p| p.latency_ns)?;
        let most_ns = fastest.latency_ns as f64 * (1.0 + self.0);
        let is_near = |p: &&CurvePoint| p.latency_ns as f64 <= most_ns;
        Some((*curve.points.iter().find(is_near)?, fastest))
    }

    /// The budget that a model gets, in bytes. A line says which, unless `quiet`.
    pub fn budget_bytes(self, model: &Model, options: &RunOptions, quiet: bool) -> Outcome<u64> {
        let curve = model.latency_curve(options, BUDGETS, &[])?;
        let Some((chosen, fastest)) = self.smallest(&curve) else {
            return Ok(curve.unlimited_bytes);
        };
        if !quiet {
            note(&format!(
                "the memory budget is {}: predicted {:.2} ms, and {:.2} ms within {}",
                Bytes(chosen.budget_bytes),
                ms(chosen.latency_ns),
                ms(fastest.latency_ns),
                Bytes(fastest.budget_bytes),
            ));
        }
        Ok(chosen.budget_bytes)
    }
}

impl FromStr for Slower {
    type Err = String;

    fn from_str(text: &str) -> Result<Slower, String> {
        let percent = text.strip_suffix('%').and_then(|n| n.parse::<f64>().ok());
        match percent.filter(|percent| (0.0..=10_000.0).contains(percent)) {
            Some(percent) => Ok(Slower(percent / 100.0)),
            None => Err("write a percentage from 0% to 10000%, such as 10%".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neaptide::Ledger;

    #[test]
    fn the_smallest_budget_within_the_share() {
        let point = |(budget_bytes, latency_ns)| CurvePoint {
            budget_bytes,
            latency_ns,
        };
        let curve = LatencyCurve {
            smallest: Ledger::default(),
            unlimited_bytes: 40,
            points: [(10, 200), (20, 110), (30, 100), (40, 101)]
                .map(point)
                .into(),
        };
        for (share, bytes) in [
            ("0%", 30),
            ("9.9%", 30),
            ("10%", 20),
            ("99%", 20),
            ("100%", 10),
        ] {
            let share: Slower = share.parse().unwrap();
            let (chosen, fastest) = share.smallest(&curve).unwrap();
            assert_eq!((chosen.budget_bytes, fastest.budget_bytes), (bytes, 30));
        }
        for bad in ["", "10", "%", "-1%", "NaN%", "inf%", "10001%", "a%"] {
            assert!(bad.parse::<Slower>().is_err(), "{bad}");
        }
    }
}
