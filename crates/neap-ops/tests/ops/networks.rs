//! Recurrent operators and attention against direct transcriptions of their formulas.

use crate::support::*;
use neap_ir::op::{AttentionAttrs, Direction, HeadLayout, Recurrent, RecurrentActivation};
use neap_ir::{Literal, Op};
use neap_ops::evaluate_outputs;

const SIGMOID: RecurrentActivation = RecurrentActivation::Sigmoid;
const TANH: RecurrentActivation = RecurrentActivation::Tanh;

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(x, y)| x * y).sum()
}

/// Parameters of one direction.
struct Case {
    steps: usize,
    input: usize,
    hidden: usize,
    gates: usize,
    x: Vec<f32>,
    w: Vec<f32>,
    r: Vec<f32>,
    b: Vec<f32>,
}

impl Case {
    fn new(steps: usize, input: usize, hidden: usize, gates: usize) -> Case {
        let some = |n: usize, seed| values(&noise(&[n], seed)).to_vec();
        Case {
            steps,
            input,
            hidden,
            gates,
            x: some(steps * input, 1),
            w: some(gates * hidden * input, 2),
            r: some(gates * hidden * hidden, 3),
            b: some(2 * gates * hidden, 4),
        }
    }

    fn literals(&self) -> [Literal; 4] {
        let rows = self.gates * self.hidden;
        [
            f32s(&[self.steps, 1, self.input], &self.x),
            f32s(&[1, rows, self.input], &self.w),
            f32s(&[1, rows, self.hidden], &self.r),
            f32s(&[1, 2 * rows], &self.b),
        ]
    }

    fn input_part(&self, t: usize, row: usize) -> f32 {
        let x = &self.x[t * self.input..][..self.input];
        dot(x, &self.w[row * self.input..][..self.input]) + self.b[row]
    }

    fn state_part(&self, h: &[f32], row: usize) -> f32 {
        let bias = self.b[self.gates * self.hidden + row];
        dot(h, &self.r[row * self.hidden..][..self.hidden]) + bias
    }

    fn pre(&self, t: usize, h: &[f32], gate: usize, j: usize) -> f32 {
        let row = gate * self.hidden + j;
        self.input_part(t, row) + self.state_part(h, row)
    }
}

fn recurrent(hidden: usize, activations: &[RecurrentActivation]) -> Recurrent {
    Recurrent {
        hidden,
        direction: Direction::Forward,
        activations: activations.to_vec(),
        clip: None,
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    }
}

fn run(op: &Op, inputs: &[&Literal], outputs: usize) -> Vec<Literal> {
    let inputs: Vec<Option<&Literal>> = inputs.iter().map(|&l| Some(l)).collect();
    evaluate_outputs(op, &inputs, outputs).expect("runs")
}

#[test]
fn lstm_follows_its_formula() {
    let case = Case::new(4, 3, 21, 4);
    let n = case.hidden;
    let [x, w, r, b] = case.literals();
    let p = noise(&[1, 3 * n], 7);
    let peep = values(&p);
    let (mut h, mut c) = (vec![0f32; n], vec![0f32; n]);
    let mut expected = Vec::new();
    for t in 0..case.steps {
        let old = h.clone();
        for j in 0..n {
            let i = sigmoid(case.pre(t, &old, 0, j) + peep[j] * c[j]);
            let f = sigmoid(case.pre(t, &old, 2, j) + peep[2 * n + j] * c[j]);
            c[j] = f * c[j] + i * case.pre(t, &old, 3, j).tanh();
            let o = sigmoid(case.pre(t, &old, 1, j) + peep[n + j] * c[j]);
            h[j] = o * c[j].tanh();
        }
        expected.extend(&h);
    }
    let lengths = i32s(&[1], &[4]);
    let zeros = f32s(&[1, 1, n], &vec![0.0; n]);
    let op = Op::Lstm(recurrent(n, &[SIGMOID, TANH, TANH]));
    let y = run(&op, &[&x, &w, &r, &b, &lengths, &zeros, &zeros, &p], 3);
    assert_close(&y[0], &expected, 1e-5);
    assert_close(&y[1], &h, 1e-5);
    assert_close(&y[2], &c, 1e-5);
}

#[test]
fn gru_resets_before_or_after() {
    let case = Case::new(3, 2, 18, 3);
    let n = case.hidden;
    let [x, w, r, b] = case.literals();
    for linear_before_reset in [false, true] {
        let mut h = vec![0f32; n];
        for t in 0..case.steps {
            let old = h.clone();
            let reset: Vec<f32> = (0..n).map(|j| sigmoid(case.pre(t, &old, 1, j))).collect();
            for j in 0..n {
                let z = sigmoid(case.pre(t, &old, 0, j));
                let row = 2 * n + j;
                let state = if linear_before_reset {
                    reset[j] * case.state_part(&old, row)
                } else {
                    let gated: Vec<f32> = old.iter().zip(&reset).map(|(h, r)| h * r).collect();
                    case.state_part(&gated, row)
                };
                let candidate = (case.input_part(t, row) + state).tanh();
                h[j] = (1.0 - z) * candidate + z * old[j];
            }
        }
        let op = Op::Gru {
            recurrent: recurrent(n, &[SIGMOID, TANH]),
            linear_before_reset,
        };
        assert_close(&run(&op, &[&x, &w, &r, &b], 2)[1], &h, 1e-5);
    }
}

