//! Shapes of inputs, by name, and shapes as text.

use std::collections::BTreeMap;

/// By name of an input.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// `1x3x224x224`; `scalar` for rank 0.
pub fn shape_text(shape: &[usize]) -> String {
    if shape.is_empty() {
        return "scalar".into();
    }
    shape
        .iter()
        .map(usize::to_string)
        .collect::<Vec<_>>()
        .join("x")
}
