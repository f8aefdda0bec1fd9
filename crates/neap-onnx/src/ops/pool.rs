//! Poolings: windows resolved to explicit pads and output sizes.

use super::conv::{Padding, apply_same, extent, padding, window};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one, scalar};
use neap_ir::infer::{Pads, pool_output_size};
use neap_ir::op::Pool;
use neap_ir::{DType, Op, ValueId};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "MaxPool" => max_pool(c),
        "AveragePool" => average_pool(c),
        "LpPool" => lp_pool(c),
        "GlobalMaxPool" => one(global(c, max(false))),
        "GlobalAveragePool" => one(global(c, AVERAGE)),
        "GlobalLpPool" => one(p(c).and_then(|p| global(c, Pool::Lp { p }))),
        _ => return None,
    })
}

const AVERAGE: Pool = Pool::Average {
    count_include_pad: false,
};

fn max(column_major: bool) -> Pool {
    Pool::Max { column_major }
}

fn p(c: &Ctx) -> Result<u32, OnnxError> {
    let p = c.int("p", 2)?;
    u32::try_from(p)
        .ok()
        .filter(|&p| p > 0)
        .ok_or_else(|| c.bad(format!("p {p} is out of range")))
}

fn global(c: &mut Ctx, kind: Pool) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    c.shape_of_rank(x, 3)?;
    c.emit(Op::GlobalPool(kind), &[x])
}

fn max_pool(c: &mut Ctx) -> Outputs {
    let column_major = c.flag("storage_order", false)?;
    pool(c, max(column_major))
}

fn average_pool(c: &mut Ctx) -> Outputs {
    let count_include_pad = c.flag("count_include_pad", false)?;
    pool(c, Pool::Average { count_include_pad })
}

fn lp_pool(c: &mut Ctx) -> Outputs {
    let p = p(c)?;
    pool(c, Pool::Lp { p })
}

fn pool(c: &mut Ctx, kind: Pool) -> Outputs {
    let x = c.input(0)?;
    let shape = c.shape_of_rank(x, 3)?;
    let spatial = &shape[2..];
    let kernel = c
        .sizes("kernel_shape")?
        .ok_or_else(|| c.bad("attribute 'kernel_shape' is missing"))?;
    if kernel.len() != spatial.len() {
        return Err(c.bad(format!(
            "its kernel {kernel:?} does not fit its input {shape:?}"
        )));
    }
    let mut window = window(c, &kernel)?;
    let padding = padding(c)?;
    let same = matches!(padding, Padding::SameUpper | Padding::SameLower);
    for (axis, &size) in spatial.iter().enumerate() {
        // Implementations disagree on whether the first window then starts inside the input.
        let reach = (size.div_ceil(window.strides[axis])).saturating_sub(1) * window.strides[axis]
            + extent(&window, axis);
        if same && reach + 1 < size {
            return Err(c.unsupported("SAME padding of a window smaller than its stride"));
        }
    }
    match padding {
        Padding::SameUpper => apply_same(&mut window, spatial, true),
        Padding::SameLower => apply_same(&mut window, spatial, false),
        Padding::Explicit | Padding::Valid => {}
    }
    let ceil = c.flag("ceil_mode", false)? && !same;
    if same && spatial.contains(&0) {
        if c.builder.is_late(x) {
            return Err(c.unsupported("SAME padding of an empty axis beside one of a size that is known only when running"));
        }
        // As many outputs as strides, that is none, and not one of a window of padding.
        let strides = spatial.iter().zip(&window.strides);
        let outputs = strides.map(|(size, stride)| size.div_ceil(*stride));
        let shape: Vec<usize> = shape[..2].iter().copied().chain(outputs).collect();
        let mut results = vec![Some(c.filled(scalar(c.dtype(x), 0.0), &shape)?)];
        if c.wants(1) {
            results.push(Some(c.filled(scalar(DType::I64, 0.0), &shape)?));
        }
        return Ok(results);
    }
    let mut output_spatial = Vec::with_capacity(spatial.len());
    for (axis, &size) in spatial.iter().enumerate() {
        let pads = Pads {
            begin: window.pads_begin[axis],
            end: window.pads_end[axis],
        };
        let (kernel, stride) = (window.kernel[axis], window.strides[axis]);
        let out = pool_output_size(size, kernel, stride, window.dilations[axis], pads, ceil);
        output_spatial.push(
            out.ok_or_else(|| c.bad(format!("its window is larger than its input {shape:?}")))?,
        );
    }
    let op = Op::Pool {
        kind,
        window,
        output_spatial,
    };
    c.emit_outputs(op, &[Some(x)])
}
