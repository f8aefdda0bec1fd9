//! Appends nodes to the graph, inferring types and folding constants as it goes.

mod found;
mod narrow_tensors;
mod steps;

use crate::OpenOptions;
use crate::containers::{Container, Containers};
use crate::error::{OnnxError, shown};
use crate::files::Files;
use crate::late::LateSizes;
use crate::narrow::Narrow;
use crate::proto::TensorProto;
use crate::tensor;
use neap_ir::late::{Bound, LateOp};
use neap_ir::{Const, DType, FileRange, Graph, Literal, Node, Op, TensorType, ValueId, infer};
use std::collections::{HashMap, HashSet};

/// A node whose operands and results are larger is not folded: weights stay in the file.
const FOLD_BYTES: usize = 8 << 20;
/// What has no more elements may be sizes, scales or places, which nodes must know: it is folded, though it were trained.
const FEW_ELEMENTS: usize = 16;
/// Nodes that are computed for one model to count passes of loops, and so the most passes; a large node counts as several.
pub(crate) const COUNTED_NODES: u64 = 1 << 18;
/// Constants in memory, small ones included. Real models stay far below; a hostile file could ask
/// for a multiple of its own size.
const HELD_BYTES: usize = 128 << 20;

pub(crate) struct Builder {
    pub(crate) graph: Graph,
    pub(crate) files: Files,
    /// Half floats are computed as f32.
    pub(crate) widen: bool,
    /// Weights of layers stay in the files.
    leaves_weights: bool,
    keeps_parameters: bool,
    /// Constants that are neither folded nor seen in part.
    parameters: HashSet<ValueId>,
    /// Large results held by folding so far.
    folded_bytes: usize,
    /// All constants in memory so far.
    held_bytes: usize,
    /// Values that already carry a name from the model.
    named: Vec<bool>,
    /// Constants that were left in the files, whole: not views of them.
    stored: Vec<Stored>,
    pub(crate) late: LateSizes,
    /// What passes of loops have others of, where a body is read once for all of them.
    pub(crate) stand_ins: HashSet<ValueId>,
    /// Nodes that may still be computed to count passes.
    pub(crate) counting_left: u64,
    narrow: HashMap<ValueId, Narrow>,
    /// Nodes are of a branch that the data decide: they are computed where this holds.
    pub(crate) guard: Option<ValueId>,
    pub(crate) containers: Containers,
    /// Weights of layers in 8 bits.
    dequantized: HashMap<ValueId, steps::Dequantized>,
}

/// A constant of a model that is left in its file.
#[derive(Debug, Clone)]
pub struct Stored {
    pub name: String,
    pub ty: TensorType,
    pub range: FileRange,
    pub stored_dtype: DType,
}

/// Which ONNX node is being lowered, for names and messages.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) node: &'a str,
    pub(crate) op: &'a str,
}

impl At<'_> {
    pub(crate) fn bad(&self, reason: impl Into<String>) -> OnnxError {
        OnnxError::BadNode {
            node: shown(self.node),
            op: shown(self.op),
            reason: reason.into(),
        }
    }

    pub(crate) fn unsupported(&self, reason: impl Into<String>) -> OnnxError {
        OnnxError::Unsupported {
            node: shown(self.node),
            op: shown(self.op),
            reason: reason.into(),
        }
    }
}

impl Builder {
    pub(crate) fn new(files: Files, options: &OpenOptions) -> Builder {
        Builder {
            graph: Graph::default(),
            files,
            widen: options.widen_half,
            leaves_weights: options.leave_weights,
            keeps_parameters: options.keep_parameters,
            parameters: HashSet::new(),
            folded_bytes: 0,
            held_bytes: 0,
            named: Vec::new(),
            stored: Vec::new(),
            late: LateSizes::default(),
            stand_ins: HashSet::new(),
            counting_left: COUNTED_NODES,
            narrow: HashMap::new(),
            guard: None,
            containers: Containers::default(),
            dequantized: HashMap::new(),
        }
    }

    /// What the graph has of the model's constants, whole.
    pub(crate) fn take_stored(&mut self) -> Vec<Stored> {
        std::mem::take(&mut self.stored)
    }

    /// The constant of the model that a tensor describes.
    pub(crate) fn tensor(
        &mut self,
        name: &str,
        tensor: &TensorProto,
    ) -> Result<ValueId, OnnxError> {
        self.tensor_of(name, tensor, false)
    }

    /// Takes an initializer of the main graph for a parameter, if those are kept and it may be one.
    pub(crate) fn keep_parameter(&mut self, value: ValueId) {
        let ty = self.ty(value);
        if self.keeps_parameters && ty.dtype.is_float() && ty.elements() > FEW_ELEMENTS {
            self.parameters.insert(value);
        }
    }

