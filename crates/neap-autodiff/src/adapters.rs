//! Low-rank adapters (Hu et al., *LoRA*, ICLR 2022): a weight stays as it is, and two small matrices that are trained correct
//! what it computes.
//!
//! ```text
//!   y = x W    becomes    y = x W + s (x Aᵀ) Bᵀ        A: [rank, inputs]   B: [outputs, rank]   s = alpha / rank
//! ```
//! A convolution's A is a convolution of its own window to `rank` channels, and its B one of 1×1. Both matrices are zeros of no
//! file ([`SourceFile::Absent`]), so that no graph carries them; who trains them fills A with random numbers. While B is
//! zero, a model computes what it did without adapters.

use crate::emit::{Emit, Made};
use crate::error::AutodiffError;
use crate::parameters::shared;
use neap_ir::op::{Binary, Window};
use neap_ir::{Const, DType, FileId, FileRange, Graph, Node, Op, SourceFile, TensorType, ValueId};
use std::collections::HashMap;

/// How a weight lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightForm {
    /// `[inputs, outputs]`: a matrix that multiplies from the right.
    InputsFirst,
    /// `[outputs, inputs]`: a matrix that is transposed as it multiplies.
    OutputsFirst,
    /// `[outputs, inputs, kernel]`: a convolution's, of one group.
    Convolution,
}

impl WeightForm {
    /// Inputs, each of a convolution's kernel by itself, and outputs.
    pub fn sides(self, shape: &[usize]) -> [usize; 2] {
        match self {
            WeightForm::InputsFirst => [shape[0], shape[1]],
            WeightForm::OutputsFirst | WeightForm::Convolution => {
                [shape[1..].iter().product(), shape[0]]
            }
        }
    }

    /// Shapes of A and B.
    fn factors(self, shape: &[usize], rank: usize) -> [Vec<usize>; 2] {
        let [inputs, outputs] = self.sides(shape);
        match self {
            WeightForm::Convolution => {
                let down = [&[rank], &shape[1..]].concat();
                let mut up = vec![1; shape.len()];
                up[0] = outputs;
                up[1] = rank;
                [down, up]
            }
            _ => [vec![rank, inputs], vec![outputs, rank]],
        }
    }
}

/// A weight with its two matrices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapter {
    pub weight: ValueId,
    pub form: WeightForm,
    /// A, named as the weight with `/lora_A` behind.
    pub down: ValueId,
    /// B, named as the weight with `/lora_B` behind.
    pub up: ValueId,
}

/// Float32 constants that an adapter can be given: matrices of MatMul and Gemm, and weights of convolutions of one group. Nothing
/// else may read them or their bytes, or what it reads would not be what the adapted weight is.
pub fn adaptable(graph: &Graph) -> Vec<(ValueId, WeightForm)> {
    let mut forms: Vec<Option<WeightForm>> = vec![None; graph.values.len()];
    let mut is_barred = vec![false; graph.values.len()];
    for node in &graph.nodes {
        for (index, value) in node.inputs.iter().enumerate() {
            let Some(value) = *value else { continue };
            let form = form_in(graph, node, index, value);
            let known = &mut forms[value.index()];
            is_barred[value.index()] |= form.is_none() || known.is_some_and(|k| Some(k) != form);
            *known = form;
        }
    }
    for &value in &graph.outputs {
        is_barred[value.index()] = true;
    }
    for (first, second) in shared(graph) {
        is_barred[first.index()] = true;
        is_barred[second.index()] = true;
    }
    let ids = (0..graph.values.len() as u32).map(ValueId);
    let free = ids.filter(|v| !is_barred[v.index()]);
    free.filter_map(|v| Some((v, forms[v.index()]?))).collect()
}

/// What a node takes its operand `index` for; `None` where it is no weight.
fn form_in(graph: &Graph, node: &Node, index: usize, value: ValueId) -> Option<WeightForm> {
    let ty = graph.ty(value);
    let is_constant = graph.value(value).constant.is_some() && ty.dtype == DType::F32;
    if index != 1 || !is_constant || ty.elements() == 0 {
        return None;
    }
    match &node.op {
        Op::MatMul if ty.shape.len() == 2 => Some(WeightForm::InputsFirst),
        Op::Gemm { trans_b, .. } => Some(match trans_b {
            true => WeightForm::OutputsFirst,
            false => WeightForm::InputsFirst,
        }),
        Op::Conv(_, 1) if ty.shape.len() > 2 => Some(WeightForm::Convolution),
        _ => None,
    }
}

