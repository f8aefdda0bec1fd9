//! Recurrent layers of `f32`: a step's products are dot products of vectors, its gates are computed sixteen at a time.
//!
//! ```text
//!   inputs of all steps times weights, and biases      projected [step][sequence][gate][unit]
//!   each step: state times weights                     sums      [sequence][gate][unit]
//!              gates, cell, next state                 in place of the sums
//! ```
//! A task has some units of all sequences: where a step is long, each worker has its part of the weights in its own cache from step
//! to step. Where it is short, the two directions run side by side.

mod panels;

pub use panels::takes_panels;

use super::{Cell, Sizes, Times, check_lengths, round_state, start};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::elementwise::unary::clamp;
use crate::error::Named;
use crate::nd::{Ptr, split};
use crate::{Context, OpError};
use neap_ir::op::{Recurrent, RecurrentActivation};
use neap_kernels::elementwise::{Unary, unary_in_place};
use neap_kernels::linear::{DotsShape, dots_run, matmul, matmul_scratch_bytes};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::{Isa, LANES};
use panels::Matrix;
use std::ops::Range;

/// Multiply-adds of a step that are worth a task of their own.
const TASK_PRODUCTS: usize = 128 * 1024;

/// Most rows of inputs that are multiplied without panels of the weights.
const FEW_ROWS: usize = 48;

/// Whether all activations have vectors.
pub(super) fn takes(recurrent: &Recurrent) -> bool {
    recurrent.activations.iter().all(|a| unary(*a).is_some())
}

fn unary(activation: RecurrentActivation) -> Option<Unary> {
    Some(match activation {
        RecurrentActivation::Sigmoid => Unary::Sigmoid,
        RecurrentActivation::Tanh => Unary::Tanh,
        RecurrentActivation::Relu => Unary::Relu,
        RecurrentActivation::LeakyRelu(alpha) => Unary::LeakyRelu { alpha },
        RecurrentActivation::ThresholdedRelu(alpha) => Unary::ThresholdedRelu { alpha },
        RecurrentActivation::Elu(alpha) => Unary::Elu { alpha },
        RecurrentActivation::HardSigmoid(alpha, beta) => Unary::HardSigmoid { alpha, beta },
        RecurrentActivation::Softsign => Unary::Softsign,
        RecurrentActivation::Softplus => Unary::Softplus,
        RecurrentActivation::Affine(..) | RecurrentActivation::ScaledTanh(..) => return None,
    })
}

/// Elements of the buffers of a direction: projected inputs, sums, two states, cells, what a step makes of the state, and
/// scratch of its tasks.
fn buffers(recurrent: &Recurrent, sizes: &Sizes, workers: usize) -> [usize; 7] {
    let state = sizes.batch * sizes.hidden;
    let rows = sizes.gates * sizes.hidden;
    let projected = sizes.steps * sizes.batch * rows;
    let scratch = tasks(sizes, workers) * panels::task_floats(recurrent, sizes);
    let sums = sizes.batch * rows;
    [projected, sums, state, state, state, state, scratch]
}

pub(super) fn workspace_bytes(recurrent: &Recurrent, sizes: &Sizes, workers: usize) -> usize {
    let each = buffers(recurrent, sizes, workers).map(scratch_bytes::<f32>);
    let packed = match recurrent.in_panels || is_short(sizes) {
        true => 0,
        false => matmul_scratch_bytes(&sizes.projection(), workers).div_ceil(4),
    };
    let one = each
        .iter()
        .fold(0usize, |sum, bytes| sum.saturating_add(*bytes));
    (one.saturating_mul(sizes.directions)).saturating_add(scratch_bytes::<f32>(packed))
}

/// Into how many tasks a step is cut.
fn tasks(sizes: &Sizes, workers: usize) -> usize {
    let products = sizes.batch * sizes.gates * sizes.hidden * sizes.hidden;
    (products / TASK_PRODUCTS).clamp(1, workers.max(1))
}

fn is_short(sizes: &Sizes) -> bool {
    sizes.steps * sizes.batch <= FEW_ROWS
}

