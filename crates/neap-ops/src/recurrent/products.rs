//! Products of the rows of all sequences in one step with a direction's recurrent weights: matrix products on the kernels of
//! forward passes, over weights that are packed once for all steps.
//!
//! ```text
//!   forward    states [sequences][hidden]          times the transposed weights    gates of the step
//!   backward   derivatives [sequences][gates·hidden]  times the weights            derivatives of the state before
//! ```

use super::Sizes;
use crate::OpError;
use crate::args::{Scratch, scratch_bytes};
use crate::error::Named;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::Num;
use neap_kernels::epilogue::Epilogue;
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::panel::{panel_count, panel_floats};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;

/// Weights are packed twice, which costs about as much as two rows times all of them. With fewer rows in all, units
/// multiply by themselves.
const FEWEST_ROWS: usize = 16;

const LANES: usize = neap_kernels::simd::LANES;

/// Which way the weights, `[gates·hidden][hidden]`, are multiplied with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Rows of `hidden` give rows of `gates·hidden`.
    Forward,
    /// Rows of `gates·hidden` give rows of `hidden`.
    Backward,
}

/// Memory for one step's rows, and for weights in panels.
pub(super) struct Products<'a> {
    op: &'static str,
    isa: Isa,
    sizes: Sizes,
    panels: &'a mut [f32],
    rows: &'a mut [f32],
    results: &'a mut [f32],
}

/// Floats of panels, rows and results.
fn floats(sizes: &Sizes) -> [usize; 3] {
    let (inner, outer) = (sizes.hidden, sizes.gates.saturating_mul(sizes.hidden));
    let panels = |n: usize, k: usize| panel_count(n).saturating_mul(panel_floats(k));
    let rows = sizes.batch.saturating_mul(outer);
    [panels(outer, inner).max(panels(inner, outer)), rows, rows]
}

/// Whether products are computed so.
pub(super) fn pays(sizes: &Sizes) -> bool {
    sizes.batch.saturating_mul(sizes.steps) >= FEWEST_ROWS && sizes.hidden > 0
}

/// Of [`Products::take`].
pub(super) fn workspace_bytes(sizes: &Sizes) -> usize {
    let each = floats(sizes).map(scratch_bytes::<f32>);
    each.iter().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

impl<'a> Products<'a> {
    pub fn take(
        op: &'static str,
        isa: Isa,
        sizes: Sizes,
        scratch: &mut Scratch<'a>,
    ) -> Result<Products<'a>, OpError> {
        let [panels, rows, results] = floats(&sizes);
        Ok(Products {
            op,
            isa,
            sizes,
            panels: scratch.take(panels)?,
            rows: scratch.take(rows)?,
            results: scratch.take(results)?,
        })
    }

    /// Elements of a row, and of its result.
    fn widths(&self, way: Way) -> [usize; 2] {
        let (inner, outer) = (self.sizes.hidden, self.sizes.gates * self.sizes.hidden);
        match way {
            Way::Forward => [inner, outer],
            Way::Backward => [outer, inner],
        }
    }

    /// Packs a direction's weights for one way.
    pub fn pack<T: Num>(&mut self, way: Way, weights: Ptr<T>, par: &dyn Parallel) {
        let [k, n] = self.widths(way);
        let (hidden, panel) = (self.sizes.hidden, panel_floats(k));
        let to = Ptr(self.panels.as_mut_ptr());
        split(par, panel_count(n), GRAIN / panel, &|range, _| {
            for at in range {
                let width = LANES.min(n - at * LANES);
                // SAFETY: there are so many panels, each of them one task's.
                let out = unsafe { to.slice_mut(at * panel, panel) };
                let (bias, steps) = out.split_at_mut(LANES);
                bias.fill(0.0);
                for (i, step) in steps.chunks_exact_mut(LANES).enumerate() {
                    step[width..].fill(0.0);
                    for (lane, v) in step[..width].iter_mut().enumerate() {
                        let of = at * LANES + lane;
                        let from = match way {
                            Way::Forward => of * hidden + i,
                            Way::Backward => i * hidden + of,
                        };
                        // SAFETY: the weights have a row of `hidden` elements for each unit of each gate.
                        *v = unsafe { weights.read(from) }.to_f64() as f32;
                    }
                }
            }
        });
    }

    /// The rows that are to be multiplied next, `width` elements for each sequence.
    pub fn rows(&mut self, way: Way) -> impl Iterator<Item = &mut [f32]> {
        let [k, _] = self.widths(way);
        let used = &mut self.rows[..self.sizes.batch * k];
        used.chunks_exact_mut(k)
    }

    /// Multiplies them with the weights that were packed for that way.
    pub fn multiply(&mut self, way: Way, par: &dyn Parallel) -> Result<(), OpError> {
        let [k, n] = self.widths(way);
        let shape = LinearShape::dense(self.sizes.batch, k, n);
        let panels = &self.panels[..shape.panels() * panel_floats(k)];
        let rows = &self.rows[..shape.m * k];
        let results = &mut self.results[..shape.m * n];
        let all = 0..shape.panels();
        linear(
            self.isa,
            par,
            &shape,
            all,
            panels,
            rows,
            results,
            Epilogue::default(),
        )
        .named(self.op)
    }

    /// A sequence's result.
    pub fn result(&self, way: Way, sequence: usize) -> &[f32] {
        let [_, n] = self.widths(way);
        &self.results[sequence * n..][..n]
    }
}
