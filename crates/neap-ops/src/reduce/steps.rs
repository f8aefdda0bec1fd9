//! Steps that cover a tensor: scale and zero point of unsigned bytes, as DynamicQuantizeLinear takes them.

use super::fold::reduce;
use crate::args::Args;
use crate::nd::MAX_RANK;
use crate::scalar::Num;
use crate::{Context, OpError};
use neap_ir::op::Reduce;

/// The operators that ONNX's definition names, one after the other, on numbers.
pub(crate) fn covering_steps(args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, scale, zero) = (args.input(0)?, args.output(0)?, args.output(1)?);
    let mut axes = [0; MAX_RANK];
    (axes.iter_mut().enumerate()).for_each(|(i, axis)| *axis = i);
    let Some(axes) = axes.get(..x.shape().len()) else {
        return args.fail("has too many axes");
    };
    // Both extremes are found in the place of the scale.
    let of_one = Args {
        outputs: &args.outputs[..1],
        ..*args
    };
    let mut extreme = |kind: Reduce| -> Result<f32, OpError> {
        reduce(kind, axes, &of_one, ctx)?;
        // SAFETY: the output is one float that nobody else uses.
        Ok(unsafe { scale.as_ptr().cast::<f32>().read() })
    };
    let low = extreme(Reduce::Min)?.min_nan(0.0);
    let high = extreme(Reduce::Max)?.max_nan(0.0);
    // Of zeros alone the scale is 1, so that nothing divides by 0.
    let size = match (high - low) / 255.0 {
        0.0 => 1.0,
        size => size,
    };
    let offset = 0.0 - low / size;
    // What is no number stays none, and becomes the step zero.
    let offset = offset.clamp(0.0, 255.0).round_ties_even();
    // SAFETY: the outputs are a float and a byte.
    unsafe {
        scale.as_ptr().cast::<f32>().write(size);
        zero.as_ptr().cast::<u8>().write(offset as u8);
    }
    Ok(())
}
