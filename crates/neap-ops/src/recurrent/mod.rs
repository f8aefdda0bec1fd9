//! LSTM, GRU and RNN.
//!
//! Inputs times weights are one product over all steps. Then, step by step, each hidden unit of
//! each sequence is one unit of work: it reads the whole previous state and writes its own place
//! of the next. f32 computes in f32, with vectors where all activations have them; the other types in f64.

mod backward;
mod gates;
mod products;
mod vectors;

pub(crate) use backward::{backward, backward_workspace_bytes};
pub use vectors::takes_panels;

use crate::args::{Args, Pod, Scratch, scratch_bytes};
use crate::error::Named;
use crate::index::Indices;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Num, with_float};
use crate::{Context, OpError, TensorRef};
use gates::{Unit, gru, gru_gates, lstm, rnn};
use neap_ir::op::{Direction, Op, Recurrent};
use neap_ir::{DType, Gradient, TensorType};
use neap_kernels::linear::{MatMulShape, matmul, matmul_scratch_bytes};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;

/// Which of the three, with what sets it apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cell {
    Lstm,
    Gru { linear_before_reset: bool },
    Rnn,
}

impl Cell {
    /// The cell and attributes of a recurrent operator.
    pub fn of(op: &Op) -> Option<(Cell, &Recurrent)> {
        match op {
            Op::Lstm(recurrent) => Some((Cell::Lstm, recurrent)),
            Op::Gru {
                recurrent,
                linear_before_reset,
            } => Some((
                Cell::Gru {
                    linear_before_reset: *linear_before_reset,
                },
                recurrent,
            )),
            Op::Rnn(recurrent) => Some((Cell::Rnn, recurrent)),
            _ => None,
        }
    }

    /// Of a recurrent operator's backward pass.
    pub fn of_gradient(gradient: &Gradient) -> Option<(Cell, &Recurrent)> {
        match gradient {
            Gradient::Lstm(recurrent) => Some((Cell::Lstm, recurrent)),
            Gradient::Gru {
                recurrent,
                linear_before_reset,
            } => Some((
                Cell::Gru {
                    linear_before_reset: *linear_before_reset,
                },
                recurrent,
            )),
            Gradient::Rnn(recurrent) => Some((Cell::Rnn, recurrent)),
            _ => None,
        }
    }

    fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru { .. } => 3,
            Cell::Rnn => 1,
        }
    }

    fn activations(self) -> usize {
        match self {
            Cell::Lstm => 3,
            Cell::Gru { .. } => 2,
            Cell::Rnn => 1,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    steps: usize,
    batch: usize,
    input: usize,
    hidden: usize,
    gates: usize,
    directions: usize,
    batch_first: bool,
}

impl Sizes {
    fn of(cell: Cell, recurrent: &Recurrent, x: &[usize]) -> Sizes {
        let (steps, batch) = if recurrent.batch_first {
            (x[1], x[0])
        } else {
            (x[0], x[1])
        };
        Sizes {
            steps,
            batch,
            input: x[2],
            hidden: recurrent.hidden,
            gates: cell.gates(),
            directions: match recurrent.direction {
                Direction::Bidirectional => 2,
                Direction::Forward | Direction::Reverse => 1,
            },
            batch_first: recurrent.batch_first,
        }
    }

    /// Row of a step and sequence in the flattened input.
    fn row(&self, step: usize, sequence: usize) -> usize {
        if self.batch_first {
            sequence * self.steps + step
        } else {
            step * self.batch + sequence
        }
    }

    /// Of a direction and sequence in initial and final states.
    fn state(&self, direction: usize, sequence: usize) -> usize {
        let row = if self.batch_first {
            sequence * self.directions + direction
        } else {
            direction * self.batch + sequence
        };
        row * self.hidden
    }

    /// Of a step in the sequence of all states.
    fn output(&self, step: usize, direction: usize, sequence: usize) -> usize {
        let row = if self.batch_first {
            (sequence * self.steps + step) * self.directions + direction
        } else {
            (step * self.directions + direction) * self.batch + sequence
        };
        row * self.hidden
    }

    fn projection(&self) -> MatMulShape {
        let rows = self.gates * self.hidden;
        MatMulShape {
            b_transposed: true,
            b_stride: self.input,
            ..MatMulShape::dense(1, self.steps * self.batch, self.input, rows)
        }
    }
}

pub(crate) fn workspace_bytes(op: &Op, x: &TensorType, workers: usize) -> usize {
    let Some((cell, recurrent)) = Cell::of(op) else {
        return 0;
    };
    let sizes = Sizes::of(cell, recurrent, &x.shape);
    if x.dtype == DType::F32 && vectors::takes(recurrent) {
        return vectors::workspace_bytes(recurrent, &sizes, workers);
    }
    let projected = sizes.steps * sizes.batch * sizes.gates * sizes.hidden;
    // Two states, the cells, and what a GRU keeps between its two phases.
    let state = sizes.batch * sizes.hidden;
    let packed = matmul_scratch_bytes(&sizes.projection(), workers);
    scratch_bytes::<f64>(projected)
        + 5 * scratch_bytes::<f64>(state)
        + scratch_bytes::<f32>(packed.div_ceil(4))
}

pub(crate) fn recurrent(op: &Op, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let Some((cell, recurrent)) = Cell::of(op) else {
        return args.fail("is not recurrent");
    };
    match args.input(0)?.dtype() {
        DType::F32 if vectors::takes(recurrent) => vectors::run(cell, recurrent, args, ctx),
        _ if recurrent.in_panels => {
            args.fail("has weights in panels, which its activations do not take")
        }
        DType::F32 => run::<f32, f32>(cell, recurrent, args, ctx),
        dtype => with_float!(args.op, dtype, T => run::<T, f64>(cell, recurrent, args, ctx)),
    }
}

fn run<T: Num, S: Num + Pod>(
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
    let projected = scratch.take::<S>(sizes.steps * sizes.batch * sizes.gates * sizes.hidden)?;
    let state = sizes.batch * sizes.hidden;
    let buffers: [&mut [S]; 5] = [
        scratch.take(state)?,
        scratch.take(state)?,
        scratch.take(state)?,
        scratch.take(state)?,
        scratch.take(state)?,
    ];
    let [h, next, c, update, reset] = buffers;
    for direction in 0..sizes.directions {
        project::<T, S>(&sizes, direction, projected, &mut scratch, args, isa, par)?;
        start::<T, S>(&sizes, direction, args.opt_input(5), h);
        start::<T, S>(
            &sizes,
            direction,
            args.opt_input(6).filter(|_| cell == Cell::Lstm),
            c,
        );
        let activations = &recurrent.activations[direction * cell.activations()..];
        let unit = Unit::<T, S> {
            hidden: sizes.hidden,
            clip: recurrent.clip.map(f64::from),
            couple: recurrent.couple_input_forget,
            weights: parameter(
                args.opt_input(2),
                direction * sizes.gates * sizes.hidden * sizes.hidden,
            ),
            bias: args
                .opt_input(3)
                .map(|b| parameter(Some(b), direction * 2 * sizes.gates * sizes.hidden)),
            peepholes: args
                .opt_input(7)
                .filter(|_| cell == Cell::Lstm)
                .map(|p| parameter(Some(p), direction * 3 * sizes.hidden)),
            activations,
            gates: sizes.gates,
            _sum: std::marker::PhantomData,
        };
        let pass = Pass {
            sizes,
            direction,
            times: Times::of(&sizes, recurrent, direction, lengths.as_ref()),
            rounds_state: recurrent.rounds_state,
            projected: Ptr(projected.as_mut_ptr()),
            h: [Ptr(h.as_mut_ptr()), Ptr(next.as_mut_ptr())],
            c: Ptr(c.as_mut_ptr()),
            update: Ptr(update.as_mut_ptr()),
            reset: Ptr(reset.as_mut_ptr()),
        };
        pass.run(cell, &unit, args, par);
    }
    Ok(())
}

fn check_lengths(sizes: &Sizes, lengths: Option<&TensorRef>, args: &Args) -> Result<(), OpError> {
    let Some(lengths) = lengths.map(Indices::of) else {
        return Ok(());
    };
    for sequence in 0..sizes.batch {
        // SAFETY: there is one length for each sequence.
        let length = unsafe { lengths.get(sequence) };
        if !(0..=sizes.steps as i64).contains(&length) {
            return Err(OpError::data(args.op, "a sequence length is out of range"));
        }
    }
    Ok(())
}

fn parameter<T>(tensor: Option<TensorRef>, offset: usize) -> Ptr<T> {
    let first = tensor.map_or(std::ptr::null(), |t| t.as_ptr());
    Ptr(Ptr::<T>::of(first).get().wrapping_add(offset))
}

/// All inputs times this direction's weights.
fn project<T: Num, S: Num + Pod>(
    sizes: &Sizes,
    direction: usize,
    projected: &mut [S],
    scratch: &mut Scratch,
    args: &Args,
    isa: Isa,
    par: &dyn Parallel,
) -> Result<(), OpError> {
    let (x, w) = (args.input(0)?, args.input(1)?);
    let rows = sizes.gates * sizes.hidden;
    let first = direction * rows * sizes.input;
    if x.dtype() == DType::F32 {
        let shape = sizes.projection();
        let floats = matmul_scratch_bytes(&shape, par.workers()).div_ceil(4);
        let weights = &w.f32s()[first..][..rows * sizes.input];
        // SAFETY: `S` is `f32` when the operands are.
        let out = unsafe {
            std::slice::from_raw_parts_mut(projected.as_mut_ptr().cast(), projected.len())
        };
        return scratch.lend::<f32, _>(floats, |packed| {
            matmul(isa, par, &shape, x.f32s(), weights, out, packed).named(args.op)
        });
    }
    let (src, weights) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>::of(w.as_ptr()));
    let out = Ptr(projected.as_mut_ptr());
    let count = sizes.steps * sizes.batch * rows;
    split(par, count, GRAIN / sizes.input.max(1), &|range, _| {
        for at in range {
            let (row, unit) = (at / rows, at % rows);
            let mut sum = S::ZERO;
            for i in 0..sizes.input {
                // SAFETY: rows of the input and of this direction's weights.
                unsafe {
                    let v: S = src.read(row * sizes.input + i).convert();
                    let w: S = weights.read(first + unit * sizes.input + i).convert();
                    sum = sum.add(v.mul(w));
                }
            }
            // SAFETY: each element belongs to one task.
            unsafe { out.write(at, sum) };
        }
    });
    Ok(())
}

