//! Inference on ordinary, odd and hostile operators.

use super::*;
use crate::op::*;

fn f32s(shape: &[usize]) -> Option<TensorType> {
    Some(TensorType::new(DType::F32, shape))
}

fn i64s(shape: &[usize]) -> Option<TensorType> {
    Some(TensorType::new(DType::I64, shape))
}

fn shape(op: &Op, inputs: &[Option<TensorType>]) -> Option<Vec<usize>> {
    let types = output_types(op, inputs, 1).ok()?;
    Some(types[0].shape.clone())
}

fn window(kernel: &[usize], stride: usize, dilation: usize, pad: usize) -> Window {
    Window {
        kernel: kernel.to_vec(),
        strides: vec![stride; kernel.len()],
        dilations: vec![dilation; kernel.len()],
        pads_begin: vec![pad; kernel.len()],
        pads_end: vec![pad; kernel.len()],
    }
}

#[test]
fn broadcasting() {
    type Case<'a> = (&'a [usize], &'a [usize], Option<&'a [usize]>);
    let table: [Case; 6] = [
        (&[2, 3], &[3], Some(&[2, 3])),
        (&[2, 1], &[1, 5], Some(&[2, 5])),
        (&[], &[4], Some(&[4])),
        (&[0, 3], &[1, 3], Some(&[0, 3])),
        (&[0], &[2], None),
        (&[2], &[3], None),
    ];
    for (a, b, expected) in table {
        assert_eq!(broadcast(a, b).as_deref(), expected, "{a:?} {b:?}");
    }
}

#[test]
fn window_sizes() {
    let pads = |begin, end| Pads { begin, end };
    assert_eq!(conv_output_size(224, 7, 2, 1, pads(3, 3)), Some(112));
    assert_eq!(conv_output_size(5, 3, 1, 2, pads(0, 0)), Some(1));
    assert_eq!(conv_output_size(4, 3, 1, 2, pads(0, 0)), None);
    assert_eq!(conv_output_size(4, 3, 0, 1, pads(0, 0)), None);
    assert_eq!(conv_output_size(usize::MAX, 3, 1, 1, pads(1, 1)), None);
    // ceil_mode: the last window must begin inside the input or its leading pad.
    assert_eq!(pool_output_size(4, 3, 2, 1, pads(0, 0), true), Some(2));
    assert_eq!(pool_output_size(2, 1, 2, 1, pads(0, 0), true), Some(1));
    assert_eq!(pool_output_size(112, 3, 2, 1, pads(0, 0), true), Some(56));
    // Its only window reaches beyond the input by less than the stride.
    assert_eq!(pool_output_size(1, 2, 2, 1, pads(0, 0), true), Some(1));
    assert_eq!(pool_output_size(2, 4, 3, 1, pads(0, 0), true), Some(1));
    assert_eq!(pool_output_size(1, 4, 2, 1, pads(0, 0), true), None);
    assert_eq!(pool_output_size(1, 2, 1, 1, pads(0, 0), true), None);
    assert_eq!(pool_output_size(1, 2, 2, 1, pads(0, 0), false), None);
    assert_eq!(pool_output_size(0, 1, 2, 1, pads(0, 0), true), Some(0));
    assert_eq!(pool_output_size(4, 2, 0, 1, pads(0, 0), true), None);
    assert_eq!(
        conv_transpose_output_size(3, 3, 2, 1, pads(0, 0), 1),
        Some(8)
    );
    assert_eq!(conv_transpose_output_size(0, 3, 2, 1, pads(0, 0), 0), None);
}

