//! Loops by their bodies: whether operands, body and results fit together.

use super::{Inferred, Operands};
use crate::late::{Bound, Repeat};
use crate::op::Op;
use crate::{DType, Layout, TensorType};

/// Operands before the first states, and the body's inputs before its own.
const CONTROLS: usize = Repeat::CONTROLS;
const NUMBER: usize = 1;

/// Operands may be smaller than the body's inputs, as those of late sizes are in a run.
pub(super) fn check(of: &Repeat, bounds: &[Bound], o: &Operands, given: usize) -> Inferred<()> {
    let body = &of.body;
    if let Err(e) = body.check().and_then(|()| body.check_types()) {
        return o.fail(format!("in its body, {e}"));
    }
    o.require(is_plain(of), "its body holds more than operators")?;
    let inputs = body.inputs.len();
    o.require(
        of.states < inputs
            && of.states <= bounds.len()
            && given + NUMBER == CONTROLS + inputs
            && body.outputs.len() == 1 + bounds.len(),
        "its body has another number of inputs or outputs",
    )?;
    let is_one = |index: usize, dtype: DType| {
        let operand = o.opt(index);
        operand.is_some_and(|ty| ty.dtype == dtype && ty.elements() == 1)
    };
    o.require(
        is_one(0, DType::I64) && is_one(1, DType::Bool),
        "takes one integer of 64 bits and one bool first",
    )?;
    o.require(
        *body.ty(body.inputs[0]) == TensorType::new(DType::I64, &[]),
        "its body takes the number of the pass first",
    )?;
    for (index, &input) in body.inputs[NUMBER..].iter().enumerate() {
        let operand = o.opt(CONTROLS + index);
        let fits = operand.is_some_and(|ty| is_within(ty, body.ty(input)));
        o.require(fits, "its body takes operands of other types")?;
    }
    check_results(of, bounds, o)
}

fn check_results(of: &Repeat, bounds: &[Bound], o: &Operands) -> Inferred<()> {
    let body = &of.body;
    let late = body.late_values();
    let condition = body.outputs[0];
    let ty = body.ty(condition);
    o.require(
        ty.dtype == DType::Bool && ty.elements() == 1 && !late.contains_key(&condition),
        "its body gives no bool first",
    )?;
    let (states, collected) = bounds.split_at(of.states);
    for (index, bound) in states.iter().enumerate() {
        let before = body.ty(body.inputs[NUMBER + index]);
        let output = body.outputs[1 + index];
        let after = body.ty(output);
        let is_same = after == before && bound.ty == *before;
        let is_alike =
            |ty: &TensorType| ty.dtype == before.dtype && ty.shape.len() == before.shape.len();
        // A late one may have another size after each pass, which a run compares with both bounds.
        let is_late = late.contains_key(&output) || body.inputs.contains(&output);
        let may_change = is_late && is_alike(after) && is_alike(&bound.ty);
        o.require(
            is_same || may_change,
            "a value that it carries changes its type",
        )?;
    }
    let most = usize::try_from(of.most).ok();
    for (&output, bound) in body.outputs[of.first_collected()..].iter().zip(collected) {
        let ty = body.ty(output);
        let fits = bound.ty.dtype == ty.dtype
            && bound.ty.shape.first().copied() == most
            && bound.ty.shape.get(1..) == Some(&ty.shape[..])
            && bound.late.iter().skip(1).all(|late| !late)
            && !late.contains_key(&output);
        o.require(fits, "what it collects has another type")?;
    }
    Ok(())
}

/// Constants, files and memory of its own have only whole programs.
fn is_plain(of: &Repeat) -> bool {
    let body = &of.body;
    let mut nodes = body.nodes.iter();
    body.consts.is_empty()
        && body.files.is_empty()
        && body.bound.is_empty()
        && body.states.is_empty()
        && body.values.iter().all(|v| v.layout == Layout::Plain)
        && nodes.all(|node| node.panels.is_none() && is_of_operands(&node.op))
}

/// Whether an operator computes from its operands alone, as they are.
fn is_of_operands(op: &Op) -> bool {
    !matches!(
        op,
        Op::PanelConv(_)
            | Op::PanelDepthwise(_)
            | Op::PanelLinear(_)
            | Op::Bands(_)
            | Op::Reorder
            | Op::GatherRows { .. }
    )
}

fn is_within(ty: &TensorType, bound: &TensorType) -> bool {
    ty.dtype == bound.dtype
        && ty.shape.len() == bound.shape.len()
        && ty.shape.iter().zip(&bound.shape).all(|(d, most)| d <= most)
}