/// Gives each of `weights` an adapter of this rank, whose part of the result is multiplied by `scale`.
///
/// # Errors
/// [`AutodiffError::Request`] where a weight is none of [`adaptable`], its smaller side is less than the rank, or a name is taken.
pub fn add_adapters(
    graph: Graph,
    weights: &[ValueId],
    rank: usize,
    scale: f32,
) -> Result<(Graph, Vec<Adapter>), AutodiffError> {
    let forms: HashMap<ValueId, WeightForm> = adaptable(&graph).into_iter().collect();
    let mut zeros = Zeros::new(graph);
    let mut adapters = Vec::new();
    for &weight in weights {
        let value = zeros.graph.value(weight);
        let Some(&form) = forms.get(&weight) else {
            return Err(AutodiffError::Request(format!(
                "'{}' is no weight of products alone, so it can have no adapter",
                value.name
            )));
        };
        let [inputs, outputs] = form.sides(&value.ty.shape);
        if rank == 0 || rank > inputs.min(outputs) {
            return Err(AutodiffError::Request(format!(
                "'{}' has {inputs} inputs and {outputs} outputs, so its adapter cannot have rank {rank}",
                value.name
            )));
        }
        let name = value.name.clone();
        let [down, up] = form.factors(&value.ty.shape, rank);
        adapters.push(Adapter {
            weight,
            form,
            down: zeros.add(format!("{name}/lora_A"), &down)?,
            up: zeros.add(format!("{name}/lora_B"), &up)?,
        });
    }
    let graph = corrected(zeros.graph, &adapters, scale)?;
    Ok((graph, adapters))
}

/// Constants that no file holds.
struct Zeros {
    graph: Graph,
    file: FileId,
    offset: u64,
}

impl Zeros {
    fn new(mut graph: Graph) -> Zeros {
        // The first file is the model's own.
        if graph.files.is_empty() {
            graph.files.push(SourceFile::Absent);
        }
        let file = FileId(graph.files.len() as u32);
        graph.files.push(SourceFile::Absent);
        Zeros {
            graph,
            file,
            offset: 0,
        }
    }

    fn add(&mut self, name: String, shape: &[usize]) -> Made {
        if self.graph.values.iter().any(|v| v.name == name) {
            return Err(AutodiffError::Request(format!(
                "the model has a '{name}' already"
            )));
        }
        let ty = TensorType::new(DType::F32, shape);
        let range = FileRange {
            file: self.file,
            offset: self.offset,
            bytes: ty.len_bytes() as u64,
        };
        self.offset += range.bytes;
        let data = Const::Stored {
            range,
            stored_dtype: DType::F32,
        };
        Ok(self.graph.add_const(name, ty, data))
    }
}

/// With what adapters add to each result of their weights.
fn corrected(mut graph: Graph, adapters: &[Adapter], scale: f32) -> Result<Graph, AutodiffError> {
    let of_weight: HashMap<ValueId, &Adapter> = adapters.iter().map(|a| (a.weight, a)).collect();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut emit = Emit {
        graph,
        prefix: String::new(),
    };
    for mut node in nodes {
        let adapter = node.input(1).and_then(|weight| of_weight.get(&weight));
        let result = node.outputs.first().copied().flatten();
        let (Some(adapter), Some(result)) = (adapter, result) else {
            emit.graph.nodes.push(node);
            continue;
        };
        let ty = emit.ty(result).clone();
        let name = format!("{}/without_adapter", emit.graph.value(result).name);
        let own = emit.graph.add_value(name, ty);
        node.outputs[0] = Some(own);
        emit.graph.nodes.push(node.clone());
        emit.prefix = format!("adapter/{}", node.name);
        let part = part_of(&mut emit, &node, adapter, scale, result)?;
        emit.graph.nodes.push(Node {
            name: format!("{}/sum", emit.prefix),
            op: Op::Binary(Binary::Add),
            inputs: vec![Some(own), Some(part)],
            outputs: vec![Some(result)],
            panels: None,
        });
    }
    emit.graph.check()?;
    Ok(emit.graph)
}

/// What an adapter adds to a node's result.
fn part_of(emit: &mut Emit, node: &Node, adapter: &Adapter, scale: f32, result: ValueId) -> Made {
    let x = node
        .input(0)
        .ok_or_else(|| AutodiffError::Request(format!("node '{}' has no input", node.name)))?;
    let gemm = |alpha, trans_a| Op::Gemm {
        alpha,
        beta: 0.0,
        trans_a,
        trans_b: true,
    };
    match &node.op {
        Op::Conv(window, groups) => {
            let inner = emit.op(Op::Conv(window.clone(), *groups), &[x, adapter.down])?;
            let inner = emit.scale(inner, scale.into())?;
            let axes = window.kernel.len();
            let point = Window {
                kernel: vec![1; axes],
                strides: vec![1; axes],
                dilations: vec![1; axes],
                pads_begin: vec![0; axes],
                pads_end: vec![0; axes],
            };
            emit.op(Op::Conv(point, 1), &[inner, adapter.up])
        }
        Op::Gemm { alpha, trans_a, .. } => {
            let inner = emit.op(gemm(1.0, *trans_a), &[x, adapter.down])?;
            emit.op(gemm(alpha * scale, false), &[inner, adapter.up])
        }
        _ => {
            let shape = emit.shape(result);
            let inputs = emit.shape(adapter.down)[1];
            // A vector is one row; where there are no elements there are no rows.
            let rows = emit.ty(x).elements() / inputs;
            let x = emit.reshape(x, &[rows, inputs])?;
            let inner = emit.op(gemm(1.0, false), &[x, adapter.down])?;
            let outer = emit.op(gemm(scale, false), &[inner, adapter.up])?;
            emit.reshape(outer, &shape)
        }
    }
}
