//! Walks the model: opens it, binds names to values, inlines branches and functions.

pub(crate) mod bounds;
mod branch;
mod counting;
mod flexible;
mod gradient;
mod halves;
mod passes;
mod repeat;
mod unroll;

use crate::builder::{At, Builder, Stored};
use crate::error::{OnnxError, shown};
use crate::files::Files;
use crate::narrow::Narrow;
use crate::node::{Ctx, Outputs};
use crate::proto::{
    AttributeProto, AttributeValue, FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfo,
    ValueType,
};
use crate::{OpenOptions, inputs, ops, order, tensor};
use halves::Halves;
use neap_ir::op::Unary;
use neap_ir::{BoundInput, Const, DType, Graph, Op, TensorType, ValueId};
use std::collections::{HashMap, HashSet};

const OLDEST_OPSET: i64 = 1;
const NEWEST_OPSET: i64 = 28;
/// Functions that call each other, and branches inside branches, end here.
const MAX_NESTING: usize = 32;
/// Inlined functions can multiply; no real model comes near.
const MAX_NODES: usize = 2_000_000;

/// The graph of a decoded model with its dimensions bound, with what its outputs do not need, and the files with what was read of them.
pub(crate) fn bind(
    model: &ModelProto,
    files: Files,
    options: &OpenOptions,
) -> Result<(Graph, Files, Vec<Stored>), OnnxError> {
    let path = files.model().name().to_string();
    let invalid = |reason: String| OnnxError::Model {
        path: path.clone(),
        reason,
    };
    let proto = model
        .graph
        .as_ref()
        .ok_or_else(|| invalid("it holds no graph".into()))?;
    let opsets = opsets(&model.opsets)?;
    let functions = model
        .functions
        .iter()
        .map(|f| ((f.domain.as_str(), f.name.as_str()), f))
        .collect();

    bounds::check(model, options)?;
    let mut importer = Importer {
        builder: Builder::new(files, options),
        functions,
        lowered: 0,
        orders: 0,
        gradients: 0,
    };
    let builder = &mut importer.builder;
    builder.late.bounds = options.size_bounds.clone();
    builder.graph.name = proto.name.clone();
    let mut scope = Scope {
        nodes: &proto.nodes,
        ..Scope::root(&opsets)
    };

    let real_inputs = real_inputs(proto);
    let types = inputs::bind(&real_inputs, options)?;
    for (input, stored) in real_inputs.iter().zip(types) {
        let dtype = tensor::value_dtype(stored.dtype, options.widen_half);
        let ty = TensorType::new(dtype, &stored.shape);
        let id = match options.bindings.get(&input.name) {
            Some(literal) => {
                let value = inputs::bound_value(&input.name, literal, stored.dtype, dtype)?;
                builder.graph.bound.push(BoundInput {
                    name: input.name.clone(),
                    value: value.clone(),
                });
                builder.constant(ty, Const::Inline(value))
            }
            None => {
                let id = builder.graph.add_value("", ty);
                builder.graph.inputs.push(id);
                id
            }
        };
        if let ValueType::Tensor { elem_type, .. } = input.ty
            && let Some(narrow) = Narrow::of(elem_type)
        {
            builder.set_narrow(id, narrow);
        }
        builder.name(id, &input.name);
        let is_half = |dtype: &DType| matches!(dtype, DType::F16 | DType::BF16);
        scope.set_half(&input.name, Some(stored.dtype).filter(is_half));
        if scope.names.insert(input.name.clone(), Some(id)).is_some() {
            return Err(invalid(format!(
                "input '{}' is named twice",
                shown(&input.name)
            )));
        }
    }

    importer.graph(proto, &mut scope, 0).map_err(|e| match e {
        Failure::Onnx(e) => e,
        Failure::Graph(reason) => invalid(reason),
    })?;
    importer.outputs(proto, &scope).map_err(invalid)?;
    let stored = importer.builder.take_stored();
    let Builder {
        mut graph, files, ..
    } = importer.builder;
    graph.files = files.sources();
    Ok((graph, files, stored))
}

/// Without initializers, which files of early IR versions list among the inputs.
pub(crate) fn real_inputs(proto: &GraphProto) -> Vec<&ValueInfo> {
    let dense = proto.initializers.iter().map(|t| t.name.as_str());
    let sparse = proto.sparse_initializers.iter();
    let sparse = sparse.map(|s| s.values.name.as_str());
    let initialized: HashSet<&str> = dense.chain(sparse).collect();
    let inputs = proto.inputs.iter();
    inputs
        .filter(|i| !initialized.contains(i.name.as_str()))
        .collect()
}

