//! Matrix products: each operand's derivative is a product of the other and the result's.

use crate::emit::{Emit, Made};
use crate::step::{Derivatives, Step};
use neap_ir::infer::Einsum;
use neap_ir::{Op, ValueId};

pub(super) fn matmul(step: &mut Step) -> Derivatives {
    let (a, b, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let (a_shape, b_shape) = (step.emit.shape(a), step.emit.shape(b));
    let wants = [step.wants(0), step.wants(1)];
    let emit = &mut *step.emit;
    // A vector is a matrix of one row on the left, of one column on the right.
    let a_matrix = as_matrix(emit, a, true)?;
    let b_matrix = as_matrix(emit, b, false)?;
    let (m, n) = {
        let (a, b) = (emit.shape(a_matrix), emit.shape(b_matrix));
        (a[a.len() - 2], b[b.len() - 1])
    };
    let mut dy_shape = emit.shape(dy);
    let lead = dy_shape.len() - usize::from(a_shape.len() > 1) - usize::from(b_shape.len() > 1);
    dy_shape.truncate(lead);
    dy_shape.extend([m, n]);
    let dy = emit.reshape(dy, &dy_shape)?;

    let mut derivatives = vec![None; 2];
    if let [k, _] = emit.shape(b_matrix)[..] {
        // One matrix for all rows: two products of flat matrices.
        let rows: usize = dy_shape[..dy_shape.len() - 1].iter().product();
        let dy = emit.reshape(dy, &[rows, n])?;
        if wants[0] {
            let part = emit.op(gemm_op(1.0, false, true), &[dy, b_matrix])?;
            derivatives[0] = Some(emit.reshape(part, &a_shape)?);
        }
        if wants[1] {
            let a = emit.reshape(a_matrix, &[rows, k])?;
            let part = emit.op(gemm_op(1.0, true, false), &[a, dy])?;
            derivatives[1] = Some(emit.reshape(part, &b_shape)?);
        }
        return Ok(derivatives);
    }
    if wants[0] {
        let turned = turned(emit, b_matrix)?;
        let part = emit.op(Op::MatMul, &[dy, turned])?;
        let shape = emit.shape(a_matrix);
        let part = emit.sum_to(part, &shape)?;
        derivatives[0] = Some(emit.reshape(part, &a_shape)?);
    }
    if wants[1] {
        let turned = turned(emit, a_matrix)?;
        let part = emit.op(Op::MatMul, &[turned, dy])?;
        let shape = emit.shape(b_matrix);
        let part = emit.sum_to(part, &shape)?;
        derivatives[1] = Some(emit.reshape(part, &b_shape)?);
    }
    Ok(derivatives)
}

fn as_matrix(emit: &mut Emit, x: ValueId, is_row: bool) -> Made {
    match emit.shape(x)[..] {
        [k] if is_row => emit.reshape(x, &[1, k]),
        [k] => emit.reshape(x, &[k, 1]),
        _ => Ok(x),
    }
}

/// Rows and columns exchanged.
fn turned(emit: &mut Emit, x: ValueId) -> Made {
    let rank = emit.shape(x).len();
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 2, rank - 1);
    emit.transpose(x, &perm)
}

pub(super) fn gemm_op(alpha: f32, trans_a: bool, trans_b: bool) -> Op {
    Op::Gemm {
        alpha,
        beta: 0.0,
        trans_a,
        trans_b,
    }
}

pub(super) fn gemm(alpha: f32, beta: f32, trans: [bool; 2], step: &mut Step) -> Derivatives {
    let (a, b, dy) = (step.input(0)?, step.input(1)?, step.dy()?);
    let [trans_a, trans_b] = trans;
    let mut derivatives = vec![None; 3];
    if step.wants(0) {
        derivatives[0] = Some(if trans_a {
            step.emit.op(gemm_op(alpha, trans_b, true), &[b, dy])?
        } else {
            step.emit.op(gemm_op(alpha, false, !trans_b), &[dy, b])?
        });
    }
    if step.wants(1) {
        derivatives[1] = Some(if trans_b {
            step.emit.op(gemm_op(alpha, true, trans_a), &[dy, a])?
        } else {
            step.emit.op(gemm_op(alpha, !trans_a, false), &[a, dy])?
        });
    }
    if step.wants(2) {
        let shape = step.emit.shape(step.input(2)?);
        let sum = step.emit.sum_to(dy, &shape)?;
        derivatives[2] = Some(step.emit.scale(sum, beta.into())?);
    }
    Ok(derivatives)
}

/// The operand's letters become the output's: `ij,jk->ik` gives `ik,jk->ij` for the first.
pub(super) fn einsum(equation: &str, step: &mut Step) -> Derivatives {
    let dy = step.dy()?;
    let mut operands = Vec::new();
    for index in 0..step.node.inputs.len() {
        operands.push(step.input(index)?);
    }
    let shapes: Vec<Vec<usize>> = operands.iter().map(|&v| step.emit.shape(v)).collect();
    let borrowed: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let refused =
        |step: &Step| step.fail(format!("no derivative of equation '{equation}' is known"));
    let Ok(parsed) = Einsum::parse(equation, &borrowed) else {
        return Err(refused(step));
    };
    let mut derivatives = vec![None; operands.len()];
    for index in 0..operands.len() {
        if !step.wants(index) {
            continue;
        }
        let own = &parsed.inputs[index];
        if (1..own.len()).any(|i| own[..i].contains(&own[i])) {
            return Err(refused(step));
        }
        let mut terms = parsed.inputs.clone();
        terms[index] = parsed.output.clone();
        let mut inputs = operands.clone();
        inputs[index] = dy;
        let dims: Vec<Vec<usize>> = inputs.iter().map(|&v| step.emit.shape(v)).collect();
        // What an axis has in all but the operand itself; none where only the operand has it.
        let elsewhere = |label: usize| {
            let axes = terms.iter().zip(&dims).flat_map(|(t, d)| t.iter().zip(d));
            axes.filter(|(l, _)| **l == label).map(|(_, &n)| n).max()
        };
        // An axis of the operand that was repeated is summed over; one that only the operand has is repeated.
        let pairs = || own.iter().zip(&shapes[index]);
        let stays = |(label, size): &(&usize, &usize)| {
            elsewhere(**label).is_some_and(|n| n == 1 || n == **size)
        };
        let target: Vec<usize> = pairs().filter(stays).map(|(&label, _)| label).collect();
        let sizes = pairs().map(|pair| match elsewhere(*pair.0) {
            Some(n) if stays(&pair) => n,
            _ => 1,
        });
        let sizes: Vec<usize> = sizes.collect();
        let Some(equation) = spelled(&terms, &target) else {
            return Err(refused(step));
        };
        let part = step.emit.op(Op::Einsum { equation }, &inputs)?;
        let part = step.emit.reshape(part, &sizes)?;
        derivatives[index] = Some(step.emit.expand(part, &shapes[index])?);
    }
    Ok(derivatives)
}

/// An equation with a letter for each label; `None` if there are too few letters.
fn spelled(inputs: &[Vec<usize>], output: &[usize]) -> Option<String> {
    let mut labels: Vec<usize> = inputs.concat();
    labels.sort_unstable();
    labels.dedup();
    let term = |term: &[usize]| -> Option<String> {
        let letters = term.iter().map(|label| {
            let at = labels.binary_search(label).ok()?;
            ('a'..='z').chain('A'..='Z').nth(at)
        });
        letters.collect()
    };
    let inputs: Option<Vec<String>> = inputs.iter().map(|labels| term(labels)).collect();
    Some(format!("{}->{}", inputs?.join(","), term(output)?))
}