#[test]
fn automatic_pads() {
    let same = |mode, input| resolve_pads(mode, input, 3, 2, 1);
    assert_eq!(same(AutoPad::SameUpper, 6), Some(Pads { begin: 0, end: 1 }));
    assert_eq!(same(AutoPad::SameLower, 6), Some(Pads { begin: 1, end: 0 }));
    assert_eq!(same(AutoPad::SameUpper, 7), Some(Pads { begin: 1, end: 1 }));
    assert_eq!(same(AutoPad::Valid, 7), Some(Pads::default()));
    assert_eq!(
        resolve_pads(AutoPad::SameUpper, 4, 1, 3, 1),
        Some(Pads::default())
    );
    let pads = resolve_transposed_pads(Some(AutoPad::SameUpper), 3, 3, 2, 1, 0, 6);
    assert_eq!(pads, Some(Pads { begin: 0, end: 1 }));
    let pads = resolve_transposed_pads(None, 3, 3, 2, 1, 0, 6);
    assert_eq!(pads, Some(Pads { begin: 1, end: 0 }));
}

#[test]
fn products() {
    let matmul = |a: &[usize], b: &[usize]| shape(&Op::MatMul, &[f32s(a), f32s(b)]);
    assert_eq!(matmul(&[2, 1, 3, 4], &[5, 4, 6]), Some(vec![2, 5, 3, 6]));
    assert_eq!(matmul(&[4], &[4]), Some(vec![]));
    assert_eq!(matmul(&[4], &[2, 4, 3]), Some(vec![2, 3]));
    assert_eq!(matmul(&[2, 3], &[2, 3]), None);
    assert_eq!(matmul(&[], &[3]), None);
    let einsum = |equation: &str, inputs: &[Option<TensorType>]| {
        let equation = equation.into();
        shape(&Op::Einsum { equation }, inputs)
    };
    let pair = [f32s(&[2, 3, 4]), f32s(&[2, 4, 5])];
    assert_eq!(einsum("bij,bjk->bik", &pair), Some(vec![2, 3, 5]));
    assert_eq!(einsum("...ij,...jk", &pair), Some(vec![2, 3, 5]));
    assert_eq!(einsum("bij,bjk", &pair), Some(vec![3, 5]));
    for bad in [
        "bij,bik->bk",
        "bij->b",
        "bij,bjk->zz",
        "bij,bjk->q",
        "b.j,bjk->b",
        "bijk,bjk->b",
    ] {
        assert_eq!(einsum(bad, &pair), None, "{bad}");
    }
}

#[test]
fn windows() {
    let conv = |w: Window, groups, x: &[usize], k: &[usize]| {
        shape(&Op::Conv(w, groups), &[f32s(x), f32s(k)])
    };
    let w = window(&[3, 3], 2, 1, 1);
    assert_eq!(
        conv(w.clone(), 1, &[1, 3, 8, 9], &[7, 3, 3, 3]),
        Some(vec![1, 7, 4, 5])
    );
    assert_eq!(
        conv(w.clone(), 2, &[1, 4, 8, 8], &[6, 2, 3, 3]),
        Some(vec![1, 6, 4, 4])
    );
    assert_eq!(conv(w.clone(), 0, &[1, 4, 8, 8], &[6, 2, 3, 3]), None);
    assert_eq!(conv(w.clone(), 2, &[1, 4, 8, 8], &[5, 2, 3, 3]), None);
    assert_eq!(conv(w.clone(), 1, &[1, 3, 8], &[7, 3, 3]), None);
    let huge = window(&[3, 3], 1, usize::MAX, 1);
    assert_eq!(conv(huge, 1, &[1, 3, 8, 8], &[7, 3, 3, 3]), None);
    let none = window(&[3, 3], 0, 1, 1);
    assert_eq!(conv(none, 1, &[1, 3, 8, 8], &[7, 3, 3, 3]), None);
    let pool = |output: usize| {
        let kind = Pool::Max {
            column_major: false,
        };
        let op = Op::Pool {
            kind,
            window: window(&[3, 3], 2, 1, 0),
            output_spatial: vec![output; 2],
        };
        shape(&op, &[f32s(&[1, 2, 8, 8])])
    };
    assert_eq!(pool(3), Some(vec![1, 2, 3, 3]));
    assert_eq!(pool(4), Some(vec![1, 2, 4, 4]));
    assert_eq!(pool(5), None);
}

