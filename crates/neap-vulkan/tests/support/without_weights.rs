//! Cases of operators that have no weights of their own.

use super::Case;
use neap_ir::DType;
use neap_ir::Layout::{self, Blocked, Plain};
use neap_ir::Op;
use neap_ir::op::{
    AttentionAttrs, Binary, CoordinateTransform, HeadLayout, NearestMode, PadMode, Reduce,
    ResizeAttrs, ResizeMode, SliceRange, Softmax, Unary,
};

pub fn other_rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for axis in 0..3 {
        for kind in [Softmax::Softmax, Softmax::LogSoftmax] {
            let op = Op::Softmax { axis, kind };
            let x = (&[3, 70, 5][..], Plain);
            let case = || Case::new(op.clone(), &[x], x);
            cases.extend([case(), case().in_place(0)]);
        }
    }
    for (channels, groups, size) in [(6, 3, 5), (32, 8, 9), (5, 1, 3), (21, 21, 4)] {
        let shape = [2, channels, size, size];
        let scale = (&[channels][..], Plain);
        for per_group in [false, true] {
            let op = Op::GroupNorm {
                groups,
                epsilon: 1e-5,
                per_group,
            };
            let x = (&shape[..], Plain);
            let scale = if per_group {
                (&[groups][..], Plain)
            } else {
                scale
            };
            cases.push(Case::new(op.clone(), &[x, scale, scale], x));
            if !per_group {
                let x = (&shape[..], Blocked);
                let case = || Case::new(op.clone(), &[x, scale, scale], x);
                cases.extend([case(), case().in_place(0)]);
            }
        }
        for layout in [Plain, Blocked] {
            let op = Op::InstanceNorm { epsilon: 1e-5 };
            let x = (&shape[..], layout);
            let case = || Case::new(op.clone(), &[x, scale, scale], x);
            cases.extend([case(), case().in_place(0)]);
        }
    }
    cases
}

pub fn curves() -> Vec<Case> {
    let all = [2, 5, 17];
    let curves = [
        Unary::Exp,
        Unary::Neg,
        Unary::Abs,
        Unary::Erf,
        Unary::Softplus,
        Unary::Floor,
        Unary::Ceil,
        Unary::Round,
        Unary::Sign,
        Unary::Sin,
        Unary::Cos,
        Unary::Softsign,
        Unary::Mish,
    ];
    let mut cases = Vec::new();
    for layout in [Plain, Blocked] {
        for curve in curves {
            let x = (&all[..], layout);
            cases.push(Case::new(Op::Unary(curve), &[x], x));
        }
    }
    cases
}

pub fn folds() -> Vec<Case> {
    let mut cases = Vec::new();
    let shape = [3, 5, 7, 19];
    for kind in [
        Reduce::Sum,
        Reduce::Mean,
        Reduce::Max,
        Reduce::Min,
        Reduce::SumSquare,
        Reduce::L1,
        Reduce::L2,
    ] {
        for axes in [
            &[3][..],
            &[0],
            &[1],
            &[2, 3],
            &[0, 2],
            &[1, 3],
            &[0, 1, 2, 3],
        ] {
            let op = Op::Reduce {
                kind,
                axes: axes.to_vec(),
                keep_dims: true,
            };
            let mut y = shape;
            axes.iter().for_each(|&axis| y[axis] = 1);
            cases.push(Case::new(op, &[(&shape, Plain)], (&y, Plain)));
        }
    }
    cases
}

pub fn products_of_two() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut product = |a: &[usize], b: &[usize], y: &[usize]| {
        let inputs = [(a, Plain), (b, Plain)];
        cases.push(Case::new(Op::MatMul, &inputs, (y, Plain)));
    };
    product(&[5, 7], &[7, 9], &[5, 9]);
    product(&[1, 33], &[33, 4], &[1, 4]);
    product(&[6], &[6, 10], &[10]);
    product(&[3, 6], &[6], &[3]);
    product(&[2, 3, 17, 8], &[2, 3, 8, 21], &[2, 3, 17, 21]);
    product(&[2, 1, 4, 8], &[3, 8, 5], &[2, 3, 4, 5]);
    product(&[7, 12, 5], &[5, 6], &[7, 12, 6]);
    product(&[4, 5], &[3, 2, 5, 6], &[3, 2, 4, 6]);
    product(&[2, 1, 3, 2, 4], &[1, 5, 1, 4, 3], &[2, 5, 3, 2, 3]);
    for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
        for c in [
            None,
            Some(&[6, 11][..]),
            Some(&[11]),
            Some(&[6, 1]),
            Some(&[]),
        ] {
            let op = Op::Gemm {
                alpha: 0.5,
                beta: 2.0,
                trans_a,
                trans_b,
            };
            let a = if trans_a { [13, 6] } else { [6, 13] };
            let b = if trans_b { [11, 13] } else { [13, 11] };
            let mut inputs: Vec<(&[usize], _)> = vec![(&a, Plain), (&b, Plain)];
            inputs.extend(c.map(|c| (c, Plain)));
            cases.push(Case::new(op, &inputs, (&[6, 11], Plain)));
        }
    }
    cases
}

