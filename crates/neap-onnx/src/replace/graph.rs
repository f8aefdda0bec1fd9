//! Nodes as they are changed, and who reads what.

use super::out::{Fields, bytes_field, inner};
use super::{GraphPart, Part, Replaceable};
use crate::decode;
use crate::error::OnnxError;
use crate::proto::{AttributeValue, GraphProto, NodeProto};
use crate::wire::Span;
use std::collections::{BTreeMap, BTreeSet};

/// A node of the file.
pub(super) struct NodePart {
    /// With its tag and length.
    pub field: Span,
    inner: Span,
    /// In its place; empty where it is gone.
    pub now: Option<Vec<u8>>,
}

impl NodePart {
    pub fn new(field: Span, inner: Span) -> NodePart {
        NodePart {
            field,
            inner,
            now: None,
        }
    }
}

/// A place where a node reads a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Use {
    pub node: usize,
    pub slot: usize,
}

/// The main graph's structure. Nodes that are gone have no operator.
pub(super) struct View {
    pub graph: GraphProto,
    pub opset: i64,
    pub uses: BTreeMap<String, Vec<Use>>,
    /// Which node makes a value.
    pub makers: BTreeMap<String, usize>,
    /// Read by graphs inside of nodes, or given by the model.
    pub elsewhere: BTreeSet<String>,
}

impl View {
    fn of(graph: GraphProto, opset: i64) -> View {
        let mut view = View {
            graph,
            opset,
            uses: BTreeMap::new(),
            makers: BTreeMap::new(),
            elsewhere: BTreeSet::new(),
        };
        for (index, node) in view.graph.nodes.iter().enumerate() {
            for (slot, name) in node
                .inputs
                .iter()
                .enumerate()
                .filter(|(_, n)| !n.is_empty())
            {
                let place = Use { node: index, slot };
                view.uses.entry(name.clone()).or_default().push(place);
            }
            for name in node.outputs.iter().filter(|name| !name.is_empty()) {
                view.makers.insert(name.clone(), index);
            }
            read_inside(node, &mut view.elsewhere);
        }
        let given = view.graph.outputs.iter().map(|output| output.name.clone());
        view.elsewhere.extend(given);
        view
    }

    pub fn uses_of(&self, name: &str) -> &[Use] {
        self.uses.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn node(&self, at: Use) -> &NodeProto {
        &self.graph.nodes[at.node]
    }

    /// The node that makes a value.
    pub fn maker(&self, name: &str) -> Option<(usize, &NodeProto)> {
        let index = *self.makers.get(name)?;
        Some((index, &self.graph.nodes[index]))
    }

    /// Whether anything reads a value.
    pub fn is_read(&self, name: &str) -> bool {
        !self.uses_of(name).is_empty() || self.elsewhere.contains(name)
    }
}

/// What a node is called in messages.
pub(super) fn name_of(node: &NodeProto) -> String {
    let output = node.outputs.first().cloned().unwrap_or_default();
    match node.name.is_empty() {
        true => output,
        false => node.name.clone(),
    }
}

/// Names that graphs in a node's attributes read, also their own.
fn read_inside(node: &NodeProto, names: &mut BTreeSet<String>) {
    for attribute in &node.attributes {
        if let AttributeValue::Graph(graph) = &attribute.value {
            for inner in &graph.nodes {
                names.extend(inner.inputs.iter().cloned());
                read_inside(inner, names);
            }
            names.extend(graph.outputs.iter().map(|output| output.name.clone()));
        }
    }
}

impl Replaceable {
    /// The graph as it is in the file; changes are made once, from this.
    pub(super) fn view(&self) -> Result<View, OnnxError> {
        let model = decode::model(self.files.model())?;
        let own = |(domain, _): &&(String, i64)| domain.is_empty() || domain == "ai.onnx";
        let opset = model
            .opsets
            .iter()
            .find(own)
            .map_or(1, |(_, version)| *version);
        let mut graph = model.graph.unwrap_or_default();
        for (node, part) in graph.nodes.iter_mut().zip(&self.nodes) {
            match part.now.as_deref() {
                None => {}
                Some([]) => *node = NodeProto::default(),
                Some(field) => {
                    let fields = inner(field).and_then(Fields::of);
                    let names = |number: u64| -> Vec<String> {
                        let fields = fields.iter().flat_map(|f| &f.0);
                        let named = fields.filter(|(n, _)| *n == number);
                        named
                            .filter_map(|(_, field)| inner(field))
                            .map(|name| String::from_utf8_lossy(name).into_owned())
                            .collect()
                    };
                    (node.inputs, node.outputs) = (names(1), names(2));
                }
            }
        }
        Ok(View::of(graph, opset))
    }

    pub(super) fn remove_node(&mut self, index: usize) {
        self.is_changed = true;
        self.nodes[index].now = Some(Vec::new());
    }

    /// Gives a node other inputs and outputs, and takes attributes away; the rest of it stays.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn change_node(
        &mut self,
        index: usize,
        inputs: &[String],
        outputs: &[String],
        without: &[&str],
    ) -> Result<(), OnnxError> {
        self.is_changed = true;
        let part = &self.nodes[index];
        let source = self.files.model();
        let mut bytes = vec![0; part.inner.len as usize];
        source.read(part.inner.offset, &mut bytes)?;
        let malformed = || source.malformed(part.inner.offset, "a node is not readable");
        let fields = Fields::of(&bytes).ok_or_else(malformed)?;
        let mut node = Vec::with_capacity(bytes.len());
        for (number, names) in [(1, inputs), (2, outputs)] {
            for name in names {
                node.extend(bytes_field(number, name.as_bytes()));
            }
        }
        for (number, field) in fields.0 {
            let is_without = || {
                let name = inner(field).and_then(Fields::of).and_then(|attribute| {
                    let (_, name) = attribute.0.into_iter().find(|(number, _)| *number == 1)?;
                    inner(name)
                });
                name.is_some_and(|name| without.iter().any(|w| w.as_bytes() == name))
            };
            if number > 2 && !(number == 5 && is_without()) {
                node.extend_from_slice(field);
            }
        }
        self.nodes[index].now = Some(bytes_field(1, &node));
        Ok(())
    }

    /// Parts of the main graph.
    pub(super) fn graph_parts(&mut self) -> impl Iterator<Item = &mut Vec<GraphPart>> {
        self.parts.iter_mut().filter_map(|part| match part {
            Part::Graph(parts) => Some(parts),
            _ => None,
        })
    }
}
