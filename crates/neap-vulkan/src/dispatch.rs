//! `Dispatch`: one call of a kernel, with everything that it needs said in numbers and addresses.

use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::words::Words;
use neap_ir::panel::PanelFormat;
use neap_ops::{PanelSlice, TensorMut, TensorRef};
use std::ops::Range;

/// Memory of one operand.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub start: *const u8,
    pub bytes: u64,
}

impl Span {
    pub(crate) fn of(tensor: &TensorRef) -> Span {
        Span {
            start: tensor.as_ptr(),
            bytes: tensor.len_bytes() as u64,
        }
    }

    pub(crate) fn of_mut(tensor: &TensorMut) -> Span {
        Span {
            start: tensor.as_ptr().cast_const(),
            bytes: tensor.len_bytes() as u64,
        }
    }
}

/// A slice of a layer's weights.
#[derive(Debug, Clone)]
pub(crate) struct Panels {
    pub range: Range<usize>,
    pub format: PanelFormat,
    pub all: Span,
}

impl Panels {
    pub(crate) fn of(slice: &PanelSlice) -> Panels {
        Panels {
            range: slice.range.clone(),
            format: slice.format,
            all: Span {
                start: slice.bytes.as_ptr(),
                bytes: slice.bytes.len() as u64,
            },
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Dispatch {
    pub kernel: Kernel,
    pub words: Words,
    pub groups: [u32; 3],
    /// x, w, r.
    pub reads: [Option<Span>; 3],
    pub writes: Span,
    /// Of attention alone.
    pub mask: Option<Span>,
}

impl Dispatch {
    /// Whether every operand can be bound on any device with these limits, wherever it lies.
    pub(crate) fn fits(&self, limits: &Limits) -> bool {
        let spans = self.reads.iter().flatten().chain(&self.mask);
        let spans = spans.chain([&self.writes]);
        let spans_fit = { spans }.all(|s| s.bytes > 0 && s.bytes <= limits.operand_bytes());
        let grid = self.groups.iter().zip(&limits.groups);
        spans_fit && { grid }.all(|(n, most)| n <= most)
    }
}

/// Puts a slice's panels into as many dispatches as its weights need bindings. `one` is a dispatch for all of them, whose
/// second grid size counts panels, `each` at a time, and whose shape names the first panel at `first_at`. Kernels that
/// compute several at a time are told behind that how many there are ([`Kernel::counts_panels`]).
pub(crate) fn by_panels(
    one: &Dispatch,
    first_at: usize,
    each: usize,
    weights: &Panels,
    limits: &Limits,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let panels = weights.range.clone();
    let panel_bytes = weights.all.bytes / panels.len().max(1) as u64;
    let most = (limits.operand_bytes() / panel_bytes.max(1)).min(u64::from(limits.groups[1]));
    if most == 0 {
        return None;
    }
    let mut first = panels.start;
    while first < panels.end {
        let count = (panels.end - first).min(most as usize);
        let skip = (first - panels.start) * panel_bytes as usize;
        let mut part = *one;
        part.reads[1] = Some(Span {
            start: weights.all.start.wrapping_add(skip),
            bytes: panel_bytes * count as u64,
        });
        part.groups[1] = count.div_ceil(each) as u32;
        *part.words.shape_mut().get_mut(first_at)? = first as u32;
        if one.kernel.counts_panels() {
            *part.words.shape_mut().get_mut(first_at + 1)? = count as u32;
        }
        if !part.fits(limits) {
            return None;
        }
        out.push(part);
        first += count;
    }
    Some(())
}
