//! Operators whose sizes are operands: with those at hand they are what they are when sizes are known beforehand.

use crate::args::Args;
use crate::index::Indices;
use crate::{OpError, TensorRef};
use neap_ir::infer::{Pads, conv_transpose_output_size};
use neap_ir::late::LateOp;
use neap_ir::op::{ResizeAttrs, SliceRange};
use neap_ir::{Layout, Op};

/// No tensor has as many axes, and no operand that gives sizes as many elements.
const MOST_SIZES: usize = 64;

/// An operator with its attributes, and the operands that are left.
pub(super) struct Resolved<'a> {
    pub op: Op,
    pub inputs: Vec<Option<TensorRef<'a>>>,
}

pub(super) fn resolve<'a>(of: &'a LateOp, args: &Args<'_, 'a>) -> Result<Resolved<'a>, OpError> {
    let x = args.input(0)?;
    let shape = x.shape();
    let of_x = |op: Op| Resolved {
        op,
        inputs: vec![Some(x)],
    };
    let reshaped = |shape: Vec<usize>| of_x(Op::Reshape { shape });
    Ok(match of {
        LateOp::Reshape { allow_zero } => {
            reshaped(target(shape, &ints(1, args)?, *allow_zero, args)?)
        }
        LateOp::Flatten { axis } => {
            let part = |axes: &[usize]| axes.iter().product::<usize>();
            let axis = (*axis).min(shape.len());
            reshaped(vec![part(&shape[..axis]), part(&shape[axis..])])
        }
        LateOp::Squeeze { axes } => {
            let gone = |axis: &usize| axes.contains(axis);
            if (0..shape.len()).filter(gone).any(|a| shape[a] != 1) {
                return Err(bad(
                    args,
                    format!("axes {axes:?} of {shape:?} have not one element each"),
                ));
            }
            let kept = (0..shape.len()).filter(|a| !gone(a));
            reshaped(kept.map(|a| shape[a]).collect())
        }
        LateOp::Unsqueeze { axes } => {
            let mut rest = shape.iter();
            let rank = shape.len() + axes.len();
            let size = |axis: usize| match axes.contains(&axis) {
                true => 1,
                false => rest.next().copied().unwrap_or(1),
            };
            reshaped((0..rank).map(size).collect())
        }
        LateOp::Expand => {
            let asked = sizes(1, args)?;
            let Some(shape) = neap_ir::infer::broadcast(shape, &asked) else {
                return Err(bad(
                    args,
                    format!("{shape:?} does not broadcast to {asked:?}"),
                ));
            };
            of_x(Op::Expand { shape })
        }
        LateOp::Fill => {
            let value = args.input(1)?;
            args.require(value.elements() == 1, "fills with one value")?;
            Resolved {
                op: Op::Expand {
                    shape: sizes(0, args)?,
                },
                inputs: vec![Some(value)],
            }
        }
        LateOp::Slice { axes } => of_x(Op::Slice {
            ranges: ranges(shape, axes, args)?,
        }),
        LateOp::Tile => of_x(Op::Tile {
            repeats: sizes(1, args)?,
        }),
        LateOp::Pad { mode, axes } => {
            let given = ints(1, args)?;
            args.require(
                given.len() == 2 * axes.len() && axes.iter().all(|&a| a < shape.len()),
                "has pads for other axes",
            )?;
            let mut pads = vec![(0, 0); shape.len()];
            for (i, &axis) in axes.iter().enumerate() {
                let pad = |at: usize| size(given[at].abs(), args);
                let signed = |at: usize| {
                    Ok::<isize, OpError>(pad(at)? as isize * given[at].signum() as isize)
                };
                pads[axis] = (signed(i)?, signed(i + axes.len())?);
            }
            Resolved {
                op: Op::Pad { mode: *mode, pads },
                inputs: match args.opt_input(2) {
                    Some(value) => vec![Some(x), Some(value)],
                    None => vec![Some(x)],
                },
            }
        }
        LateOp::TopK {
            axis,
            largest,
            sorted,
        } => of_x(Op::TopK {
            axis: *axis,
            k: only(&sizes(1, args)?, args)?,
            largest: *largest,
            sorted: *sorted,
        }),
        LateOp::OneHot { axis } => Resolved {
            op: Op::OneHot {
                axis: *axis,
                depth: only(&sizes(1, args)?, args)?,
            },
            inputs: vec![Some(x), Some(args.input(2)?)],
        },
        LateOp::Resize(attrs) => {
            args.require(
                attrs.scales.len() == shape.len(),
                "has scales of other axes",
            )?;
            of_x(Op::Resize(ResizeAttrs {
                output_shape: attrs.scaled(shape),
                ..attrs.clone()
            }))
        }
        LateOp::ConvTranspose {
            window,
            groups,
            extra,
            ..
        } => {
            let spatial = shape.get(2..).unwrap_or_default();
            let axes = [&window.kernel, &window.strides, &window.dilations];
            let pads = [&window.pads_begin, &window.pads_end];
            let fits = axes.iter().chain(&pads).all(|of| of.len() == extra.len());
            args.require(
                fits && spatial.len() == extra.len(),
                "has a window of other axes",
            )?;
            let sizes = (0..extra.len()).map(|axis| {
                let pads = Pads {
                    begin: window.pads_begin[axis],
                    end: window.pads_end[axis],
                };
                let [kernel, stride] = [window.kernel[axis], window.strides[axis]];
                let (dilation, extra) = (window.dilations[axis], extra[axis]);
                conv_transpose_output_size(spatial[axis], kernel, stride, dilation, pads, extra)
            });
            let Some(output_spatial) = sizes.collect::<Option<Vec<usize>>>() else {
                return Err(bad(
                    args,
                    format!("{shape:?} gives an output without a size"),
                ));
            };
            let op = Op::ConvTranspose {
                window: window.clone(),
                groups: *groups,
                output_spatial,
            };
            Resolved {
                op,
                inputs: args.inputs.to_vec(),
            }
        }
        _ => return args.fail("gives no sizes"),
    })
}