/// The initial state, or zeros.
fn start<T: Num, S: Num>(
    sizes: &Sizes,
    direction: usize,
    initial: Option<TensorRef>,
    state: &mut [S],
) {
    let Some(initial) = initial.map(|t| Ptr::<T>::of(t.as_ptr())) else {
        state.fill(S::ZERO);
        return;
    };
    for (sequence, state) in state.chunks_mut(sizes.hidden).enumerate() {
        let from = sizes.state(direction, sequence);
        for (unit, out) in state.iter_mut().enumerate() {
            // SAFETY: the initial state has an element for each unit.
            *out = unsafe { initial.read(from + unit) }.convert();
        }
    }
}

/// Where the sequences of one direction are, step by step.
struct Times {
    steps: usize,
    reverse: bool,
    lengths: Option<Indices>,
}

impl Times {
    /// Lengths were checked.
    fn of(
        sizes: &Sizes,
        recurrent: &Recurrent,
        direction: usize,
        lengths: Option<&TensorRef>,
    ) -> Times {
        Times {
            steps: sizes.steps,
            reverse: match recurrent.direction {
                Direction::Forward => false,
                Direction::Reverse => true,
                Direction::Bidirectional => direction == 1,
            },
            lengths: lengths.map(Indices::of),
        }
    }

    /// The place in a sequence where a step is; `None` past its end.
    fn at(&self, step: usize, sequence: usize) -> Option<usize> {
        let length = match &self.lengths {
            // SAFETY: there is one length for each sequence; they were checked.
            Some(lengths) => unsafe { lengths.get(sequence) as usize },
            None => self.steps,
        };
        (step < length).then(|| {
            if self.reverse {
                length - 1 - step
            } else {
                step
            }
        })
    }
}

/// One direction over all steps.
struct Pass<S> {
    sizes: Sizes,
    direction: usize,
    times: Times,
    rounds_state: bool,
    projected: Ptr<S>,
    /// Previous and next state, changing roles at every step.
    h: [Ptr<S>; 2],
    c: Ptr<S>,
    /// A GRU's gates between its phases; `reset` also holds an LSTM's rounded state.
    update: Ptr<S>,
    reset: Ptr<S>,
}

