//! Backward of LSTM, GRU and RNN.
//!
//! Forward through the sequence each gate's sum of terms is computed again, and kept where its derivative will be. Then the
//! derivatives of the state and of the cell go back through it. What meets many steps at once, the derivatives of inputs and
//! weights, are products of what this gives: operators of their own.
//!
//! As in the forward pass a unit of a sequence is one unit of work in each step. Sums are in f64, but for products of f32 with the
//! recurrent weights: these are matrix products of all sequences of a step, where there are enough rows.

mod rows;

use super::gates::Unit;
use super::products::{Products, Way, pays, workspace_bytes};
use super::{Cell, Sizes, Times, check_lengths, parameter};
use crate::args::{Args, Pod, Scratch, scratch_bytes};
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Float, Num, with_float};
use crate::{Context, OpError, TensorRef};
use neap_ir::op::Recurrent;
use neap_ir::{DType, Gradient, TensorType};
use neap_kernels::parallel::Parallel;

pub(crate) fn backward_workspace_bytes(gradient: &Gradient, projected: &TensorType) -> usize {
    let Some((cell, recurrent)) = Cell::of_gradient(gradient) else {
        return 0;
    };
    let sizes = Sizes::of(cell, recurrent, &projected.shape);
    let products = match multiplies_rows(&sizes, projected.dtype) {
        true => workspace_bytes(&sizes),
        false => 0,
    };
    2 * scratch_bytes::<f64>(sizes.batch * sizes.hidden) + products
}

/// Whether steps multiply the rows of all sequences at once. Types other than f32 are computed unit by unit in f64: the reference.
fn multiplies_rows(sizes: &Sizes, dtype: DType) -> bool {
    dtype == DType::F32 && pays(sizes)
}

pub(crate) fn backward(gradient: &Gradient, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let Some((cell, recurrent)) = Cell::of_gradient(gradient) else {
        return args.fail("is not recurrent");
    };
    match args.input(0)?.dtype() {
        // The gates again as the forward pass computes them.
        DType::F32 => run::<f32, f32>(cell, recurrent, args, ctx),
        dtype => with_float!(args.op, dtype, T => run::<T, f64>(cell, recurrent, args, ctx)),
    }
}

fn run<T: Float, S: Num + Pod>(
    cell: Cell,
    recurrent: &Recurrent,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let sizes = Sizes::of(cell, recurrent, args.input(0)?.shape());
    let lengths = args.opt_input(3);
    check_lengths(&sizes, lengths.as_ref(), args)?;
    let mut scratch = Scratch::new(args.op, ctx.workspace);
    let units = sizes.batch * sizes.hidden;
    let (dh, dc) = (scratch.take::<f64>(units)?, scratch.take::<f64>(units)?);
    let mut products = match multiplies_rows(&sizes, args.input(0)?.dtype()) {
        true => Some(Products::take(args.op, ctx.isa, sizes, &mut scratch)?),
        false => None,
    };
    let rows = sizes.gates * sizes.hidden;
    let is_lstm = cell == Cell::Lstm;
    let of = |tensor: TensorRef| Ptr::<T>::of(tensor.as_ptr());
    let result = |i: usize| args.opt_output(i).map(|t| Ptr::<T>(t.as_ptr().cast()));
    let needed = |i: usize| Ok::<_, OpError>(Ptr::<T>(args.output(i)?.as_ptr().cast()));
    for direction in 0..sizes.directions {
        let unit = Unit::<T, S> {
            hidden: sizes.hidden,
            gates: sizes.gates,
            clip: recurrent.clip.map(f64::from),
            couple: recurrent.couple_input_forget,
            weights: parameter(Some(args.input(1)?), direction * rows * sizes.hidden),
            bias: args
                .opt_input(2)
                .map(|b| parameter(Some(b), direction * 2 * rows)),
            peepholes: args
                .opt_input(6)
                .filter(|_| is_lstm)
                .map(|p| parameter(Some(p), direction * 3 * sizes.hidden)),
            activations: &recurrent.activations[direction * cell.activations()..],
            _sum: std::marker::PhantomData,
        };
        let pass = Pass {
            cell,
            sizes,
            direction,
            times: Times::of(&sizes, recurrent, direction, lengths.as_ref()),
            unit,
            projected: of(args.input(0)?),
            gates: needed(0)?,
            states: needed(1)?,
            kept: match cell {
                Cell::Rnn => needed(1)?,
                _ => needed(3)?,
            },
            initial: [4, 5].map(|i| args.opt_input(i).map(of)),
            dy: args.opt_input(7).map(of),
            dh: Ptr(dh.as_mut_ptr()),
            dc: Ptr(dc.as_mut_ptr()),
        };
        pass.forward(products.as_mut(), ctx.par)?;
        pass.fill(pass.dh, args.opt_input(8).map(of));
        pass.fill(pass.dc, args.opt_input(9).filter(|_| is_lstm).map(of));
        pass.backward(products.as_mut(), ctx.par)?;
        pass.finish(result(2), pass.dh);
        if is_lstm {
            pass.finish(result(4), pass.dc);
            if let Some(out) = result(5) {
                pass.peepholes(out, ctx.par);
            }
        }
    }
    Ok(())
}

