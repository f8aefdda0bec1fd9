//! Loops by their bodies: a small program that runs in the workspace of one step, as often as there are passes.
//!
//! ```text
//!   workspace   number of the pass │ each state, twice │ results of the body's nodes │ scratch of the node at hand
//! ```
//! A pass finds each state in one of its places and leaves the next in the other. The first pass finds them in the operands.

use super::branch::{holds, too_long};
use super::{Call, execute_late, plain};
use crate::args::{Args, Scratch, scratch_bytes};
use crate::index::Indices;
use crate::query::{self, OperandForm};
use crate::{Context, OpError, TensorMut, TensorRef, execute};
use neap_ir::late::Repeat;
use neap_ir::{Graph, Layout, Node, Op, TensorType, ValueId};
use neap_kernels::simd::Isa;

/// Alignment of every place.
const LINE: usize = 64;

pub(super) fn repeat(of: &Repeat, call: &mut Call, ctx: &mut Context) -> Result<(), OpError> {
    let args = call.args;
    let count = args.input(0)?;
    args.require(count.elements() == 1, "takes one trip count")?;
    // SAFETY: it has one element.
    let count = unsafe { Indices::of(&count).get(0) };
    let room = Room::of(of);
    let mut scratch = Scratch::new(args.op, &mut *ctx.workspace);
    let memory = scratch.take::<u8>(room.bytes)?;
    let mut inner = Context {
        par: ctx.par,
        isa: ctx.isa,
        workspace: scratch.rest(),
    };
    let mut pass = Pass::new(of, &room, memory, args)?;
    let mut goes_on = holds(args.opt_input(1), &args)?;
    let mut passes = 0;
    while goes_on && passes < of.most && (passes as i64) < count {
        if inner.par.is_unwanted() {
            return Err(OpError::Unwanted { op: args.op });
        }
        goes_on = pass.compute(passes, &mut inner)?;
        pass.collect(passes)?;
        pass.go_on()?;
        passes += 1;
    }
    if goes_on && (passes as i64) < count {
        return Err(too_long(passes, &args));
    }
    pass.give(passes, call)
}

/// Scratch that any pass needs.
pub(super) fn workspace_bytes(of: &Repeat, workers: usize, isa: Isa) -> usize {
    let each = nodes(of)
        .map(|(op, inputs, outputs)| query::workspace_bytes(op, &inputs, &outputs, workers, isa));
    let most = each.max().unwrap_or(0);
    scratch_bytes::<u8>(Room::of(of).bytes).saturating_add(most)
}

pub(super) fn supported(of: &Repeat) -> Result<(), OpError> {
    let mut nodes = nodes(of);
    nodes.try_for_each(|(op, inputs, outputs)| query::supported(op, &inputs, &outputs))
}

/// Of all passes, if there are as many as there may be.
pub(crate) fn flops(of: &Repeat) -> u64 {
    let each = nodes(of).map(|(op, inputs, outputs)| query::flops(op, &inputs, &outputs));
    each.fold(0u64, u64::saturating_add).saturating_mul(of.most)
}

/// Bytes of all operands of the body's nodes, in so many passes.
pub(crate) fn inner_bytes(of: &Repeat) -> u64 {
    let bytes = |operands: &[OperandForm]| -> u64 {
        let each = operands
            .iter()
            .flatten()
            .map(|(ty, _)| ty.len_bytes() as u64);
        each.fold(0, u64::saturating_add)
    };
    let each = nodes(of).map(|(_, inputs, outputs)| bytes(&inputs).saturating_add(bytes(&outputs)));
    each.fold(0u64, u64::saturating_add).saturating_mul(of.most)
}

/// The nodes of a body as the queries want them.
fn nodes(of: &Repeat) -> impl Iterator<Item = (&Op, Forms<'_>, Forms<'_>)> {
    let nodes = of.body.nodes.iter();
    nodes.map(move |node| {
        let inputs = forms(&of.body, &node.inputs);
        (&node.op, inputs, forms(&of.body, &node.outputs))
    })
}

type Forms<'g> = Vec<OperandForm<'g>>;

fn forms<'g>(body: &'g Graph, ids: &[Option<ValueId>]) -> Forms<'g> {
    let each = ids.iter();
    each.map(|id| id.map(|v| plain(body.ty(v)))).collect()
}

/// Where what a pass computes lies in the workspace, in bytes.
struct Room {
    states: Vec<[usize; 2]>,
    /// By value of the body; `None` for its inputs.
    results: Vec<Option<usize>>,
    bytes: usize,
}