#[test]
fn movement() {
    let x = [f32s(&[2, 3, 4])];
    let slice = |start, step, len| {
        let all = |len| SliceRange {
            start: 0,
            step: 1,
            len,
        };
        let ranges = vec![all(2), all(3), SliceRange { start, step, len }];
        shape(&Op::Slice { ranges }, &x)
    };
    assert_eq!(slice(3, -1, 4), Some(vec![2, 3, 4]));
    assert_eq!(slice(3, -1, 5), None);
    assert_eq!(slice(0, 3, 2), Some(vec![2, 3, 2]));
    assert_eq!(slice(0, isize::MAX, 2), None);
    assert_eq!(slice(9, 1, 0), Some(vec![2, 3, 0]));
    assert_eq!(slice(0, 1, usize::MAX), None);
    let transpose = |perm: &[usize]| {
        shape(
            &Op::Transpose {
                perm: perm.to_vec(),
            },
            &x,
        )
    };
    assert_eq!(transpose(&[2, 0, 1]), Some(vec![4, 2, 3]));
    assert_eq!(transpose(&[2, 2, 1]), None);
    assert_eq!(transpose(&[2, 0]), None);
    let gather =
        |axis, indices: &[usize]| shape(&Op::Gather { axis }, &[f32s(&[2, 3]), i64s(indices)]);
    assert_eq!(gather(1, &[]), Some(vec![2]));
    assert_eq!(gather(0, &[4, 5]), Some(vec![4, 5, 3]));
    assert_eq!(gather(2, &[4]), None);
    let pad = |mode, pads: &[(isize, isize)]| {
        shape(
            &Op::Pad {
                mode,
                pads: pads.to_vec(),
            },
            &[f32s(&[3])],
        )
    };
    assert_eq!(pad(PadMode::Constant, &[(-2, 4)]), Some(vec![5]));
    assert_eq!(pad(PadMode::Constant, &[(-2, -2)]), None);
    assert_eq!(pad(PadMode::Edge, &[(-3, 1)]), None);
    assert_eq!(pad(PadMode::Constant, &[(isize::MAX, isize::MAX)]), None);
    assert_eq!(pad(PadMode::Constant, &[(isize::MIN, isize::MIN)]), None);
    let split = |sizes: &[usize]| {
        output_types(
            &Op::Split {
                axis: 2,
                sizes: sizes.to_vec(),
            },
            &x,
            sizes.len(),
        )
    };
    assert_eq!(split(&[1, 3]).expect("splits")[1].shape, [2, 3, 3]);
    assert!(split(&[usize::MAX, 5]).is_err());
    let nd = |x: &[usize], i: &[usize], batch_dims| {
        shape(&Op::GatherNd { batch_dims }, &[f32s(x), i64s(i)])
    };
    assert_eq!(nd(&[2, 3, 4], &[2, 5, 1], 1), Some(vec![2, 5, 4]));
    assert_eq!(nd(&[2, 3, 4], &[2, 5, 3], 1), None);
    assert_eq!(nd(&[2, 3], &[2, 1], usize::MAX), None);
}

#[test]
fn sizes_may_not_overflow() {
    let big = usize::MAX / 2;
    assert_eq!(
        shape(
            &Op::Tile {
                repeats: vec![big, 4]
            },
            &[f32s(&[3, 3])]
        ),
        None
    );
    assert_eq!(
        shape(
            &Op::Expand {
                shape: vec![1 << 40, 1 << 20]
            },
            &[f32s(&[1, 1])]
        ),
        None
    );
    assert_eq!(
        shape(
            &Op::OneHot {
                axis: 1,
                depth: big
            },
            &[i64s(&[8]), f32s(&[2])]
        ),
        None
    );
    let op = Op::DepthToSpace {
        block: big,
        column_row_depth: false,
    };
    assert_eq!(shape(&op, &[f32s(&[1, 4, 2, 2])]), None);
    assert_eq!(
        shape(&Op::SpaceToDepth { block: 0 }, &[f32s(&[1, 4, 2, 2])]),
        None
    );
}

