//! A model's graph made into one step of its training.
//!
//! ```text
//! inputs    the model's │ target │ rate │ step (, seed) │ state: parameters, moments, running statistics, sums
//! outputs   loss (, result) │ the state that changed
//! ```
//! Trained constants become inputs, and what replaces them becomes outputs, so a step is an ordinary program. A parameter
//! is updated as soon as its gradient is complete: gradients of the whole network never exist together, unless
//! their common norm is asked for.

use crate::backward::Sweep;
use crate::emit::Emit;
use crate::error::AutodiffError;
use crate::loss::{Loss, add_loss};
use crate::parameters::check_apart;
use crate::statistics;
use neap_ir::op::{Binary, Generator, Reduce, Unary};
use neap_ir::update::Update;
use neap_ir::{Const, DType, Graph, Op, TensorType, ValueId};

/// What is trained, and how.
#[derive(Debug, Clone)]
pub struct TrainingSpec {
    /// Which of the graph's outputs the loss compares with the target.
    pub result: usize,
    pub loss: Loss,
    /// Constants that are trained, each with its update; all others are frozen.
    pub trained: Vec<(ValueId, Update)>,
    pub batch_norm: BatchNorm,
    pub clip: Option<Clip>,
    pub pass: Pass,
    /// Whether the result is an output of the step.
    pub report_result: bool,
}

/// What batch normalisations are normalised by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum BatchNorm {
    /// The statistics in the model.
    Given,
    /// The batch's. The model's move towards them by `momentum`; the variance towards the unbiased one, as PyTorch's.
    Batch { momentum: f32 },
}

/// A bound for gradients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// Each element lies between minus this and this.
    Value(f32),
    /// All gradients are scaled together to have at most this norm.
    Norm(f32),
}

/// A step may see its batch in parts, one after the other, whose gradients are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// The whole batch.
    Whole,
    /// A part that is not the last: gradients are added to sums, and nothing is updated.
    Accumulate,
    /// The last of so many parts: parameters are updated by the mean of the parts' gradients.
    Finish { parts: usize },
}

/// A step of training.
#[derive(Debug, Clone)]
pub struct Training {
    pub graph: Graph,
    /// Input with what the result is compared with.
    pub target: ValueId,
    /// Input without axes, float32 or the parameters' type: the learning rate.
    pub rate: ValueId,
    /// Input without axes, int64: the number of the step, from 1.
    pub step: ValueId,
    /// Input without axes, int64, where the model has dropout: another number for each step (and part).
    pub seed: Option<ValueId>,
    /// In the order of their inputs, and of the outputs of those that change.
    pub state: Vec<State>,
}

/// A tensor that is kept from step to step.
#[derive(Debug, Clone)]
pub struct State {
    pub name: String,
    pub role: Role,
    pub input: ValueId,
    /// What replaces it, an output of the graph; `None` where this pass leaves it as it is.
    pub output: Option<ValueId>,
    pub start: Start,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Parameter,
    /// Of the optimiser.
    Moment,
    /// Mean or variance of a batch normalisation.
    RunningStatistic,
    /// Of gradients; zeros again after [`Pass::Finish`].
    Sum,
}

/// What a state is before the first step.
#[derive(Debug, Clone)]
pub enum Start {
    /// A constant of the model.
    Constant(Const),
    Zeros,
}

/// Makes a model's graph into a step of its training.
///
/// # Errors
/// [`AutodiffError`] where an operator between a trained constant and the loss has no known derivative, a trained value is no
/// floating-point constant or shares its data with another, or the loss does not fit the result.
pub fn training_step(graph: Graph, spec: &TrainingSpec) -> Result<Training, AutodiffError> {
    check_apart(&graph, &spec.trained)?;
    let Some(&result) = graph.outputs.get(spec.result) else {
        return Err(AutodiffError::Request(format!(
            "the model has no output {}",
            spec.result
        )));
    };
    let dtype = graph.ty(result).dtype;
    let mut maker = Maker::new(graph, result, dtype, spec)?;
    maker.backward(spec)?;
    maker.finish(spec)
}

struct Maker {
    target: ValueId,
    rate: ValueId,
    step: ValueId,
    seed: Option<ValueId>,
    result: ValueId,
    loss: ValueId,
    sweep: Sweep,
    state: Vec<State>,
}