    /// What the value is in the model, where its type in the graph is wider.
    pub(crate) fn narrow(&self, value: ValueId) -> Option<Narrow> {
        self.narrow.get(&value).copied()
    }

    pub(crate) fn set_narrow(&mut self, value: ValueId, narrow: Narrow) {
        self.narrow.insert(value, narrow);
    }

    /// A constant that the model names.
    fn initializer(&mut self, name: &str, ty: TensorType, data: Const) -> ValueId {
        if let &Const::Stored {
            range,
            stored_dtype,
        } = &data
        {
            self.stored.push(Stored {
                name: name.to_string(),
                ty: ty.clone(),
                range,
                stored_dtype,
            });
        }
        self.constant(ty, data)
    }

    pub(crate) fn ty(&self, value: ValueId) -> &TensorType {
        self.graph.ty(value)
    }

    /// A constant without a name of its own.
    pub(crate) fn literal(&mut self, literal: Literal) -> ValueId {
        self.constant(literal.ty(), Const::Inline(literal))
    }

    pub(crate) fn constant(&mut self, ty: TensorType, data: Const) -> ValueId {
        if let Const::Inline(literal) = &data {
            self.held_bytes = self.held_bytes.saturating_add(literal.len_bytes());
        }
        let name = format!("constant_{}", self.graph.values.len());
        self.graph.add_const(name, ty, data)
    }

    /// Whether the constants in memory are still of a size that a real model has.
    pub(crate) fn check_memory(&self) -> Result<(), String> {
        if self.held_bytes > HELD_BYTES {
            return Err("its constants take too much memory".into());
        }
        Ok(())
    }

    /// Gives the value the model's name for it, unless it has one.
    pub(crate) fn name(&mut self, value: ValueId, name: &str) {
        let index = value.index();
        if self.named.len() <= index {
            self.named.resize(index + 1, false);
        }
        if !self.named[index] {
            self.named[index] = true;
            self.graph.values[index].name = name.to_string();
        }
    }

    /// Overrides the name: graph outputs are called as the model calls them.
    pub(crate) fn rename(&mut self, value: ValueId, name: &str) {
        self.name(value, name);
        self.graph.values[value.index()].name = name.to_string();
    }

    /// The value's elements if they are known and few enough to be looked at.
    pub(crate) fn known(&mut self, value: ValueId) -> Result<Option<Literal>, OnnxError> {
        let at = At {
            node: "",
            op: "DequantizeLinear",
        };
        let value = self.widened(at, value)?.unwrap_or(value);
        let ty = self.ty(value).clone();
        match self.graph.constant(value) {
            Some(Const::Inline(literal)) => Ok(Some(literal.clone())),
            Some(&Const::Stored {
                range,
                stored_dtype,
            }) if range.bytes <= FOLD_BYTES as u64 => {
                let literal = tensor::read(&mut self.files, range, stored_dtype, &ty.shape)?;
                Ok(Some(tensor::converted(literal, ty.dtype)))
            }
            _ => Ok(None),
        }
    }

    /// Names of graph inputs that decide the value.
    pub(crate) fn roots(&self, value: ValueId) -> Vec<String> {
        let inputs = self.root_values(value).into_iter();
        inputs.map(|i| shown(&self.graph.value(i).name)).collect()
    }

    /// Graph inputs that decide the value.
    pub(crate) fn root_values(&self, value: ValueId) -> Vec<ValueId> {
        let seen = self.behind(value);
        let inputs = self.graph.inputs.iter();
        inputs.filter(|i| seen[i.index()]).copied().collect()
    }

    /// Whether what decides a value is known only when running: an input of which `is_data` holds, sizes that are late,
    /// what passes of a loop have others of, and constants that are too large to be computed with beforehand.
    pub(crate) fn is_of(&self, value: ValueId, is_data: impl Fn(&TensorType) -> bool) -> bool {
        let seen = self.behind(value);
        let is_seen = |v: &ValueId| seen[v.index()];
        let late = &self.late;
        let values = (0..seen.len()).map(|index| ValueId(index as u32));
        let mut behind = values.filter(is_seen);
        let mut inputs = self.graph.inputs.iter().filter(|v| is_seen(v)).peekable();
        self.stand_ins.iter().any(is_seen)
            || inputs.peek().is_none()
            || inputs.any(|v| is_data(self.ty(*v)))
            || behind.any(|v| late.is_late(v) || late.gives_sizes(v))
    }