/// One direction.
struct Pass<'a, T, S> {
    cell: Cell,
    sizes: Sizes,
    direction: usize,
    times: Times,
    unit: Unit<'a, T, S>,
    projected: Ptr<T>,
    /// Each gate's sum of terms, clipped; then its derivative. May be where `projected` is.
    gates: Ptr<T>,
    /// The state that each step begins with.
    states: Ptr<T>,
    /// An LSTM's cell after each step. Of a GRU that is linear before its reset, the third gate's product with the state, then the derivative
    /// by it; of others the state after its reset.
    kept: Ptr<T>,
    /// h and c.
    initial: [Option<Ptr<T>>; 2],
    dy: Option<Ptr<T>>,
    /// Derivatives by state and cell, of all units.
    dh: Ptr<f64>,
    dc: Ptr<f64>,
}

impl<T: Float, S: Num + Pod> Pass<'_, T, S> {
    /// First element of a step's gates.
    fn row(&self, time: usize, sequence: usize) -> usize {
        let width = self.sizes.gates * self.sizes.hidden;
        (self.sizes.row(time, sequence) * self.sizes.directions + self.direction) * width
    }

    /// First element of a step's states.
    fn state(&self, time: usize, sequence: usize) -> usize {
        let row = self.sizes.row(time, sequence) * self.sizes.directions + self.direction;
        row * self.sizes.hidden
    }

    /// Calls `body(sequence, unit, place)` for every unit; `None` as place past a sequence's end.
    fn each(
        &self,
        par: &dyn Parallel,
        step: usize,
        body: impl Fn(usize, usize, Option<usize>) + Sync,
    ) {
        let hidden = self.sizes.hidden;
        let per_task = GRAIN / (self.sizes.gates * hidden);
        split(par, self.sizes.batch * hidden, per_task, &|range, _| {
            for at in range {
                let sequence = at / hidden;
                body(sequence, at % hidden, self.times.at(step, sequence));
            }
        });
    }

    /// Sums of terms, states, and cells.
    fn forward(
        &self,
        mut products: Option<&mut Products>,
        par: &dyn Parallel,
    ) -> Result<(), OpError> {
        if let Some(products) = &mut products {
            products.pack(Way::Forward, self.unit.weights, par);
        }
        // SAFETY: here and below: rows are inside the tensors, a unit's elements belong to one task, and the state
        // that a step begins with was written before it.
        self.each(par, 0, |sequence, j, time| unsafe {
            if let Some(time) = time {
                let h = self.initial_at(0, sequence, j);
                self.states.write(self.state(time, sequence) + j, h);
            }
        });
        for step in 0..self.sizes.steps {
            if let Some(products) = &mut products {
                self.multiply_states(products, step, par)?;
            }
            let given = products.as_deref();
            if let Cell::Gru {
                linear_before_reset,
            } = self.cell
            {
                // SAFETY: as above.
                self.each(par, step, |sequence, j, time| unsafe {
                    if let Some(time) = time {
                        self.gru_gates(sequence, j, time, linear_before_reset, given);
                    }
                });
            }
            // SAFETY: as above.
            self.each(par, step, |sequence, j, time| unsafe {
                let Some(time) = time else {
                    self.clear(step, sequence, j);
                    return;
                };
                let h = match self.cell {
                    Cell::Lstm => self.lstm(step, sequence, j, time, given),
                    Cell::Gru {
                        linear_before_reset,
                    } => self.gru(sequence, j, time, linear_before_reset),
                    Cell::Rnn => {
                        let v = self.sum(0, j, time, sequence, 0.0, given);
                        self.unit.with_slope(0, v)[0]
                    }
                };
                if step + 1 < self.sizes.steps
                    && let Some(next) = self.times.at(step + 1, sequence)
                {
                    let to = self.state(next, sequence) + j;
                    self.states.write(to, T::from_f64(h));
                }
            });
        }
        Ok(())
    }

    unsafe fn initial_at(&self, which: usize, sequence: usize, j: usize) -> T {
        let at = self.sizes.state(self.direction, sequence) + j;
        // SAFETY: an initial state has an element for each unit.
        self.initial[which].map_or(T::ZERO, |p| unsafe { p.read(at) })
    }

    /// The state that a step began with.
    unsafe fn old_state(&self, time: usize, sequence: usize) -> &[T] {
        // SAFETY: as the caller vouches.
        unsafe {
            self.states
                .slice(self.state(time, sequence), self.sizes.hidden)
        }
    }

    /// The cell that a step began with.
    unsafe fn old_cell(&self, step: usize, sequence: usize, j: usize) -> f64 {
        // SAFETY: as the caller vouches.
        unsafe {
            match step.checked_sub(1).and_then(|s| self.times.at(s, sequence)) {
                Some(time) => self.kept.read(self.state(time, sequence) + j).to_f64(),
                None => self.initial_at(1, sequence, j).to_f64(),
            }
        }
    }

    unsafe fn gate(&self, gate: usize, j: usize, time: usize, sequence: usize) -> f64 {
        let at = self.row(time, sequence) + gate * self.sizes.hidden + j;
        // SAFETY: as the caller vouches.
        unsafe { self.gates.read(at) }.to_f64()
    }

    unsafe fn set_gate(&self, gate: usize, j: usize, time: usize, sequence: usize, v: f64) {
        let at = self.row(time, sequence) + gate * self.sizes.hidden + j;
        // SAFETY: as the caller vouches.
        unsafe { self.gates.write(at, T::from_f64(v)) };
    }

    /// What a gate's activation takes, all but products with the state and their bias.
    unsafe fn without_state(&self, gate: usize, j: usize, time: usize, sequence: usize) -> f64 {
        let at = self.row(time, sequence) + gate * self.sizes.hidden + j;
        // SAFETY: as the caller vouches.
        unsafe { self.projected.read(at) }.to_f64() + self.unit.bias(0, gate, j)
    }

    /// Product of the state with a row of the weights, where the step's are given already from there.
    fn of_state(
        &self,
        gate: usize,
        j: usize,
        sequence: usize,
        h: &[T],
        given: Option<&Products>,
    ) -> f64 {
        match given {
            Some(products) => {
                let row = products.result(Way::Forward, sequence);
                row[gate * self.sizes.hidden + j].into()
            }
            None => self.unit.state(gate, j, h),
        }
    }

    /// A gate's sum of terms, clipped and kept.
    unsafe fn sum(
        &self,
        gate: usize,
        j: usize,
        time: usize,
        sequence: usize,
        more: f64,
        given: Option<&Products>,
    ) -> f64 {
        // SAFETY: as the caller vouches.
        unsafe {
            let h = self.old_state(time, sequence);
            let product = self.of_state(gate, j, sequence, h, given) + self.unit.bias(1, gate, j);
            let v = self.without_state(gate, j, time, sequence) + product + more;
            let v = self.unit.clipped(v);
            self.set_gate(gate, j, time, sequence, v);
            v
        }
    }

    /// Past a sequence's end.
    unsafe fn clear(&self, step: usize, sequence: usize, j: usize) {
        // SAFETY: as the caller vouches.
        unsafe {
            (0..self.sizes.gates).for_each(|gate| self.set_gate(gate, j, step, sequence, 0.0));
            let at = self.state(step, sequence) + j;
            self.states.write(at, T::ZERO);
            self.kept.write(at, T::ZERO);
        }
    }

    /// The new state.
    unsafe fn lstm(
        &self,
        step: usize,
        sequence: usize,
        j: usize,
        time: usize,
        given: Option<&Products>,
    ) -> f64 {
        let unit = &self.unit;
        // SAFETY: as the caller vouches.
        unsafe {
            let old = self.old_cell(step, sequence, j);
            let of = |gate: usize, which: usize, more: f64| {
                unit.with_slope(which, self.sum(gate, j, time, sequence, more, given))[0]
            };
            let input = of(0, 0, unit.peephole(0, j) * old);
            let forget = if unit.couple {
                self.set_gate(2, j, time, sequence, 0.0);
                1.0 - input
            } else {
                of(2, 0, unit.peephole(2, j) * old)
            };
            let new = forget * old + input * of(3, 1, 0.0);
            let kept = self.state(time, sequence) + j;
            self.kept.write(kept, T::from_f64(new));
            let output = of(1, 0, unit.peephole(1, j) * new);
            output * unit.shown(new)[0]
        }
    }

    unsafe fn gru_gates(
        &self,
        sequence: usize,
        j: usize,
        time: usize,
        linear: bool,
        given: Option<&Products>,
    ) {
        // SAFETY: as the caller vouches.
        unsafe {
            self.sum(0, j, time, sequence, 0.0, given);
            let v = self.sum(1, j, time, sequence, 0.0, given);
            let h = self.old_state(time, sequence);
            let meets = if linear {
                self.of_state(2, j, sequence, h, given) + self.unit.bias(1, 2, j)
            } else {
                self.unit.with_slope(0, v)[0] * h[j].to_f64()
            };
            let at = self.state(time, sequence) + j;
            self.kept.write(at, T::from_f64(meets));
        }
    }

    /// The new state.
    unsafe fn gru(&self, sequence: usize, j: usize, time: usize, linear: bool) -> f64 {
        let unit = &self.unit;
        // SAFETY: as the caller vouches.
        unsafe {
            let first = self.state(time, sequence);
            let state = if linear {
                let [reset, _] = unit.with_slope(0, self.gate(1, j, time, sequence));
                reset * self.kept.read(first + j).to_f64()
            } else {
                let after_reset = self.kept.slice(first, self.sizes.hidden);
                unit.state(2, j, after_reset) + unit.bias(1, 2, j)
            };
            let v = unit.clipped(self.without_state(2, j, time, sequence) + state);
            self.set_gate(2, j, time, sequence, v);
            let [z, _] = unit.with_slope(0, self.gate(0, j, time, sequence));
            (1.0 - z) * unit.with_slope(1, v)[0] + z * self.states.read(first + j).to_f64()
        }
    }

    fn backward(
        &self,
        mut products: Option<&mut Products>,
        par: &dyn Parallel,
    ) -> Result<(), OpError> {
        if let Some(products) = &mut products {
            products.pack(Way::Backward, self.unit.weights, par);
        }
        for step in (0..self.sizes.steps).rev() {
            // SAFETY: here and below as in the forward pass.
            self.each(par, step, |sequence, j, time| unsafe {
                let Some(time) = time else {
                    return;
                };
                let at = sequence * self.sizes.hidden + j;
                let from = self.sizes.output(time, self.direction, sequence) + j;
                let dy = self.dy.map_or(0.0, |dy| dy.read(from).to_f64());
                let dh = self.dh.read(at) + dy;
                let direct = match self.cell {
                    Cell::Lstm => {
                        self.lstm_back(step, sequence, j, time, dh);
                        0.0
                    }
                    Cell::Gru {
                        linear_before_reset,
                    } => self.gru_back(sequence, j, time, dh, linear_before_reset),
                    Cell::Rnn => {
                        let v = self.gate(0, j, time, sequence);
                        let [_, slope] = self.unit.with_slope(0, v);
                        self.set_gate(0, j, time, sequence, dh * slope);
                        0.0
                    }
                };
                self.dh.write(at, direct);
            });
            if let Cell::Gru {
                linear_before_reset: false,
            } = self.cell
            {
                self.reset_back(par, step);
            }
            match &mut products {
                Some(products) => self.multiply_gates(products, step, par)?,
                None => self.state_back(par, step),
            }
        }
        Ok(())
    }

    unsafe fn lstm_back(&self, step: usize, sequence: usize, j: usize, time: usize, dh: f64) {
        let unit = &self.unit;
        // SAFETY: as the caller vouches.
        unsafe {
            let at = sequence * self.sizes.hidden + j;
            let of = |gate: usize, which: usize| {
                unit.with_slope(which, self.gate(gate, j, time, sequence))
            };
            let old = self.old_cell(step, sequence, j);
            let new = self.kept.read(self.state(time, sequence) + j).to_f64();
            let ([input, of_input], [output, of_output]) = (of(0, 0), of(1, 0));
            let [candidate, of_candidate] = of(3, 1);
            let [seen, of_seen] = unit.shown(new);

            let d_output = dh * seen * of_output;
            let dc = self.dc.read(at) + dh * output * of_seen + unit.peephole(1, j) * d_output;
            let (mut d_input, mut d_forget) = (dc * candidate, 0.0);
            let forget = if unit.couple {
                d_input -= dc * old;
                1.0 - input
            } else {
                let [forget, of_forget] = of(2, 0);
                d_forget = dc * old * of_forget;
                forget
            };
            d_input *= of_input;
            let gates = [d_input, d_output, d_forget, dc * input * of_candidate];
            for (gate, v) in gates.into_iter().enumerate() {
                self.set_gate(gate, j, time, sequence, v);
            }
            let peeped = unit.peephole(0, j) * d_input + unit.peephole(2, j) * d_forget;
            self.dc.write(at, dc * forget + peeped);
        }
    }

    /// What of the state's derivative goes straight to the state before. Where the state is reset first, the reset gate is left
    /// to [`Pass::reset_back`].
    unsafe fn gru_back(
        &self,
        sequence: usize,
        j: usize,
        time: usize,
        dh: f64,
        linear: bool,
    ) -> f64 {
        let unit = &self.unit;
        // SAFETY: as the caller vouches.
        unsafe {
            let at = self.state(time, sequence) + j;
            let of = |gate: usize, which: usize| {
                unit.with_slope(which, self.gate(gate, j, time, sequence))
            };
            let ([z, of_z], [candidate, of_candidate]) = (of(0, 0), of(2, 1));
            let old = self.states.read(at).to_f64();
            let d_candidate = dh * (1.0 - z) * of_candidate;
            self.set_gate(0, j, time, sequence, dh * (old - candidate) * of_z);
            self.set_gate(2, j, time, sequence, d_candidate);
            if linear {
                let [reset, of_reset] = of(1, 0);
                let product = self.kept.read(at).to_f64();
                self.set_gate(1, j, time, sequence, d_candidate * product * of_reset);
                self.kept.write(at, T::from_f64(d_candidate * reset));
            }
            dh * z
        }
    }

    /// Each is a sum over all steps of all sequences.
    fn peepholes(&self, out: Ptr<T>, par: &dyn Parallel) {
        let hidden = self.sizes.hidden;
        split(par, hidden, 1, &|range, _| {
            for j in range {
                let mut sums = [0.0; 3];
                for step in 0..self.sizes.steps {
                    for sequence in 0..self.sizes.batch {
                        let Some(time) = self.times.at(step, sequence) else {
                            continue;
                        };
                        // SAFETY: as in the forward pass.
                        unsafe {
                            let old = self.old_cell(step, sequence, j);
                            let new = self.kept.read(self.state(time, sequence) + j).to_f64();
                            for (gate, cell) in [old, new, old].into_iter().enumerate() {
                                sums[gate] += self.gate(gate, j, time, sequence) * cell;
                            }
                        }
                    }
                }
                for (gate, sum) in sums.into_iter().enumerate() {
                    let at = (self.direction * 3 + gate) * hidden + j;
                    // SAFETY: a unit's elements belong to one task.
                    unsafe { out.write(at, T::from_f64(sum)) };
                }
            }
        });
    }

    /// The derivative by a final state, or zeros.
    fn fill(&self, state: Ptr<f64>, from: Option<Ptr<T>>) {
        self.each_state(|at, from_at| {
            // SAFETY: states have an element for each unit.
            unsafe {
                let v = from.map_or(0.0, |from| from.read(from_at).to_f64());
                state.write(at, v);
            }
        });
    }

    /// The derivative by an initial state.
    fn finish(&self, to: Option<Ptr<T>>, state: Ptr<f64>) {
        let Some(to) = to else {
            return;
        };
        // SAFETY: states have an element for each unit.
        self.each_state(|at, to_at| unsafe { to.write(to_at, T::from_f64(state.read(at))) });
    }

    /// Calls `body` with a unit's place here and in initial and final states.
    fn each_state(&self, body: impl Fn(usize, usize)) {
        let hidden = self.sizes.hidden;
        for sequence in 0..self.sizes.batch {
            let first = self.sizes.state(self.direction, sequence);
            (0..hidden).for_each(|j| body(sequence * hidden + j, first + j));
        }
    }
}
