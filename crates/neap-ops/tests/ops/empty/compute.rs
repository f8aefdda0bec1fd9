//! Products, reductions, norms, windows, recurrent layers, attention, transforms, and what classical models do.

use super::{Case, Draw, check};
use neap_ir::learned::{Aggregate, Branch, Gram, Test, TfIdf, TreeNode, Trees, Vote, Weighting};
use neap_ir::op::{
    AttentionAttrs, Direction, HeadLayout, Pool, Recurrent, RecurrentActivation, Reduce, Softmax,
    Window,
};
use neap_ir::sampling::Sampling;
use neap_ir::spectrum::{Dft, Stft};
use neap_ir::{DType, Literal, Op};

#[test]
fn products() {
    let types = [DType::F32, DType::F32, DType::F64, DType::I32];
    check("matmul", 300, |d| {
        let [m, k, n] = [d.size(), d.size(), d.size()];
        let lead = d.shape(2);
        let part = |d: &mut Draw| {
            let sizes = lead[d.below(3)..].iter().copied();
            sizes
                .map(|size| if d.below(3) == 0 { 1 } else { size })
                .collect::<Vec<_>>()
        };
        let (mut a, mut b) = (part(d), part(d));
        a.extend([m, k]);
        b.extend([k, n]);
        let dtype = d.pick(&types);
        Case::of(Op::MatMul, vec![d.tensor(dtype, &a), d.tensor(dtype, &b)]).of_nothing(0.0)
    });
    check("gemm", 300, |d| {
        let [m, k, n] = [d.size(), d.size(), d.size()];
        let (trans_a, trans_b, dtype) = (d.flag(), d.flag(), d.pick(&types));
        let a = if trans_a { [k, m] } else { [m, k] };
        let b = if trans_b { [n, k] } else { [k, n] };
        let op = Op::Gemm {
            alpha: 0.5,
            beta: 2.0,
            trans_a,
            trans_b,
        };
        let mut inputs = vec![d.tensor(dtype, &a), d.tensor(dtype, &b)];
        if d.flag() {
            let c = d.pick(&[vec![], vec![n], vec![m, 1], vec![m, n]]);
            inputs.push(d.tensor(dtype, &c));
            return Case::of(op, inputs);
        }
        Case::of(op, inputs).of_nothing(0.0)
    });
    const EQUATIONS: [&str; 16] = [
        "bij,bjk->bik",
        "bij,bjk->bki",
        "ij,jk->ik",
        "ij,kj->ik",
        "ij,ij->",
        "ij,ij->ij",
        "i,j->ij",
        "ijk,ikl->jl",
        "bhid,bhjd->bhij",
        "bhij,bjhd->bihd",
        "...ij,...jk->...ik",
        "ii,ij->j",
        "ij->ji",
        "ij->i",
        "ij,jk,kl->il",
        "abc,cde,ea->bd",
    ];
    check("einsum", 1000, |d| {
        let equation = d.pick(&EQUATIONS);
        let sizes: Vec<usize> = (0..26).map(|_| d.size()).collect();
        let lead = d.shape(2);
        let mut shapes = Vec::new();
        for term in equation.split("->").next().expect("a left side").split(',') {
            let mut shape = Vec::new();
            if term.starts_with("...") {
                shape.extend(&lead[d.below(3)..]);
            }
            for letter in term.bytes().filter(u8::is_ascii_lowercase) {
                // An axis of one element broadcasts.
                let size = sizes[usize::from(letter - b'a')];
                shape.push(if d.below(6) == 0 { 1 } else { size });
            }
            shapes.push(shape);
        }
        let dtype = d.pick(&types);
        let inputs = shapes.iter().map(|shape| d.tensor(dtype, shape)).collect();
        let equation = equation.to_string();
        Case::of(Op::Einsum { equation }, inputs).of_nothing(0.0)
    });
}

