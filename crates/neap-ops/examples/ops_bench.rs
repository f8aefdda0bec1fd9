//! Prints how fast the operators without a kernel of their own move data: GB/s read and written.
//!
//! `cargo run --release -p neap-ops --example ops_bench`

use neap_ir::op::*;
use neap_ir::{Layout, Literal, Op, TensorType, infer};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::{Context, OperandForm, TensorMut, TensorRef, execute, workspace_bytes};
use std::time::{Duration, Instant};

fn x(shape: &[usize]) -> Literal {
    let n = shape.iter().product();
    let data: Vec<f32> = (0..n).map(|i| (i % 97) as f32 * 0.01 - 0.4).collect();
    Literal::from_f32(shape, &data)
}

fn bench(what: &str, op: Op, inputs: &[&Literal]) {
    let types: Vec<Option<TensorType>> = inputs.iter().map(|l| Some(l.ty())).collect();
    let out_types = infer::output_types(&op, &types, 1).expect("infers");
    let ins: Vec<OperandForm> = types
        .iter()
        .flatten()
        .map(|t| Some((t, Layout::Plain)))
        .collect();
    let outs: Vec<OperandForm> = out_types.iter().map(|t| Some((t, Layout::Plain))).collect();
    let isa = Isa::detect();
    let mut workspace = vec![0u8; workspace_bytes(&op, &ins, &outs, 1, isa)];
    let mut result = Literal::zeros(out_types[0].dtype, &out_types[0].shape);
    let bytes: usize = inputs.iter().map(|l| l.len_bytes()).sum::<usize>() + result.len_bytes();
    let refs: Vec<Option<TensorRef>> = types
        .iter()
        .flatten()
        .zip(inputs)
        .map(|(t, l)| TensorRef::from_bytes(t, l.bytes()))
        .collect();
    let muts = [TensorMut::from_bytes(&out_types[0], result.bytes_mut())];
    let mut best = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(100) {
        let mut ctx = Context {
            par: &Serial,
            isa,
            workspace: &mut workspace,
        };
        let start = Instant::now();
        execute(&op, &refs, None, &muts, &mut ctx).expect("runs");
        best = best.min(start.elapsed());
    }
    let rate = bytes as f64 / best.as_secs_f64() / 1e9;
    println!(
        "{what:<34} {:>9.1} us {rate:>7.2} GB/s",
        best.as_secs_f64() * 1e6
    );
}

fn main() {
    let tokens = x(&[1, 197, 12, 64]);
    let heads = x(&[1, 12, 197, 64]);
    let image = x(&[1, 64, 56, 56]);
    let wide = x(&[128, 768]);
    bench(
        "transpose heads",
        Op::Transpose {
            perm: vec![0, 2, 1, 3],
        },
        &[&tokens],
    );
    bench(
        "transpose keys",
        Op::Transpose {
            perm: vec![0, 1, 3, 2],
        },
        &[&heads],
    );
    bench(
        "transpose tokens to keys",
        Op::Transpose {
            perm: vec![0, 2, 3, 1],
        },
        &[&tokens],
    );
    bench(
        "transpose NCHW to NHWC",
        Op::Transpose {
            perm: vec![0, 2, 3, 1],
        },
        &[&image],
    );
    bench(
        "transpose 5 axes",
        Op::Transpose {
            perm: vec![2, 0, 3, 1, 4],
        },
        &[&x(&[1, 197, 3, 12, 64])],
    );
    bench("concat axis 2", Op::Concat { axis: 2 }, &[&image, &image]);
    let all = |len| SliceRange {
        start: 0,
        step: 1,
        len,
    };
    let ranges = vec![
        all(1),
        all(64),
        all(56),
        SliceRange {
            start: 0,
            step: 2,
            len: 28,
        },
    ];
    bench("slice every other column", Op::Slice { ranges }, &[&image]);
    bench(
        "expand",
        Op::Expand {
            shape: vec![8, 128, 768],
        },
        &[&wide],
    );
    let pads = vec![(0, 0), (0, 0), (1, 1), (1, 1)];
    bench(
        "pad",
        Op::Pad {
            mode: PadMode::Constant,
            pads: pads.clone(),
        },
        &[&image],
    );
    bench(
        "pad, reflect",
        Op::Pad {
            mode: PadMode::Reflect,
            pads,
        },
        &[&image],
    );
    let indices = Literal::from_i64(&[128], &(0..128).map(|i| i * 37 % 128).collect::<Vec<_>>());
    bench("gather rows", Op::Gather { axis: 0 }, &[&wide, &indices]);
    bench(
        "depth to space",
        Op::DepthToSpace {
            block: 2,
            column_row_depth: false,
        },
        &[&image],
    );
    for (what, axes) in [("rows", vec![1]), ("columns", vec![0])] {
        let op = |kind| Op::Reduce {
            kind,
            axes: axes.clone(),
            keep_dims: true,
        };
        bench(&format!("mean of {what}"), op(Reduce::Mean), &[&wide]);
        bench(&format!("maximum of {what}"), op(Reduce::Max), &[&wide]);
    }
    let axes = vec![2, 3];
    bench(
        "mean of images",
        Op::Reduce {
            kind: Reduce::Mean,
            axes,
            keep_dims: true,
        },
        &[&image],
    );
    bench("add", Op::Binary(Binary::Add), &[&wide, &wide]);
    bench(
        "add, odd broadcast",
        Op::Binary(Binary::Add),
        &[&x(&[1, 64, 1, 56]), &x(&[56, 1])],
    );
    bench("less", Op::Binary(Binary::Less), &[&wide, &wide]);
    let condition = Literal::zeros(neap_ir::DType::Bool, &[128, 768]);
    bench("where", Op::Where, &[&condition, &wide, &wide]);
    bench(
        "cast to int64",
        Op::Cast {
            to: neap_ir::DType::I64,
        },
        &[&wide],
    );
    bench(
        "softmax of columns",
        Op::Softmax {
            axis: 0,
            kind: Softmax::Softmax,
        },
        &[&wide],
    );
    bench(
        "argmax",
        Op::ArgReduce {
            largest: true,
            axis: 1,
            keep_dims: false,
            select_last: false,
        },
        &[&wide],
    );
    let window = Window {
        kernel: vec![3, 3],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![1, 1],
        pads_end: vec![1, 1],
    };
    bench(
        "unpacked convolution 64 to 64",
        Op::Conv(window.clone(), 1),
        &[&image, &x(&[64, 64, 3, 3])],
    );
    let transposed = Op::ConvTranspose {
        window: Window {
            strides: vec![2, 2],
            ..window
        },
        groups: 1,
        output_spatial: vec![111, 111],
    };
    bench(
        "transposed convolution 64 to 32",
        transposed,
        &[&image, &x(&[64, 32, 3, 3])],
    );
    bench(
        "einsum bhid,bhjd->bhij",
        Op::Einsum {
            equation: "bhid,bhjd->bhij".into(),
        },
        &[&heads, &heads],
    );
}
