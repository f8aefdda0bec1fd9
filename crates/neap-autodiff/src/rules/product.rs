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
    let shapes: Vec<&[usize]> = shapes.iter().map(Vec::as_slice).collect();
    let compact: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let named = compact.split_once("->").filter(|_| !compact.contains('.'));
    let (Some((left, right)), true) = (named, Einsum::parse(equation, &shapes).is_ok()) else {
        return Err(step.fail(format!("no derivative of equation '{equation}' is known")));
    };
    let terms: Vec<&str> = left.split(',').collect();
    let mut derivatives = vec![None; operands.len()];
    for index in 0..operands.len() {
        if !step.wants(index) {
            continue;
        }
        let own = terms[index];
        let mut others = terms.clone();
        let mut inputs = operands.clone();
        others[index] = right;
        inputs[index] = dy;
        let elsewhere = others.concat();
        let repeats = own.chars().enumerate().any(|(i, c)| own[..i].contains(c));
        // A letter of size 1 may stand for a broadcast, whose sum this equation would lack.
        let broadcast = own.chars().zip(shapes[index]).any(|(c, &size)| {
            let sizes = terms.iter().zip(&shapes);
            let mut sizes = sizes.flat_map(|(t, s)| t.chars().zip(s.iter()));
            sizes.any(|(other, &n)| other == c && n != size)
        });
        if repeats || broadcast || !own.chars().all(|c| elsewhere.contains(c)) {
            return Err(step.fail(format!("no derivative of equation '{equation}' is known")));
        }
        let equation = format!("{}->{own}", others.join(","));
        derivatives[index] = Some(step.emit.op(Op::Einsum { equation }, &inputs)?);
    }
    Ok(derivatives)
}