impl Room {
    /// Results share memory where they are not needed together: each takes the lowest place that is free.
    fn of(of: &Repeat) -> Room {
        let body = &of.body;
        let len = |v: ValueId| body.value(v).len_bytes().max(1).next_multiple_of(LINE);
        let mut bytes = LINE;
        let mut place = |len: usize| {
            let at = bytes;
            bytes = bytes.saturating_add(len);
            at
        };
        let states = body.inputs.iter().skip(1).zip(body.outputs.iter().skip(1));
        let states = states.take(of.states);
        let states = states.map(|(&before, &after)| {
            // One that stays the same stays where it was given, as weights that a model carries along.
            if before == after {
                return [0, 0];
            }
            // After the last pass a state may be larger than any pass finds it.
            let bytes = len(before).max(len(after));
            [place(bytes), place(bytes)]
        });
        let states = states.collect();
        // The node that reads a value last.
        let mut last = vec![0; body.values.len()];
        for (index, node) in body.nodes.iter().enumerate() {
            let values = node.present_inputs().chain(node.present_outputs());
            values.for_each(|v| last[v.index()] = index);
        }
        for output in &body.outputs {
            last[output.index()] = body.nodes.len();
        }
        let mut results = vec![None; body.values.len()];
        let mut end = bytes;
        // In order of place: begin, end, value.
        let mut live: Vec<(usize, usize, ValueId)> = Vec::new();
        for (index, node) in body.nodes.iter().enumerate() {
            for output in node.present_outputs() {
                let mut begin = bytes;
                let mut before = 0;
                while let Some(&(from, to, _)) = live.get(before)
                    && from - begin < len(output)
                {
                    begin = to;
                    before += 1;
                }
                let own_end = begin.saturating_add(len(output));
                live.insert(before, (begin, own_end, output));
                results[output.index()] = Some(begin);
                end = end.max(own_end);
            }
            live.retain(|(_, _, v)| last[v.index()] > index);
        }
        Room {
            states,
            results,
            bytes: end,
        }
    }
}

fn is_within(ty: &TensorType, bound: &TensorType) -> bool {
    let mut sizes = ty.shape.iter().zip(&bound.shape);
    ty.dtype == bound.dtype
        && ty.shape.len() == bound.shape.len()
        && sizes.all(|(size, most)| size <= most)
}

/// A pass, with what the one before left.
struct Pass<'c, 'a> {
    of: &'c Repeat,
    room: &'c Room,
    memory: *mut u8,
    args: Args<'c, 'a>,
    /// By value of the body: where it is.
    at: Vec<*const u8>,
    /// By value: the actual type of inputs and of what late nodes give. All others have the types of the graph.
    actual: Vec<Option<TensorType>>,
    /// By node: the types of its results, if it is late.
    types: Vec<Vec<TensorType>>,
    /// The place of each state that the next ones go to.
    side: usize,
}

impl<'c, 'a> Pass<'c, 'a> {
    fn new(
        of: &'c Repeat,
        room: &'c Room,
        memory: &'c mut [u8],
        args: Args<'c, 'a>,
    ) -> Result<Pass<'c, 'a>, OpError> {
        let body = &of.body;
        args.require(
            memory.len() >= room.bytes
                && args.inputs.len() + 1 == Repeat::CONTROLS + body.inputs.len(),
            "its body takes another number of operands",
        )?;
        let memory = memory.as_mut_ptr();
        let mut at = vec![std::ptr::null(); body.values.len()];
        for (at, place) in at.iter_mut().zip(&room.results) {
            // SAFETY: all places are inside the room.
            *at = place.map_or(*at, |place| unsafe { memory.add(place) }.cast_const());
        }
        let mut actual = vec![None; body.values.len()];
        for (index, &input) in body.inputs.iter().enumerate() {
            if index == 0 {
                at[input.index()] = memory.cast_const();
                continue;
            }
            let operand = args.input(Repeat::CONTROLS - 1 + index)?;
            let fits = operand.layout == Layout::Plain && is_within(operand.ty, body.ty(input));
            args.require(fits, "its body takes operands of other types")?;
            at[input.index()] = operand.as_ptr();
            actual[input.index()] = Some(operand.ty.clone());
        }
        let mut types = Vec::with_capacity(body.nodes.len());
        for node in &body.nodes {
            let Op::Late(late) = &node.op else {
                types.push(Vec::new());
                continue;
            };
            let bounds = late.bounds.iter().map(|bound| bound.ty.clone());
            let of_node: Vec<TensorType> = bounds.take(node.outputs.len()).collect();
            for (output, ty) in node.outputs.iter().zip(&of_node) {
                if let Some(output) = output {
                    actual[output.index()] = Some(ty.clone());
                }
            }
            types.push(of_node);
        }
        Ok(Pass {
            of,
            room,
            memory,
            args,
            at,
            actual,
            types,
            side: 0,
        })
    }

