//! Element-wise chains that are one activation: gelu (erf and tanh form), silu, hard-swish.

use crate::edit::Editor;
use neap_ir::op::{Activation, Binary, Op, Unary};
use neap_ir::{DType, Node, ValueId};

pub(crate) fn run(editor: &mut Editor) {
    editor.each(|editor, at| {
        gelu_erf(editor, at) || gelu_tanh(editor, at) || gated(editor, at) || hard_swish(editor, at)
    });
    editor.remove_dead();
}

/// The operands of a binary node.
pub(crate) fn operands(editor: &Editor, at: usize, kind: Binary) -> Option<[ValueId; 2]> {
    let node = editor.node(at);
    match (&node.op, &node.inputs[..]) {
        (Op::Binary(b), [Some(x), Some(y)]) if *b == kind => Some([*x, *y]),
        _ => None,
    }
}

/// `kind(x, constant)` for a commutative kind: the other operand and the scalar.
pub(crate) fn with_scalar(editor: &Editor, at: usize, kind: Binary) -> Option<(ValueId, f32)> {
    let [x, y] = operands(editor, at, kind)?;
    if let Some(scalar) = editor.scalar(y) {
        return Some((x, scalar));
    }
    Some((y, editor.scalar(x)?))
}

/// The operand of a binary node that is not `one`.
pub(crate) fn other(pair: [ValueId; 2], one: ValueId) -> Option<ValueId> {
    match pair {
        [x, y] if x == one => Some(y),
        [x, y] if y == one => Some(x),
        _ => None,
    }
}

/// Within what storing a constant as half precision loses, mostly: less than outputs may be off.
pub(crate) fn near(x: f32, target: f32) -> bool {
    (x - target).abs() <= 2e-4 * target.abs().max(1e-3)
}

/// `x * c` or `x / (1/c)` as (x, c).
pub(crate) fn scaled(editor: &Editor, value: ValueId) -> Option<(ValueId, f32)> {
    let at = editor.producer(value)?;
    if let Some(found) = with_scalar(editor, at, Binary::Mul) {
        return Some(found);
    }
    let [x, divisor] = operands(editor, at, Binary::Div)?;
    Some((x, 1.0 / editor.scalar(divisor)?))
}

/// What a value was before it was rounded to half floats, where nobody else reads it. A fused node leaves such a rounding out.
pub(crate) fn unrounded(editor: &Editor, value: ValueId) -> ValueId {
    let before = |value: ValueId, fits: fn(DType) -> bool| {
        let node = editor.node(editor.producer(value)?);
        editor.sole_user(value)?;
        let casts = matches!(node.op, Op::Cast { to } if fits(to));
        node.input(0).filter(|_| casts)
    };
    let half = before(value, |to| to == DType::F32);
    let wide = half.and_then(|half| before(half, is_half));
    wide.unwrap_or(value)
}

/// What a value is after it was rounded to half floats, where nobody else reads it.
pub(crate) fn rounded(editor: &Editor, value: ValueId) -> ValueId {
    let after = |value: ValueId| output(editor, editor.sole_user(value)?);
    let wide = after(value).and_then(after);
    wide.filter(|&wide| unrounded(editor, wide) == value)
        .unwrap_or(value)
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn output(editor: &Editor, at: usize) -> Option<ValueId> {
    editor.node(at).outputs.first().copied().flatten()
}

/// `0.5 * x * (1 + erf(x / sqrt 2))`
fn gelu_erf(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let Op::Unary(Unary::Erf) = editor.node(at).op else {
            return None;
        };
        let (x, scale) = scaled(editor, editor.node(at).input(0)?)?;
        if !near(scale, std::f32::consts::FRAC_1_SQRT_2) {
            return None;
        }
        Some((x, half_of_product(editor, x, output(editor, at)?)?))
    })();
    finish(editor, found, Activation::Gelu)
}

/// `0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`
fn gelu_tanh(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let Op::Unary(Unary::Activation(Activation::Tanh) | Unary::Tanh) = editor.node(at).op
        else {
            return None;
        };
        let (inner, scale) = scaled(editor, editor.node(at).input(0)?)?;
        if !near(scale, 0.797_884_6) {
            return None;
        }
        let [p, q] = operands(editor, editor.producer(inner)?, Binary::Add)?;
        let cubic = |x: ValueId, term: ValueId| {
            let (cube, factor) = scaled(editor, term)?;
            (near(factor, 0.044_715) && is_cube(editor, cube, x)).then_some(x)
        };
        let x = cubic(p, q).or_else(|| cubic(q, p))?;
        Some((x, half_of_product(editor, x, output(editor, at)?)?))
    })();
    finish(editor, found, Activation::GeluTanh)
}

