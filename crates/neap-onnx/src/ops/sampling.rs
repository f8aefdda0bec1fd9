//! Operators that read images between their elements.

use super::conv;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::sampling::{GridMode, GridPadding, RoiAlign, Sampling};
use neap_ir::{Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "GridSample" => one(grid_sample(c)),
        "RoiAlign" => one(roi_align(c)),
        "MaxRoiPool" => one(max_roi_pool(c)),
        "DeformConv" => one(deform_conv(c)),
        _ => return None,
    })
}

fn grid_sample(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [c.input(0)?, c.input(1)?];
    // Modes got other names in opset 20.
    let mode = match c.string("mode", "linear")? {
        "nearest" => GridMode::Nearest,
        "linear" | "bilinear" => GridMode::Linear,
        "cubic" | "bicubic" => GridMode::Cubic,
        _ => return Err(c.bad("attribute 'mode' is unknown")),
    };
    let padding = match c.string("padding_mode", "zeros")? {
        "zeros" => GridPadding::Zeros,
        "border" => GridPadding::Border,
        "reflection" => GridPadding::Reflection,
        _ => return Err(c.bad("attribute 'padding_mode' is unknown")),
    };
    let align_corners = c.flag("align_corners", false)?;
    let of = Sampling::Grid {
        mode,
        padding,
        align_corners,
    };
    c.emit(Op::Sampling(of), &inputs)
}

fn roi_align(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, boxes, images) = (c.input(0)?, c.input(1)?, c.input(2)?);
    // The attribute came with opset 16, and its default is not what was before.
    let before = if c.version < 16 {
        "output_half_pixel"
    } else {
        "half_pixel"
    };
    let half_pixel = match c.string("coordinate_transformation_mode", before)? {
        "half_pixel" => true,
        "output_half_pixel" => false,
        _ => return Err(c.bad("attribute 'coordinate_transformation_mode' is unknown")),
    };
    let largest = match c.string("mode", "avg")? {
        "avg" => false,
        "max" => true,
        _ => return Err(c.bad("attribute 'mode' is unknown")),
    };
    let output = [c.size("output_height", 1)?, c.size("output_width", 1)?];
    let samples = c.size("sampling_ratio", 0)?;
    if samples > 1 << 12 || output.iter().any(|&size| size == 0 || size > 1 << 20) {
        return Err(c.bad("its sampling_ratio or output size is out of range"));
    }
    let attrs = RoiAlign {
        largest,
        output,
        samples,
        scale: c.float("spatial_scale", 1.0)?,
        half_pixel,
    };
    let images = c.cast(images, neap_ir::DType::I64)?;
    let boxes = c.cast(boxes, c.dtype(x))?;
    let of = Sampling::RoiAlign(attrs);
    c.emit(Op::Sampling(of), &[x, boxes, images])
}

fn max_roi_pool(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let (x, boxes) = (c.input(0)?, c.input(1)?);
    let output = match c.sizes("pooled_shape")?.as_deref() {
        Some(&[rows, columns]) if rows.max(columns) <= 1 << 20 => [rows, columns],
        _ => return Err(c.bad("attribute 'pooled_shape' is missing or out of range")),
    };
    let scale = c.float("spatial_scale", 1.0)?;
    let of = Sampling::MaxRoiPool { output, scale };
    c.emit(Op::Sampling(of), &[x, boxes])
}

fn deform_conv(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let inputs = [
        Some(c.input(0)?),
        Some(c.input(1)?),
        Some(c.input(2)?),
        c.optional(3),
        c.optional(4),
    ];
    let (x, w) = (c.input(0)?, c.input(1)?);
    if c.rank(x) != 4 {
        return Err(c.unsupported("an input that is no image"));
    }
    let (_, kernel) = conv::kernel_of(c, x, w)?;
    let of = Sampling::DeformConv {
        window: conv::window(c, &kernel)?,
        groups: c.size("group", 1)?,
        offset_groups: c.size("offset_group", 1)?,
    };
    let given = match (inputs[3], inputs[4]) {
        (_, Some(_)) => 5,
        (Some(_), None) => 4,
        _ => 3,
    };
    c.emit_optional(Op::Sampling(of), &inputs[..given])
}
