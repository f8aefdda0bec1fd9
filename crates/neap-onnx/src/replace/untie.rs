//! Initial values that an exporter shared because they were equal, parted again.
//!
//! ```text
//!   scale ──► BatchNormalization            scale    ──► BatchNormalization
//!     └─ Identity ─ variance ──►     =>     variance ──►
//! ```
//! PyTorch's exporter gives a fresh network one initializer for all that is equal: scales and variances are ones, shifts and
//! means are zeros, and copies of a layer begin with the same weights. Trained so, they would stay equal. A weight that is
//! one parameter in two places, such as a table that words are read from and told by, stays one.

use super::graph::{Use, View};
use super::{Initializer, Replaceable};
use crate::error::OnnxError;
use crate::tensor;
use neap_ir::{Const, FileRange};
use std::collections::{BTreeMap, BTreeSet};

/// What became of shared initial values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Untied {
    /// Initializers that are new: each was another's.
    pub parted: Vec<String>,
    /// Pairs that stay one, where an exporter shared them by a node of their own.
    pub kept: Vec<(String, String)>,
}

/// What a value is to the node that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Role {
    /// Of products, convolutions and tables.
    Weight,
    Bias,
    Scale,
    Mean,
    Variance,
    /// Of no parameter's place.
    Other,
}

/// Operators that hand a parameter on in another shape.
const VIEWS: [&str; 6] = [
    "Transpose",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Identity",
    "Cast",
];

/// How far a parameter is followed through them.
const MOST_VIEWS: usize = 4;

impl Replaceable {
    /// Parts initial values that are parameters of different kinds, or were shared because they were equal.
    ///
    /// # Errors
    /// The model cannot be read.
    pub fn untie(&mut self) -> Result<Untied, OnnxError> {
        let mut view = self.view()?;
        let mut untied = Untied::default();
        self.part_copies(&view, &mut untied)?;
        if self.is_changed {
            view = self.view()?;
        }
        self.part_roles(&view, &mut untied)?;
        Ok(untied)
    }

    fn float(&self, name: &str) -> Option<usize> {
        let is_it = |t: &super::Tensor| t.known.name == name && t.known.ty.dtype.is_float();
        self.tensors.iter().position(is_it)
    }

    /// Where an initializer has a second name by an `Identity`.
    fn part_copies(&mut self, view: &View, untied: &mut Untied) -> Result<(), OnnxError> {
        // Each name that stands for an initializer, by way of one node or more.
        let mut stands_for: BTreeMap<&str, usize> = BTreeMap::new();
        for (index, node) in view.graph.nodes.iter().enumerate() {
            let (true, [from], [to]) = (
                node.op_type == "Identity",
                &node.inputs[..],
                &node.outputs[..],
            ) else {
                continue;
            };
            let known = stands_for.get(from.as_str()).copied();
            let Some(source) = known.or_else(|| self.float(from)) else {
                continue;
            };
            stands_for.insert(to, source);
            if view.elsewhere.contains(to.as_str()) {
                continue;
            }
            let name = self.tensors[source].known.name.clone();
            let (own, other) = (roles(view, &name), roles(view, to));
            let is_same = own.is_empty() || other.is_empty() || own == other;
            if is_same && !alike(&name, to) && !self.is_even(source)? {
                untied.kept.push((name, to.clone()));
                continue;
            }
            self.remove_node(index);
            self.add_copy(source, to);
            untied.parted.push(to.clone());
        }
        Ok(())
    }

    /// Where one initializer is read as parameters of different kinds, which no module of a network does.
    fn part_roles(&mut self, view: &View, untied: &mut Untied) -> Result<(), OnnxError> {
        let mut inputs: BTreeMap<usize, Vec<String>> = BTreeMap::new();
        for source in 0..self.tensors.len() {
            let known = self.tensors[source].known.clone();
            let of_parameters = roles(view, &known.name).into_iter();
            let distinct = of_parameters.filter(|role| *role != Role::Other).count();
            if distinct < 2 || !known.ty.dtype.is_float() {
                continue;
            }
            // The first reader keeps the name.
            for (number, place) in view.uses_of(&known.name).iter().enumerate().skip(1) {
                let name = format!("{}.{}", known.name, number + 1);
                if view.is_read(&name) || self.float(&name).is_some() {
                    continue;
                }
                let node = inputs.entry(place.node);
                let node = node.or_insert_with(|| view.node(*place).inputs.clone());
                node[place.slot].clone_from(&name);
                self.add_copy(source, &name);
                untied.parted.push(name);
            }
        }
        for (index, inputs) in inputs {
            let outputs = &view.graph.nodes[index].outputs;
            self.change_node(index, &inputs, outputs, &[])?;
        }
        Ok(())
    }