pub(super) fn run(
    cell: Cell,
    recurrent: &Recurrent,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let sizes = Sizes::of(cell, recurrent, args.input(0)?.shape());
    let lengths = args.opt_input(4);
    check_lengths(&sizes, lengths.as_ref(), args)?;
    let (isa, par) = (ctx.isa, ctx.par);
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let mut passes = [None, None];
    for (direction, pass) in passes.iter_mut().enumerate().take(sizes.directions) {
        let mut buffer =
            buffers(recurrent, &sizes, par.workers()).map(|count| scratch.take::<f32>(count));
        let mut next = |at: usize| std::mem::replace(&mut buffer[at], Ok(&mut []));
        let (projected, sums, h) = (next(0)?, next(1)?, next(2)?);
        let (other, c, seen, own) = (next(3)?, next(4)?, next(5)?, next(6)?);
        start::<f32, f32>(&sizes, direction, args.opt_input(5), h);
        let cells = args.opt_input(6).filter(|_| cell == Cell::Lstm);
        start::<f32, f32>(&sizes, direction, cells, c);
        let ptr = |buffer: &mut [f32]| Ptr(buffer.as_mut_ptr());
        *pass = Some(Pass {
            isa,
            cell,
            recurrent,
            sizes,
            direction,
            times: Times::of(&sizes, recurrent, direction, lengths.as_ref()),
            parameters: Parameters::of(cell, recurrent, &sizes, direction, args)?,
            y: args.opt_output(0).map(|t| Ptr(t.as_ptr().cast())),
            projected: ptr(projected),
            sums: ptr(sums),
            h: [ptr(h), ptr(other)],
            c: ptr(c),
            seen: ptr(seen),
            scratch: ptr(own),
        });
    }
    for pass in passes.iter().flatten() {
        pass.project(args, &mut scratch, par)?;
    }
    let is_short_step = tasks(&sizes, usize::MAX) == 1;
    if let ([Some(forward), Some(backward)], true) = (&passes, is_short_step) {
        par.run(2, &|task, _| [forward, backward][task].run(&Serial));
    } else {
        passes.iter().flatten().for_each(|pass| pass.run(par));
    }
    passes.iter().flatten().for_each(|pass| pass.finish(args));
    Ok(())
}

/// What is stored for a direction.
struct Parameters<'a> {
    /// k is the input.
    inputs: Matrix<'a>,
    /// k is the state.
    states: Matrix<'a>,
    /// `[2][gates * hidden]`: of the input and of the state. Empty where there are none.
    bias: &'a [f32],
    /// `[3][hidden]`: input, output, forget. Empty where there are none.
    peepholes: &'a [f32],
}

impl<'a> Parameters<'a> {
    fn of(
        cell: Cell,
        recurrent: &Recurrent,
        sizes: &Sizes,
        direction: usize,
        args: &Args<'_, 'a>,
    ) -> Result<Parameters<'a>, OpError> {
        let rows = sizes.gates * sizes.hidden;
        let part = |input: usize, count: usize| -> &'a [f32] {
            let all = args.opt_input(input).map_or(&[][..], |t| t.f32s());
            all.get(direction * count..(direction + 1) * count)
                .unwrap_or(&[])
        };
        let [inputs, states] = match recurrent.in_panels {
            true => Parameters::panels(sizes, direction, args)?,
            false => {
                let counts = [rows * sizes.input, rows * sizes.hidden];
                let each = [part(1, counts[0]), part(2, counts[1])];
                let fits = each.map(<[f32]>::len) == counts;
                args.require(fits, "weights are shorter than the layer")?;
                each.map(Matrix::Rows)
            }
        };
        Ok(Parameters {
            inputs,
            states,
            bias: part(3, 2 * rows),
            peepholes: match cell {
                Cell::Lstm => part(7, 3 * sizes.hidden),
                _ => &[],
            },
        })
    }
}

/// One direction over all steps.
struct Pass<'a> {
    isa: Isa,
    cell: Cell,
    recurrent: &'a Recurrent,
    sizes: Sizes,
    direction: usize,
    times: Times,
    parameters: Parameters<'a>,
    y: Option<Ptr<f32>>,
    projected: Ptr<f32>,
    sums: Ptr<f32>,
    /// Previous and next state, changing roles at every step.
    h: [Ptr<f32>; 2],
    c: Ptr<f32>,
    /// The state as the products see it where that is another: rounded, or reset.
    seen: Ptr<f32>,
    /// Some of each task.
    scratch: Ptr<f32>,
}

/// A step and some of its units, as a task has them.
struct Part {
    step: usize,
    units: Range<usize>,
}

