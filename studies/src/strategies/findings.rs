//! What the figures say: who wins where and by what, what `auto` is worth, how far predictions are off.

use super::{AUTO, Figures, OF_AUTO, Point, SINGLE};
use crate::peer::median;

/// Who is slower than the fastest by less than this share is as fast, however little noise there is.
pub const LEAST_TIE: f64 = 0.02;

/// What two measurements of one plan differ by. `auto` runs the plan of a single strategy in a process of its own: where both
/// have the same prediction, they are such a pair.
pub struct Noise {
    pub pairs: usize,
    pub median: f64,
    /// Nine of ten pairs differ by no more.
    pub usual: f64,
    pub most: f64,
}

impl Noise {
    pub fn of(points: &[Point]) -> Noise {
        let difference = |point: &Point| {
            let auto = point.figures(AUTO)?;
            let single = SINGLE.into_iter().find(|s| *s == auto.chosen)?;
            let own = point.figures(single)?;
            let is_same = (own.predicted_ms / auto.predicted_ms - 1.0).abs() < 1e-3;
            let (a, b) = (own.measured_ms, auto.measured_ms);
            is_same.then(|| a.max(b) / a.min(b) - 1.0)
        };
        let mut found: Vec<f64> = points.iter().filter_map(difference).collect();
        found.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let last = found.len().saturating_sub(1) as f64;
            let at = (last * share).round() as usize;
            found.get(at).copied().unwrap_or(0.0)
        };
        Noise {
            pairs: found.len(),
            median: at(0.5),
            usual: at(0.9),
            most: at(1.0),
        }
    }

    /// A smaller lead is none.
    pub fn tie(&self) -> f64 {
        self.usual.max(LEAST_TIE)
    }
}

/// The fastest single strategy at a point, and the one that comes next.
pub struct Win<'a> {
    pub point: &'a Point,
    pub strategy: &'static str,
    pub first: &'a Figures,
    pub next: Option<&'a Figures>,
    /// [`Noise::tie`].
    pub tie: f64,
}

impl Win<'_> {
    /// Nobody is as fast.
    pub fn is_clear(&self) -> bool {
        let tied_ms = self.first.measured_ms * (1.0 + self.tie);
        self.next.is_some_and(|next| next.measured_ms > tied_ms)
    }

    /// What of the lead is waiting less, and what is computing less; in milliseconds.
    pub fn lead_ms(&self) -> Option<(f64, f64)> {
        let next = self.next?;
        let computing = |f: &Figures| f.measured_ms - f.stall_ms;
        Some((
            next.stall_ms - self.first.stall_ms,
            computing(next) - computing(self.first),
        ))
    }
}

/// The single strategies that can do with the budget, as they were measured, the fastest first.
fn ranking(point: &Point) -> Vec<(&'static str, &Figures)> {
    let able = |s: &'static str| Some((s, point.figures(s)?));
    let mut found: Vec<_> = SINGLE.into_iter().filter_map(able).collect();
    found.sort_by(|a, b| a.1.measured_ms.total_cmp(&b.1.measured_ms));
    found
}

/// The winner of each point.
pub fn wins(points: &[Point]) -> Vec<Win<'_>> {
    let tie = Noise::of(points).tie();
    let win = |point| {
        let ranking = ranking(point);
        let &(strategy, first) = ranking.first()?;
        Some(Win {
            point,
            strategy,
            first,
            next: ranking.get(1).map(|&(_, figures)| figures),
            tie,
        })
    };
    points.iter().filter_map(win).collect()
}

/// A strategy's latencies in those of the fastest, by point; points where it can do only.
pub fn ratios<'a>(points: impl Iterator<Item = &'a Point>, strategy: &str) -> Vec<f64> {
    let ratio = |point: &Point| {
        let fastest_ms = ranking(point).first()?.1.measured_ms;
        Some(point.figures(strategy)?.measured_ms / fastest_ms)
    };
    points.filter_map(ratio).collect()
}

/// Whether `auto` is predicted no slower than any that it chooses among at this point, planned by one process: to the
/// nanosecond.
pub fn auto_is_no_worse(point: &Point) -> bool {
    let of = |strategy: &str| {
        let found = point.foreseen.iter().find(|f| f.strategy == strategy);
        found.and_then(|f| f.latency_ns).unwrap_or(u64::MAX)
    };
    OF_AUTO.into_iter().all(|single| of(AUTO) <= of(single))
}

/// How far predictions are off, as shares of what was measured; negative where they are too fast.
#[derive(Debug, PartialEq)]
pub struct Errors {
    pub count: usize,
    pub median: f64,
    /// Of what they are off by, whatever the direction.
    pub median_size: f64,
    pub least: f64,
    pub most: f64,
    pub within_4: f64,
    pub within_5: f64,
}