/// Queries and keys; depths of keys and values.
fn attention(
    [queries, keys, depth, value_depth]: [usize; 4],
    [heads, kv_heads]: [usize; 2],
    layouts: [HeadLayout; 4],
    causal: bool,
    mask: Option<&[usize]>,
) -> Case {
    let [q, k, v, out] = layouts;
    let op = Op::Attention(AttentionAttrs {
        heads,
        kv_heads,
        scale: 0.4,
        causal,
        nan_is_zero: false,
        q,
        k,
        v,
        out,
    });
    let shape = |layout, heads, rows, depth| match layout {
        HeadLayout::HeadMajor => vec![2, heads, rows, depth],
        HeadLayout::HeadMajorTransposed => vec![2, heads, depth, rows],
        HeadLayout::RowMajor => vec![2, rows, heads * depth],
        HeadLayout::Packed { row, .. } => vec![2, rows, row],
    };
    let shapes = [
        shape(q, heads, queries, depth),
        shape(k, kv_heads, keys, depth),
        shape(v, kv_heads, keys, value_depth),
    ];
    let mut inputs: Vec<(&[usize], _)> = shapes.iter().map(|s| (&s[..], Plain)).collect();
    inputs.extend(mask.map(|mask| (mask, Plain)));
    let y = shape(out, heads, queries, value_depth);
    Case::new(op, &inputs, (&y, Plain))
}

pub fn attentions() -> Vec<Case> {
    use HeadLayout::{HeadMajor, HeadMajorTransposed, Packed, RowMajor};
    let packed = |offset| Packed { row: 72, offset };
    // Keys that are seen or not.
    let seen = |case: Case| {
        let mut types = vec![DType::F32; 3];
        types.push(DType::Bool);
        case.types(&types, DType::F32)
    };
    let zeros = |mut case: Case| {
        if let Op::Attention(attrs) = &mut case.op {
            attrs.nan_is_zero = true;
        }
        case
    };
    // Masks that are added: of some keys infinite, of the second row all as low as can be, of the last all but one.
    let low = |depth| {
        let mut mask = vec![0; 34 * 40];
        for (i, number) in mask.iter_mut().enumerate() {
            *number = match (i / 40, i % 40) {
                (1, _) => i64::MAX,
                (33, key) if key != 37 => i64::MIN,
                (_, key) if key % 3 == 0 => i64::MIN,
                (_, key) => key as i64 % 4,
            };
        }
        let case = attention(
            [34, 40, depth, depth],
            [2, 2],
            [HeadMajor; 4],
            false,
            Some(&[34, 40]),
        );
        case.numbers(3, &mask)
    };
    vec![
        low(8),
        low(5),
        seen(attention(
            [5, 200, 6, 9],
            [3, 3],
            [HeadMajor; 4],
            false,
            Some(&[2, 1, 1, 200]),
        )),
        seen(attention(
            [3, 68, 5, 5],
            [2, 2],
            [HeadMajor; 4],
            false,
            Some(&[3, 68]),
        )),
        // Kernels whose lanes tell each other what they load, with tails of queries and keys.
        attention([1, 1, 4, 4], [1, 1], [HeadMajor; 4], false, None),
        attention([31, 33, 12, 20], [2, 2], [HeadMajor; 4], false, None),
        attention([33, 32, 64, 64], [4, 2], [RowMajor; 4], false, None),
        attention([8, 100, 32, 8], [2, 1], [HeadMajor; 4], true, None),
        attention([100, 100, 8, 12], [2, 2], [RowMajor; 4], true, None),
        attention(
            [97, 97, 8, 8],
            [3, 3],
            [packed(0), packed(24), packed(48), RowMajor],
            true,
            Some(&[97, 97]),
        ),
        attention(
            [34, 65, 16, 8],
            [4, 2],
            [HeadMajor; 4],
            false,
            Some(&[2, 1, 1, 65]),
        ),
        seen(attention(
            [40, 68, 8, 4],
            [2, 2],
            [HeadMajor; 4],
            true,
            Some(&[2, 1, 40, 68]),
        )),
        // Of some rows nothing is seen.
        zeros(seen(attention(
            [72, 1, 8, 8],
            [2, 2],
            [HeadMajor; 4],
            false,
            Some(&[72, 1]),
        ))),
        zeros(seen(attention(
            [72, 1, 5, 5],
            [2, 2],
            [HeadMajor; 4],
            false,
            Some(&[72, 1]),
        ))),
        attention([5, 7, 6, 9], [3, 3], [HeadMajor; 4], false, None),
        attention([65, 130, 8, 8], [2, 2], [RowMajor; 4], false, None),
        attention([9, 9, 16, 70], [4, 2], [HeadMajor; 4], true, None),
        attention([70, 70, 4, 256], [2, 1], [HeadMajor; 4], true, None),
        attention(
            [1, 200, 16, 16],
            [4, 4],
            [RowMajor, HeadMajorTransposed, HeadMajor, RowMajor],
            false,
            Some(&[2, 1, 1, 200]),
        ),
        attention([3, 66, 5, 5], [2, 2], [HeadMajor; 4], false, Some(&[3, 66])),
        attention(
            [4, 4, 5, 5],
            [2, 2],
            [HeadMajor; 4],
            false,
            Some(&[2, 2, 4, 4]),
        ),
        attention(
            [13, 13, 8, 8],
            [3, 3],
            [packed(0), packed(24), packed(48), RowMajor],
            false,
            None,
        ),
    ]
}

