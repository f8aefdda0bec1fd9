//! A new last layer, for another number of classes.

use super::graph::{Use, View, name_of};
use super::modes::flag;
use super::out::{Fields, bytes_field, inner, number, number_field};
use super::{GraphPart, Initializer, Replaceable};
use crate::error::OnnxError;
use crate::proto::{AttributeValue, NodeProto, TensorProto};
use crate::tensor;
use neap_ir::{Const, DType, Literal, TensorType};

/// What was replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewLayer {
    /// The node that gives a number for each class.
    pub node: String,
    /// How many classes there were.
    pub before: usize,
    /// Its weight and, where it has one, its bias.
    pub weights: Vec<String>,
}

/// Operators after the last layer that leave its classes what they are.
const AFTER: [&str; 18] = [
    "Softmax",
    "LogSoftmax",
    "Sigmoid",
    "Identity",
    "Flatten",
    "Squeeze",
    "Unsqueeze",
    "Reshape",
    "Cast",
    "Dropout",
    "Relu",
    "Clip",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "AveragePool",
    "ReduceMean",
    "ReduceMax",
    "Transpose",
];

/// Where classes lie in a weight, and how many numbers go into each.
struct Layer {
    node: usize,
    weight: Use,
    /// Axis of the classes in the weight.
    axis: usize,
    bias: Option<Use>,
    /// Axis of the classes in the node's result; from its end where that is negative.
    result_axis: isize,
}

impl Replaceable {
    /// Gives the model a last layer of `count` classes, whose values `draw` gives: the bytes of an initializer whose classes
    /// have so many inputs each.
    ///
    /// # Errors
    /// The model ends in a layer that is not known.
    pub fn replace_classes(
        &mut self,
        count: usize,
        draw: &mut dyn FnMut(&Initializer, usize) -> Vec<u8>,
    ) -> Result<NewLayer, OnnxError> {
        let view = self.view()?;
        let (layer, reshapes) = last_layer(self, &view)?;
        let weight = self.of(&view, layer.weight)?;
        let known = self.tensors[weight].known.clone();
        let before = known.ty.shape[layer.axis];
        let inputs = known.ty.elements() / before.max(1);
        let mut new = NewLayer {
            node: name_of(&view.graph.nodes[layer.node]),
            before,
            weights: Vec::new(),
        };
        let mut shape = known.ty.shape.clone();
        shape[layer.axis] = count;
        self.exchange(&view, layer.weight, shape, inputs, draw, &mut new)?;
        if let Some(bias) = layer.bias {
            let index = self.of(&view, bias)?;
            let mut shape = self.tensors[index].known.ty.shape.clone();
            if let Some(last) = shape.iter_mut().rev().find(|size| **size == before) {
                *last = count;
            }
            self.exchange(&view, bias, shape, inputs, draw, &mut new)?;
        }
        for place in reshapes {
            self.reshape(&view, place, before, count)?;
        }
        self.change_output(before, count, layer.result_axis)?;
        Ok(new)
    }

    /// The initializer that a node reads.
    fn of(&self, view: &View, place: Use) -> Result<usize, OnnxError> {
        let node = view.node(place);
        let name = &node.inputs[place.slot];
        let found = self.tensors.iter().position(|t| t.known.name == *name);
        found.ok_or_else(|| unknown(node, "its weight is computed"))
    }

    /// Has a node read a new initializer in place of one.
    fn exchange(
        &mut self,
        view: &View,
        place: Use,
        shape: Vec<usize>,
        inputs: usize,
        draw: &mut dyn FnMut(&Initializer, usize) -> Vec<u8>,
        new: &mut NewLayer,
    ) -> Result<(), OnnxError> {
        let index = self.of(view, place)?;
        let name = self.tensors[index].known.name.clone();
        let dtype = self.tensors[index].known.ty.dtype;
        let is_shared = view.uses_of(&name).len() > 1 || view.elsewhere.contains(&name);
        let mut known = Initializer {
            name: name.clone(),
            ty: TensorType::new(dtype, &shape),
        };
        if is_shared {
            known.name = format!("{name}.classes");
        }
        let data = draw(&known, inputs);
        new.weights.push(known.name.clone());
        if is_shared {
            self.read_instead(view, place, known.name.clone())?;
            self.add_tensor(known, TensorProto::default(), Some(data));
        } else {
            self.is_changed = true;
            let tensor = &mut self.tensors[index];
            tensor.known = known;
            tensor.span = None;
            tensor.data = Some(data);
        }
        Ok(())
    }