type Opsets = HashMap<String, i64>;

fn opsets(imports: &[(String, i64)]) -> Result<Opsets, OnnxError> {
    let mut opsets = Opsets::new();
    for (domain, version) in imports {
        let domain = if domain == "ai.onnx" { "" } else { domain };
        if domain.is_empty() && !(OLDEST_OPSET..=NEWEST_OPSET).contains(version) {
            return Err(OnnxError::Opset {
                domain: "ai.onnx".into(),
                version: *version,
                supported: "1 to 28 are",
            });
        }
        opsets.insert(domain.to_string(), *version);
    }
    Ok(opsets)
}

/// Names visible to nodes: of this graph, then of those around it.
struct Scope<'p> {
    /// `None` for an optional function argument that was left out.
    names: HashMap<String, Option<ValueId>>,
    /// Those that the model has in half floats, though they are carried as f32.
    halves: HashMap<String, DType>,
    parent: Option<&'p Scope<'p>>,
    /// Of the model's own graph, where this is its scope: a `Gradient` names what some of them compute.
    nodes: &'p [NodeProto],
    opsets: &'p Opsets,
}

impl<'p> Scope<'p> {
    fn root(opsets: &'p Opsets) -> Scope<'p> {
        Scope {
            names: HashMap::new(),
            halves: HashMap::new(),
            parent: None,
            nodes: &[],
            opsets,
        }
    }

    fn inside(parent: &'p Scope<'p>) -> Scope<'p> {
        Scope {
            names: HashMap::new(),
            halves: HashMap::new(),
            parent: Some(parent),
            nodes: &[],
            opsets: parent.opsets,
        }
    }

    /// The version of the default domain.
    fn opset(&self) -> Option<i64> {
        self.opsets.get("").copied()
    }

    fn find(&self, name: &str) -> Option<Option<ValueId>> {
        let mut scope = Some(self);
        while let Some(s) = scope {
            if let Some(&value) = s.names.get(name) {
                return Some(value);
            }
            scope = s.parent;
        }
        None
    }
}

/// A node's failure already says where; a graph's is completed with the model's name.
enum Failure {
    Onnx(OnnxError),
    Graph(String),
}

impl From<OnnxError> for Failure {
    fn from(e: OnnxError) -> Failure {
        Failure::Onnx(e)
    }
}

impl Failure {
    fn at(self, at: At) -> OnnxError {
        match self {
            Failure::Onnx(e) => e,
            Failure::Graph(reason) => at.bad(reason),
        }
    }
}

struct Importer<'m> {
    builder: Builder,
    functions: HashMap<(&'m str, &'m str), &'m FunctionProto>,
    /// Nodes so far.
    lowered: usize,
    /// How many derivatives the node at hand is part of.
    orders: usize,
    /// Derivatives so far.
    gradients: usize,
}

