//! How much is searched before it is given up, counted in work and not in time: the same search always ends at the same place.

use std::cell::Cell;

/// Steps of the solver times variables: some seconds of one processor.
const BOUNDED: u64 = 200_000_000;

/// Variables of a bounded search, all tasks together, and points of a curve that are kept in any case.
const MOST_VARIABLES: usize = 2048;
const LEAST_POINTS: usize = 16;

/// Branches of one solution: so many for a thousand variables.
const NODES: u64 = 200;

/// What is left for a search, and whether it was enough.
#[derive(Debug)]
pub struct Effort {
    /// `None` without a bound.
    left: Option<Cell<u64>>,
    fell_short: Cell<bool>,
}

impl Effort {
    /// Until all is proven.
    pub fn endless() -> Effort {
        Effort {
            left: None,
            fell_short: Cell::new(false),
        }
    }

    /// A search that ends within seconds.
    pub fn bounded() -> Effort {
        Effort {
            left: Some(Cell::new(BOUNDED)),
            ..Effort::endless()
        }
    }

    /// Whether something was not looked at, so that nothing found does not mean that there is nothing.
    pub fn fell_short(&self) -> bool {
        self.fell_short.get()
    }

    pub(crate) fn fall_short(&self) {
        self.fell_short.set(true);
    }

    pub(crate) fn spend(&self, work: u64) {
        if let Some(left) = &self.left {
            left.set(left.get().saturating_sub(work));
        }
    }

    /// How many branches a solution of so many variables may have; `None` when nothing is left.
    pub(crate) fn nodes(&self, variables: usize) -> Option<Option<u64>> {
        match &self.left {
            None => Some(None),
            Some(left) if left.get() == 0 => {
                self.fall_short();
                None
            }
            Some(_) => Some(Some(NODES * 1000 / variables.max(1) as u64 + NODES)),
        }
    }

    /// Some of a task's points, the first and the last among them, where all are too many.
    pub(crate) fn thinned(&self, points: Vec<usize>, tasks: usize) -> Vec<usize> {
        let most = (MOST_VARIABLES / tasks.max(1)).max(LEAST_POINTS);
        if self.left.is_none() || points.len() <= most {
            return points;
        }
        self.fall_short();
        let last = points.len() - 1;
        (0..most).map(|i| points[i * last / (most - 1)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_search_has_an_end() {
        let effort = Effort::bounded();
        assert_eq!(effort.thinned((0..16).collect(), 1000).len(), 16);
        assert!(effort.nodes(1000).is_some() && !effort.fell_short());
        let thinned = effort.thinned((0..5000).collect(), 4);
        assert_eq!((thinned.len(), thinned[0], thinned[511]), (512, 0, 4999));
        assert!(effort.fell_short());
        effort.spend(u64::MAX);
        assert_eq!(effort.nodes(1000), None);
        let endless = Effort::endless();
        endless.spend(u64::MAX);
        assert_eq!(endless.nodes(9), Some(None));
        assert_eq!(endless.thinned((0..5000).collect(), 4).len(), 5000);
        assert!(!endless.fell_short());
    }
}