    fn read_instead(&mut self, view: &View, place: Use, name: String) -> Result<(), OnnxError> {
        let node = view.node(place);
        let mut inputs = node.inputs.clone();
        inputs[place.slot] = name;
        self.change_node(place.node, &inputs, &node.outputs, &[])
    }

    /// A shape in which the old number of classes stands.
    fn reshape(
        &mut self,
        view: &View,
        place: Use,
        before: usize,
        count: usize,
    ) -> Result<(), OnnxError> {
        let node = view.node(place);
        let Some(mut sizes) = self.integers(view, &node.inputs[place.slot])? else {
            return Ok(());
        };
        let before = before as i64;
        let Some(size) = sizes.iter_mut().rev().find(|size| **size == before) else {
            return Ok(());
        };
        *size = count as i64;
        let name = format!("{}.classes", node.inputs[place.slot]);
        let literal = Literal::from_i64(&[sizes.len()], &sizes);
        let known = Initializer {
            name: name.clone(),
            ty: TensorType::new(DType::I64, &[sizes.len()]),
        };
        self.read_instead(view, place, name)?;
        self.add_tensor(
            known,
            TensorProto::default(),
            Some(literal.bytes().to_vec()),
        );
        Ok(())
    }

    /// The value of an initializer or of a `Constant`; `None` of anything else.
    fn integers(&mut self, view: &View, name: &str) -> Result<Option<Vec<i64>>, OnnxError> {
        let of_node = view.maker(name).and_then(|(_, node)| {
            let found = node.attributes.iter().find(|a| a.name == "value");
            match found.map(|a| &a.value) {
                Some(AttributeValue::Tensor(tensor)) => Some(tensor.clone()),
                _ => None,
            }
        });
        let initializer = self.tensors.iter().find(|t| t.known.name == name);
        let Some(proto) = of_node.or_else(|| initializer.map(|t| t.proto.clone())) else {
            return Ok(None);
        };
        let (ty, data) = tensor::load(&mut self.files, &proto, false)?;
        Ok(match data {
            Const::Inline(literal) if ty.dtype == DType::I64 => {
                let words = literal.bytes().as_chunks().0.iter();
                Some(words.map(|&word| i64::from_le_bytes(word)).collect())
            }
            _ => None,
        })
    }

    /// What the first output is said to be; shapes said of values in between go.
    fn change_output(&mut self, before: usize, count: usize, axis: isize) -> Result<(), OnnxError> {
        let mut fields = Vec::new();
        for parts in self.parts.iter().filter_map(|part| match part {
            super::Part::Graph(parts) => Some(parts),
            _ => None,
        }) {
            let outputs = parts
                .iter()
                .enumerate()
                .filter_map(|(at, part)| match part {
                    GraphPart::Output(span) => Some((at, *span)),
                    _ => None,
                });
            fields.extend(outputs.take(1));
        }
        let mut replaced = Vec::new();
        for (at, span) in fields {
            let mut bytes = vec![0; span.len as usize];
            self.files.model().read(span.offset, &mut bytes)?;
            let changed = inner(&bytes).and_then(|value| with_size(value, before, count, axis));
            replaced.push((at, changed.map(|value| bytes_field(12, &value))));
        }
        for parts in self.graph_parts() {
            for (at, field) in &mut replaced {
                if let Some(field) = field.take() {
                    parts[*at] = GraphPart::New(field);
                }
            }
            parts.retain(|part| !matches!(part, GraphPart::Shape(_)));
        }
        Ok(())
    }
}

/// A value's declaration with another size on an axis, where it says the old one; `None` where it says nothing of it.
fn with_size(value: &[u8], before: usize, count: usize, axis: isize) -> Option<Vec<u8>> {
    // ValueInfoProto.type, TypeProto.tensor_type, Tensor.shape.
    within(value, &[2, 1, 2], &mut |shape| {
        let dims = Fields::of(shape)?.0;
        let at = match axis {
            0.. => axis.unsigned_abs(),
            _ => dims.len().checked_sub(axis.unsigned_abs())?,
        };
        let mut out = Vec::new();
        for (index, (_, field)) in dims.iter().enumerate() {
            let size = inner(field).and_then(Fields::of).and_then(|dim| {
                let (_, value) = dim.0.into_iter().find(|(n, _)| *n == 1)?;
                number(value)
            });
            match index == at && size == Some(before as u64) {
                true => out.extend(bytes_field(1, &number_field(1, count as u64))),
                false => out.extend_from_slice(field),
            }
        }
        Some(out)
    })
}