#[test]
fn reductions() {
    let kinds = [
        (Reduce::Sum, 0.0),
        (Reduce::Mean, f64::NAN),
        (Reduce::Max, f64::NEG_INFINITY),
        (Reduce::Min, f64::INFINITY),
        (Reduce::Prod, 1.0),
        (Reduce::L1, 0.0),
        (Reduce::L2, 0.0),
        (Reduce::LogSum, f64::NEG_INFINITY),
        (Reduce::LogSumExp, f64::NEG_INFINITY),
        (Reduce::SumSquare, 0.0),
    ];
    let axes_of = |d: &mut Draw| (0..3).filter(|_| d.flag()).collect::<Vec<usize>>();
    check("reduce floats", 500, |d| {
        let (shape, axes, keep_dims) = (d.shape(3), axes_of(d), d.flag());
        let (kind, of_nothing) = d.pick(&kinds);
        let op = Op::Reduce {
            kind,
            axes,
            keep_dims,
        };
        let dtype = d.pick(&[DType::F32, DType::F64, DType::F16]);
        Case::of(op, vec![d.tensor(dtype, &shape)]).of_nothing(of_nothing)
    });
    check("reduce integers", 300, |d| {
        let (shape, axes, keep_dims) = (d.shape(3), axes_of(d), d.flag());
        let (kind, _) = d.pick(&kinds);
        let op = Op::Reduce {
            kind,
            axes,
            keep_dims,
        };
        let dtype = d.pick(&[DType::I8, DType::U8, DType::I32, DType::I64, DType::U64]);
        Case::of(op, vec![d.tensor(dtype, &shape)])
    });
    check("largest and smallest", 200, |d| {
        let shape = d.shape(3);
        let op = Op::ArgReduce {
            largest: d.flag(),
            axis: d.below(3),
            keep_dims: d.flag(),
            select_last: d.flag(),
        };
        Case::of(op, vec![d.floats(&shape)])
    });
    check("the first few", 200, |d| {
        let (shape, axis) = (d.shape(3), d.below(3));
        let op = Op::TopK {
            axis,
            k: d.below(shape[axis] + 1),
            largest: d.flag(),
            sorted: d.flag(),
        };
        Case::of(op, vec![d.floats(&shape)]).giving(2)
    });
    check("running sums", 200, |d| {
        let (shape, dtype) = (d.shape(3), d.pick(&[DType::F32, DType::I64]));
        let op = Op::CumSum {
            axis: d.below(3),
            exclusive: d.flag(),
            reverse: d.flag(),
        };
        Case::of(op, vec![d.tensor(dtype, &shape)])
    });
}

#[test]
fn norms() {
    let dtypes = [DType::F32, DType::F32, DType::F64];
    check("softmax", 200, |d| {
        let (shape, dtype) = (d.shape(3), d.pick(&dtypes));
        let kind = d.pick(&[Softmax::Softmax, Softmax::LogSoftmax, Softmax::Hardmax]);
        let axis = d.below(3);
        Case::of(Op::Softmax { axis, kind }, vec![d.tensor(dtype, &shape)])
    });
    check("norms of lines", 300, |d| {
        let (shape, dtype, axis, epsilon) = (d.shape(3), d.pick(&dtypes), d.below(3), 1e-5);
        let x = d.tensor(dtype, &shape);
        let [scale, bias] = [(); 2].map(|()| d.tensor(dtype, &shape[axis..]));
        match d.below(3) {
            0 => Case::of(Op::LayerNorm { axis, epsilon }, vec![x, scale, bias]).giving(3),
            1 => Case::of(Op::RmsNorm { axis, epsilon }, vec![x, scale]),
            _ => {
                let p = 1 + d.below(2) as u32;
                Case::of(Op::LpNorm { axis, p }, vec![x])
            }
        }
    });
    check("norms of channels", 300, |d| {
        let (mut shape, dtype, epsilon) = (d.shape(4), d.pick(&dtypes), 1e-5);
        let groups = 1 + d.below(2);
        shape[1] *= groups;
        let x = d.tensor(dtype, &shape);
        let [scale, bias, mean, variance] = [(); 4].map(|()| d.tensor(dtype, &shape[1..2]));
        match d.below(5) {
            0 => Case::of(
                Op::BatchNorm { epsilon },
                vec![x, scale, bias, mean, variance],
            ),
            1 => Case::of(Op::InstanceNorm { epsilon }, vec![x, scale, bias]),
            2 => {
                let op = Op::GroupNorm {
                    groups,
                    epsilon,
                    per_group: false,
                };
                Case::of(op, vec![x, scale, bias])
            }
            // Nothing has no statistics to train with.
            3 if x.elements() > 0 || shape[1] == 0 => {
                Case::of(Op::BatchNormTraining { epsilon }, vec![x, scale, bias]).giving(3)
            }
            _ => {
                let op = Op::Lrn {
                    alpha: 1e-4,
                    beta: 0.75,
                    bias: 1.0,
                    size: 3,
                };
                Case::of(op, vec![x])
            }
        }
    });
}

