//! Weights of a recurrent layer in panels of 8 bits, as they are stored.
//!
//! ```text
//!   inputs of all steps      as a linear layer
//!   state, as it is          few rows times panels, widened in registers
//!   state, rounded           few rows of bytes times panels, in integers; as floats where there are many
//! ```

use super::{Parameters, Pass};
use crate::OpError;
use crate::args::Args;
use crate::error::Named;
use crate::nd::Ptr;
use crate::recurrent::{Cell, Sizes};
use neap_ir::op::{Op, Recurrent};
use neap_kernels::epilogue::Epilogue;
use neap_kernels::integer::{Finish, MOST_K, Results, Steps, integer_linear, linear_scratch_bytes};
use neap_kernels::linear::{FewByPanels, LinearShape, few_by_panels_run, linear};
use neap_kernels::panel::{Format, Panels};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::{Isa, LANES};
use std::ops::Range;

/// Most sequences whose rounded states are multiplied in integers: each has steps of its own, and reads all weights.
const MOST_IN_INTEGERS: usize = 4;

/// Whether a recurrent operator of `f32` computes with weights in panels.
#[must_use]
pub fn takes_panels(op: &Op) -> bool {
    // A task's units are whole panels of each gate.
    Cell::of(op).is_some_and(|(_, recurrent)| {
        recurrent.hidden.is_multiple_of(LANES) && super::takes(recurrent)
    })
}