/// Changes a message inside of others, which lie in the fields of these numbers.
fn within(
    message: &[u8],
    path: &[u64],
    change: &mut dyn FnMut(&[u8]) -> Option<Vec<u8>>,
) -> Option<Vec<u8>> {
    let Some((&first, rest)) = path.split_first() else {
        return change(message);
    };
    let mut out = Vec::new();
    for (number, field) in Fields::of(message)?.0 {
        match number == first {
            true => out.extend(bytes_field(first, &within(inner(field)?, rest, change)?)),
            false => out.extend_from_slice(field),
        }
    }
    Some(out)
}

fn unknown(node: &NodeProto, why: &str) -> OnnxError {
    OnnxError::Unsupported {
        node: name_of(node),
        op: node.op_type.clone(),
        reason: format!("another number of classes ({why})"),
    }
}

/// The layer that gives the model's first output, and shapes that are written down behind it.
fn last_layer(model: &Replaceable, view: &View) -> Result<(Layer, Vec<Use>), OnnxError> {
    let mut name = match view.graph.outputs.first() {
        Some(output) => output.name.clone(),
        None => String::new(),
    };
    let mut reshapes = Vec::new();
    let mut bias = None;
    loop {
        let Some((index, node)) = view.maker(&name) else {
            return Err(OnnxError::Model {
                path: model.files.model().name().to_string(),
                reason: "it has no last layer whose classes could be exchanged".into(),
            });
        };
        let place = |slot| Use { node: index, slot };
        let initializer = |slot: usize| -> Option<&Initializer> {
            let name = node.inputs.get(slot)?;
            let found = model.tensors.iter().find(|t| t.known.name == *name);
            found
                .map(|t| &t.known)
                .filter(|known| known.ty.dtype.is_float())
        };
        match node.op_type.as_str() {
            after if AFTER.contains(&after) => {
                if after == "Reshape" {
                    reshapes.push(place(1));
                }
                name.clone_from(&node.inputs[0]);
            }
            "Add" => {
                let found = (0..2).find(|&slot| initializer(slot).is_some());
                let Some(slot) = found.filter(|_| bias.is_none()) else {
                    return Err(unknown(node, "a sum of layers at the end"));
                };
                bias = Some(place(slot));
                name.clone_from(&node.inputs[1 - slot]);
            }
            op @ ("Gemm" | "MatMul" | "Conv") => {
                let own_bias = Some(place(2)).filter(|_| initializer(2).is_some());
                let (node_of_weight, slot, turned) = weight_of(model, view, index, node)?;
                let weight = Use {
                    node: node_of_weight,
                    slot,
                };
                let is_first = op == "Conv" || (op == "Gemm" && flag(node, "transB")) != turned;
                let rank = view.node(weight).inputs.get(slot).and_then(|name| {
                    let found = model.tensors.iter().find(|t| t.known.name == *name);
                    found.map(|t| t.known.ty.shape.len())
                });
                let rank = rank.unwrap_or(0);
                if rank < 2 {
                    return Err(unknown(node, "its weight is no matrix"));
                }
                let layer = Layer {
                    node: index,
                    weight,
                    axis: if is_first { 0 } else { rank - 1 },
                    bias: own_bias.or(bias),
                    result_axis: if op == "Conv" { 1 } else { -1 },
                };
                return Ok((layer, reshapes));
            }
            _ => return Err(unknown(node, "such a last layer")),
        }
    }
}

/// Which node reads a layer's weight from the file: the layer, or one that transposes it.
fn weight_of(
    model: &Replaceable,
    view: &View,
    index: usize,
    node: &NodeProto,
) -> Result<(usize, usize, bool), OnnxError> {
    let name = node.inputs.get(1).map_or("", String::as_str);
    if model.tensors.iter().any(|t| t.known.name == name) {
        return Ok((index, 1, false));
    }
    match view.maker(name) {
        Some((at, maker)) if maker.op_type == "Transpose" => Ok((at, 0, true)),
        _ => Err(unknown(node, "its weight is computed")),
    }
}
