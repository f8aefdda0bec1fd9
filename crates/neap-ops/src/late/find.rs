//! Results whose size the data decide: NonZero, Compress, NonMaxSuppression.

use super::Call;
use crate::args::{Scratch, scratch_bytes};
use crate::scalar::{Scalar, with_any};
use crate::{Context, OpError, TensorRef};
use neap_ir::{DType, TensorType};

/// The indices of elements that are not zero, a row for each axis, in row-major order.
pub(super) fn non_zero(call: &mut Call) -> Result<(), OpError> {
    let x = call.args.input(0)?;
    with_any!(x.dtype(), T => {
        let from = x.as_ptr().cast::<T>();
        // SAFETY: the element is inside the tensor.
        let hit = |i: &usize| unsafe { (*from.add(*i)).to_f64() != 0.0 };
        let count = (0..x.elements()).filter(hit).count();
        let rank = x.shape().len().max(1);
        let ty = TensorType::new(DType::I64, &[rank, count]);
        let Some(place) = call.admit(0, &ty)? else {
            return Ok(());
        };
        let to = place.as_ptr().cast::<i64>();
        for (column, flat) in (0..x.elements()).filter(hit).enumerate() {
            let mut rest = flat;
            // A scalar has one index, which is 0.
            if x.shape().is_empty() {
                // SAFETY: the place holds a row of `count` for each axis.
                unsafe { to.add(column).write(0) };
            }
            for (axis, &size) in x.shape().iter().enumerate().rev() {
                // SAFETY: as above.
                unsafe { to.add(axis * count + column).write((rest % size) as i64) };
                rest /= size;
            }
        }
        Ok(())
    })
}

/// The parts of x along an axis that the condition keeps.
pub(super) fn compress(axis: Option<usize>, call: &mut Call) -> Result<(), OpError> {
    let (x, condition) = (call.args.input(0)?, call.args.input(1)?);
    call.args.require(
        condition.dtype() == DType::Bool && condition.shape().len() == 1,
        "takes a boolean condition of one axis",
    )?;
    let (mut shape, axis) = match axis {
        Some(axis) => (x.shape().to_vec(), axis),
        None => (vec![x.elements()], 0),
    };
    call.args.require(axis < shape.len(), "has no such axis")?;
    let size = shape[axis];
    let keep = condition.bytes();
    if keep.len() > size {
        return Err(OpError::data(
            call.args.op,
            "its condition is longer than its input",
        ));
    }
    let outer: usize = shape[..axis].iter().product();
    let run = shape[axis + 1..].iter().product::<usize>() * x.dtype().size_bytes();
    shape[axis] = keep.iter().filter(|&&k| k != 0).count();
    let ty = TensorType::new(x.dtype(), &shape);
    let Some(place) = call.admit(0, &ty)? else {
        return Ok(());
    };
    let mut to = place.as_ptr();
    for o in 0..outer {
        for (i, _) in keep.iter().enumerate().filter(|&(_, &k)| k != 0) {
            // SAFETY: the part is inside x; as many are written as the type says.
            unsafe {
                let from = x.as_ptr().add((o * size + i) * run);
                std::ptr::copy_nonoverlapping(from, to, run);
                to = to.add(run);
            }
        }
    }
    Ok(())
}

/// One index per box.
pub(super) fn workspace_bytes(boxes: &[usize]) -> usize {
    scratch_bytes::<u32>(boxes.get(1).copied().unwrap_or(0))
}