pub fn resizes() -> Vec<Case> {
    let mut cases = Vec::new();
    for (input, output) in [
        ([5, 7], [10, 14]),
        ([8, 6], [3, 11]),
        ([4, 4], [4, 9]),
        ([1, 3], [2, 2]),
    ] {
        for mode in [ResizeMode::Nearest, ResizeMode::Linear] {
            for coordinates in [
                CoordinateTransform::HalfPixel,
                CoordinateTransform::AlignCorners,
                CoordinateTransform::Asymmetric,
            ] {
                for layout in [Plain, Blocked] {
                    let kind = (mode, coordinates, layout);
                    cases.push(resize([2, 21], input, output, kind));
                }
            }
        }
    }
    cases
}

fn resize(
    [images, channels]: [usize; 2],
    input: [usize; 2],
    output: [usize; 2],
    (mode, coordinates, layout): (ResizeMode, CoordinateTransform, Layout),
) -> Case {
    let scale = |i: usize| output[i] as f32 / input[i] as f32;
    let op = Op::Resize(ResizeAttrs {
        output_shape: vec![images, channels, output[0], output[1]],
        scales: vec![1.0, 1.0, scale(0), scale(1)],
        mode,
        coordinates,
        nearest: NearestMode::RoundPreferFloor,
        cubic_a: -0.75,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        roi: Vec::new(),
    });
    let x = [images, channels, input[0], input[1]];
    let y = [images, channels, output[0], output[1]];
    Case::new(op, &[(&x, layout)], (&y, layout))
}

/// Of different scales, each with the largest table that there is room for, or a small one, and images that lie elsewhere and could have that
/// room, too.
pub fn resizes_with_large_tables() -> Vec<Case> {
    let kind = |layout| (ResizeMode::Linear, CoordinateTransform::HalfPixel, layout);
    let mut cases = Vec::new();
    for i in 0..8 {
        let large = ([3 + i, 40 + 7 * i], [24 - i, 1000 + i]);
        let small = ([4, 5 + i], [9 + 2 * i, 31 + i]);
        cases.push(resize([1, 5], large.0, large.1, kind(Plain)).elsewhere(&[0]));
        cases.push(resize([2, 3], small.0, small.1, kind(Blocked)).elsewhere(&[0]));
    }
    cases
}

fn range(start: usize, step: isize, len: usize) -> SliceRange {
    SliceRange { start, step, len }
}