pub(super) fn window(d: &mut Draw, axes: usize, pads: usize) -> Window {
    let mut list = |low: usize, high: usize| {
        (0..axes)
            .map(|_| low + d.below(high - low + 1))
            .collect::<Vec<_>>()
    };
    Window {
        kernel: list(1, 3),
        strides: list(1, 2),
        dilations: list(1, 2),
        pads_begin: list(0, pads),
        pads_end: list(0, pads),
    }
}

/// Room that is enough for a window, or none in the axes before.
fn windowed(d: &mut Draw, axes: usize) -> Vec<usize> {
    let mut shape = d.shape(2);
    shape.extend((0..axes).map(|_| d.pick(&[0, 1, 3, 6, 9])));
    shape
}

#[test]
fn windows() {
    check("convolution", 400, |d| {
        let axes = 1 + d.below(3);
        let (mut x, window, groups) = (windowed(d, axes), window(d, axes, 2), 1 + d.below(2));
        let mut w = vec![groups * d.pick(&[0, 1, 5]), x[1]];
        x[1] *= groups;
        w.extend(&window.kernel);
        let dtype = d.pick(&[DType::F32, DType::F32, DType::F64]);
        let case = Case::of(
            Op::Conv(window, groups),
            vec![d.tensor(dtype, &x), d.tensor(dtype, &w)],
        );
        case.of_nothing(0.0)
    });
    check("transposed convolution", 400, |d| {
        let axes = 1 + d.below(2);
        let (mut x, mut window, groups) = (windowed(d, axes), window(d, axes, 0), 1 + d.below(2));
        x[1] *= groups;
        window.pads_end = vec![0; axes];
        let mut w = vec![x[1], d.pick(&[0, 1, 5])];
        w.extend(&window.kernel);
        let spatial = (0..axes).map(|i| {
            x[i + 2].saturating_sub(1) * window.strides[i]
                + (window.kernel[i] - 1) * window.dilations[i]
                + 1
        });
        let op = Op::ConvTranspose {
            output_spatial: spatial.collect(),
            window,
            groups,
        };
        let dtype = d.pick(&[DType::F32, DType::F32, DType::F64]);
        Case::of(op, vec![d.tensor(dtype, &x), d.tensor(dtype, &w)]).of_nothing(0.0)
    });
    check("pooling", 400, |d| {
        let axes = 1 + d.below(3);
        let (x, window) = (windowed(d, axes), window(d, axes, 1));
        let kind = d.pick(&[
            Pool::Max {
                column_major: false,
            },
            Pool::Max { column_major: true },
            Pool::Average {
                count_include_pad: true,
            },
            Pool::Average {
                count_include_pad: false,
            },
            Pool::Lp { p: 2 },
        ]);
        let ceil = d.flag();
        let spatial = (0..axes).map(|i| {
            let pads = neap_ir::infer::Pads {
                begin: window.pads_begin[i],
                end: window.pads_end[i],
            };
            let (kernel, stride, dilation) =
                (window.kernel[i], window.strides[i], window.dilations[i]);
            neap_ir::infer::pool_output_size(x[i + 2], kernel, stride, dilation, pads, ceil)
                .unwrap_or(0)
        });
        let op = Op::Pool {
            kind,
            output_spatial: spatial.collect(),
            window,
        };
        let outputs = if matches!(kind, Pool::Max { .. }) {
            2
        } else {
            1
        };
        Case::of(op, vec![d.floats(&x)]).giving(outputs)
    });
    check("global pooling", 100, |d| {
        let x = d.shape(4);
        let (kind, of_nothing) = d.pick(&[
            (
                Pool::Max {
                    column_major: false,
                },
                f64::NEG_INFINITY,
            ),
            (
                Pool::Average {
                    count_include_pad: false,
                },
                f64::NAN,
            ),
            (Pool::Lp { p: 2 }, 0.0),
        ]);
        Case::of(Op::GlobalPool(kind), vec![d.floats(&x)]).of_nothing(of_nothing)
    });
    check("deformed convolution", 200, |d| {
        let (mut x, window, groups) = (windowed(d, 2), window(d, 2, 2), 1 + d.below(2));
        let mut w = vec![groups * d.pick(&[0, 1, 5]), x[1]];
        x[1] *= groups;
        w.extend(&window.kernel);
        let size = |i: usize| {
            let pads = neap_ir::infer::Pads {
                begin: window.pads_begin[i],
                end: window.pads_end[i],
            };
            let (kernel, stride, dilation) =
                (window.kernel[i], window.strides[i], window.dilations[i]);
            neap_ir::infer::conv_output_size(x[i + 2], kernel, stride, dilation, pads).unwrap_or(0)
        };
        let taps = window.kernel.iter().product::<usize>();
        let offsets = [x[0], taps * 2, size(0), size(1)];
        let of = Sampling::DeformConv {
            window,
            groups,
            offset_groups: 1,
        };
        Case::of(
            Op::Sampling(of),
            vec![d.floats(&x), d.floats(&w), d.floats(&offsets)],
        )
        .of_nothing(0.0)
    });
}

