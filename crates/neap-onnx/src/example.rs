//! A shape that a model takes, for a message that asks for one: it is tried before it is said.

use crate::error::OnnxError;
use crate::inputs::Inputs;
use crate::{OpenOptions, Skeleton, Unsaid};
use std::path::Path;

/// Sizes of open dimensions, the likeliest first: of pictures, and of what has fewer axes.
const OF_PICTURES: [usize; 5] = [224, 640, 64, 16, 1];
const OF_ROWS: [usize; 5] = [16, 128, 1, 224, 16_000];

/// A shape for an input whose dimensions are open, with which the model at `path` can be opened as far as shapes matter:
/// that of another input where that fits, else with one size for all that is open. `None` where none was found.
pub fn example(path: &Path, options: &OpenOptions, input: &str) -> Option<Vec<usize>> {
    let inputs = Skeleton::open(path).ok()?.inputs().clone();
    let mut like = options.clone();
    for (name, shape) in inputs.like_others(options) {
        like.shapes.insert(name, shape);
    }
    let sizes = match is_of_pictures(&inputs, input) {
        true => OF_PICTURES,
        false => OF_ROWS,
    };
    let first = (like.shapes.len() > options.shapes.len()).then(|| with(&like, sizes[0]));
    let tried = first.into_iter();
    let mut tried = tried.chain(sizes.iter().map(|&size| with(options, size)));
    tried.find_map(|options| {
        let shapes = inputs.shapes(&options).ok()?;
        is_taken(path, &options).then(|| shapes.get(input).cloned())?
    })
}

fn with(options: &OpenOptions, size: usize) -> OpenOptions {
    OpenOptions {
        unsaid: Unsaid {
            first: options.unsaid.first.or(Some(1)),
            others: Some(size),
        },
        leave_weights: true,
        ..options.clone()
    }
}

fn is_of_pictures(inputs: &Inputs, input: &str) -> bool {
    let declared = crate::declared_inputs(inputs);
    let found = declared.iter().find(|declared| declared.name == input);
    let dims = found.and_then(|declared| declared.dims.as_ref());
    dims.is_some_and(|dims| dims.len() > 3)
}

/// What else a model asks for, such as values, is no matter of these shapes.
fn is_taken(path: &Path, options: &OpenOptions) -> bool {
    let bound = Skeleton::open(path).and_then(|model| model.bind(options));
    match bound {
        Ok(_) => true,
        Err(OnnxError::DynamicInput { .. }) => false,
        Err(error) => error.need().is_some(),
    }
}
