//! Sliding windows: pooling and convolution with weights that are not packed.

pub(crate) mod conv;
pub(crate) mod pool;
mod taps;
pub(crate) mod weight_gradient;

pub(crate) use taps::{MAX_SPATIAL, Taps};

use neap_ir::op;
use neap_kernels::window::Window;

/// A window over a tensor's spatial axes as kernels take it: over so many axes, of which absent ones lead and have
/// size 1.
pub(crate) fn over<const AXES: usize>(
    window: &op::Window,
    input: &[usize],
    output: &[usize],
) -> Window<AXES> {
    Window {
        input: axes(input, 1),
        output: axes(output, 1),
        kernel: axes(&window.kernel, 1),
        strides: axes(&window.strides, 1),
        dilations: axes(&window.dilations, 1),
        pads_begin: axes(&window.pads_begin, 0),
        pads_end: axes(&window.pads_end, 0),
    }
}

/// One entry for each of so many axes; those that are absent lead.
pub(crate) fn axes<const AXES: usize>(sizes: &[usize], absent: usize) -> [usize; AXES] {
    let mut axes = [absent; AXES];
    if let Some(leading) = AXES.checked_sub(sizes.len()) {
        axes[leading..].copy_from_slice(sizes);
    }
    axes
}

/// The sizes behind batch and channels.
pub(crate) fn spatial(shape: &[usize]) -> &[usize] {
    shape.get(2..).unwrap_or_default()
}
