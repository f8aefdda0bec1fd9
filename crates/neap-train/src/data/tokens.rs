//! A file of tokens: each sample is a stretch of them, and its target the same one token later.

use super::array::Array;
use super::pairs::{check_classes, write_integers};
use super::sample::{SampleType, Samples};
use crate::error::{Result, bad, unreadable};
use crate::random::Draw;
use neap_ir::DType;
use std::fs::File;
use std::ops::Range;
use std::path::Path;

pub struct Tokens {
    array: Array,
    /// Of the file's tokens.
    range: Range<usize>,
    length: usize,
    classes: usize,
}

/// A file of 16-bit tokens, little-endian, without a header.
///
/// # Errors
/// It cannot be read.
pub fn bare(path: &Path) -> Result<Array> {
    let file = File::open(path).map_err(|e| unreadable(path, e))?;
    let bytes = file.metadata().map_err(|e| unreadable(path, e))?.len();
    let shape = vec![(bytes / 2) as usize];
    Array::new(
        file,
        path.display().to_string(),
        0,
        DType::U16,
        false,
        shape,
    )
}

impl Tokens {
    /// Stretches of as many tokens as the model takes, one after the other.
    ///
    /// # Errors
    /// The model takes no tokens, or there are too few.
    pub fn new(array: Array, wanted: &SampleType, range: Range<usize>) -> Result<Tokens> {
        let name = array.name();
        if !array.row_shape().is_empty() || array.dtype().is_float() {
            return Err(bad(format!("{name} is no list of tokens")));
        }
        let (&[length], DType::I64, Some(classes)) =
            (&wanted.input.shape[..], wanted.input.dtype, wanted.classes)
        else {
            return Err(bad(format!(
                "{name} has tokens: the model must take int64 tokens, and --loss be cross-entropy"
            )));
        };
        if wanted.target.shape != [length] {
            return Err(bad(format!(
                "{name} has a target for each of {length} tokens, the loss takes {:?}",
                wanted.target.shape
            )));
        }
        if range.len() <= length {
            return Err(bad(format!(
                "{name} has {} tokens here, a sample takes {}",
                range.len(),
                length + 1
            )));
        }
        Ok(Tokens {
            array,
            range,
            length,
            classes,
        })
    }
}

impl Samples for Tokens {
    fn count(&self) -> usize {
        (self.range.len() - 1) / self.length
    }

    fn fill(
        &self,
        index: usize,
        _: Option<Draw>,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Result<()> {
        let first = self.range.start + index * self.length;
        let tokens = self.array.integers(first, self.length + 1)?;
        check_classes(&tokens, self.classes, self.array.name(), index)?;
        write_integers(&tokens[..self.length], input);
        write_integers(&tokens[1..], target);
        Ok(())
    }
}
