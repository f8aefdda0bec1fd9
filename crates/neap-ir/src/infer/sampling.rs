//! Types of operators that read between elements.

use super::window::check_window;
use super::{Inferred, Operands, Pads, conv_output_size};
use crate::sampling::{GridMode, Sampling};
use crate::{DType, TensorType};

pub(super) fn infer(sampling: &Sampling, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require_float(x)?;
    let shape = match sampling {
        Sampling::Grid { mode, .. } => grid(*mode, o)?,
        Sampling::RoiAlign(attrs) => {
            let (boxes, images) = (o.get(1)?, o.get(2)?);
            o.same_dtype(x, boxes)?;
            o.require(x.shape.len() == 4, "takes images")?;
            o.require(
                boxes.shape.len() == 2 && boxes.shape[1] == 4,
                "takes boxes of four numbers",
            )?;
            o.require(
                images.dtype == DType::I64 && images.shape == boxes.shape[..1],
                "takes the image of each box",
            )?;
            vec![boxes.shape[0], x.shape[1], attrs.output[0], attrs.output[1]]
        }
        Sampling::MaxRoiPool { output, .. } => {
            let boxes = o.get(1)?;
            o.same_dtype(x, boxes)?;
            o.require(x.shape.len() == 4, "takes images")?;
            o.require(
                boxes.shape.len() == 2 && boxes.shape[1] == 5,
                "takes boxes of five numbers",
            )?;
            o.require(!output.contains(&0), "has no bins")?;
            vec![boxes.shape[0], x.shape[1], output[0], output[1]]
        }
        Sampling::DeformConv {
            window,
            groups,
            offset_groups,
        } => {
            let (w, offsets) = (o.get(1)?, o.get(2)?);
            o.require(
                x.shape.len() == 4 && w.shape.len() == 4,
                "takes images and their weights",
            )?;
            o.same_dtype(x, w)?;
            check_window(o, window, 2)?;
            let fits = *groups > 0
                && *offset_groups > 0
                && o.mul(w.shape[1], *groups)? == x.shape[1]
                && w.shape[0].is_multiple_of(*groups)
                && x.shape[1].is_multiple_of(*offset_groups)
                && w.shape[2..] == window.kernel[..];
            o.require(fits, "weight, groups and kernel do not fit the input")?;
            let mut shape = vec![x.shape[0], w.shape[0]];
            for i in 0..2 {
                let pads = Pads {
                    begin: window.pads_begin[i],
                    end: window.pads_end[i],
                };
                let size = conv_output_size(
                    x.shape[i + 2],
                    window.kernel[i],
                    window.strides[i],
                    window.dilations[i],
                    pads,
                );
                match size {
                    Some(size) => shape.push(size),
                    None => return o.fail("the kernel does not fit the input with its padding"),
                }
            }
            let taps = o.product(&[*offset_groups, window.kernel[0], window.kernel[1]])?;
            o.same_dtype(x, offsets)?;
            o.require_shape(2, &[shape[0], o.mul(taps, 2)?, shape[2], shape[3]])?;
            o.require_like(3, &[shape[1]])?;
            o.require_like(4, &[shape[0], taps, shape[2], shape[3]])?;
            shape
        }
    };
    Ok(vec![TensorType::new(x.dtype, &shape)])
}

fn grid(mode: GridMode, o: &Operands) -> Inferred<Vec<usize>> {
    let (x, grid) = (o.get(0)?, o.get(1)?);
    o.require_float(grid)?;
    let spatial = x.shape.len().checked_sub(2).filter(|&n| n > 0);
    let Some(spatial) = spatial else {
        return o.fail("takes an input of rank 3 or more");
    };
    o.require(
        mode != GridMode::Cubic || spatial == 2,
        "is cubic for images only",
    )?;
    let fits = grid.shape.len() == x.shape.len()
        && grid.shape[0] == x.shape[0]
        && grid.shape[spatial + 1] == spatial;
    o.require(fits, "has a grid that does not fit its input")?;
    let mut shape = x.shape[..2].to_vec();
    shape.extend(&grid.shape[1..=spatial]);
    let empty = shape.contains(&0);
    o.require(
        empty || !x.shape.contains(&0),
        "reads an input without elements",
    )?;
    Ok(shape)
}