    fn add_copy(&mut self, source: usize, name: &str) {
        let tensor = &self.tensors[source];
        let known = Initializer {
            name: name.to_string(),
            ty: tensor.known.ty.clone(),
        };
        let (proto, data) = (tensor.proto.clone(), tensor.data.clone());
        self.add_tensor(known, proto, data);
    }

    /// Whether all elements are the same number, as before a training.
    fn is_even(&mut self, source: usize) -> Result<bool, OnnxError> {
        /// Elements are looked at in pieces of so many bytes, a multiple of any element.
        const PIECE_BYTES: u64 = 4096;
        let size = self.tensors[source].known.ty.dtype.size_bytes();
        let proto = &self.tensors[source].proto;
        let range = match tensor::load(&mut self.files, proto, false)?.1 {
            Const::Inline(literal) => return Ok(is_even(literal.bytes(), size)),
            Const::Stored { range, .. } => range,
            Const::Packed(_) => return Ok(false),
        };
        let mut first = vec![0; size];
        self.files.read(
            FileRange {
                bytes: size as u64,
                ..range
            },
            &mut first,
        )?;
        let mut piece = Vec::new();
        for at in (0..range.bytes).step_by(PIECE_BYTES as usize) {
            piece.clear();
            piece.extend_from_slice(&first);
            let bytes = PIECE_BYTES.min(range.bytes - at);
            piece.resize(size + bytes as usize, 0);
            let offset = range.offset + at;
            self.files.read(
                FileRange {
                    offset,
                    bytes,
                    ..range
                },
                &mut piece[size..],
            )?;
            if !is_even(&piece, size) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

fn is_even(bytes: &[u8], size: usize) -> bool {
    bytes
        .chunks_exact(size)
        .all(|element| *element == bytes[..size])
}

/// Whether two names differ in numbers only, as those of copies of a layer do.
fn alike(first: &str, second: &str) -> bool {
    let without = |name: &str| -> Vec<String> {
        let parts = name.split(|c: char| c.is_ascii_digit());
        parts
            .filter(|part| !part.is_empty())
            .map(str::to_string)
            .collect()
    };
    without(first) == without(second)
}

/// All that a value is to those that read it.
fn roles(view: &View, name: &str) -> BTreeSet<Role> {
    let mut found = BTreeSet::new();
    for place in view.uses_of(name) {
        follow(view, *place, MOST_VIEWS, &mut found);
    }
    found
}

fn follow(view: &View, place: Use, left: usize, found: &mut BTreeSet<Role>) {
    let node = view.node(place);
    let is_view = VIEWS.contains(&node.op_type.as_str()) && place.slot == 0;
    // A name of its own is judged by itself.
    if node.op_type == "Identity" {
        return;
    }
    if let (true, true, [output, ..]) = (is_view, left > 0, &node.outputs[..]) {
        for place in view.uses_of(output) {
            follow(view, *place, left - 1, found);
        }
        return;
    }
    found.insert(role(&node.op_type, place.slot));
}

fn role(op: &str, slot: usize) -> Role {
    match (op, slot) {
        ("BatchNormalization", 3) => Role::Mean,
        ("BatchNormalization", 4) => Role::Variance,
        (norm, 1) if norm.ends_with("Normalization") => Role::Scale,
        (norm, 2) if norm.ends_with("Normalization") => Role::Bias,
        ("Conv" | "ConvTranspose" | "Gemm", 2) | ("LSTM" | "GRU" | "RNN", 3) => Role::Bias,
        ("Conv" | "ConvTranspose" | "Gemm" | "MatMul", _) | ("Gather", 0) => Role::Weight,
        ("LSTM" | "GRU" | "RNN", 1 | 2) => Role::Weight,
        _ => Role::Other,
    }
}
