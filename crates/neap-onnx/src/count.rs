//! How many nodes a model has, without taking it into memory: those of branches and loops, and of functions as often as they are
//! called. What opening takes follows from it.

use crate::error::OnnxError;
use crate::open_file::OpenFile;
use crate::source::Source;
use crate::wire::{Field, Message, Span};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Deeper structures are refused when they are read.
const MOST_DEPTH: usize = 32;

/// Longer names of operators are nobody's.
const MOST_NAME_BYTES: u64 = 256;

/// Number of nodes of the model in an `.onnx` file, at least.
///
/// # Errors
/// The file cannot be read, or is malformed where this looks.
pub fn count_nodes(path: &Path) -> Result<u64, OnnxError> {
    let source = Source::of(Arc::new(OpenFile::open(path, 0)?));
    let mut counter = Counter {
        source: &source,
        functions: BTreeMap::new(),
    };
    let mut graphs = Vec::new();
    let mut fields = Message::whole(&source);
    while let Some((number, field)) = fields.next()? {
        match (number, field) {
            (7, Field::Bytes(span)) => graphs.push(span),
            (25, Field::Bytes(span)) => counter.note_function(span)?,
            _ => {}
        }
    }
    let mut nodes = 0u64;
    for span in graphs {
        nodes = nodes.saturating_add(counter.nodes(span, GRAPH_NODE, 0)?);
    }
    Ok(nodes)
}

/// Where the nodes are: of a graph, and of a function.
const GRAPH_NODE: u32 = 1;
const FUNCTION_NODE: u32 = 7;

/// A function's body, and how many nodes a call is once that is known.
struct Function {
    body: Span,
    nodes: Option<u64>,
}

struct Counter<'a> {
    source: &'a Source,
    functions: BTreeMap<Vec<u8>, Function>,
}

impl Counter<'_> {
    fn note_function(&mut self, body: Span) -> Result<(), OnnxError> {
        let mut fields = Message::new(self.source, body);
        while let Some((number, field)) = fields.next()? {
            if let (1, Field::Bytes(span)) = (number, field)
                && let Some(name) = self.name(span)?
            {
                // Of two with one name in different domains the longer counts.
                let longer = (self.functions.get(&name)).is_none_or(|f| f.body.len < body.len);
                if longer {
                    self.functions.insert(name, Function { body, nodes: None });
                }
            }
        }
        Ok(())
    }

    fn nodes(&mut self, span: Span, node: u32, depth: usize) -> Result<u64, OnnxError> {
        let mut nodes = 0u64;
        if depth > MOST_DEPTH {
            return Ok(nodes);
        }
        let mut fields = Message::new(self.source, span);
        while let Some((number, field)) = fields.next()? {
            if let (true, Field::Bytes(span)) = (number == node, field) {
                nodes = nodes.saturating_add(self.node(span, depth)?);
            }
        }
        Ok(nodes)
    }

    fn node(&mut self, span: Span, depth: usize) -> Result<u64, OnnxError> {
        let mut nodes = 1u64;
        let mut fields = Message::new(self.source, span);
        while let Some((number, field)) = fields.next()? {
            let inner = match (number, field) {
                (4, Field::Bytes(span)) if !self.functions.is_empty() => self.call(span, depth)?,
                (5, Field::Bytes(span)) => self.attribute(span, depth)?,
                _ => 0,
            };
            nodes = nodes.saturating_add(inner);
        }
        Ok(nodes)
    }

    fn attribute(&mut self, span: Span, depth: usize) -> Result<u64, OnnxError> {
        let mut nodes = 0u64;
        let mut fields = Message::new(self.source, span);
        while let Some((number, field)) = fields.next()? {
            if let (6 | 11, Field::Bytes(span)) = (number, field) {
                nodes = nodes.saturating_add(self.nodes(span, GRAPH_NODE, depth + 1)?);
            }
        }
        Ok(nodes)
    }

    /// What a call of this operator is more than one node.
    fn call(&mut self, operator: Span, depth: usize) -> Result<u64, OnnxError> {
        let Some(name) = self.name(operator)? else {
            return Ok(0);
        };
        let Some(function) = self.functions.get_mut(&name) else {
            return Ok(0);
        };
        if let Some(nodes) = function.nodes {
            return Ok(nodes);
        }
        // One that calls itself is refused when it is read.
        function.nodes = Some(0);
        let body = function.body;
        let nodes = self.nodes(body, FUNCTION_NODE, depth + 1)?;
        if let Some(function) = self.functions.get_mut(&name) {
            function.nodes = Some(nodes);
        }
        Ok(nodes)
    }

    fn name(&self, span: Span) -> Result<Option<Vec<u8>>, OnnxError> {
        if span.len > MOST_NAME_BYTES {
            return Ok(None);
        }
        let mut name = vec![0; span.len as usize];
        self.source.read(span.offset, &mut name)?;
        Ok(Some(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A field that holds bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        assert!(number < 16);
        let mut all = vec![number << 3 | 2];
        all.extend(length(bytes.len()));
        all.extend(bytes);
        all
    }

    fn length(mut len: usize) -> Vec<u8> {
        let mut all = Vec::new();
        while len > 127 {
            all.push(len as u8 | 128);
            len >>= 7;
        }
        all.push(len as u8);
        all
    }

    /// A field of a model with a function.
    fn function(body: &[u8]) -> Vec<u8> {
        let mut all = vec![25 << 3 & 127 | 2 | 128, 1];
        all.extend(length(body.len()));
        all.extend(body);
        all
    }

    fn counted(bytes: &[u8]) -> u64 {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        count_nodes(file.path()).unwrap()
    }

    #[test]
    fn nodes_of_branches_and_calls_count() {
        let relu = field(1, &field(4, b"Relu"));
        let two = [relu.clone(), relu.clone()].concat();
        assert_eq!(counted(&field(7, &two)), 2);
        // A branch of two in a node.
        let branch = field(1, &[field(4, b"If"), field(5, &field(6, &two))].concat());
        assert_eq!(counted(&field(7, &[relu.clone(), branch].concat())), 4);
        // Ten calls of a function of three, and functions that call each other.
        let inner = field(7, &field(4, b"Relu"));
        let thrice = [field(1, b"F"), inner.repeat(3)].concat();
        let calls = field(1, &field(4, b"F")).repeat(10);
        let model = [field(7, &calls), function(&thrice)].concat();
        assert_eq!(counted(&model), 40);
        let outer = [field(1, b"G"), field(7, &field(4, b"F")).repeat(5)].concat();
        let calls = field(1, &field(4, b"G")).repeat(10);
        let model = [field(7, &calls), function(&thrice), function(&outer)].concat();
        assert_eq!(counted(&model), 10 * (1 + 5 * 4));
        let again = [field(1, b"F"), field(7, &field(4, b"F"))].concat();
        let calls = field(1, &field(4, b"F"));
        assert_eq!(counted(&[field(7, &calls), function(&again)].concat()), 2);
    }
}