#[cfg(test)]
mod tests {
    use crate::infer::output_types;
    use crate::late::{Bound, Late, LateOp, Repeat};
    use crate::op::{Binary, Unary};
    use crate::{Const, DType, Graph, Literal, Node, Op, PackedId, TensorType, ValueId};

    fn node(op: Op, inputs: &[ValueId], output: ValueId) -> Node {
        Node {
            name: format!("of {}", output.0),
            op,
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(output)],
            panels: None,
        }
    }

    /// Seven passes of `y = y + w`, each of which also gives `-y`.
    fn adding() -> (Late, Vec<Option<TensorType>>) {
        let pair = TensorType::new(DType::F32, &[2]);
        let mut body = Graph::default();
        let number = body.add_value("number", TensorType::new(DType::I64, &[]));
        let [y, w, next, seen] =
            ["y", "w", "next", "seen"].map(|n| body.add_value(n, pair.clone()));
        let again = body.add_value("again", TensorType::new(DType::Bool, &[]));
        body.inputs = vec![number, y, w];
        body.nodes = vec![
            node(Op::Binary(Binary::Add), &[y, w], next),
            node(Op::Unary(Unary::Neg), &[y], seen),
            node(Op::Binary(Binary::Less), &[number, number], again),
        ];
        body.outputs = vec![again, next, seen];
        let mut all = Bound::fixed(TensorType::new(DType::F32, &[7, 2]));
        all.late[0] = true;
        let late = Late {
            op: LateOp::Repeat(Box::new(Repeat {
                most: 7,
                states: 1,
                body,
            })),
            bounds: vec![Bound::fixed(pair.clone()), all],
            is_guarded: false,
        };
        let operands = vec![
            Some(TensorType::new(DType::I64, &[])),
            Some(TensorType::new(DType::Bool, &[1])),
            Some(pair.clone()),
            Some(pair),
        ];
        (late, operands)
    }

    type Change = fn(&mut Repeat, &mut Vec<Bound>, &mut Vec<Option<TensorType>>);

    #[test]
    fn bodies_that_do_not_fit_are_refused() {
        let outcome = |change: Change| {
            let (mut late, mut operands) = adding();
            let LateOp::Repeat(of) = &mut late.op else {
                unreachable!("it is a loop");
            };
            change(of, &mut late.bounds, &mut operands);
            output_types(&Op::Late(Box::new(late)), &operands, 2)
        };
        let types = outcome(|_, _, _| {}).expect("fits");
        assert_eq!(types[0].shape, [2]);
        assert_eq!(types[1].shape, [7, 2]);
        // Operands of late sizes may be smaller in a run.
        assert!(
            outcome(|_, _, operands| operands[3] = Some(TensorType::new(DType::F32, &[1]))).is_ok()
        );
        let wrong: [(Change, &str); 14] = [
            (|of, _, _| of.states = usize::MAX, "number of"),
            (|of, _, _| of.states = 2, "changes its type"),
            (|of, _, _| of.most = 8, "collects"),
            (|of, _, _| _ = of.body.outputs.pop(), "number of"),
            (|of, _, _| of.body.outputs.clear(), "number of"),
            (|of, _, _| of.body.inputs.clear(), "too early"),
            (|of, _, _| of.body.outputs.swap(0, 1), "gives no bool"),
            (|of, _, _| of.body.nodes.truncate(1), "never computed"),
            (
                |of, _, _| {
                    let literal = Literal::from_f32(&[2], &[1.0, 2.0]);
                    of.body.consts.push(Const::Inline(literal));
                },
                "more than operators",
            ),
            (
                |of, _, _| of.body.nodes[0].panels = Some(PackedId(0)),
                "more than operators",
            ),
            (|_, bounds, _| bounds[1].late[1] = true, "collects"),
            (
                |_, bounds, _| bounds[0].ty.shape = vec![3],
                "changes its type",
            ),
            (|_, _, operands| operands[3] = None, "other types"),
            (
                |_, _, operands| operands[3] = Some(TensorType::new(DType::F32, &[3])),
                "other types",
            ),
        ];
        for (index, (change, reason)) in wrong.into_iter().enumerate() {
            let error = outcome(change).expect_err("does not fit").to_string();
            assert!(error.contains(reason), "{index}: {error}");
        }
        for index in [0, 1] {
            let (late, mut operands) = adding();
            operands[index] = Some(TensorType::new(DType::F32, &[]));
            assert!(output_types(&Op::Late(Box::new(late)), &operands, 2).is_err());
        }
    }
}