#[test]
fn recurrent_layers() {
    check("recurrent", 300, |d| {
        let [steps, batch, input, hidden] = [d.size(), d.size(), d.size(), d.pick(&[1, 5, 16])];
        let direction = d.pick(&[
            Direction::Forward,
            Direction::Reverse,
            Direction::Bidirectional,
        ]);
        let directions = if direction == Direction::Bidirectional {
            2
        } else {
            1
        };
        let cell = d.below(3);
        let (gates, each) = [(4, 3), (3, 2), (1, 1)][cell];
        let recurrent = Recurrent {
            hidden,
            direction,
            activations: vec![RecurrentActivation::Tanh; each * directions],
            clip: None,
            couple_input_forget: false,
            batch_first: d.flag(),
            rounds_state: false,
            in_panels: false,
        };
        let x = match recurrent.batch_first {
            true => [batch, steps, input],
            false => [steps, batch, input],
        };
        let dtype = d.pick(&[DType::F32, DType::F64]);
        let rows = gates * hidden;
        let inputs = vec![
            d.tensor(dtype, &x),
            d.tensor(dtype, &[directions, rows, input]),
            d.tensor(dtype, &[directions, rows, hidden]),
        ];
        let op = match cell {
            0 => Op::Lstm(recurrent),
            1 => Op::Gru {
                recurrent,
                linear_before_reset: d.flag(),
            },
            _ => Op::Rnn(recurrent),
        };
        Case::of(op, inputs).giving(if cell == 0 { 3 } else { 2 })
    });
}