/// For each class of each image, boxes by falling score that overlap with none chosen before.
pub(super) fn non_max_suppression(
    center_point_box: bool,
    call: &mut Call,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (boxes, scores) = (call.args.input(0)?, call.args.input(1)?);
    let (&[batch, count, 4], &[images, classes, scored]) = (boxes.shape(), scores.shape()) else {
        return call
            .args
            .fail("takes boxes [batch, n, 4] and scores [batch, classes, n]");
    };
    call.args.require(
        (images, scored) == (batch, count)
            && boxes.dtype() == DType::F32
            && scores.dtype() == DType::F32,
        "takes as many float32 scores as boxes",
    )?;
    let most = match call.args.opt_input(2) {
        Some(most) => usize::try_from(one::<i64>(&most, DType::I64, call)?).unwrap_or(0),
        None => 0,
    };
    let float = |index: usize| match call.args.opt_input(index) {
        Some(value) => one::<f32>(&value, DType::F32, call).map(Some),
        None => Ok(None),
    };
    let overlap = float(3)?.unwrap_or(0.0);
    let least = float(4)?;
    let mut scratch = Scratch::new(call.args.op, ctx.workspace);
    let order = scratch.take::<u32>(count)?;

    let (corners, scores) = (boxes.f32s(), scores.f32s());
    let corner = |image: usize, index: u32| -> [f32; 4] {
        let at = (image * count + index as usize) * 4;
        corners_of([0, 1, 2, 3].map(|i| corners[at + i]), center_point_box)
    };
    // Once to count what is chosen, once to write it: each class's order is found twice, and nothing is kept between.
    let mut chosen = 0;
    let mut place = None;
    for pass in 0..2 {
        if pass == 1 {
            let ty = TensorType::new(DType::I64, &[chosen, 3]);
            place = match call.admit(0, &ty)? {
                Some(place) => Some(place.as_ptr().cast::<i64>()),
                None => return Ok(()),
            };
            chosen = 0;
        }
        for (image, class) in (0..batch).flat_map(|b| (0..classes).map(move |c| (b, c))) {
            let own = &scores[(image * classes + class) * count..][..count];
            let kept = suppress(own, least, most, overlap, order, |index| {
                corner(image, index)
            });
            for &index in &order[..kept] {
                if let Some(to) = place {
                    let row = [image as i64, class as i64, i64::from(index)];
                    // SAFETY: the place holds as many rows as the first pass found.
                    unsafe { to.add(chosen * 3).cast::<[i64; 3]>().write_unaligned(row) };
                }
                chosen += 1;
            }
        }
    }
    Ok(())
}

/// Puts the boxes that stay to the front of `order`, and says how many.
fn suppress(
    scores: &[f32],
    least: Option<f32>,
    most: usize,
    overlap: f32,
    order: &mut [u32],
    corners: impl Fn(u32) -> [f32; 4],
) -> usize {
    let mut candidates = 0;
    for (index, &score) in scores.iter().enumerate() {
        if least.is_none_or(|least| score > least) {
            order[candidates] = index as u32;
            candidates += 1;
        }
    }
    let by_score = |a: &u32, b: &u32| {
        let (x, y) = (scores[*a as usize], scores[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    order[..candidates].sort_unstable_by(by_score);
    let mut kept = 0;
    for at in 0..candidates {
        if kept == most {
            break;
        }
        let index = order[at];
        let own = corners(index);
        let mut before = order[..kept].iter();
        if before.all(|&other| intersection_over_union(own, corners(other)) <= overlap) {
            order[kept] = index;
            kept += 1;
        }
    }
    kept
}

/// `[least y, least x, greatest y, greatest x]`.
fn corners_of(stored: [f32; 4], center_point_box: bool) -> [f32; 4] {
    let [a, b, c, d] = stored;
    match center_point_box {
        // x and y of the middle, width, height.
        true => [b - d / 2.0, a - c / 2.0, b + d / 2.0, a + c / 2.0],
        false => [a.min(c), b.min(d), a.max(c), b.max(d)],
    }
}

/// 0 where either box has no area.
fn intersection_over_union(a: [f32; 4], b: [f32; 4]) -> f32 {
    let area = |[y0, x0, y1, x1]: [f32; 4]| (y1 - y0) * (x1 - x0);
    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let shared = height * width;
    let (first, second) = (area(a), area(b));
    let union = first + second - shared;
    if first <= 0.0 || second <= 0.0 || union <= 0.0 {
        return 0.0;
    }
    shared / union
}

/// The element of a tensor that has one.
fn one<T: Copy>(tensor: &TensorRef, dtype: DType, call: &Call) -> Result<T, OpError> {
    call.args.require(
        tensor.dtype() == dtype && tensor.elements() == 1 && size_of::<T>() == dtype.size_bytes(),
        "takes one number of another type as a limit",
    )?;
    // SAFETY: it has one element of this size, and any bytes are a number.
    Ok(unsafe { tensor.as_ptr().cast::<T>().read_unaligned() })
}
