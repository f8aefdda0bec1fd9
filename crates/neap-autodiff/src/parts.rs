//! A step that sees its batch in parts: the parts' gradients are summed, and parameters are updated once by the mean.
//!
//! ```text
//!   inputs ─┬─► part 0: forward, backward ─► g0
//!           ├─► part 1: forward, backward ─► g0 + g1
//!           └─► part 2: forward, backward ─► g0 + g1 + g2 ─► / 3 ─► update
//! ```
//! All parts are in one graph, one after the other, so activations of one part are in memory at a time. Batch normalisations
//! go by each part's own statistics, and move the model's once for each part, as PyTorch does when it accumulates.

use crate::emit::Emit;
use crate::error::AutodiffError;
use crate::training::{Pass, Role, State, Training, TrainingSpec, training_step};
use neap_ir::{Const, Graph, Node, Op, ValueId};
use std::collections::HashMap;

/// As [`training_step`] of a batch of `parts` times that of `model`, whose inputs and result all have the batch as their first
/// axis. `rewrite` makes another graph of each part and its loss, such as one that computes activations again
/// ([`crate::recompute`]); it must leave inputs and outputs as they are. Dropouts of part `p` draw from the seed plus `p`.
///
/// # Errors
/// As [`training_step`].
pub fn training_step_in_parts(
    model: &Graph,
    spec: &TrainingSpec,
    parts: usize,
    rewrite: &dyn Fn(&Graph, ValueId) -> Graph,
) -> Result<Training, AutodiffError> {
    let of_pass = |pass| {
        let spec = TrainingSpec {
            pass,
            ..spec.clone()
        };
        let mut part = training_step(model.clone(), &spec)?;
        if let Some(&loss) = part.graph.outputs.first() {
            part.graph = rewrite(&part.graph, loss);
        }
        Ok::<_, AutodiffError>(part)
    };
    let parts = parts.max(1);
    let earlier = of_pass(Pass::Accumulate)?;
    let last = of_pass(Pass::Finish { parts })?;
    let mut whole = Whole::new(model, &earlier, parts)?;
    for index in 0..parts {
        let part = if index + 1 < parts { &earlier } else { &last };
        whole.append(model, part, index)?;
        if spec.report_result {
            whole.results.push(whole.result);
        }
    }
    whole.finish(&last, spec)
}

/// The step of all parts, as it grows.
struct Whole {
    emit: Emit,
    /// The whole batch's, in the model's order, and the target.
    inputs: Vec<ValueId>,
    rate: ValueId,
    step: ValueId,
    seed: Option<ValueId>,
    parts: usize,
    /// What running statistics and sums are by now, by name.
    current: HashMap<String, ValueId>,
    losses: Vec<ValueId>,
    results: Vec<ValueId>,
    /// The latest part's.
    result: ValueId,
    state: Vec<State>,
}

impl Whole {
    fn new(model: &Graph, part: &Training, parts: usize) -> Result<Whole, AutodiffError> {
        let count = model.values.len();
        let mut graph = Graph {
            name: model.name.clone(),
            values: part.graph.values[..count].to_vec(),
            consts: part.graph.consts.clone(),
            files: model.files.clone(),
            bound: model.bound.clone(),
            ..Graph::default()
        };
        let mut inputs = Vec::new();
        for &input in model.inputs.iter().chain([&part.target]) {
            let value = part.graph.value(input);
            let mut ty = value.ty.clone();
            let Some(batch) = ty.shape.first_mut() else {
                return Err(AutodiffError::Request(format!(
                    "'{}' has no axes, so it is no batch that could be cut into parts",
                    value.name
                )));
            };
            *batch *= parts;
            inputs.push(graph.add_value(value.name.clone(), ty));
        }
        let mut shared = |value: ValueId| {
            let value = part.graph.value(value);
            graph.add_value(value.name.clone(), value.ty.clone())
        };
        let (rate, step) = (shared(part.rate), shared(part.step));
        let seed = part.seed.map(&mut shared);
        Ok(Whole {
            emit: Emit {
                graph,
                prefix: String::new(),
            },
            inputs,
            rate,
            step,
            seed,
            parts,
            current: HashMap::new(),
            losses: Vec::new(),
            results: Vec::new(),
            result: rate,
            state: Vec::new(),
        })
    }