impl Pass<'_> {
    /// All inputs times the weights, and biases.
    fn project(
        &self,
        args: &Args,
        scratch: &mut Scratch,
        par: &dyn Parallel,
    ) -> Result<(), OpError> {
        let s = &self.sizes;
        let (x, count) = (args.input(0)?.f32s(), s.steps * s.batch);
        let rows = s.gates * s.hidden;
        // SAFETY: the buffer has a row for each step and sequence, and nobody else looks at it.
        let out = unsafe { self.projected.slice_mut(0, count * rows) };
        let weights = match self.parameters.inputs {
            Matrix::Panels(panels) => {
                panels::project(s, panels, args, self.isa, par, out)?;
                self.add_biases(out);
                return Ok(());
            }
            Matrix::Rows(weights) => weights,
        };
        if is_short(s) {
            args.require(
                x.len() >= count * s.input,
                "the input is shorter than the layer",
            )?;
            let to = self.projected;
            let per_task = TASK_PRODUCTS / (count * s.input).max(1);
            split(par, rows, per_task.max(LANES), &|units, _| {
                let shape = DotsShape {
                    rows: count,
                    units: units.len(),
                    k: s.input,
                    row_stride: s.input,
                    unit_stride: s.input,
                    out_stride: rows,
                };
                let weights = &weights[units.start * s.input..];
                let to = to.get().wrapping_add(units.start);
                // SAFETY: the operands have so many rows; a task writes its own columns.
                unsafe { dots_run(self.isa, &shape, x.as_ptr(), weights.as_ptr(), to) };
            });
        } else {
            let shape = s.projection();
            let floats = matmul_scratch_bytes(&shape, par.workers()).div_ceil(4);
            scratch.lend::<f32, _>(floats, |packed| {
                matmul(self.isa, par, &shape, x, weights, out, packed).named(args.op)
            })?;
        }
        self.add_biases(out);
        Ok(())
    }

    /// To all projected inputs.
    fn add_biases(&self, out: &mut [f32]) {
        let s = &self.sizes;
        let rows = s.gates * s.hidden;
        if let Some((of_input, of_state)) = self.parameters.bias.split_at_checked(rows) {
            // A GRU that multiplies before it resets resets the last gate's bias of the state too.
            let shared = match self.cell {
                Cell::Gru {
                    linear_before_reset: true,
                } => 2 * s.hidden,
                _ => rows,
            };
            for row in out.chunks_exact_mut(rows) {
                add(row, of_input);
                add(&mut row[..shared], of_state);
            }
        }
    }

    fn run(&self, par: &dyn Parallel) {
        let s = &self.sizes;
        let tasks = tasks(s, par.workers());
        let per_task = s.hidden.div_ceil(tasks).next_multiple_of(LANES);
        let each = |body: &(dyn Fn(Range<usize>, usize) + Sync)| {
            par.run(s.hidden.div_ceil(per_task), &|task, _| {
                let first = task * per_task;
                body(first..(first + per_task).min(s.hidden), task);
            });
        };
        let resets_first = matches!(
            self.cell,
            Cell::Gru {
                linear_before_reset: false
            }
        );
        for step in 0..s.steps {
            let mut seen = self.h[step % 2];
            if self.recurrent.rounds_state && self.cell == Cell::Lstm {
                self.round_states(seen);
                seen = self.seen;
            }
            if resets_first {
                // SAFETY: tasks differ in units; the state is only read.
                each(&|units, task| unsafe {
                    self.products(0..2, seen, units.clone(), task);
                    self.reset(&Part { step, units });
                });
                seen = self.seen;
            }
            let gates = if resets_first { 2..3 } else { 0..s.gates };
            // SAFETY: tasks differ in units; states that products read are only read.
            each(&|units, task| unsafe {
                self.products(gates.clone(), seen, units.clone(), task);
                self.finish_step(&Part { step, units });
            });
        }
    }

    /// Sums of some gates of some units of all sequences.
    ///
    /// # Safety
    /// No other task has these units or this number, and nobody writes the state.
    unsafe fn products(
        &self,
        gates: Range<usize>,
        state: Ptr<f32>,
        units: Range<usize>,
        task: usize,
    ) {
        let s = &self.sizes;
        let weights = match self.parameters.states {
            Matrix::Panels(panels) => {
                // SAFETY: the caller's promise.
                unsafe { self.by_panels(panels, gates, state, &units, task) };
                return;
            }
            Matrix::Rows(weights) => weights,
        };
        let shape = DotsShape {
            rows: s.batch,
            units: units.len(),
            k: s.hidden,
            row_stride: s.hidden,
            unit_stride: s.hidden,
            out_stride: s.gates * s.hidden,
        };
        for gate in gates {
            let first = gate * s.hidden + units.start;
            let weights = &weights[first * s.hidden..];
            let to = self.sums.get().wrapping_add(first);
            // SAFETY: weights and sums have so many rows; the caller's promise for the rest.
            unsafe { dots_run(self.isa, &shape, state.get(), weights.as_ptr(), to) };
        }
    }

    /// A gate's sums of a sequence.
    ///
    /// # Safety
    /// No other task has these units, and no other slice of them is in use.
    #[allow(clippy::mut_from_ref)] // the sums are shared memory, not a field
    unsafe fn gate(&self, sequence: usize, gate: usize, units: &Range<usize>) -> &mut [f32] {
        let at = (sequence * self.sizes.gates + gate) * self.sizes.hidden + units.start;
        // SAFETY: there is a sum for each unit of each gate; the caller's promise.
        unsafe { self.sums.slice_mut(at, units.len()) }
    }

    /// Adds what inputs and biases give to a gate's sums.
    fn add_input(&self, sums: &mut [f32], place: [usize; 2], gate: usize, units: &Range<usize>) {
        let s = &self.sizes;
        let [time, sequence] = place;
        let at = (s.row(time, sequence) * s.gates + gate) * s.hidden + units.start;
        // SAFETY: there is a row for each step and sequence, which nobody writes any more.
        add(sums, unsafe { self.projected.slice(at, units.len()) });
    }

    fn activate(&self, which: usize, values: &mut [f32]) {
        if let Some(limit) = self.recurrent.clip {
            let limit = limit.abs();
            values
                .iter_mut()
                .for_each(|v| *v = clamp(*v, -limit, limit));
        }
        self.apply(which, values);
    }

    fn apply(&self, which: usize, values: &mut [f32]) {
        let all = &self.recurrent.activations[self.direction * self.cell.activations()..];
        if let Some(function) = unary(all[which]) {
            unary_in_place(self.isa, &Serial, function, values);
        }
    }

    /// Update and reset gates of a GRU that resets its state before it multiplies, and that state.
    ///
    /// # Safety
    /// No other task has these units.
    unsafe fn reset(&self, part: &Part) {
        let s = &self.sizes;
        let units = &part.units;
        for sequence in 0..s.batch {
            let Some(time) = self.times.at(part.step, sequence) else {
                continue;
            };
            let at = sequence * s.hidden + units.start;
            // SAFETY: the units' own elements; the previous state is only read.
            unsafe {
                for gate in 0..2 {
                    let sums = self.gate(sequence, gate, units);
                    self.add_input(sums, [time, sequence], gate, units);
                    self.activate(0, sums);
                }
                let old = self.h[part.step % 2].slice(at, units.len());
                let reset = self.gate(sequence, 1, units);
                let seen = self.seen.slice_mut(at, units.len());
                for ((to, r), h) in seen.iter_mut().zip(reset).zip(old) {
                    *to = *r * h;
                }
            }
        }
    }

    /// The next state of some units of all sequences, and what of it is an output.
    ///
    /// # Safety
    /// No other task has these units.
    unsafe fn finish_step(&self, part: &Part) {
        let s = &self.sizes;
        let units = &part.units;
        for sequence in 0..s.batch {
            let at = sequence * s.hidden + units.start;
            let time = self.times.at(part.step, sequence);
            // SAFETY: the units' own elements; the previous state is only read.
            unsafe {
                let old = self.h[part.step % 2].slice(at, units.len());
                let next = self.h[(part.step + 1) % 2].slice_mut(at, units.len());
                let y = self.y.map(|y| {
                    let place = s.output(time.unwrap_or(part.step), self.direction, sequence);
                    y.slice_mut(place + units.start, units.len())
                });
                let Some(time) = time else {
                    next.copy_from_slice(old);
                    if let Some(y) = y {
                        y.fill(0.0);
                    }
                    continue;
                };
                let place = [time, sequence];
                match self.cell {
                    Cell::Lstm => self.lstm(place, units, next),
                    Cell::Gru {
                        linear_before_reset,
                    } => self.gru(place, units, linear_before_reset, old, next),
                    Cell::Rnn => {
                        next.copy_from_slice(self.gate(sequence, 0, units));
                        self.add_input(next, place, 0, units);
                        self.activate(0, next);
                    }
                }
                if let Some(y) = y {
                    y.copy_from_slice(next);
                }
            }
        }
    }

    /// # Safety
    /// As [`Pass::finish_step`].
    unsafe fn lstm(&self, place: [usize; 2], units: &Range<usize>, next: &mut [f32]) {
        let sequence = place[1];
        // SAFETY: four gates of the units, and their cells.
        let (input, output, forget, candidate, cell) = unsafe {
            (
                self.gate(sequence, 0, units),
                self.gate(sequence, 1, units),
                self.gate(sequence, 2, units),
                self.gate(sequence, 3, units),
                self.c
                    .slice_mut(sequence * self.sizes.hidden + units.start, units.len()),
            )
        };
        self.add_input(input, place, 0, units);
        self.peep(0, units, cell, input);
        self.activate(0, input);
        if self.recurrent.couple_input_forget {
            for (f, i) in forget.iter_mut().zip(input.iter()) {
                *f = 1.0 - i;
            }
        } else {
            self.add_input(forget, place, 2, units);
            self.peep(2, units, cell, forget);
            self.activate(0, forget);
        }
        self.add_input(candidate, place, 3, units);
        self.activate(1, candidate);
        let gated = input.iter().zip(candidate.iter()).zip(forget.iter());
        for (c, ((i, g), f)) in cell.iter_mut().zip(gated) {
            *c = f * *c + i * g;
        }
        self.add_input(output, place, 1, units);
        self.peep(1, units, cell, output);
        self.activate(0, output);
        next.copy_from_slice(cell);
        // A cell is not clipped: `clip` is of what goes into gates.
        self.apply(2, next);
        for (h, o) in next.iter_mut().zip(output.iter()) {
            *h *= o;
        }
    }

    /// Adds what a gate sees of the cells.
    fn peep(&self, which: usize, units: &Range<usize>, cell: &[f32], sums: &mut [f32]) {
        let first = which * self.sizes.hidden + units.start;
        let Some(peepholes) = self.parameters.peepholes.get(first..) else {
            return;
        };
        for ((sum, p), c) in sums.iter_mut().zip(peepholes).zip(cell) {
            *sum += p * c;
        }
    }

    /// # Safety
    /// As [`Pass::finish_step`].
    unsafe fn gru(
        &self,
        place: [usize; 2],
        units: &Range<usize>,
        linear_before_reset: bool,
        old: &[f32],
        next: &mut [f32],
    ) {
        let sequence = place[1];
        // SAFETY: three gates of the units.
        let (update, reset, candidate) = unsafe {
            (
                self.gate(sequence, 0, units),
                self.gate(sequence, 1, units),
                self.gate(sequence, 2, units),
            )
        };
        if linear_before_reset {
            for (gate, sums) in [(0, &mut *update), (1, &mut *reset)] {
                self.add_input(sums, place, gate, units);
                self.activate(0, sums);
            }
            let first = (self.sizes.gates + 2) * self.sizes.hidden + units.start;
            if let Some(bias) = self.parameters.bias.get(first..) {
                add(candidate, &bias[..units.len()]);
            }
            for (v, r) in candidate.iter_mut().zip(reset.iter()) {
                *v *= r;
            }
        }
        self.add_input(candidate, place, 2, units);
        self.activate(1, candidate);
        let gated = update.iter().zip(candidate.iter()).zip(old);
        for (to, ((z, v), h)) in next.iter_mut().zip(gated) {
            *to = (1.0 - z) * v + z * h;
        }
    }

    /// Final states and cells.
    fn finish(&self, args: &Args) {
        let s = &self.sizes;
        for (output, state) in [(1, self.h[s.steps % 2]), (2, self.c)] {
            let Some(out) = args.opt_output(output) else {
                continue;
            };
            let out = Ptr::<f32>(out.as_ptr().cast());
            for sequence in 0..s.batch {
                // SAFETY: final states have an element for each unit, and nothing runs any more.
                unsafe {
                    let from = state.slice(sequence * s.hidden, s.hidden);
                    out.slice_mut(s.state(self.direction, sequence), s.hidden)
                        .copy_from_slice(from);
                }
            }
        }
    }
}

fn add(sums: &mut [f32], terms: &[f32]) {
    for (sum, term) in sums.iter_mut().zip(terms) {
        *sum += term;
    }
}