pub(super) fn attention(d: &mut Draw) -> (AttentionAttrs, Vec<Literal>) {
    let [batch, queries, keys, depth] = [d.size(), d.size(), d.size(), d.size()];
    let kv_heads = 1 + d.below(2);
    let heads = kv_heads * (1 + d.below(2));
    let operand = |d: &mut Draw, heads: usize, rows: usize, depth: usize, is_key: bool| {
        let layouts = [
            HeadLayout::HeadMajor,
            HeadLayout::RowMajor,
            HeadLayout::HeadMajorTransposed,
        ];
        let layout = layouts[d.below(if is_key { 3 } else { 2 })];
        let shape = match layout {
            HeadLayout::RowMajor => vec![batch, rows, heads, depth],
            HeadLayout::HeadMajorTransposed => vec![batch, heads, depth, rows],
            _ => vec![batch, heads, rows, depth],
        };
        (layout, d.floats(&shape))
    };
    let q = operand(d, heads, queries, depth, false);
    let k = operand(d, kv_heads, keys, depth, true);
    let value_depth = d.pick(&[depth, 0, 3]);
    let v = operand(d, kv_heads, keys, value_depth, false);
    let attrs = AttentionAttrs {
        heads,
        kv_heads,
        scale: 0.5,
        causal: d.flag(),
        nan_is_zero: false,
        q: q.0,
        k: k.0,
        v: v.0,
        out: d.pick(&[HeadLayout::HeadMajor, HeadLayout::RowMajor]),
    };
    let mut inputs = vec![q.1, k.1, v.1];
    if d.flag() {
        let dtype = d.pick(&[DType::F32, DType::Bool]);
        inputs.push(d.tensor(dtype, &[queries, keys]));
    }
    (attrs, inputs)
}

#[test]
fn heads() {
    check("attention", 400, |d| {
        let (attrs, inputs) = attention(d);
        Case::of(Op::Attention(attrs), inputs)
    });
}

#[test]
fn transforms() {
    check("determinant", 50, |d| {
        let (mut shape, n) = (d.shape(1), d.pick(&[0, 1, 3]));
        shape.extend([n, n]);
        let case = Case::of(Op::Det, vec![d.floats(&shape)]);
        if n == 0 { case.of_nothing(1.0) } else { case }
    });
    check("fourier", 100, |d| {
        let (mut shape, axis) = (d.shape(2), d.below(2));
        shape.push(1 + d.below(2));
        let dft = Dft {
            axis,
            length: d.pick(&[1, 3, 8]),
            inverse: d.flag(),
            onesided: false,
        };
        Case::of(Op::Dft(dft), vec![d.floats(&shape)]).of_nothing(0.0)
    });
    check("short fourier", 100, |d| {
        let (batch, length) = (d.size(), d.pick(&[0, 4, 9]));
        let stft = Stft {
            frame: 4,
            step: 2,
            onesided: true,
        };
        Case::of(
            Op::Stft(stft),
            vec![d.floats(&[batch, length, 1]), d.floats(&[4])],
        )
    });
}

#[test]
fn learned() {
    check("n-grams", 100, |d| {
        let (rank, shape) = (1 + d.below(2), d.shape(2));
        let of = TfIdf {
            weighting: Weighting::Tf,
            lengths: (1, 1),
            max_skip: 0,
            grams: vec![Gram {
                items: vec![1],
                place: 0,
                weight: 1.0,
            }],
            width: 2,
        };
        Case::of(
            Op::TfIdf(Box::new(of)),
            vec![d.tensor(DType::I64, &shape[..rank])],
        )
    });
    check("trees", 50, |d| {
        let rows = d.size();
        let vote = |weight: f64| Vote { target: 0, weight };
        let of = Trees {
            aggregate: Aggregate::Sum,
            targets: 1,
            features: 2,
            roots: vec![Branch::Node(0)],
            nodes: vec![TreeNode {
                feature: 1,
                test: Test::Less,
                value: 0.5,
                missing_passes: false,
                passed: Branch::Leaf(0),
                failed: Branch::Leaf(1),
            }],
            leaves: vec![1, 2],
            votes: vec![vote(1.0), vote(2.0)],
            members: Vec::new(),
        };
        Case::of(Op::Trees(Box::new(of)), vec![d.floats(&[rows, 2])])
    });
}