    /// Whether there is another.
    fn compute(&mut self, number: u64, ctx: &mut Context) -> Result<bool, OpError> {
        // SAFETY: the first line of the room is the number's.
        unsafe { self.memory.cast::<i64>().write(number as i64) };
        let body = &self.of.body;
        for &state in body.inputs.iter().skip(1).take(self.of.states) {
            if !is_within(self.ty(state), body.ty(state)) {
                let what = "a value that it carries becomes larger than memory is planned for";
                return Err(OpError::data(self.args.op, what));
            }
        }
        for (index, node) in body.nodes.iter().enumerate() {
            let Op::Late(late) = &node.op else {
                self.check_sizes(node)?;
                execute(&node.op, &self.inputs(node), None, &self.outputs(node), ctx)?;
                continue;
            };
            let mut types = std::mem::take(&mut self.types[index]);
            let (inputs, outputs) = (self.inputs(node), self.outputs(node));
            execute_late(late, &inputs, &outputs, &mut types, ctx)?;
            drop(inputs);
            for (output, ty) in node.outputs.iter().zip(&types) {
                let actual = output.and_then(|v| self.actual[v.index()].as_mut());
                actual.into_iter().for_each(|actual| actual.clone_from(ty));
            }
            self.types[index] = types;
        }
        holds(Some(self.value(body.outputs[0])), &self.args)
    }

    /// An operator that is not late relies on the sizes that the graph says.
    fn check_sizes(&self, node: &Node) -> Result<(), OpError> {
        let mut inputs = node.present_inputs();
        let is_whole = inputs.all(|v| *self.ty(v) == *self.of.body.ty(v));
        self.args
            .require(is_whole, "its body reads a value of another size")
    }

    /// Puts what this pass gives behind what the passes before gave.
    fn collect(&self, number: u64) -> Result<(), OpError> {
        let body = &self.of.body;
        let collected = body.outputs.iter().skip(self.of.first_collected());
        for (index, &output) in collected.enumerate() {
            let Some(place) = self.args.opt_output(self.of.states + index) else {
                continue;
            };
            let bytes = self.value(output).bytes();
            let begin = (number as usize).saturating_mul(bytes.len());
            let fits = begin.saturating_add(bytes.len()) <= place.len_bytes()
                && self.ty(output) == body.ty(output);
            self.args
                .require(fits, "collects a value of another size")?;
            // SAFETY: it is inside the result's place, which is apart from operands and workspace.
            unsafe {
                let to = place.as_ptr().add(begin);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        Ok(())
    }

    /// What this pass leaves becomes what the next finds.
    fn go_on(&mut self) -> Result<(), OpError> {
        let body = &self.of.body;
        let states = || {
            body.inputs
                .iter()
                .skip(1)
                .zip(&body.outputs[1..])
                .zip(&self.room.states)
        };
        let mut next = Vec::with_capacity(self.of.states);
        for ((&state, &output), places) in states() {
            if state == output {
                continue;
            }
            let value = self.value(output);
            let bytes = value.bytes();
            let most = body
                .value(state)
                .len_bytes()
                .max(body.value(output).len_bytes());
            let fits = bytes.len() <= most;
            self.args.require(fits, "carries a value of another size")?;
            // SAFETY: the place holds the state. Nothing of this pass is there: it found its states in the operands or in
            // the other places.
            let place = unsafe { self.memory.add(places[self.side]) };
            // SAFETY: as above.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place, bytes.len()) };
            next.push((state, place.cast_const(), value.ty.clone()));
        }
        for (state, place, ty) in next {
            self.at[state.index()] = place;
            self.actual[state.index()] = Some(ty);
        }
        self.side ^= 1;
        Ok(())
    }

    /// The results after so many passes.
    fn give(&self, passes: u64, call: &mut Call) -> Result<(), OpError> {
        let body = &self.of.body;
        for index in 0..self.args.outputs.len() {
            if index >= self.of.states {
                let output = body.outputs.get(1 + index);
                let output = output.ok_or_else(|| OpError::operand(self.args.op, "gives less"))?;
                let mut ty = body.ty(*output).clone();
                ty.shape.insert(0, passes as usize);
                call.admit(index, &ty)?;
                continue;
            }
            let state = self.value(body.inputs[1 + index]);
            let Some(place) = call.admit(index, state.ty)? else {
                continue;
            };
            let bytes = state.bytes();
            // SAFETY: the place holds the bound, which admits the type; results are apart from operands and workspace.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
        }
        Ok(())
    }

    fn ty(&self, value: ValueId) -> &TensorType {
        let actual = self.actual[value.index()].as_ref();
        actual.unwrap_or_else(|| self.of.body.ty(value))
    }

    fn value(&self, value: ValueId) -> TensorRef<'_> {
        // SAFETY: an operand, or a place in the room that holds the bound of the value; whatever is computed next lies
        // elsewhere while the value is needed.
        unsafe { TensorRef::new(self.ty(value), Layout::Plain, self.at[value.index()]) }
    }

    fn inputs(&self, node: &Node) -> Vec<Option<TensorRef<'_>>> {
        let ids = node.inputs.iter();
        ids.map(|id| id.map(|v| self.value(v))).collect()
    }

    /// Places as large as the bounds of results.
    fn outputs(&self, node: &Node) -> Vec<Option<TensorMut<'c>>> {
        let place = |v: ValueId| {
            let ty = self.of.body.ty(v);
            let at = self.at[v.index()].cast_mut();
            // SAFETY: the place holds the type, and nothing else that is needed lies there.
            unsafe { TensorMut::new(ty, Layout::Plain, at) }
        };
        let ids = node.outputs.iter();
        ids.map(|id| id.map(place)).collect()
    }
}