#[test]
fn rnn_runs_both_ways_over_sequences_of_their_own_length() {
    // One hidden unit that adds inputs up: easy to follow.
    let affine = RecurrentActivation::Affine(1.0, 0.0);
    let mut attrs = recurrent(1, &[affine, affine]);
    attrs.direction = Direction::Bidirectional;
    let x = f32s(&[3, 2, 1], &[1.0, 10.0, 2.0, 20.0, 3.0, 30.0]);
    let ones = f32s(&[2, 1, 1], &[1.0, 1.0]);
    let bias = f32s(&[2, 2], &[0.0; 4]);
    let lengths = i32s(&[2], &[3, 2]);
    let y = run(
        &Op::Rnn(attrs.clone()),
        &[&x, &ones, &ones, &bias, &lengths],
        2,
    );
    assert_eq!(y[0].shape(), [3, 2, 2, 1]);
    let expected = [
        1.0, 10.0, 6.0, 30.0, 3.0, 30.0, 5.0, 20.0, 6.0, 0.0, 3.0, 0.0,
    ];
    assert_eq!(values(&y[0]), expected);
    assert_eq!(values(&y[1]), [6.0, 30.0, 6.0, 30.0]);
    // The same with the batch in front.
    attrs.batch_first = true;
    let x = f32s(&[2, 3, 1], &[1.0, 2.0, 3.0, 10.0, 20.0, 30.0]);
    let y = run(
        &Op::Rnn(attrs.clone()),
        &[&x, &ones, &ones, &bias, &lengths],
        2,
    );
    assert_eq!(y[0].shape(), [2, 3, 2, 1]);
    assert_eq!(
        values(&y[0]),
        [
            1.0, 6.0, 3.0, 5.0, 6.0, 3.0, 10.0, 30.0, 30.0, 20.0, 0.0, 0.0
        ]
    );
    assert_eq!(values(&y[1]), [6.0, 6.0, 30.0, 30.0]);
    let bad = i32s(&[2], &[3, 4]);
    let inputs = [&x, &ones, &ones, &bias, &bad].map(Some);
    assert!(evaluate_outputs(&Op::Rnn(attrs), &inputs, 1).is_err());
}

/// Sizes: batch, heads, key heads, queries, keys, depth.
const SIZES: [usize; 6] = [2, 4, 2, 5, 7, 3];

fn naive(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    causal: bool,
    mask: impl Fn(usize, usize) -> f32,
) -> Vec<f32> {
    let [batch, heads, kv_heads, queries, keys, depth] = SIZES;
    let mut out = Vec::new();
    for b in 0..batch {
        for h in 0..heads {
            let kv = b * kv_heads + h / (heads / kv_heads);
            for i in 0..queries {
                let row = &q[((b * heads + h) * queries + i) * depth..][..depth];
                let scores: Vec<f32> = (0..keys)
                    .map(|j| {
                        let hidden = causal && j > i;
                        let s = 0.5 * dot(row, &k[(kv * keys + j) * depth..][..depth]) + mask(i, j);
                        if hidden { 0.0 } else { s.exp() }
                    })
                    .collect();
                let total: f32 = scores.iter().sum();
                for d in 0..depth {
                    let sum: f32 = (0..keys)
                        .map(|j| scores[j] * v[(kv * keys + j) * depth + d])
                        .sum();
                    out.push(sum / total);
                }
            }
        }
    }
    out
}

/// `[B,H,S,D]` as the given layout has it.
fn laid_out(x: &Literal, layout: HeadLayout) -> Literal {
    let perm = match layout {
        HeadLayout::HeadMajor => return x.clone(),
        HeadLayout::RowMajor => vec![0, 2, 1, 3],
        HeadLayout::HeadMajorTransposed => vec![0, 1, 3, 2],
        HeadLayout::Packed { row, offset } => {
            let rows = laid_out(x, HeadLayout::RowMajor);
            let [b, s, h, d] = *rows.shape() else {
                unreachable!()
            };
            let flat = rows.reshaped(&[b, s, h * d]);
            let pads = vec![
                (0, 0),
                (0, 0),
                (offset as isize, (row - offset - h * d) as isize),
            ];
            let mode = neap_ir::op::PadMode::Constant;
            return one(&Op::Pad { mode, pads }, &[&flat]);
        }
    };
    one(&Op::Transpose { perm }, &[x])
}