fn is_cube(editor: &Editor, value: ValueId, x: ValueId) -> bool {
    let Some(at) = editor.producer(value) else {
        return false;
    };
    if let Some([base, exponent]) = operands(editor, at, Binary::Pow) {
        return base == x && editor.scalar(exponent) == Some(3.0);
    }
    let square = |v: ValueId| {
        editor
            .producer(v)
            .and_then(|at| operands(editor, at, Binary::Mul))
            == Some([x, x])
    };
    operands(editor, at, Binary::Mul)
        .and_then(|pair| other(pair, x))
        .is_some_and(square)
}

/// Follows `f` through `+ 1`, `* x` and `* 0.5` in any usual order; the last node of the chain.
fn half_of_product(editor: &Editor, x: ValueId, f: ValueId) -> Option<usize> {
    let plus_one = editor.sole_user(f)?;
    let (_, one) = with_scalar(editor, plus_one, Binary::Add)?;
    if !near(one, 1.0) {
        return None;
    }
    let t = output(editor, plus_one)?;
    let first = editor.sole_user(t)?;
    let pair = operands(editor, first, Binary::Mul)?;
    let factor = other(pair, t)?;
    let is_half = |v: ValueId| editor.scalar(v).is_some_and(|s| near(s, 0.5));
    if scaled(editor, factor).is_some_and(|(base, s)| base == x && near(s, 0.5)) {
        return Some(first);
    }
    let product = output(editor, first)?;
    let second = editor.sole_user(product)?;
    let last = other(operands(editor, second, Binary::Mul)?, product)?;
    ((factor == x && is_half(last)) || (is_half(factor) && last == x)).then_some(second)
}

fn finish(editor: &mut Editor, found: Option<(ValueId, usize)>, activation: Activation) -> bool {
    let Some((x, last)) = found else { return false };
    if editor.ty(x) != editor.ty(output(editor, last).expect("chain ends in a value")) {
        return false;
    }
    let node = Node {
        op: Op::Unary(Unary::Activation(activation)),
        inputs: vec![Some(x)],
        ..editor.node(last).clone()
    };
    // The chain's inner nodes lose their readers and are swept later.
    editor.replace(last, node, &[]);
    true
}

/// `x * sigmoid(x)`, `x * hard_sigmoid(x)`
fn gated(editor: &mut Editor, at: usize) -> bool {
    let Some(pair) = operands(editor, at, Binary::Mul) else {
        return false;
    };
    for (x, gate) in [(pair[0], pair[1]), (pair[1], pair[0])] {
        let Some(gate_at) = editor.producer(gate) else {
            continue;
        };
        if editor.node(gate_at).input(0) != Some(x) {
            continue;
        }
        let activation = match editor.node(gate_at).op {
            Op::Unary(Unary::Activation(Activation::Sigmoid)) => Activation::Silu,
            Op::Unary(Unary::Activation(Activation::HardSigmoid { alpha, beta }))
                if near(alpha, 1.0 / 6.0) && near(beta, 0.5) =>
            {
                Activation::HardSwish
            }
            _ => continue,
        };
        return finish(editor, Some((x, at)), activation);
    }
    false
}

/// `x * clip(x + 3, 0, 6) / 6`
fn hard_swish(editor: &mut Editor, at: usize) -> bool {
    let found = (|| {
        let value = output(editor, at)?;
        let (product, sixth) = scaled(editor, value)?;
        if !near(sixth, 1.0 / 6.0) {
            return None;
        }
        let [p, q] = operands(editor, editor.producer(product)?, Binary::Mul)?;
        let gate_of = |x: ValueId, gate: ValueId| {
            let clip = editor.producer(gate)?;
            let Op::Unary(Unary::Activation(Activation::Clip { low, high })) = editor.node(clip).op
            else {
                return None;
            };
            let shift = editor.producer(editor.node(clip).input(0)?)?;
            let (base, three) = with_scalar(editor, shift, Binary::Add)?;
            (base == x && low == 0.0 && high == 6.0 && three == 3.0).then_some(x)
        };
        Some((gate_of(p, q).or_else(|| gate_of(q, p))?, at))
    })();
    finish(editor, found, Activation::HardSwish)
}
