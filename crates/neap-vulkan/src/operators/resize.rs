//! Images made larger or smaller.

use super::{Call, blocked, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::{ASIDE_BYTES, Words};
use neap_ir::op::{CoordinateTransform, ResizeAttrs, ResizeMode};
use neap_ops::resize_pair;

/// Words of a row or column in its table.
const ENTRY_WORDS: usize = 4;

pub(super) fn resize(attrs: &ResizeAttrs, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let is_simple = match attrs.mode {
        ResizeMode::Nearest => true,
        ResizeMode::Linear => !attrs.antialias,
        ResizeMode::Cubic => false,
    };
    let crops = attrs.coordinates == CoordinateTransform::TfCropAndResize;
    // One axis alone is the width.
    let (&[x_n, x_c, ref input @ ..], &[n, c, ref output @ ..]) = (x.shape(), y.shape()) else {
        return None;
    };
    let of_images = [x_n, x_c] == [n, c] && attrs.scales[..2] == [1.0; 2];
    (is_simple && !crops && of_images && x.layout == y.layout).then_some(())?;
    let ([in_h, in_w], [out_h, out_w]) = match (input, output) {
        (&[w], &[out_w]) => ([1, w], [1, out_w]),
        (&[h, w], &[out_h, out_w]) => ([h, w], [out_h, out_w]),
        _ => return None,
    };
    let words = (out_h + out_w) * ENTRY_WORDS;
    (words * 4 <= ASIDE_BYTES && x.elements() > 0).then_some(())?;
    let mut table = call.table.borrow_mut();
    table.clear();
    let width_axis = x.shape().len() - 1;
    for at in 0..out_h {
        match input.len() {
            1 => table.extend([0, 0, 1.0f32.to_bits(), 0]),
            _ => table.extend(entry(attrs, width_axis - 1, in_h, at)),
        }
    }
    for at in 0..out_w {
        table.extend(entry(attrs, width_axis, in_w, at));
    }
    let lanes = if blocked(y.layout) { 16 } else { 1 };
    let elements = y.len_bytes() / 4;
    let sizes = [elements, in_h, in_w, out_h, out_w, lanes];
    let dispatch = Dispatch {
        kernel: Kernel::Resize,
        words: Words::new(&sizes.map(|n| n as u32)),
        groups: [strided_groups(elements), 1, 1],
        reads: [
            Some(Span::of(&x)),
            Some(Span {
                start: table.as_ptr().cast(),
                bytes: (words * 4) as u64,
            }),
            None,
        ],
        writes: Span::of_mut(&y),
        mask: None,
    };
    call.push(dispatch, out)
}

fn entry(attrs: &ResizeAttrs, axis: usize, input: usize, at: usize) -> [u32; ENTRY_WORDS] {
    let pair = resize_pair(attrs, axis, input, at);
    let [low, high] = pair.map(|(index, _)| index);
    let [of_low, of_high] = pair.map(|(_, weight)| (weight as f32).to_bits());
    [low, high, of_low, of_high]
}
