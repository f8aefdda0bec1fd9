//! Rows by indices that are known when it runs.
//!
//! Whether each index is of its axis is seen by the kernel, and told when the job is reported: so nobody waits for the indices.

use super::{Call, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::Words;
use neap_ir::{DType, Layout};

pub(super) fn gather(axis: usize, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, indices) = (call.input(0)?, call.input(1)?);
    let y = call.outputs.first().copied().flatten()?;
    let is_plain = [x.layout, indices.layout, y.layout] == [Layout::Plain; 3];
    is_plain.then_some(())?;
    let bytes = y.dtype().size_bytes();
    let element_words = bytes.is_multiple_of(4).then_some(bytes / 4)?;
    let index_words = match indices.dtype() {
        DType::I32 => 1,
        DType::I64 => 2,
        _ => return None,
    };
    let size = *x.shape().get(axis)?;
    let run = x.shape()[axis + 1..].iter().product::<usize>() * element_words;
    let total = y.elements() * element_words;
    let mut words = [0; 5];
    let sizes = [total, run, indices.elements(), size, index_words];
    for (word, size) in words.iter_mut().zip(sizes) {
        // Places from the end are told from others by the highest bit.
        *word = u32::try_from(size).ok().filter(|&n| n > 0 && n < 1 << 31)?;
    }
    let dispatch = Dispatch {
        kernel: Kernel::Gather,
        words: Words::new(&words),
        groups: [strided_groups(total), 1, 1],
        reads: [Some(Span::of(&x)), Some(Span::of(&indices)), None],
        writes: Span::of_mut(&y),
        mask: None,
    };
    call.push(dispatch, out)
}