impl Maker {
    /// The forward pass with its loss, whose trained constants are inputs.
    fn new(
        mut graph: Graph,
        result: ValueId,
        dtype: DType,
        spec: &TrainingSpec,
    ) -> Result<Maker, AutodiffError> {
        let mut state = Vec::new();
        let target = spec.loss.target(graph.ty(result))?;
        let target = add_input(&mut graph, "target", target);
        let rate = add_input(&mut graph, "rate", TensorType::new(dtype, &[]));
        let step = add_input(&mut graph, "step", TensorType::new(DType::I64, &[]));
        let seed = seed_dropout(&mut graph);
        for &(value, _) in &spec.trained {
            state.push(constant_to_state(&mut graph, value, Role::Parameter)?);
        }
        let (graph, loss) = {
            let mut emit = Emit {
                graph,
                prefix: "statistics".into(),
            };
            if let BatchNorm::Batch { momentum } = spec.batch_norm {
                for moved in statistics::of_batches(&mut emit, momentum)? {
                    let value = moved.running;
                    let mut kept =
                        constant_to_state(&mut emit.graph, value, Role::RunningStatistic)?;
                    kept.output = Some(moved.replaced_by);
                    state.push(kept);
                }
            }
            add_loss(emit.graph, spec.loss, result, target)?
        };
        let by: Vec<ValueId> = spec.trained.iter().map(|&(value, _)| value).collect();
        Ok(Maker {
            target,
            rate,
            step,
            seed,
            result,
            loss,
            sweep: Sweep::new(graph, loss, &by)?,
            state,
        })
    }

    /// The backward pass, with each update behind the last part of its gradient.
    fn backward(&mut self, spec: &TrainingSpec) -> Result<(), AutodiffError> {
        let nodes = &self.sweep.emit.graph.nodes;
        let first_reader = |value: ValueId| {
            let reads = |n: &neap_ir::Node| n.present_inputs().any(|input| input == value);
            nodes.iter().position(reads)
        };
        let readers: Vec<Option<usize>> =
            spec.trained.iter().map(|&(v, _)| first_reader(v)).collect();
        let together = matches!(spec.clip, Some(Clip::Norm(_))) && spec.pass != Pass::Accumulate;
        let mut gradients = vec![None; spec.trained.len()];
        while let Some(index) = self.sweep.step()? {
            for (i, &(value, update)) in spec.trained.iter().enumerate() {
                if readers[i] != Some(index) {
                    continue;
                }
                let Some(gradient) = self.sweep.derivatives[value.index()] else {
                    continue;
                };
                self.sweep.emit.prefix = format!("update/{}", self.state[i].name);
                let gradient = self.summed(i, gradient, spec.pass)?;
                gradients[i] = Some(gradient);
                if !together && spec.pass != Pass::Accumulate {
                    self.update(i, gradient, update, spec.clip)?;
                }
            }
        }
        if let (true, Some(Clip::Norm(limit))) = (together, spec.clip) {
            self.sweep.emit.prefix = "clip".into();
            let factor = self.common_factor(&gradients, limit)?;
            for (i, &(_, update)) in spec.trained.iter().enumerate() {
                if let (Some(gradient), Some(factor)) = (gradients[i], factor) {
                    self.sweep.emit.prefix = format!("update/{}", self.state[i].name);
                    let clipped = self.sweep.emit.mul(gradient, factor)?;
                    self.update(i, clipped, update, None)?;
                }
            }
        }
        Ok(())
    }

    /// The gradient with those of earlier parts.
    fn summed(
        &mut self,
        index: usize,
        gradient: ValueId,
        pass: Pass,
    ) -> Result<ValueId, AutodiffError> {
        if pass == Pass::Whole {
            return Ok(gradient);
        }
        let emit = &mut self.sweep.emit;
        let name = format!("{}/sum", self.state[index].name);
        let ty = emit.ty(gradient).clone();
        let input = add_input(&mut emit.graph, &name, ty);
        let sum = emit.add(input, gradient)?;
        let accumulates = pass == Pass::Accumulate;
        self.state.push(State {
            name,
            role: Role::Sum,
            input,
            output: accumulates.then_some(sum),
            start: Start::Zeros,
        });
        match pass {
            Pass::Finish { parts } => emit.scale(sum, 1.0 / parts.max(1) as f64),
            _ => Ok(sum),
        }
    }

    /// `min(1, limit / (norm + 1e-6))`, PyTorch's.
    fn common_factor(
        &mut self,
        gradients: &[Option<ValueId>],
        limit: f32,
    ) -> Result<Option<ValueId>, AutodiffError> {
        let emit = &mut self.sweep.emit;
        let mut total = None;
        for &gradient in gradients.iter().flatten() {
            let elements = emit.ty(gradient).elements();
            let flat = emit.reshape(gradient, &[elements])?;
            let square = emit.reduce(Reduce::SumSquare, flat, &[0], false)?;
            total = Some(match total {
                Some(sum) => emit.add(sum, square)?,
                None => square,
            });
        }
        let Some(total) = total else {
            return Ok(None);
        };
        let dtype = emit.dtype(total);
        let norm = emit.unary(Unary::Sqrt, total)?;
        let small = emit.scalar(dtype, 1e-6)?;
        let norm = emit.add(norm, small)?;
        let limit = emit.scalar(dtype, limit.into())?;
        let factor = emit.binary(Binary::Div, limit, norm)?;
        let one = emit.scalar(dtype, 1.0)?;
        Ok(Some(emit.binary(Binary::Min, factor, one)?))
    }

