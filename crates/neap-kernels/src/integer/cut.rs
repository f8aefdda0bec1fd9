//! Into what tasks a layer is cut: units of panels, and parts of the rows.
//!
//! ```text
//!   by panels   unit 0 all rows | unit 1 all rows | ...          each worker brings panels of its own into order
//!   by rows     top rows, all units | bottom rows, all units     each worker has rows of its own
//! ```
//! Workers take tasks that follow each other. So by rows, a worker has the same rows of one layer as of the next, and
//! mostly reads what it wrote itself. Nothing here changes a result.

use super::tile::MAX_ROWS;
use crate::tile::Split;
use std::ops::Range;

/// Rows of a task at least: more tasks bring more panels into order.
pub(super) const TASK_ROWS: usize = 4 * MAX_ROWS;

/// Tasks that every worker should get where the shape allows, for balance.
const TASKS_PER_WORKER: usize = 4;

/// And where as many tasks are equal.
const EQUAL_TASKS_PER_WORKER: usize = 2;

/// Rows of a worker from which on each has all panels: fewer do not pay for bringing them into order once more.
const OWN_ROWS: usize = 250;

/// How many times as many bytes of weights as of inputs a worker rather reads than what the others wrote.
const WEIGHTS_FOR_INPUTS: usize = 4;

/// What is cut.
#[derive(Clone, Copy)]
pub(super) struct Layer {
    pub rows: usize,
    pub channels: usize,
    pub taps: usize,
    pub prefers_rows: bool,
}

pub(super) struct Cut {
    /// As many panels as a tile takes, within a group.
    units: usize,
    rows: Split,
    by_rows: bool,
}

impl Cut {
    pub(super) fn new(layer: Layer, units: usize, workers: usize) -> Cut {
        let workers = workers.max(1);
        // Inputs have as many channels as a tap has weights.
        let weights = layer.channels * layer.taps;
        let by_rows = workers > 1
            && layer.prefers_rows
            && layer.rows >= workers * OWN_ROWS
            && weights <= layer.rows * WEIGHTS_FOR_INPUTS;
        let each = match by_rows || units.is_multiple_of(workers) {
            true => EQUAL_TASKS_PER_WORKER,
            false => TASKS_PER_WORKER,
        };
        let wanted = (each * workers).div_ceil(units.max(1));
        let wanted = wanted.min(layer.rows / TASK_ROWS).max(1);
        let parts = match (by_rows, workers) {
            (true, _) => wanted.next_multiple_of(workers),
            (false, 1) => 1,
            (false, _) => wanted,
        };
        let rows = Split {
            total: layer.rows,
            parts,
        };
        Cut {
            units,
            rows,
            by_rows,
        }
    }

    pub(super) fn tasks(&self) -> usize {
        self.units * self.rows.parts
    }

    /// Unit and rows of a task.
    pub(super) fn task(&self, task: usize) -> (usize, Range<usize>) {
        let (unit, part) = match self.by_rows {
            true => (task % self.units, task / self.units),
            false => (task / self.rows.parts, task % self.rows.parts),
        };
        (unit, self.rows.range(part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(rows: usize, units: usize, taps: usize, workers: usize) -> Cut {
        let layer = Layer {
            rows,
            channels: units * 64,
            taps,
            prefers_rows: true,
        };
        Cut::new(layer, units, workers)
    }

    #[test]
    fn every_row_of_every_unit_is_in_one_task() {
        for (rows, units, taps) in [
            (0, 1, 1),
            (1, 5, 1),
            (49, 15, 1),
            (196, 9, 9),
            (785, 1, 1),
            (3136, 4, 1),
            (3137, 3, 9),
        ] {
            for workers in [1, 2, 3, 8] {
                let cut = cut(rows, units, taps, workers);
                let mut count = vec![0; rows * units];
                for task in 0..cut.tasks() {
                    let (unit, rows) = cut.task(task);
                    rows.for_each(|row| count[row * units + unit] += 1);
                }
                let once = count.iter().all(|&c| c == 1);
                assert!(once, "{rows} {units} {taps} {workers}");
            }
        }
    }

    /// The first half of the tasks is the first half of the rows, in layers of other widths too.
    #[test]
    fn workers_have_the_same_rows_in_each_layer() {
        for (units, taps) in [(1, 1), (3, 1), (4, 1), (2, 9)] {
            let cut = cut(784, units, taps, 2);
            for task in 0..cut.tasks() {
                let (_, rows) = cut.task(task);
                let is_first = task < cut.tasks() / 2;
                assert_eq!(rows.end <= 392, is_first, "{units} {taps}: {rows:?}");
            }
        }
    }

    /// Where weights are many times what is read, or rows are few, a worker has panels of its own.
    #[test]
    fn heavy_and_low_layers_are_cut_by_panels() {
        for (rows, units, taps) in [(196, 4, 1), (784, 8, 9)] {
            let cut = cut(rows, units, taps, 2);
            assert_eq!(cut.task(0).0, 0);
            assert_eq!(cut.task(cut.tasks() / 2 - 1).0, units / 2 - 1);
        }
    }
}