/// `None` of no figures.
pub fn errors<'a>(figures: impl Iterator<Item = &'a Figures>) -> Option<Errors> {
    let errors: Vec<f64> = figures
        .map(|f| f.predicted_ms / f.measured_ms - 1.0)
        .collect();
    let sizes: Vec<f64> = errors.iter().map(|e| e.abs()).collect();
    let within = |limit: f64| {
        let good = sizes.iter().filter(|&&size| size <= limit).count();
        good as f64 / sizes.len() as f64
    };
    (!errors.is_empty()).then(|| Errors {
        count: errors.len(),
        median: median(&errors),
        median_size: median(&sizes),
        least: errors.iter().copied().fold(f64::MAX, f64::min),
        most: errors.iter().copied().fold(f64::MIN, f64::max),
        within_4: within(0.04),
        within_5: within(0.05),
    })
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::strategies::Cell;
    use crate::worker::Foreseen;

    /// Predicted, measured, stall.
    pub fn figures(predicted_ms: f64, measured_ms: f64, stall_ms: f64) -> Figures {
        Figures {
            chosen: "preload".into(),
            predicted_ms,
            predicted_stall_ms: stall_ms,
            measured_ms,
            stall_ms,
            loaded_bytes: 1 << 20,
            is_steady: true,
        }
    }

    pub fn point(cells: &[(&'static str, Result<Figures, u64>)]) -> Point {
        let cells = cells.iter().map(|(strategy, outcome)| Cell {
            strategy,
            outcome: outcome.clone(),
        });
        Point {
            model: "m".into(),
            share: 25,
            budget_bytes: 64 << 20,
            cells: cells.collect(),
            foreseen: Vec::new(),
        }
    }

    pub fn foreseen(cells: &[(&'static str, Option<u64>)]) -> Vec<Foreseen<'static>> {
        let foreseen = |&(strategy, latency_ns)| Foreseen {
            strategy,
            chosen: "preload".into(),
            latency_ns,
        };
        cells.iter().map(foreseen).collect()
    }

    fn three() -> Point {
        point(&[
            ("preload", Ok(figures(10.0, 10.0, 1.0))),
            ("blocks", Ok(figures(12.0, 13.0, 3.5))),
            ("odswap", Err(80 << 20)),
            ("auto", Ok(figures(10.05, 9.0, 1.0))),
        ])
    }

    #[test]
    fn the_fastest_single_strategy_wins_and_by_what() {
        let points = [three()];
        let wins = wins(&points);
        assert_eq!(wins.len(), 1);
        assert_eq!(wins[0].strategy, "preload", "auto is no rival");
        assert!(wins[0].is_clear());
        assert_eq!(wins[0].lead_ms(), Some((2.5, 0.5)));
        assert_eq!(ratios(points.iter(), "blocks"), [1.3]);
        assert_eq!(ratios(points.iter(), "odswap"), [0.0; 0]);
        let tied = [point(&[
            ("preload", Ok(figures(10.0, 10.1, 1.0))),
            ("blocks", Ok(figures(12.0, 10.0, 3.5))),
        ])];
        assert!(!super::wins(&tied)[0].is_clear());
        assert_eq!(super::wins(&tied)[0].strategy, "blocks");
    }

    #[test]
    fn leads_below_what_one_plan_differs_by_are_none() {
        let same = |measured_ms| {
            point(&[
                ("preload", Ok(figures(10.0, 10.0, 1.0))),
                ("blocks", Ok(figures(12.0, 11.0, 3.5))),
                ("auto", Ok(figures(10.0, measured_ms, 1.0))),
            ])
        };
        // Auto chose preload: the same plan, measured twice.
        let calm = [same(10.1), same(9.95)];
        let noise = Noise::of(&calm);
        assert_eq!(noise.pairs, 2);
        assert!((noise.most - 0.01).abs() < 1e-9 && noise.tie() == LEAST_TIE);
        assert!(super::wins(&calm)[0].is_clear());
        let noisy = [same(10.1), same(12.0)];
        assert!((Noise::of(&noisy).tie() - 0.2).abs() < 1e-9);
        assert!(!super::wins(&noisy)[0].is_clear(), "blocks are 10 % slower");
        // Another prediction is another plan.
        assert_eq!(Noise::of(&[three()]).pairs, 0);
    }

    #[test]
    fn auto_is_compared_with_what_one_process_predicts() {
        let with = |auto_ns| Point {
            foreseen: foreseen(&[("preload", Some(100)), ("blocks", None), ("auto", auto_ns)]),
            ..three()
        };
        assert!(auto_is_no_worse(&with(Some(100))));
        assert!(!auto_is_no_worse(&with(Some(101))));
        assert!(!auto_is_no_worse(&with(None)));
    }

    #[test]
    fn errors_are_shares_of_what_is_measured() {
        let all = [
            figures(96.5, 100.0, 0.0),
            figures(104.5, 100.0, 0.0),
            figures(80.0, 100.0, 0.0),
        ];
        let found = errors(all.iter()).unwrap();
        assert_eq!(found.count, 3);
        assert!((found.median + 0.035).abs() < 1e-9);
        assert!((found.median_size - 0.045).abs() < 1e-9);
        assert!((found.least + 0.2).abs() < 1e-9 && (found.most - 0.045).abs() < 1e-9);
        assert!((found.within_4 - 1.0 / 3.0).abs() < 1e-9);
        assert!((found.within_5 - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!(errors([].iter()), None);
    }
}