impl<S: Num + Pod> Pass<S> {
    fn run<T: Num>(&self, cell: Cell, unit: &Unit<T, S>, args: &Args, par: &dyn Parallel) {
        let sizes = self.sizes;
        let units = sizes.batch * sizes.hidden;
        let y = args.opt_output(0).map(|t| Ptr::<T>(t.as_ptr().cast()));
        let per_task = GRAIN / (sizes.gates * sizes.hidden);
        for step in 0..sizes.steps {
            let (h, next) = (self.h[step % 2], self.h[(step + 1) % 2]);
            let seen = if self.rounds_state && cell == Cell::Lstm {
                for first in (0..units).step_by(sizes.hidden) {
                    let rounded = Ptr(self.reset.0.wrapping_add(first));
                    // SAFETY: between two steps nobody else looks at the states; both buffers have an element for each unit.
                    unsafe { round_state(h.slice(first, sizes.hidden), rounded) };
                }
                self.reset
            } else {
                h
            };
            if let Cell::Gru { .. } = cell {
                split(par, units, per_task, &|range, _| {
                    for at in range {
                        let (sequence, j) = (at / sizes.hidden, at % sizes.hidden);
                        let Some(time) = self.times.at(step, sequence) else {
                            continue;
                        };
                        // SAFETY: the previous state is only read in this step; gates of a unit
                        // belong to one task.
                        unsafe {
                            let h = h.slice(sequence * sizes.hidden, sizes.hidden);
                            let x = self.row(time, sequence);
                            let [z, r] = gru_gates(unit, x, h, j);
                            self.update.write(at, z);
                            self.reset.write(at, r);
                        }
                    }
                });
            }
            split(par, units, per_task, &|range, _| {
                for at in range {
                    let (sequence, j) = (at / sizes.hidden, at % sizes.hidden);
                    // SAFETY: as above; next state, cell and outputs of a unit belong to one task.
                    unsafe {
                        let Some(time) = self.times.at(step, sequence) else {
                            next.write(at, h.read(at));
                            if let Some(y) = y {
                                let to = sizes.output(step, self.direction, sequence);
                                y.write(to + j, T::ZERO);
                            }
                            continue;
                        };
                        let first = sequence * sizes.hidden;
                        let old = seen.slice(first, sizes.hidden);
                        let x = self.row(time, sequence);
                        let new = match cell {
                            Cell::Lstm => {
                                let (new, c) = lstm(unit, x, old, self.c.read(at), j);
                                self.c.write(at, c);
                                new
                            }
                            Cell::Gru {
                                linear_before_reset,
                            } => {
                                let reset = self.reset.slice(first, sizes.hidden);
                                let z = self.update.read(at);
                                gru(unit, x, old, reset, z, linear_before_reset, j)
                            }
                            Cell::Rnn => rnn(unit, x, old, j),
                        };
                        next.write(at, new);
                        if let Some(y) = y {
                            let to = sizes.output(time, self.direction, sequence);
                            y.write(to + j, new.convert());
                        }
                    }
                }
            });
        }
        self.finish::<T>(args);
    }

    /// # Safety
    /// Nobody writes the projected inputs.
    unsafe fn row(&self, time: usize, sequence: usize) -> &[S] {
        let rows = self.sizes.gates * self.sizes.hidden;
        // SAFETY: there is a row for each step and sequence.
        unsafe {
            self.projected
                .slice(self.sizes.row(time, sequence) * rows, rows)
        }
    }

    fn finish<T: Num>(&self, args: &Args) {
        let last = self.h[self.sizes.steps % 2];
        for (output, state) in [(1, last), (2, self.c)] {
            let Some(out) = args.opt_output(output) else {
                continue;
            };
            let out = Ptr::<T>(out.as_ptr().cast());
            for sequence in 0..self.sizes.batch {
                let to = self.sizes.state(self.direction, sequence);
                for j in 0..self.sizes.hidden {
                    // SAFETY: final states have an element for each unit.
                    unsafe {
                        let v = state.read(sequence * self.sizes.hidden + j);
                        out.write(to + j, v.convert());
                    }
                }
            }
        }
    }
}

/// The state of a sequence in 256 steps between its least and its greatest value, as DynamicQuantizeLinear makes them.
/// Each sequence has steps of its own, so that no result depends on what else is in the batch.
///
/// # Safety
/// `rounded` has as many elements, which nobody else looks at.
unsafe fn round_state<S: Num>(state: &[S], rounded: Ptr<S>) {
    let (low, high) = state.iter().fold((0.0f32, 0.0f32), |(low, high), v| {
        let v = v.to_f64() as f32;
        (low.min(v), high.max(v))
    });
    let scale = (high - low) / 255.0;
    let zero = match scale {
        0.0 => 0.0,
        scale => (-low / scale).round_ties_even().clamp(0.0, 255.0),
    };
    for (at, v) in state.iter().enumerate() {
        let value = match scale {
            0.0 => 0.0,
            scale => {
                let step = (v.to_f64() as f32 / scale).round_ties_even() + zero;
                (step.clamp(0.0, 255.0) - zero) * scale
            }
        };
        // SAFETY: as the caller says.
        unsafe { rounded.write(at, S::from_f64(value.into())) };
    }
}