    fn update(
        &mut self,
        index: usize,
        gradient: ValueId,
        update: Update,
        clip: Option<Clip>,
    ) -> Result<(), AutodiffError> {
        let emit = &mut self.sweep.emit;
        let gradient = match clip {
            Some(Clip::Value(limit)) => {
                let limit = f64::from(limit);
                let op = Op::Clip {
                    low: Some(-limit),
                    high: Some(limit),
                };
                emit.op(op, &[gradient])?
            }
            _ => gradient,
        };
        let parameter = self.state[index].input;
        let name = self.state[index].name.clone();
        let ty = emit.ty(parameter).clone();
        let rate = if ty.dtype == emit.dtype(self.rate) {
            self.rate
        } else {
            emit.op(Op::Cast { to: ty.dtype }, &[self.rate])?
        };
        let mut operands = vec![parameter, gradient, rate, self.step];
        let first = self.state.len();
        for i in 0..update.moments() {
            let name = format!("{name}/moment{i}");
            let input = add_input(&mut emit.graph, &name, ty.clone());
            operands.push(input);
            self.state.push(State {
                name,
                role: Role::Moment,
                input,
                output: None,
                start: Start::Zeros,
            });
        }
        let wanted = vec![true; 1 + update.moments()];
        let results = emit.outputs(Op::Update(update), &operands, &wanted)?;
        self.state[index].output = results[0];
        for (i, &result) in results[1..].iter().enumerate() {
            self.state[first + i].output = result;
        }
        Ok(())
    }

    fn finish(self, spec: &TrainingSpec) -> Result<Training, AutodiffError> {
        let mut graph = self.sweep.emit.graph;
        graph.outputs = vec![self.loss];
        if spec.report_result {
            graph.outputs.push(self.result);
        }
        graph
            .outputs
            .extend(self.state.iter().filter_map(|s| s.output));
        drop_unused(&mut graph);
        // Inputs in the order of the state, wherever they were added.
        let is_state = |v: &ValueId| self.state.iter().any(|s| s.input == *v);
        graph.inputs.retain(|v| !is_state(v));
        graph.inputs.extend(self.state.iter().map(|s| s.input));
        graph.check()?;
        Ok(Training {
            graph,
            target: self.target,
            rate: self.rate,
            step: self.step,
            seed: self.seed,
            state: self.state,
        })
    }
}

fn add_input(graph: &mut Graph, name: &str, ty: TensorType) -> ValueId {
    let input = graph.add_value(name, ty);
    graph.inputs.push(input);
    input
}

fn constant_to_state(
    graph: &mut Graph,
    value: ValueId,
    role: Role,
) -> Result<State, AutodiffError> {
    let name = graph.value(value).name.clone();
    let Some(start) = graph.constant(value).cloned() else {
        return Err(AutodiffError::Request(format!("'{name}' is no constant")));
    };
    graph.values[value.index()].constant = None;
    graph.inputs.push(value);
    Ok(State {
        name,
        role,
        input: value,
        output: None,
        start: Start::Constant(start),
    })
}

/// Lets every dropout draw from the step's own seed; an input only where there is dropout.
fn seed_dropout(graph: &mut Graph) -> Option<ValueId> {
    let is_dropout = |op: &Op| matches!(op, Op::Dropout { .. });
    if !graph.nodes.iter().any(|n| is_dropout(&n.op)) {
        return None;
    }
    let seed = add_input(graph, "seed", TensorType::new(DType::I64, &[]));
    for (index, node) in graph.nodes.iter_mut().enumerate() {
        if let Op::Dropout { generator, .. } = &mut node.op {
            node.inputs[1] = Some(seed);
            // All with one seed would drop the same elements. Streams of others are small numbers.
            if *generator == Generator::Twister {
                let stream = u64::MAX - index as u64;
                *generator = Generator::Counter { stream };
            }
        }
    }
    Some(seed)
}

/// Drops nodes that no output and no state needs.
pub fn drop_unused(graph: &mut Graph) {
    let mut used = vec![false; graph.values.len()];
    let states = graph.states.iter().filter_map(|s| s.next);
    let needed = graph.outputs.iter().copied().chain(states);
    needed.for_each(|v| used[v.index()] = true);
    let mut kept = Vec::new();
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.present_outputs().any(|v| used[v.index()]) {
            node.present_inputs().for_each(|v| used[v.index()] = true);
            kept.push(node);
        }
    }
    kept.reverse();
    graph.nodes = kept;
}