    /// Of each value, whether this one is computed from it.
    fn behind(&self, value: ValueId) -> Vec<bool> {
        let producers = self.graph.producers();
        let mut seen = vec![false; self.graph.values.len()];
        let mut stack = vec![value];
        while let Some(v) = stack.pop() {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            if let Some(node) = producers[v.index()] {
                stack.extend(self.graph.nodes[node.index()].present_inputs());
            }
        }
        seen
    }

    /// Appends a node, or finds its results without one. `wanted[i]` says whether output `i` is used.
    pub(crate) fn emit(
        &mut self,
        at: At,
        op: Op,
        inputs: &[Option<ValueId>],
        wanted: &[bool],
    ) -> Result<Vec<Option<ValueId>>, OnnxError> {
        self.check_tensors(at, inputs)?;
        let inputs = &self.operands_of(at, &op, inputs)?[..];
        if inputs.iter().flatten().any(|&v| self.is_late(v)) {
            return self.emit_over(at, op, inputs, wanted);
        }
        let types: Vec<Option<TensorType>> = inputs
            .iter()
            .map(|i| i.map(|v| self.ty(v).clone()))
            .collect();
        let results =
            infer::output_types(&op, &types, wanted.len()).map_err(|e| at.bad(e.reason))?;
        if results.len() != wanted.len() {
            return Err(at.bad(format!(
                "it has {} outputs, but {} are used",
                results.len(),
                wanted.len()
            )));
        }
        for ty in &results {
            if ty.shape.len() > tensor::MAX_RANK || tensor::is_huge(&ty.shape) {
                return Err(at.bad(format!("its output {:?} is impossibly large", ty.shape)));
            }
        }
        let op = unit_transpose_as_reshape(op, &types, &results);
        if let Some(values) = self.alias(&op, inputs, &results) {
            return Ok(values.into_iter().map(Some).collect());
        }
        if let Some(value) = self.rows(&op, inputs, &results)? {
            return Ok(vec![Some(value)]);
        }
        let is_left = self.guard.is_none() && steps::dequantizes_weights(&op, &types);
        if !is_left && let Some(values) = self.fold(at, &op, inputs, &types, &results, wanted)? {
            return Ok(values);
        }
        let outputs: Vec<Option<ValueId>> = (results.iter().zip(wanted))
            .map(|(ty, &wanted)| wanted.then(|| self.graph.add_value("", ty.clone())))
            .collect();
        for output in outputs.iter().flatten() {
            self.graph.values[output.index()].name = format!("{}:{}", at.node, output.0);
        }
        match self.guard {
            Some(_) => {
                let bounds = results.into_iter().map(Bound::fixed).collect();
                self.push_late(at, LateOp::Over(op), bounds, inputs, &outputs);
            }
            None => {
                self.push(at, op.clone(), inputs.to_vec(), &outputs);
                self.note_dequantized(&op, &types);
            }
        }
        Ok(outputs)
    }

    /// A value that stands for a sequence or an optional.
    pub(crate) fn container(&mut self, container: Container) -> ValueId {
        let nothing = TensorType::new(DType::Bool, &[0]);
        let marker = self.graph.add_value("", nothing);
        self.containers.insert(marker, container);
        marker
    }

    /// # Errors
    /// A value stands for something else.
    pub(crate) fn check_tensors(
        &self,
        at: At,
        values: &[Option<ValueId>],
    ) -> Result<(), OnnxError> {
        let mut values = values.iter().flatten();
        match values.find_map(|&v| self.containers.get(v)) {
            Some(other) => Err(at.unsupported(format!("{} as its operand", other.name()))),
            None => Ok(()),
        }
    }

    pub(crate) fn push(
        &mut self,
        at: At,
        op: Op,
        inputs: Vec<Option<ValueId>>,
        outputs: &[Option<ValueId>],
    ) {
        self.graph.nodes.push(Node {
            name: at.node.to_string(),
            op,
            inputs,
            outputs: outputs.to_vec(),
            panels: None,
        });
    }
}

/// A transpose that moves only axes of size one does not move elements.
fn unit_transpose_as_reshape(op: Op, types: &[Option<TensorType>], results: &[TensorType]) -> Op {
    let (Op::Transpose { perm }, [Some(from)], [to]) = (&op, types, results) else {
        return op;
    };
    let mut moved = perm.iter().filter(|&&axis| from.shape[axis] != 1);
    let in_order = moved.by_ref().is_sorted();
    let identity = perm.iter().enumerate().all(|(i, &p)| i == p);
    if in_order && !identity {
        Op::Reshape {
            shape: to.shape.clone(),
        }
    } else {
        op
    }
}