pub fn strided() -> Vec<Case> {
    let mut cases = Vec::new();
    let shape = [3, 4, 5, 6];
    for perm in [[0, 2, 1, 3], [3, 2, 1, 0], [1, 0, 3, 2], [0, 1, 2, 3]] {
        let y = perm.map(|axis| shape[axis]);
        let op = Op::Transpose {
            perm: perm.to_vec(),
        };
        cases.push(Case::new(op, &[(&shape, Plain)], (&y, Plain)));
    }
    let op = Op::Slice {
        ranges: vec![
            range(2, -1, 3),
            range(1, 2, 2),
            range(0, 1, 5),
            range(5, -2, 3),
        ],
    };
    cases.push(Case::new(op, &[(&shape, Plain)], (&[3, 2, 5, 3], Plain)));
    let op = Op::Slice {
        ranges: vec![
            range(0, 1, 2),
            range(16, 1, 20),
            range(0, 1, 3),
            range(0, 1, 2),
        ],
    };
    cases.push(Case::new(
        op,
        &[(&[2, 40, 3, 2], Blocked)],
        (&[2, 20, 3, 2], Blocked),
    ));
    let op = Op::Reshape {
        shape: vec![12, 30],
    };
    cases.push(Case::new(op, &[(&shape, Plain)], (&[12, 30], Plain)));
    let op = Op::Expand {
        shape: vec![2, 3, 4, 5],
    };
    cases.push(Case::new(
        op.clone(),
        &[(&[3, 1, 5], Plain)],
        (&[2, 3, 4, 5], Plain),
    ));
    cases.push(Case::new(op, &[(&[], Plain)], (&[2, 3, 4, 5], Plain)).elsewhere(&[0]));
    let op = Op::Tile {
        repeats: vec![2, 1, 3],
    };
    cases.push(Case::new(op, &[(&[3, 2, 5], Plain)], (&[6, 2, 15], Plain)));
    for column_row_depth in [false, true] {
        let op = Op::DepthToSpace {
            block: 2,
            column_row_depth,
        };
        cases.push(Case::new(
            op,
            &[(&[2, 12, 3, 5], Plain)],
            (&[2, 3, 6, 10], Plain),
        ));
    }
    let op = Op::SpaceToDepth { block: 2 };
    cases.push(Case::new(
        op,
        &[(&[2, 3, 6, 10], Plain)],
        (&[2, 12, 3, 5], Plain),
    ));
    for value in [false, true] {
        let op = Op::Pad {
            mode: PadMode::Constant,
            pads: vec![(0, 0), (1, 2), (-1, 1), (0, -2)],
        };
        let mut inputs: Vec<(&[usize], _)> = vec![(&shape, Plain)];
        if value {
            inputs.push((&[], Plain));
        }
        cases.push(Case::new(op, &inputs, (&[3, 7, 5, 4], Plain)));
    }
    cases
}

/// Elements that are no floats: in bytes only by fours.
pub fn mixed() -> Vec<Case> {
    use neap_ir::DType::{Bool, F32, I32, I64, U8};
    let mut cases = Vec::new();
    let all = (&[3, 5, 4][..], Plain);
    for (from, to) in [
        (Bool, F32),
        (Bool, I32),
        (Bool, I64),
        (U8, F32),
        (U8, I64),
        (I32, F32),
        (I32, I64),
        (I32, Bool),
        (I64, F32),
        (I64, I32),
        (I64, Bool),
        (F32, Bool),
    ] {
        let case = || Case::new(Op::Cast { to }, &[all], all).types(&[from], to);
        cases.extend([case(), case().elsewhere(&[0])]);
    }
    for dtype in [F32, I32, I64, Bool, U8] {
        for shapes in [
            [&[3, 5, 4][..], &[3, 5, 4], &[3, 5, 4]],
            [&[5, 4], &[3, 1, 4], &[3, 5, 1]],
            [&[1, 1, 4], &[3, 5, 4], &[5, 4]],
        ] {
            // Bytes are whole words of them.
            let is_whole = shapes.iter().all(|s| s.iter().product::<usize>() % 4 == 0);
            if dtype.size_bytes() == 1 && !is_whole {
                continue;
            }
            let inputs = shapes.map(|shape| (shape, Plain));
            let types = [Bool, dtype, dtype];
            let case = || Case::new(Op::Where, &inputs, all).types(&types, dtype);
            cases.push(case());
            for input in [1, 2] {
                if shapes[input] == all.0 {
                    cases.push(case().in_place(input));
                }
            }
        }
    }
    for binary in [Binary::And, Binary::Or, Binary::Xor] {
        let op = Op::Binary(binary);
        for other in [&[3, 5, 4][..], &[5, 4], &[4], &[1, 1, 4]] {
            let inputs = [all, (other, Plain)];
            let case = || Case::new(op.clone(), &inputs, all).types(&[Bool; 2], Bool);
            cases.extend([case(), case().in_place(0)]);
        }
    }
    let not = || Case::new(Op::Unary(Unary::Not), &[all], all).types(&[Bool], Bool);
    cases.extend([not(), not().in_place(0)]);
    for binary in [
        Binary::Equal,
        Binary::Less,
        Binary::LessOrEqual,
        Binary::Greater,
        Binary::GreaterOrEqual,
    ] {
        for dtype in [F32, I32, I64] {
            for other in [&[3, 5, 4][..], &[5, 1], &[3, 1, 1], &[]] {
                let inputs = [all, (other, Plain)];
                let case = Case::new(Op::Binary(binary), &inputs, all);
                cases.push(case.types(&[dtype; 2], Bool));
            }
        }
    }
    cases
}