impl Importer<'_> {
    /// Initializers and nodes of a graph or branch, as far as its outputs need them.
    fn graph(
        &mut self,
        proto: &GraphProto,
        scope: &mut Scope,
        depth: usize,
    ) -> Result<(), Failure> {
        let order = self.initializers(proto, scope)?;
        for i in order {
            self.node(&proto.nodes[i], scope, depth)?;
        }
        Ok(())
    }

    /// Initializers of a graph or branch, as far as its outputs need them. Gives its nodes, as far as they are needed, in
    /// order.
    fn initializers(
        &mut self,
        proto: &GraphProto,
        scope: &mut Scope,
    ) -> Result<Vec<usize>, Failure> {
        let outputs = || proto.outputs.iter().map(|o| o.name.as_str());
        let order = order::live_nodes(&proto.nodes, outputs()).map_err(Failure::Graph)?;
        let mut used: HashSet<&str> = outputs().collect();
        for &i in &order {
            order::used_names(&proto.nodes[i], &mut used);
        }
        let twice =
            |name: &str| Failure::Graph(format!("value '{}' is defined twice", shown(name)));
        let weights = order::weight_names(order.iter().map(|&i| &proto.nodes[i]), outputs());
        let widen = self.builder.widen;
        let all = || proto.initializers.iter().enumerate();
        let last: HashMap<&str, usize> = all().map(|(i, t)| (t.name.as_str(), i)).collect();
        for (index, initializer) in all() {
            let name = initializer.name.as_str();
            // Of two of one name the last counts, as in onnxruntime.
            if !used.contains(name) || last.get(name) != Some(&index) {
                continue;
            }
            let is_weights = weights.contains(name);
            let id = self.builder.tensor_of(name, initializer, is_weights)?;
            self.builder.check_memory().map_err(Failure::Graph)?;
            self.builder.name(id, &initializer.name);
            scope.set_half(name, halves::half(initializer.data_type));
            if scope.parent.is_none() {
                self.builder.keep_parameter(id);
            }
            if scope
                .names
                .insert(initializer.name.clone(), Some(id))
                .is_some()
            {
                return Err(twice(&initializer.name));
            }
        }
        for sparse in &proto.sparse_initializers {
            let name = &sparse.values.name;
            if !used.contains(name.as_str()) {
                continue;
            }
            let (ty, data) = tensor::load_sparse(&mut self.builder.files, sparse, widen)?;
            let id = self.builder.constant(ty, data);
            self.builder.check_memory().map_err(Failure::Graph)?;
            self.builder.name(id, name);
            if scope.names.insert(name.clone(), Some(id)).is_some() {
                return Err(twice(name));
            }
        }
        Ok(order)
    }

    fn node(&mut self, node: &NodeProto, scope: &mut Scope, depth: usize) -> Result<(), Failure> {
        let name = match (&node.name, node.outputs.first()) {
            (name, _) if !name.is_empty() => name,
            (_, Some(output)) => output,
            _ => &node.op_type,
        };
        let at = At {
            node: name,
            op: &node.op_type,
        };
        self.lowered += 1;
        if self.lowered > MAX_NODES {
            return Err(at.bad("the model has too many nodes").into());
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(if input.is_empty() {
                None
            } else {
                scope.find(input).ok_or_else(|| {
                    at.bad(format!("nothing computes its input '{}'", shown(input)))
                })?
            });
        }
        // Left-out trailing inputs are no inputs.
        while inputs.last() == Some(&None) {
            inputs.pop();
        }

        let halves = Halves::of(node, &inputs, scope, &self.builder);
        let domain = if node.domain == "ai.onnx" {
            ""
        } else {
            &node.domain
        };
        let function = self
            .functions
            .get(&(node.domain.as_str(), node.op_type.as_str()))
            .copied();
        let outputs = if let Some(function) = function {
            self.call(function, node, at, inputs, scope, depth)?
        } else if domain.is_empty() && node.op_type == "If" {
            self.branch(node, at, inputs, scope, depth)?
        } else if domain.is_empty() && node.op_type == "Loop" {
            self.repeat(node, at, &inputs, scope, depth)?
        } else if domain.is_empty() && node.op_type == "Scan" && scope.opset() >= Some(9) {
            self.unroll_scan(node, at, &inputs, scope, depth)?
        } else if domain.is_empty() && node.op_type == "Scan" {
            self.unroll_batched_scan(node, at, &inputs, scope, depth)?
        } else if domain.is_empty() && node.op_type == "SequenceMap" {
            self.map_sequence(node, at, &inputs, scope, depth)?
        } else if domain == "ai.onnx.preview" && node.op_type == "FlexAttention" {
            self.flexible_attention(node, at, &inputs, scope, depth)?
        } else if order::is_gradient(node) {
            self.gradient(node, at, &inputs, scope, depth)?
        } else {
            let version = match scope.opsets.get(domain) {
                Some(&version) => version,
                None if domain.is_empty() => {
                    return Err(Failure::Graph("it imports no opset".into()));
                }
                None => 1,
            };
            let mut ctx = Ctx {
                builder: &mut self.builder,
                node,
                name,
                version,
                inputs,
            };
            let before = ctx.builder.graph.nodes.len();
            let mut outputs = ops::lower(&mut ctx, domain)?;
            halves.mark_products(&mut self.builder.graph, before);
            if let [Some(result), ..] = &mut outputs[..] {
                *result = halves.rounded(&mut self.builder, at, *result)?;
            }
            outputs
        };
        self.builder.check_memory().map_err(Failure::Graph)?;
        for (i, output) in node.outputs.iter().enumerate() {
            if output.is_empty() {
                continue;
            }
            let Some(&Some(value)) = outputs.get(i) else {
                return Err(at.unsupported(format!("output {i}")).into());
            };
            self.builder.name(value, output);
            let is_float = self.builder.ty(value).dtype == DType::F32;
            scope.set_half(output, halves.gives.filter(|_| is_float));
            if scope.names.insert(output.clone(), Some(value)).is_some() {
                return Err(at
                    .bad(format!("its output '{}' is defined twice", shown(output)))
                    .into());
            }
        }
        Ok(())
    }

    /// A model-local function, inlined.
    fn call(
        &mut self,
        function: &FunctionProto,
        node: &NodeProto,
        at: At,
        inputs: Vec<Option<ValueId>>,
        outer: &Scope,
        depth: usize,
    ) -> Outputs {
        if depth >= MAX_NESTING {
            return Err(at.bad("functions call each other too deeply"));
        }
        let opsets = opsets(&function.opsets)?;
        let mut scope = Scope::root(&opsets);
        for (i, formal) in function.inputs.iter().enumerate() {
            let actual = inputs.get(i).copied().flatten();
            scope.names.insert(formal.clone(), actual);
            scope.set_half(formal, node.inputs.get(i).and_then(|n| outer.half_of(n)));
        }
        let outputs = function.outputs.iter().map(String::as_str);
        let order = order::live_nodes(&function.nodes, outputs).map_err(|e| at.bad(e))?;
        for i in order {
            let body = with_arguments(&function.nodes[i], node, &function.defaults);
            self.node(&body, &mut scope, depth + 1)
                .map_err(|e| e.at(at))?;
        }
        let outputs = function.outputs.iter().map(|name| {
            scope
                .find(name)
                .ok_or_else(|| at.bad(format!("nothing computes '{}'", shown(name))))
        });
        outputs.collect()
    }

    /// Binds the graph's outputs, each to a value of its own that bears its name.
    fn outputs(&mut self, proto: &GraphProto, scope: &Scope) -> Result<(), String> {
        if proto.outputs.is_empty() {
            return Err("it has no outputs".into());
        }
        let mut names = HashSet::new();
        for output in &proto.outputs {
            let name = output.name.as_str();
            if !names.insert(name) {
                return Err(format!("output '{}' is named twice", shown(name)));
            }
            let Some(Some(value)) = scope.find(name) else {
                return Err(format!("nothing computes output '{}'", shown(name)));
            };
            if let Some(other) = self.builder.containers.get(value) {
                let (name, what) = (shown(name), other.name());
                return Err(format!("output '{name}' is {what}, which is not supported"));
            }
            let graph = &self.builder.graph;
            let shared = graph.value(value).constant.is_some()
                || graph.inputs.contains(&value)
                || graph.outputs.contains(&value);
            let own = if shared { self.copy(value)? } else { value };
            self.builder.rename(own, name);
            self.builder.graph.outputs.push(own);
        }
        Ok(())
    }

    /// A value of its own with the same elements; not folded, since outputs are computed.
    fn copy(&mut self, value: ValueId) -> Result<ValueId, String> {
        if self.builder.is_late(value) {
            let name = self.builder.graph.value(value).name.clone();
            let at = At {
                node: &format!("copy of {name}"),
                op: "Identity",
            };
            let op = Op::Unary(Unary::Identity);
            let copies = self.builder.emit(at, op, &[Some(value)], &[true]);
            let copies = copies.map_err(|e| e.to_string())?;
            return copies[0].ok_or_else(|| format!("output '{name}' has no value"));
        }
        let graph = &mut self.builder.graph;
        let id = graph.add_value("", graph.ty(value).clone());
        graph.nodes.push(neap_ir::Node {
            name: format!("copy of {}", graph.value(value).name),
            op: Op::Unary(Unary::Identity),
            inputs: vec![Some(value)],
            outputs: vec![Some(id)],
            panels: None,
        });
        Ok(id)
    }
}

/// A node of a function's body with the call's attributes in place of references to them.
fn with_arguments(body: &NodeProto, call: &NodeProto, defaults: &[AttributeProto]) -> NodeProto {
    let mut node = body.clone();
    node.attributes.retain_mut(|attribute| {
        if attribute.reference.is_empty() {
            if let AttributeValue::Graph(graph) = &mut attribute.value {
                for inner in &mut graph.nodes {
                    *inner = with_arguments(inner, call, defaults);
                }
            }
            return true;
        }
        let named = |a: &&AttributeProto| a.name == attribute.reference;
        let found = call
            .attributes
            .iter()
            .find(named)
            .or(defaults.iter().find(named));
        match found {
            Some(argument) => {
                attribute.value = argument.value.clone();
                attribute.reference.clear();
                true
            }
            None => false,
        }
    });
    node
}