#[test]
fn attention_in_every_layout() {
    let [batch, heads, kv_heads, queries, keys, depth] = SIZES;
    let q = noise(&[batch, heads, queries, depth], 1);
    let k = noise(&[batch, kv_heads, keys, depth], 2);
    let v = noise(&[batch, kv_heads, keys, depth], 3);
    let mask = noise(&[queries, keys], 4);
    let kept: Vec<bool> = (0..queries * keys).map(|i| i % 3 != 1).collect();
    use HeadLayout::{HeadMajor, HeadMajorTransposed, RowMajor};
    let packed = HeadLayout::Packed { row: 20, offset: 5 };
    for (ql, kl, vl, out) in [
        (HeadMajor, HeadMajor, HeadMajor, HeadMajor),
        (RowMajor, RowMajor, RowMajor, RowMajor),
        (HeadMajor, HeadMajorTransposed, HeadMajor, RowMajor),
        (
            HeadMajorTransposed,
            HeadMajor,
            HeadMajorTransposed,
            HeadMajorTransposed,
        ),
        (packed, RowMajor, packed, RowMajor),
    ] {
        for causal in [false, true] {
            let op = Op::Attention(AttentionAttrs {
                heads,
                kv_heads,
                scale: 0.5,
                causal,
                nan_is_zero: false,
                q: ql,
                k: kl,
                v: vl,
                out,
            });
            let operands = [laid_out(&q, ql), laid_out(&k, kl), laid_out(&v, vl)];
            let [a, b, c] = &operands;
            let check = |inputs: &[&Literal], expected: Vec<f32>| {
                let y = one(&op, inputs);
                let expected = laid_out(&f32s(&[batch, heads, queries, depth], &expected), out);
                assert_close(&y, values(&expected), 1e-5);
            };
            let (qv, kv, vv) = (values(&q), values(&k), values(&v));
            check(&[a, b, c], naive(qv, kv, vv, causal, |_, _| 0.0));
            check(
                &[a, b, c, &mask],
                naive(qv, kv, vv, causal, |i, j| values(&mask)[i * keys + j]),
            );
            let hide = |i: usize, j: usize| {
                if kept[i * keys + j] {
                    0.0
                } else {
                    f32::NEG_INFINITY
                }
            };
            check(
                &[a, b, c, &bools(&[queries, keys], &kept)],
                naive(qv, kv, vv, causal, hide),
            );
        }
    }
}

#[test]
fn outputs_nobody_reads_may_be_left_out() {
    use neap_ir::{Layout, TensorType};
    use neap_kernels::{parallel::Serial, simd::Isa};
    use neap_ops::*;
    // Only the second output is wanted.
    let only_second = |op: &Op, inputs: &[Literal]| {
        let types: Vec<TensorType> = inputs.iter().map(Literal::ty).collect();
        let optional: Vec<Option<TensorType>> = types.iter().cloned().map(Some).collect();
        let ty = neap_ir::infer::output_types(op, &optional, 2)
            .expect("infers")
            .remove(1);
        let ins: Vec<OperandForm> = types.iter().map(|t| Some((t, Layout::Plain))).collect();
        let outs = [None, Some((&ty, Layout::Plain))];
        supported(op, &ins, &outs).expect("supported");
        let isa = Isa::detect();
        let mut workspace = vec![0; workspace_bytes(op, &ins, &outs, 1, isa)];
        let mut result = Literal::zeros(ty.dtype, &ty.shape);
        let refs: Vec<Option<TensorRef>> = inputs
            .iter()
            .zip(&types)
            .map(|(l, t)| TensorRef::from_bytes(t, l.bytes()))
            .collect();
        let muts = [None, TensorMut::from_bytes(&ty, result.bytes_mut())];
        let mut ctx = Context {
            par: &Serial,
            isa,
            workspace: &mut workspace,
        };
        execute(op, &refs, None, &muts, &mut ctx).expect("runs");
        result
    };
    let case = Case::new(3, 2, 5, 1);
    let op = Op::Rnn(recurrent(5, &[TANH]));
    let inputs = case.literals();
    let all = run(&op, &inputs.iter().collect::<Vec<_>>(), 2);
    assert_eq!(only_second(&op, &inputs), all[1]);
    let op = Op::Split {
        axis: 0,
        sizes: vec![1, 3],
    };
    assert_eq!(values(&only_second(&op, &[ramp(&[4])])), [1.0, 2.0, 3.0]);
    let op = Op::TopK {
        axis: 0,
        k: 2,
        largest: true,
        sorted: true,
    };
    assert_eq!(ints(&only_second(&op, &[ramp(&[4])])), [3, 2]);
}
