//! Operators that move elements.

use super::{check, tensor, x};
use neap_ir::op::*;
use neap_ir::{DType, Op};

#[test]
fn movement() {
    let image = x(&[1, 16, 6, 6]);
    let i64s = |shape: &[usize]| tensor(DType::I64, shape);
    check(Op::Concat { axis: 2 }, &[image.clone(), image.clone()], 1);
    check(
        Op::Split {
            axis: 1,
            sizes: vec![10, 6],
        },
        &[image.clone()],
        2,
    );
    let all = |len| SliceRange {
        start: 0,
        step: 1,
        len,
    };
    let back = SliceRange {
        start: 5,
        step: -2,
        len: 3,
    };
    check(
        Op::Slice {
            ranges: vec![all(1), all(16), back, all(6)],
        },
        &[image.clone()],
        1,
    );
    check(
        Op::Transpose {
            perm: vec![0, 2, 3, 1],
        },
        &[image.clone()],
        1,
    );
    check(
        Op::Expand {
            shape: vec![3, 16, 6, 6],
        },
        &[image.clone()],
        1,
    );
    check(
        Op::Tile {
            repeats: vec![1, 2, 1, 2],
        },
        &[image.clone()],
        1,
    );
    for mode in [PadMode::Constant, PadMode::Reflect] {
        check(
            Op::Pad {
                mode,
                pads: vec![(0, 0), (0, 0), (1, 2), (-1, 3)],
            },
            &[image.clone()],
            1,
        );
    }
    check(Op::Gather { axis: 1 }, &[image.clone(), i64s(&[2, 2])], 1);
    check(
        Op::GatherElements { axis: 1 },
        &[image.clone(), i64s(&[1, 2, 6, 6])],
        1,
    );
    check(
        Op::GatherNd { batch_dims: 1 },
        &[image.clone(), i64s(&[1, 2])],
        1,
    );
    let reduction = ScatterReduction::Add;
    let scatter = Op::ScatterElements { axis: 1, reduction };
    check(
        scatter,
        &[image.clone(), i64s(&[1, 2, 1, 1]), x(&[1, 2, 1, 1])],
        1,
    );
    check(
        Op::ScatterNd { reduction },
        &[image.clone(), i64s(&[2, 4]), x(&[2])],
        1,
    );
    check(
        Op::DepthToSpace {
            block: 2,
            column_row_depth: true,
        },
        &[image.clone()],
        1,
    );
    check(Op::SpaceToDepth { block: 2 }, &[image.clone()], 1);
    check(
        Op::Trilu {
            upper: true,
            diagonal: 0,
        },
        &[image.clone()],
        1,
    );
    check(
        Op::ReverseSequence {
            batch_axis: 0,
            time_axis: 1,
        },
        &[image.clone(), i64s(&[1])],
        1,
    );
    check(Op::OneHot { axis: 0, depth: 4 }, &[i64s(&[3]), x(&[2])], 1);
    check(
        Op::EyeLike {
            dtype: DType::F32,
            diagonal: 0,
        },
        &[x(&[3, 4])],
        1,
    );
    for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
        let attrs = ResizeAttrs {
            output_shape: vec![1, 16, 9, 3],
            scales: vec![1.0, 1.0, 1.5, 0.5],
            mode,
            coordinates: CoordinateTransform::HalfPixel,
            nearest: NearestMode::Floor,
            cubic_a: -0.75,
            exclude_outside: true,
            extrapolation: 0.0,
            antialias: mode != ResizeMode::Nearest,
            roi: vec![],
        };
        check(Op::Resize(attrs), &[image.clone()], 1);
    }
}
