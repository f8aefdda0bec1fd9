//! Reductions.

use super::strided::Axes;
use super::{Call, blocked};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::Words;
use neap_ir::op::Reduce;

pub(super) fn reduce(
    kind: Reduce,
    axes: &[usize],
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let kind = match kind {
        Reduce::Sum => 0,
        Reduce::Mean => 1,
        Reduce::Max => 2,
        Reduce::Min => 3,
        Reduce::SumSquare => 4,
        Reduce::L1 => 5,
        Reduce::L2 => 6,
        Reduce::LogSum => 7,
        Reduce::Prod | Reduce::LogSumExp => return None,
    };
    let is_plain = !blocked(x.layout) && !blocked(y.layout);
    (is_plain && x.elements() > 0).then_some(())?;
    let (mut kept, mut folded) = (Axes::default(), Axes::default());
    for (axis, &size) in x.shape().iter().enumerate() {
        let step: usize = x.shape()[axis + 1..].iter().product();
        match axes.contains(&axis) {
            true => folded.push(size, step as isize, 0),
            false => kept.push(size, step as isize, 0),
        }
    }
    let (kept, folded) = (kept.padded::<3>()?, folded.padded::<3>()?);
    let total = |axes: &[(usize, isize, isize)]| axes.iter().map(|axis| axis.0).product::<usize>();
    let mut words = [0; 20];
    words[..3].copy_from_slice(&[total(&kept) as u32, total(&folded) as u32, kind]);
    for (i, axis) in kept.iter().enumerate() {
        (words[4 + i], words[8 + i]) = (axis.0 as u32, axis.1 as u32);
    }
    for (i, axis) in folded.iter().enumerate() {
        (words[12 + i], words[16 + i]) = (axis.0 as u32, axis.1 as u32);
    }
    let dispatch = Dispatch {
        kernel: Kernel::Fold,
        words: Words::new(&words),
        groups: [total(&kept).min(32_768) as u32, 1, 1],
        reads: [Some(Span::of(&x)), None, None],
        writes: Span::of_mut(&y),
        mask: None,
    };
    call.push(dispatch, out)
}