    /// Appends a part: what it shares with others keeps its place, and all else gets one of its own.
    fn append(
        &mut self,
        model: &Graph,
        part: &Training,
        index: usize,
    ) -> Result<(), AutodiffError> {
        let mut at: Vec<Option<ValueId>> = vec![None; part.graph.values.len()];
        self.emit.prefix = format!("part{index}");
        let own = model.inputs.iter().chain([&part.target]);
        for (n, &input) in own.enumerate() {
            let length = part.graph.ty(input).shape.first().copied().unwrap_or(1);
            let slice = self.emit.part(self.inputs[n], 0, index * length, length)?;
            at[input.index()] = Some(slice);
        }
        at[part.rate.index()] = Some(self.rate);
        at[part.step.index()] = Some(self.step);
        if let (Some(own), Some(seed)) = (part.seed, self.seed) {
            let offset = self.emit.indices(&[], &[index as i64]);
            at[own.index()] = Some(match index {
                0 => seed,
                _ => self.emit.add(seed, offset)?,
            });
        }
        // Sums that no earlier part has added to.
        let mut empty = vec![false; part.graph.values.len()];
        for state in &part.state {
            let known = self.current.get(&state.name).copied();
            at[state.input.index()] = match state.role {
                Role::Parameter => Some(state.input),
                Role::RunningStatistic => Some(known.unwrap_or(state.input)),
                Role::Sum => {
                    empty[state.input.index()] = known.is_none();
                    known
                }
                Role::Moment => None,
            };
        }
        let count = model.values.len();
        for node in &part.graph.nodes {
            if let (Op::Binary(_), &[Some(sum), Some(gradient)]) = (&node.op, &node.inputs[..])
                && empty[sum.index()]
                && let Some(output) = node.outputs.first().copied().flatten()
            {
                at[output.index()] = at[gradient.index()];
                continue;
            }
            let mut place = |v: &Option<ValueId>| v.map(|v| self.place(part, &mut at, v, count));
            let inputs = node.inputs.iter().map(&mut place).collect();
            let outputs = node.outputs.iter().map(&mut place).collect();
            self.emit.graph.nodes.push(Node {
                name: format!("part{index}/{}", node.name),
                op: node.op.clone(),
                inputs,
                outputs,
                panels: node.panels,
            });
        }
        let outputs = &part.graph.outputs;
        let found = |v: ValueId| at[v.index()].unwrap_or(v);
        self.losses.extend(outputs.first().map(|&v| found(v)));
        // Where the result is no output this is something else, and nobody asks.
        self.result = outputs.get(1).map_or(self.result, |&v| found(v));
        let is_last = index + 1 == self.parts;
        for state in &part.state {
            let output = state.output.map(found);
            if let Some(output) = output {
                self.current.insert(state.name.clone(), output);
            }
            if is_last && state.role != Role::Sum {
                self.state.push(State {
                    input: match state.role {
                        Role::Moment => found(state.input),
                        _ => state.input,
                    },
                    output,
                    ..state.clone()
                });
            }
        }
        Ok(())
    }

    /// Where a value of the part is. The model's constants are shared.
    fn place(
        &mut self,
        part: &Training,
        at: &mut [Option<ValueId>],
        value: ValueId,
        count: usize,
    ) -> ValueId {
        if let Some(known) = at[value.index()] {
            return known;
        }
        let own = part.graph.value(value);
        let graph = &mut self.emit.graph;
        let found = match part.graph.constant(value) {
            Some(_) if value.index() < count => value,
            Some(Const::Inline(literal)) => graph.add_literal(own.name.clone(), literal.clone()),
            Some(other) => graph.add_const(own.name.clone(), own.ty.clone(), other.clone()),
            None => graph.add_value(own.name.clone(), own.ty.clone()),
        };
        at[value.index()] = Some(found);
        found
    }

    /// The mean of the losses, and all results.
    fn finish(mut self, last: &Training, spec: &TrainingSpec) -> Result<Training, AutodiffError> {
        self.emit.prefix = "parts".into();
        let mut losses = self.losses.iter().copied();
        let mut sum = losses
            .next()
            .ok_or_else(|| AutodiffError::Request("a step of no parts".into()))?;
        for loss in losses {
            sum = self.emit.add(sum, loss)?;
        }
        let loss = self.emit.scale(sum, 1.0 / self.parts as f64)?;
        let mut outputs = vec![loss];
        if spec.report_result {
            outputs.push(self.emit.op(Op::Concat { axis: 0 }, &self.results)?);
        }
        let Some((&target, inputs)) = self.inputs.split_last() else {
            return Err(AutodiffError::Request("a step without a target".into()));
        };
        let mut graph = self.emit.graph;
        graph.inputs = inputs.to_vec();
        graph.inputs.extend([target, self.rate, self.step]);
        graph.inputs.extend(self.seed);
        graph.inputs.extend(self.state.iter().map(|s| s.input));
        outputs.extend(self.state.iter().filter_map(|s| s.output));
        graph.outputs = outputs;
        graph.check()?;
        Ok(Training {
            graph,
            target,
            rate: self.rate,
            step: self.step,
            seed: last.seed.and(self.seed),
            state: self.state,
        })
    }
}