#[test]
fn dtypes_are_checked() {
    let bools = || Some(TensorType::new(DType::Bool, &[2]));
    let two = |op, a, b| {
        output_types(&Op::Binary(op), &[a, b], 1)
            .map(|t| t[0].dtype)
            .ok()
    };
    assert_eq!(two(Binary::Less, f32s(&[2]), f32s(&[2])), Some(DType::Bool));
    assert_eq!(two(Binary::Add, f32s(&[2]), i64s(&[2])), None);
    assert_eq!(two(Binary::Add, bools(), bools()), None);
    assert_eq!(two(Binary::And, bools(), bools()), Some(DType::Bool));
    assert_eq!(two(Binary::Pow, i64s(&[2]), f32s(&[2])), Some(DType::I64));
    assert_eq!(two(Binary::ShiftLeft, i64s(&[2]), i64s(&[2])), None);
    assert_eq!(two(Binary::PRelu, f32s(&[1]), f32s(&[2])), None);
    let one = |op, x| {
        output_types(&Op::Unary(op), &[x], 1)
            .map(|t| t[0].dtype)
            .ok()
    };
    assert_eq!(one(Unary::Exp, i64s(&[2])), None);
    assert_eq!(one(Unary::IsNan, f32s(&[2])), Some(DType::Bool));
    assert_eq!(
        one(Unary::Activation(Activation::Relu), i64s(&[2])),
        Some(DType::I64)
    );
    assert_eq!(one(Unary::Exp, None), None);
}

#[test]
fn optional_outputs() {
    let norm = Op::LayerNorm {
        axis: 1,
        epsilon: 1e-5,
    };
    let inputs = [f32s(&[2, 3]), f32s(&[3])];
    let types = output_types(&norm, &inputs, 3).expect("infers");
    assert_eq!(types[2], TensorType::new(DType::F32, &[2, 1]));
    assert!(output_types(&norm, &inputs, 4).is_err());
    let top = Op::TopK {
        axis: 0,
        k: 2,
        largest: true,
        sorted: true,
    };
    assert_eq!(
        output_types(&top, &inputs, 2).expect("infers")[1].dtype,
        DType::I64
    );
    assert!(output_types(&top, &inputs, 1).is_err());
}

#[test]
fn attention_reads_sizes_off_layouts() {
    use HeadLayout::{HeadMajor, HeadMajorTransposed, Packed, RowMajor};
    let dims = |q, k, v, shapes: [&[usize]; 3]| {
        let attrs = AttentionAttrs {
            heads: 4,
            kv_heads: 2,
            scale: 1.0,
            causal: false,
            nan_is_zero: false,
            q,
            k,
            v,
            out: RowMajor,
        };
        AttentionDims::of(&attrs, shapes[0], shapes[1], shapes[2])
            .map(|d| [d.batch, d.queries, d.keys, d.depth, d.value_depth])
    };
    let shapes: [&[usize]; 3] = [&[1, 4, 5, 8], &[1, 2, 8, 7], &[1, 7, 6]];
    assert_eq!(
        dims(HeadMajor, HeadMajorTransposed, RowMajor, shapes),
        Some([1, 5, 7, 8, 3])
    );
    let packed = |offset| Packed { row: 64, offset };
    let row: &[usize] = &[2, 5, 64];
    assert_eq!(
        dims(packed(0), packed(32), packed(48), [row; 3]),
        Some([2, 5, 5, 8, 8])
    );
    assert_eq!(dims(packed(0), packed(32), packed(49), [row; 3]), None);
    assert_eq!(
        dims(packed(usize::MAX), packed(32), packed(48), [row; 3]),
        None
    );
    let shapes: [&[usize]; 3] = [&[1, 3, 5, 8], &[1, 2, 7, 8], &[1, 2, 7, 8]];
    assert_eq!(dims(HeadMajor, HeadMajor, HeadMajor, shapes), None);
}
