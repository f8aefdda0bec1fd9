//! Resize: one axis after the other, the last first, so that what is in between is as small as may be in memory order.

use crate::step::{Derivatives, Step};
use neap_ir::op::{CoordinateTransform, ResizeAttrs};
use neap_ir::{Gradient, Op};

pub(super) fn resize(attrs: &ResizeAttrs, step: &mut Step) -> Derivatives {
    let (x, mut d) = (step.input(0)?, step.dy()?);
    let shape = step.emit.shape(x);
    let crops = attrs.coordinates == CoordinateTransform::TfCropAndResize;
    for (axis, &input) in shape.iter().enumerate().rev() {
        let stays = attrs.output_shape[axis] == input && attrs.scales[axis] == 1.0 && !crops;
        if !stays {
            let attrs = attrs.clone();
            let op = Op::Gradient(Gradient::Resize { attrs, axis, input });
            d = step.emit.op(op, &[d])?;
        }
    }
    step.one(d)
}
