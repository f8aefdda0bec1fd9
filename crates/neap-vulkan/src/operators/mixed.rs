//! Elements of other types than floats: masks, token numbers, and choices by them. Bytes are the same bits wherever they are
//! computed, so it may depend on where they lie.

use super::{Call, blocked, is_at, is_in_words, is_whole, strided_groups};
use crate::dispatch::{Dispatch, Span};
use crate::kernel::Kernel;
use crate::words::Words;
use neap_ir::DType;
use neap_ir::op::Binary;
use neap_ops::{TensorMut, TensorRef};

/// Axes that `mixed.wgsl` takes.
const MOST_AXES: usize = 4;

/// As `mixed.wgsl` numbers them.
const CONVERTED: u32 = 0;
const SELECTED: u32 = 1;
const NOT: u32 = 5;

pub(super) fn cast(to: DType, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let x = call.input(0)?;
    let can = match (x.dtype(), to) {
        // Of floats that are no integers of that type, shaders make what they like.
        (DType::F32, to) => to == DType::Bool,
        (_, to) => matches!(to, DType::F32 | DType::I32 | DType::I64 | DType::Bool),
    };
    can.then_some(())?;
    Mixed::of(CONVERTED, [Some(x), None, None], call)?.dispatch(call, out)
}

pub(super) fn select(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let operands = [0, 1, 2].map(|index| call.input(index));
    Mixed::of(SELECTED, operands, call)?.dispatch(call, out)
}

pub(super) fn not(call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    Mixed::of(NOT, [call.input(0), None, None], call)?.dispatch(call, out)
}

/// Comparisons and logic.
pub(super) fn told(binary: Binary, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let does = match binary {
        Binary::And => 2,
        Binary::Or => 3,
        Binary::Xor => 4,
        Binary::Equal => 6,
        Binary::Less => 7,
        Binary::LessOrEqual => 8,
        Binary::Greater => 9,
        Binary::GreaterOrEqual => 10,
        _ => return None,
    };
    let operands = [call.input(0), call.input(1), None];
    Mixed::of(does, operands, call)?.dispatch(call, out)
}

struct Mixed<'a> {
    does: u32,
    operands: [Option<TensorRef<'a>>; 3],
    y: TensorMut<'a>,
    /// Size, and steps of each operand.
    axes: [(usize, [usize; 3]); MOST_AXES],
}

impl<'a> Mixed<'a> {
    /// `None` where the shader cannot have it.
    fn of(does: u32, operands: [Option<TensorRef<'a>>; 3], call: &Call<'a>) -> Option<Mixed<'a>> {
        let more = call.outputs.iter().skip(1).flatten().count();
        let y = call.outputs.first().copied().flatten()?;
        let is_plain = operands.iter().flatten().all(|t| !blocked(t.layout)) && !blocked(y.layout);
        (more == 0 && is_plain && y.elements() > 0).then_some(())?;
        let is_whole = operands.iter().flatten().all(is_whole)
            && is_in_words(y.len_bytes(), y.as_ptr().cast_const());
        is_whole.then_some(())?;
        Some(Mixed {
            does,
            operands,
            y,
            axes: axes(&operands, y.shape())?,
        })
    }

    fn dispatch(&self, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
        let ty = |operand: Option<TensorRef>| operand.map_or(Some(0), |t| number(t.dtype()));
        let [x, w, _] = self.operands;
        let mut reads = self.operands.map(|operand| operand.as_ref().map(Span::of));
        let mut in_place = 0;
        for (index, operand) in self.operands.iter().enumerate() {
            let fits = |t: &TensorRef| is_at(&self.y, t) && t.len_bytes() == self.y.len_bytes();
            if operand.as_ref().is_some_and(fits) {
                in_place |= 1 << index;
                reads[index] = None;
            }
        }
        let mut words = [0; 24];
        words[..6].copy_from_slice(&[
            u32::try_from(self.y.elements()).ok()?,
            self.does,
            ty(x)?,
            ty(w)?,
            number(self.y.dtype())?,
            in_place,
        ]);
        for (i, (size, steps)) in self.axes.iter().enumerate() {
            words[8 + i] = *size as u32;
            for (operand, &step) in steps.iter().enumerate() {
                words[12 + 4 * operand + i] = step as u32;
            }
        }
        let each = if self.y.dtype().size_bytes() == 1 {
            4
        } else {
            1
        };
        let dispatch = Dispatch {
            kernel: Kernel::Mixed,
            words: Words::new(&words),
            groups: [strided_groups(self.y.elements() / each), 1, 1],
            reads,
            writes: Span::of_mut(&self.y),
            mask: None,
        };
        call.push(dispatch, out)
    }
}

fn number(dtype: DType) -> Option<u32> {
    Some(match dtype {
        DType::F32 => 0,
        DType::I32 => 1,
        DType::I64 => 2,
        DType::Bool => 3,
        DType::U8 => 4,
        _ => return None,
    })
}

/// The result's axes with the steps of each operand, the outermost first; neighbours that are one axis in all are joined.
fn axes(
    operands: &[Option<TensorRef>; 3],
    shape: &[usize],
) -> Option<[(usize, [usize; 3]); MOST_AXES]> {
    let mut axes = [(1, [0; 3]); MOST_AXES];
    let mut len = 0;
    for (axis, &size) in shape.iter().enumerate().filter(|(_, size)| **size != 1) {
        let mut steps = [0; 3];
        for (step, operand) in steps.iter_mut().zip(operands) {
            let Some(operand) = operand else {
                continue;
            };
            let lead = shape.len().checked_sub(operand.shape().len())?;
            let own = axis.checked_sub(lead).filter(|&i| operand.shape()[i] != 1);
            *step = own.map_or(0, |i| operand.shape()[i + 1..].iter().product());
        }
        let joined: [usize; 3] = steps.map(|step| step * size);
        if len > 0 && axes[len - 1].1 == joined {
            axes[len - 1] = (axes[len - 1].0 * size, steps);
            continue;
        }
        *axes.get_mut(len)? = (size, steps);
        len += 1;
    }
    // Those of one place in front.
    axes.rotate_right(MOST_AXES - len);
    Some(axes)
}
