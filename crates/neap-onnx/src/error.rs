//! What can go wrong while opening a model, as one line a user understands.

use crate::need::Need;
use std::fmt;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum OnnxError {
    #[error("cannot open '{path}': {source}")]
    Open {
        path: String,
        source: std::io::Error,
    },
    #[error("cannot read '{path}': {source}")]
    Read {
        path: String,
        source: std::io::Error,
    },
    #[error("'{path}' changed while it was read: try again when nobody writes it")]
    Changed { path: String },
    #[error("'{path}' is not a valid ONNX file: {reason} (at byte {offset})")]
    Malformed {
        path: String,
        offset: u64,
        reason: String,
    },
    #[error("'{path}' is not an ONNX model but {format}")]
    OtherFormat { path: String, format: &'static str },
    /// Of a model that is bound again from an extract of its files.
    #[error(
        "other shapes need a part of '{path}' that was not kept when it was packed (at byte {offset})"
    )]
    NotKept { path: String, offset: u64 },
    #[error("'{path}' is not a valid ONNX model: {reason}")]
    Model { path: String, reason: String },
    #[error("opset {version} of domain '{domain}' is not supported ({supported})")]
    Opset {
        domain: String,
        version: i64,
        supported: &'static str,
    },
    #[error("node '{node}': operator '{op}' is not supported")]
    UnsupportedOp { node: String, op: String },
    #[error("node '{node}' ({op}): {reason} is not supported")]
    Unsupported {
        node: String,
        op: String,
        reason: String,
    },
    #[error("node '{node}' ({op}): {reason}")]
    BadNode {
        node: String,
        op: String,
        reason: String,
    },
    #[error("{}", DynamicMessage { node, op, what, inputs })]
    DynamicShape {
        node: String,
        op: String,
        /// The operator's input that must be known, in ONNX's words.
        what: String,
        /// Graph inputs whose values decide it; binding them makes the model loadable.
        inputs: Vec<String>,
    },
    /// A size is computed while the model runs, and nothing says what it is at most.
    #[error(
        "node '{node}' ({op}): a size of its result '{name}' is known only when running: give the most that it can be"
    )]
    Unbounded {
        node: String,
        op: String,
        /// Of its first result.
        name: String,
        /// Graph inputs whose values decide it: where they are small, the size is known beforehand.
        inputs: Vec<String>,
    },
    /// The data decide how often a loop goes round, and nothing says how often at most.
    #[error(
        "node '{node}' (Loop): how often it goes round is known only when running: give the most passes that it can take, as the bound of '{name}'"
    )]
    Endless {
        node: String,
        /// Of its first result.
        name: String,
    },
    /// Of a bound that a user gives.
    #[error("a bound is given for '{name}', but no node of the model has such a result")]
    NoSuchResult { name: String },
    #[error("input '{input}'{}: give its shape", OpenWords(open.as_ref()))]
    DynamicInput {
        input: String,
        /// `None` where not even the number of dimensions is known.
        open: Option<OpenDim>,
    },
    #[error("input '{input}': {reason}")]
    Input { input: String, reason: String },
    #[error("initializer '{name}': {reason}")]
    Initializer { name: String, reason: String },
    #[error("external data of '{name}' in '{path}': {reason}")]
    External {
        name: String,
        path: String,
        reason: String,
    },
    #[error(transparent)]
    Graph(#[from] neap_ir::GraphError),
}

/// `DynamicShape` in words; its own type because the list of inputs may be empty.
struct DynamicMessage<'a> {
    node: &'a str,
    op: &'a str,
    what: &'a str,
    inputs: &'a [String],
}

impl fmt::Display for DynamicMessage<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DynamicMessage {
            node,
            op,
            what,
            inputs,
        } = self;
        write!(
            f,
            "node '{node}' ({op}): {what} must be known when the model is opened"
        )?;
        match inputs {
            [] => f.write_str(", but it is computed from values that are not"),
            [one] => write!(
                f,
                "; it depends on the value of input '{one}': give it when opening"
            ),
            many => write!(
                f,
                "; it depends on the values of inputs '{}': give them when opening",
                many.join("', '")
            ),
        }
    }
}

/// A dimension whose size nothing says.
#[derive(Debug)]
pub struct OpenDim {
    /// The whole shape, as the model declares it.
    pub declared: String,
    pub dim: String,
    pub axis: usize,
}

struct OpenWords<'a>(Option<&'a OpenDim>);

impl fmt::Display for OpenWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(OpenDim {
            declared,
            dim,
            axis,
        }) = self.0
        else {
            return f.write_str(" leaves open how many dimensions it has");
        };
        write!(
            f,
            " ({declared}) has dynamic dimension '{dim}' (axis {axis})"
        )
    }
}

impl OnnxError {
    /// What the model can be opened with, where that is known.
    pub fn need(&self) -> Option<Need> {
        match self {
            OnnxError::DynamicInput { input, .. } => Some(Need::Shape {
                input: input.clone(),
                example: None,
            }),
            OnnxError::DynamicShape { inputs, .. } if !inputs.is_empty() => Some(Need::Values {
                inputs: inputs.clone(),
            }),
            OnnxError::Unbounded { name, .. } | OnnxError::Endless { name, .. } => {
                Some(Need::Bound { name: name.clone() })
            }
            _ => None,
        }
    }
}

/// A name from the file made safe for a one-line message.
pub(crate) fn shown(name: &str) -> String {
    const LIMIT: usize = 120;
    let mut text: String = name.chars().take(LIMIT).collect::<String>();
    if text.len() < name.len() {
        text.push('…');
    }
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_from_the_file_stay_on_one_line() {
        assert_eq!(shown("a\nb"), "a?b");
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), 121);
    }

    #[test]
    fn a_shape_question_names_the_inputs_to_bind() {
        let error = OnnxError::DynamicShape {
            node: "n".into(),
            op: "Reshape".into(),
            what: "the shape".into(),
            inputs: vec!["a".into(), "b".into()],
        };
        assert_eq!(
            error.to_string(),
            "node 'n' (Reshape): the shape must be known when the model is opened; \
             it depends on the values of inputs 'a', 'b': give them when opening"
        );
    }
}
