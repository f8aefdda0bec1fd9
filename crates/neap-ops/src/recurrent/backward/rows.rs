//! Products with the recurrent weights: of all sequences of a step at once, whose rows are brought together from wherever each
//! sequence's step is; or of runs of a state's elements, one sequence after the other.

use super::Pass;
use crate::OpError;
use crate::args::Pod;
use crate::nd::{GRAIN, split};
use crate::recurrent::Cell;
use crate::recurrent::products::{Products, Way};
use crate::scalar::{Float, Num};
use neap_kernels::parallel::Parallel;

/// Elements of a state whose derivatives one task adds at once.
const LANES: usize = 16;

impl<T: Float, S: Num + Pod> Pass<'_, T, S> {
    /// The states that a step begins with, times all recurrent weights.
    pub(super) fn multiply_states(
        &self,
        products: &mut Products,
        step: usize,
        par: &dyn Parallel,
    ) -> Result<(), OpError> {
        for (sequence, row) in products.rows(Way::Forward).enumerate() {
            match self.times.at(step, sequence) {
                // SAFETY: as in the forward pass.
                Some(time) => unsafe { copy(self.old_state(time, sequence), row) },
                None => row.fill(0.0),
            }
        }
        products.multiply(Way::Forward, par)
    }

    /// From the gates of all sequences to the states before, but for a reset state's candidate.
    pub(super) fn multiply_gates(
        &self,
        products: &mut Products,
        step: usize,
        par: &dyn Parallel,
    ) -> Result<(), OpError> {
        let hidden = self.sizes.hidden;
        for (sequence, row) in products.rows(Way::Backward).enumerate() {
            let Some(time) = self.times.at(step, sequence) else {
                row.fill(0.0);
                continue;
            };
            let first = self.row(time, sequence);
            // SAFETY: here and below as in the forward pass.
            unsafe {
                match self.cell {
                    Cell::Lstm | Cell::Rnn => copy(self.gates.slice(first, row.len()), row),
                    Cell::Gru {
                        linear_before_reset,
                    } => {
                        let (gates, candidate) = row.split_at_mut(2 * hidden);
                        copy(self.gates.slice(first, gates.len()), gates);
                        if linear_before_reset {
                            let kept = self.kept.slice(self.state(time, sequence), hidden);
                            copy(kept, candidate);
                        } else {
                            candidate.fill(0.0);
                        }
                    }
                }
            }
        }
        products.multiply(Way::Backward, par)?;
        for sequence in 0..self.sizes.batch {
            if self.times.at(step, sequence).is_none() {
                continue;
            }
            for (j, v) in products.result(Way::Backward, sequence).iter().enumerate() {
                let at = sequence * hidden + j;
                // SAFETY: between two steps nobody else looks at the derivatives.
                unsafe { self.dh.write(at, self.dh.read(at) + f64::from(*v)) };
            }
        }
        Ok(())
    }

    /// From the candidate to the state after its reset, and from there to state and reset gate.
    pub(super) fn reset_back(&self, par: &dyn Parallel, step: usize) {
        self.each_lanes(par, step, |sequence, time, first, width| {
            let mut sums = [0.0; LANES];
            // SAFETY: as in the forward pass.
            unsafe {
                let at = self.row(time, sequence) + 2 * self.sizes.hidden;
                let d = self.gates.slice(at, self.sizes.hidden);
                self.add_products(2 * self.sizes.hidden, d, first, &mut sums[..width]);
                for (lane, sum) in sums[..width].iter().enumerate() {
                    let j = first + lane;
                    let v = self.gate(1, j, time, sequence);
                    let [reset, of_reset] = self.unit.with_slope(0, v);
                    let old = self.states.read(self.state(time, sequence) + j).to_f64();
                    self.set_gate(1, j, time, sequence, sum * old * of_reset);
                    let at = sequence * self.sizes.hidden + j;
                    self.dh.write(at, self.dh.read(at) + sum * reset);
                }
            }
        });
    }

    /// From the gates to the state before.
    pub(super) fn state_back(&self, par: &dyn Parallel, step: usize) {
        let hidden = self.sizes.hidden;
        self.each_lanes(par, step, |sequence, time, first, width| {
            let mut sums = [0.0; LANES];
            let sums = &mut sums[..width];
            // SAFETY: as in the forward pass.
            unsafe {
                let d = self
                    .gates
                    .slice(self.row(time, sequence), self.sizes.gates * hidden);
                match self.cell {
                    Cell::Lstm | Cell::Rnn => self.add_products(0, d, first, sums),
                    Cell::Gru {
                        linear_before_reset,
                    } => {
                        self.add_products(0, &d[..2 * hidden], first, sums);
                        if linear_before_reset {
                            let d = self.kept.slice(self.state(time, sequence), hidden);
                            self.add_products(2 * hidden, d, first, sums);
                        }
                    }
                }
                for (lane, sum) in sums.iter().enumerate() {
                    let at = sequence * hidden + first + lane;
                    self.dh.write(at, self.dh.read(at) + sum);
                }
            }
        });
    }

    /// Calls `body(sequence, place, first, width)` for runs of a state's elements.
    fn each_lanes(
        &self,
        par: &dyn Parallel,
        step: usize,
        body: impl Fn(usize, usize, usize, usize) + Sync,
    ) {
        let hidden = self.sizes.hidden;
        let runs = hidden.div_ceil(LANES);
        let per_task = GRAIN / (self.sizes.gates * hidden * LANES);
        split(par, self.sizes.batch * runs, per_task, &|range, _| {
            for at in range {
                let (sequence, first) = (at / runs, at % runs * LANES);
                if let Some(time) = self.times.at(step, sequence) {
                    body(sequence, time, first, LANES.min(hidden - first));
                }
            }
        });
    }

    /// Adds `d` times rows of the weights from `row` on, in the columns from `first` on.
    unsafe fn add_products(&self, row: usize, d: &[T], first: usize, sums: &mut [f64]) {
        for (i, d) in d.iter().enumerate() {
            let at = (row + i) * self.sizes.hidden + first;
            let d = d.to_f64();
            // SAFETY: the weights have a row of `hidden` elements for each unit of each gate.
            let weights = unsafe { self.unit.weights.slice(at, sums.len()) };
            match (
                <&mut [f64; LANES]>::try_from(&mut *sums),
                <&[T; LANES]>::try_from(weights),
            ) {
                (Ok(sums), Ok(weights)) => {
                    (0..LANES).for_each(|lane| sums[lane] += d * weights[lane].to_f64());
                }
                _ => {
                    let pairs = sums.iter_mut().zip(weights);
                    pairs.for_each(|(sum, w)| *sum += d * w.to_f64());
                }
            }
        }
    }
}

fn copy<T: Num>(from: &[T], to: &mut [f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = from.to_f64() as f32;
    }
}