/// Weights of a direction.
#[derive(Clone, Copy)]
pub(super) enum Matrix<'a> {
    /// `[gates * hidden][k]`
    Rows(&'a [f32]),
    /// Panels of as many outputs.
    Panels(&'a [u8]),
}

impl<'a> Parameters<'a> {
    /// W and R of a direction in panels.
    pub(super) fn panels(
        sizes: &Sizes,
        direction: usize,
        args: &Args<'_, 'a>,
    ) -> Result<[Matrix<'a>; 2], OpError> {
        let panels = sizes.gates * sizes.hidden / LANES;
        let each = [(0, sizes.input), (1, sizes.hidden)].map(|(at, k)| {
            let bytes = args.input(Recurrent::PANELS[direction][at])?.bytes();
            let needed = Format::I8
                .panel_bytes(k)
                .and_then(|b| b.checked_mul(panels));
            args.require(
                Some(bytes.len()) == needed,
                "panels are shorter than the layer",
            )?;
            Ok::<_, OpError>(Matrix::Panels(bytes))
        });
        let [inputs, states] = each;
        Ok([inputs?, states?])
    }
}

/// Whether the rounded state meets its weights in integers.
fn in_integers(recurrent: &Recurrent, sizes: &Sizes) -> bool {
    recurrent.in_panels
        && recurrent.rounds_state
        && sizes.gates == 4
        && sizes.batch <= MOST_IN_INTEGERS
        && sizes.hidden <= MOST_K
}

/// Floats of scratch of each of a direction's tasks.
pub(super) fn task_floats(recurrent: &Recurrent, sizes: &Sizes) -> usize {
    if !in_integers(recurrent, sizes) {
        return 0;
    }
    let shape = LinearShape::dense(1, sizes.hidden, sizes.hidden);
    let bytes = linear_scratch_bytes(&shape, 1);
    bytes.checked_next_multiple_of(64).unwrap_or(bytes) / size_of::<f32>()
}

/// All inputs times the weights.
pub(super) fn project(
    sizes: &Sizes,
    panels: &[u8],
    args: &Args,
    isa: Isa,
    par: &dyn Parallel,
    out: &mut [f32],
) -> Result<(), OpError> {
    let rows = sizes.gates * sizes.hidden;
    let shape = LinearShape::dense(sizes.steps * sizes.batch, sizes.input, rows);
    let weights = Panels::new(Format::I8, panels).named(args.op)?;
    let (x, epilogue) = (args.input(0)?.f32s(), Epilogue::default());
    linear(isa, par, &shape, 0..rows / LANES, weights, x, out, epilogue).named(args.op)
}

impl Pass<'_> {
    /// Rounds the states of all sequences before a step: to bytes for integers, else to floats on steps.
    pub(super) fn round_states(&self, state: Ptr<f32>) {
        let s = &self.sizes;
        for sequence in 0..s.batch {
            let first = sequence * s.hidden;
            // SAFETY: between two steps nobody else looks at the states; the buffer has room for bytes or floats of each
            // unit, and for two floats of each sequence behind the bytes, which take a quarter of it.
            unsafe {
                let state = state.slice(first, s.hidden);
                if !in_integers(self.recurrent, s) {
                    super::round_state(state, Ptr(self.seen.0.wrapping_add(first)));
                    continue;
                }
                let bytes = Ptr(self.seen.0.cast::<u8>());
                let steps = round_to_bytes(state, bytes.slice_mut(first, s.hidden));
                let stored = self.seen.slice_mut(self.steps_at(sequence), 2);
                stored.copy_from_slice(&[steps.scale, steps.zero.into()]);
            }
        }
    }

    /// Where scale and zero point of a sequence's rounded state are.
    fn steps_at(&self, sequence: usize) -> usize {
        self.sizes.batch * self.sizes.hidden / size_of::<f32>() + 2 * sequence
    }

    /// Sums of some gates of some units of all sequences.
    ///
    /// # Safety
    /// No other task has these units or this number, and nobody writes the state.
    pub(super) unsafe fn by_panels(
        &self,
        panels: &[u8],
        gates: Range<usize>,
        state: Ptr<f32>,
        units: &Range<usize>,
        task: usize,
    ) {
        let s = &self.sizes;
        let panel_bytes = Format::I8.head_bytes() + s.hidden * LANES;
        for gate in gates {
            let first = (gate * s.hidden + units.start) / LANES * panel_bytes;
            let own = &panels[first..first + units.len() / LANES * panel_bytes];
            if in_integers(self.recurrent, s) {
                for sequence in 0..s.batch {
                    // SAFETY: the caller's promise.
                    unsafe { self.by_integers(own, gate, sequence, units, task) };
                }
                continue;
            }
            let shape = FewByPanels {
                rows: s.batch,
                k: s.hidden,
                panels: units.len() / LANES,
                row_stride: s.hidden,
                out_stride: s.gates * s.hidden,
            };
            let to = self.sums.get().wrapping_add(gate * s.hidden + units.start);
            // SAFETY: panels, states and sums have so many rows; the caller's promise for the rest.
            unsafe { few_by_panels_run(self.isa, &shape, state.get(), own.as_ptr(), to) };
        }
    }

    /// # Safety
    /// As [`Pass::by_panels`].
    unsafe fn by_integers(
        &self,
        panels: &[u8],
        gate: usize,
        sequence: usize,
        units: &Range<usize>,
        task: usize,
    ) {
        let s = &self.sizes;
        let shape = LinearShape::dense(1, s.hidden, units.len());
        let floats = task_floats(self.recurrent, s);
        // SAFETY: the sequence's bytes and steps are only read while tasks run; sums and scratch are this task's.
        let (bytes, steps, sums, scratch) = unsafe {
            (
                Ptr(self.seen.0.cast::<u8>()).slice(sequence * s.hidden, s.hidden),
                self.seen.slice(self.steps_at(sequence), 2),
                self.gate(sequence, gate, units),
                Ptr(self.scratch.0.wrapping_add(task * floats).cast::<u8>())
                    .slice_mut(0, floats * size_of::<f32>()),
            )
        };
        let steps = Steps {
            scale: steps[0],
            zero: steps[1] as u8,
        };
        let weights = Panels::new(Format::I8, panels);
        let done = weights.and_then(|weights| {
            let results = Results::Floats(sums);
            integer_linear(
                self.isa,
                &Serial,
                &shape,
                0..units.len() / LANES,
                weights,
                bytes,
                steps,
                results,
                Finish::default(),
                scratch,
            )
        });
        debug_assert!(done.is_ok(), "sizes were checked when the pass began");
    }
}

/// As [`super::round_state`]: the steps, and what they stand for. What is no number makes the scale none.
fn round_to_bytes(state: &[f32], bytes: &mut [u8]) -> Steps {
    let (low, high) = state.iter().fold((0.0f32, 0.0f32), |(low, high), v| {
        (low.min(*v), high.max(*v))
    });
    let scale = (high - low) / 255.0;
    if scale == 0.0 && !state.iter().any(|v| v.is_nan()) {
        bytes.fill(0);
        return Steps { scale, zero: 0 };
    }
    let zero = match scale {
        0.0 => 0.0,
        scale => (-low / scale).round_ties_even().clamp(0.0, 255.0),
    };
    for (byte, v) in bytes.iter_mut().zip(state) {
        let step = (v / scale).round_ties_even() + zero;
        *byte = step.clamp(0.0, 255.0) as u8;
    }
    let scale = match state.iter().any(|v| v.is_nan()) {
        true => f32::NAN,
        false => scale,
    };
    Steps {
        scale,
        zero: zero as u8,
    }
}
