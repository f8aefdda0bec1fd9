//! Batches in parts: the model is opened for a part, and a step sees as many of those as make a batch.

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::model::OpenOptions;
use crate::train::trainer::Model;
use crate::train::{MicroBatch, TrainOptions};
use neap_ir::Graph;
use std::path::Path;

/// What `make` makes of the model and of the number of parts that the options ask for; for [`MicroBatch::Auto`] the fewest
/// that the budget has room for.
pub(super) fn by_parts<T>(
    path: &Path,
    open: &OpenOptions,
    options: &TrainOptions,
    make: &dyn Fn(Model, usize) -> Result<T>,
) -> Result<T> {
    let whole = Model::open(path, open, options)?;
    if options.micro_batch == MicroBatch::Whole {
        return make(whole, 1);
    }
    let batch = batch_of(&whole.graph, options)?;
    let sizes: Vec<usize> = match options.micro_batch {
        MicroBatch::Samples(samples) if samples == 0 || !batch.is_multiple_of(samples) => {
            return Err(Error::BadInput(format!(
                "a batch of {batch} is no whole number of parts of {samples}"
            )));
        }
        MicroBatch::Samples(samples) => vec![samples],
        _ => {
            let all = (1..=batch).rev();
            all.filter(|&samples| batch.is_multiple_of(samples))
                .collect()
        }
    };
    // What is set aside beside a step is too much for any of them: two say what would be enough.
    let sizes: Vec<usize> = match options.budget {
        Budget::Bytes(bytes) if bytes <= options.reserve_bytes && sizes.len() > 2 => {
            vec![sizes[0], sizes[sizes.len() - 1]]
        }
        _ => sizes,
    };
    let mut smallest = None;
    for samples in sizes {
        let model = Model::open(path, &of_part(open, &whole.graph, samples), options)?;
        let found = make(model, batch / samples);
        let Err(Error::Infeasible {
            smallest_bytes,
            parts,
            budget_bytes,
            of_machine,
            ..
        }) = found
        else {
            return found;
        };
        let is_less = |(least, _): &(u64, _)| smallest_bytes < *least;
        if smallest.as_ref().is_none_or(is_less) {
            let refusal = Error::Infeasible {
                budget_bytes,
                smallest_bytes,
                parts,
                micro_batch: Some(samples),
                of_machine,
            };
            smallest = Some((smallest_bytes, refusal));
        }
    }
    Err(match smallest {
        Some((_, refusal)) => refusal,
        None => Error::BadInput("a batch of no samples".into()),
    })
}

/// The first axis of all inputs and of the result that is trained.
fn batch_of(graph: &Graph, options: &TrainOptions) -> Result<usize> {
    let result = graph.outputs.get(options.result);
    let mut batches = graph.inputs.iter().chain(result).map(|&value| {
        let shape = &graph.ty(value).shape;
        (&graph.value(value).name, shape.first().copied())
    });
    let batch = batches.next().and_then(|(_, batch)| batch);
    let other = batches.find(|(_, other)| *other != batch);
    match (batch, other) {
        (Some(batch), None) => Ok(batch),
        (_, other) => Err(Error::BadInput(format!(
            "a batch cannot be seen in parts: the first axis of '{}' is no batch",
            other.map_or("the first input", |(name, _)| name)
        ))),
    }
}

/// The same for fewer samples.
fn of_part(open: &OpenOptions, whole: &Graph, samples: usize) -> OpenOptions {
    let mut part = open.clone();
    for &input in &whole.inputs {
        let value = whole.value(input);
        let mut shape = value.ty.shape.clone();
        shape[0] = samples;
        part.shapes.insert(value.name.clone(), shape);
    }
    part
}