fn bad(args: &Args, what: String) -> OpError {
    OpError::data(args.op, what)
}

/// The elements of an operand that gives sizes.
fn ints(index: usize, args: &Args) -> Result<Vec<i64>, OpError> {
    let tensor = args.input(index)?;
    args.require(
        tensor.elements() <= MOST_SIZES && tensor.layout == Layout::Plain,
        "takes so many sizes",
    )?;
    let indices = Indices::of(&tensor);
    // SAFETY: the element is inside the tensor.
    Ok((0..tensor.elements())
        .map(|i| unsafe { indices.get(i) })
        .collect())
}

fn sizes(index: usize, args: &Args) -> Result<Vec<usize>, OpError> {
    let values = ints(index, args)?;
    values.into_iter().map(|v| size(v, args)).collect()
}

fn size(value: i64, args: &Args) -> Result<usize, OpError> {
    usize::try_from(value)
        .ok()
        .filter(|&v| v <= 1 << 40)
        .ok_or_else(|| bad(args, format!("size {value} is out of range")))
}

fn only(values: &[usize], args: &Args) -> Result<usize, OpError> {
    match values {
        &[value] => Ok(value),
        _ => Err(bad(args, "one size is needed".into())),
    }
}

fn target(
    from: &[usize],
    asked: &[i64],
    allow_zero: bool,
    args: &Args,
) -> Result<Vec<usize>, OpError> {
    let mut shape = Vec::with_capacity(asked.len());
    let mut open = None;
    for (axis, &value) in asked.iter().enumerate() {
        shape.push(match value {
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            0 if !allow_zero => match from.get(axis) {
                Some(&size) => size,
                None => return Err(bad(args, format!("axis {axis} is none of its input's"))),
            },
            value => size(value, args)?,
        });
    }
    if let Some(axis) = open {
        let rest = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        let whole: usize = from.iter().product();
        match rest {
            Some(rest) if rest > 0 && whole.is_multiple_of(rest) => shape[axis] = whole / rest,
            _ => return Err(bad(args, format!("{from:?} cannot become {asked:?}"))),
        }
    }
    Ok(shape)
}

fn ranges(shape: &[usize], axes: &[usize], args: &Args) -> Result<Vec<SliceRange>, OpError> {
    let (starts, ends) = (ints(1, args)?, ints(2, args)?);
    let steps = match args.opt_input(3) {
        Some(_) => ints(3, args)?,
        None => vec![1; axes.len()],
    };
    let counts = [starts.len(), ends.len(), steps.len()];
    args.require(
        counts == [axes.len(); 3] && axes.iter().all(|&a| a < shape.len()),
        "has starts, ends and steps for other axes",
    )?;
    let whole = |&len: &usize| SliceRange {
        start: 0,
        step: 1,
        len,
    };
    let mut ranges: Vec<SliceRange> = shape.iter().map(whole).collect();
    for (i, &axis) in axes.iter().enumerate() {
        let range = SliceRange::of(starts[i], ends[i], steps[i], shape[axis] as i64);
        ranges[axis] = range.ok_or_else(|| bad(args, "a step is zero".into()))?;
    }
    Ok(ranges)
}
