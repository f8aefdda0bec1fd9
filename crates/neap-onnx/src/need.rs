//! What a model must be given before it can be opened. Messages say it in words that are right everywhere; a host can
//! add its own words for how to give it, such as an option.

/// What is missing. Names are as messages show them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Need {
    /// The shape of an input; `example` is one that the model takes, where one was looked for and found ([`crate::example`]).
    Shape {
        input: String,
        example: Option<Vec<usize>>,
    },
    /// Values of inputs.
    Values { inputs: Vec<String> },
    /// The most that a size, or the number of a loop's passes, can be; by the node's first result.
    Bound { name: String },
}

/// As messages show a shape.
pub(crate) fn show_sizes(shape: &[usize]) -> String {
    let parts: Vec<String> = shape.iter().map(ToString::to_string).collect();
    if parts.is_empty() {
        "scalar".into()
    } else {
        parts.join("x")
    }
}
