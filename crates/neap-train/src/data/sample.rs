//! What one sample is.

use crate::error::Result;
use crate::random::{Draw, Purpose};
use neap_ir::TensorType;
use std::sync::Arc;

/// What a sample must become, as the model and its loss want it; both without the batch's axis.
#[derive(Debug, Clone, PartialEq)]
pub struct SampleType {
    pub input: TensorType,
    pub target: TensorType,
    /// How many classes there are, where targets are class numbers.
    pub classes: Option<usize>,
}

/// Samples by number. Any may be asked for at any time, from any thread.
pub trait Samples: Send + Sync {
    fn count(&self) -> usize;

    /// Writes a sample's input and target, little-endian and row-major. `draw` makes the choices of augmentation; without
    /// one the sample is as it is.
    ///
    /// # Errors
    /// It cannot be read, or is no sample of this type: the line names it.
    fn fill(
        &self,
        index: usize,
        draw: Option<Draw>,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Result<()>;
}

/// Some of the samples of another set.
pub struct Part {
    pub of: Arc<dyn Samples>,
    pub chosen: Vec<u32>,
}

impl Samples for Part {
    fn count(&self) -> usize {
        self.chosen.len()
    }

    fn fill(
        &self,
        index: usize,
        draw: Option<Draw>,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Result<()> {
        let index = self.chosen[index] as usize;
        self.of.fill(index, draw, input, target)
    }
}

/// The first `limit` samples.
pub fn first(samples: Arc<dyn Samples>, limit: Option<usize>) -> Arc<dyn Samples> {
    match limit {
        Some(limit) if limit < samples.count() => Arc::new(Part {
            of: samples,
            chosen: (0..limit as u32).collect(),
        }),
        _ => samples,
    }
}

/// Splits a share off for validation, chosen by the seed: those to train on, and those to validate with.
pub fn split(
    samples: Arc<dyn Samples>,
    share: f64,
    seed: u64,
) -> (Arc<dyn Samples>, Option<Arc<dyn Samples>>) {
    let count = samples.count();
    let held_back = (count as f64 * share).round() as usize;
    if held_back == 0 || held_back >= count {
        return (samples, None);
    }
    let mut order = Draw::new(Purpose::Split, seed, 0, 0).permutation(count);
    let mut chosen = order.split_off(held_back);
    // In the order of the files: what is near in number is near on the drive.
    chosen.sort_unstable();
    order.sort_unstable();
    let of = samples.clone();
    let train = Part {
        of: samples,
        chosen,
    };
    let validation = Part { of, chosen: order };
    (Arc::new(train), Some(Arc::new(validation)))
}
