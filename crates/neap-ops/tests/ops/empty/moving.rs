//! Operators that move elements, and those that make indices.

use super::{Case, Draw, check};
use neap_ir::late::{Bound, Late, LateOp};
use neap_ir::op::{
    CoordinateTransform, NearestMode, PadMode, ResizeAttrs, ResizeMode, ScatterReduction,
    SliceRange,
};
use neap_ir::sampling::{GridMode, GridPadding, RoiAlign, Sampling};
use neap_ir::{DType, Literal, Op, TensorType};

fn any_type(d: &mut Draw) -> DType {
    d.pick(&[DType::F32, DType::F16, DType::I64, DType::U8])
}

#[test]
fn parts_and_wholes() {
    check("concat", 100, |d| {
        let (shape, axis, dtype) = (d.shape(3), d.below(3), any_type(d));
        let parts = 1 + d.below(3);
        let mut inputs = Vec::new();
        for _ in 0..parts {
            let mut part = shape.clone();
            part[axis] = d.size();
            inputs.push(d.tensor(dtype, &part));
        }
        Case::of(Op::Concat { axis }, inputs)
    });
    check("split", 100, |d| {
        let (mut shape, axis, dtype) = (d.shape(3), d.below(3), any_type(d));
        let count = 1 + d.below(3);
        let sizes = d.shape(count);
        shape[axis] = sizes.iter().sum();
        let parts = sizes.len();
        Case::of(Op::Split { axis, sizes }, vec![d.tensor(dtype, &shape)]).giving(parts)
    });
    check("slice", 200, |d| {
        let (shape, dtype) = (d.shape(3), any_type(d));
        let range = |&size: &usize, d: &mut Draw| {
            let place = |d: &mut Draw| d.below(2 * size + 3) as i64 - size as i64 - 1;
            let (start, end, step) = (place(d), place(d), d.pick(&[1, 1, 2, -1, -3]));
            SliceRange::of(start, end, step, size as i64).expect("a step")
        };
        let ranges = shape.iter().map(|size| range(size, d)).collect();
        Case::of(Op::Slice { ranges }, vec![d.tensor(dtype, &shape)])
    });
    check("pad", 200, |d| {
        let (shape, dtype) = (d.shape(3), any_type(d));
        let mode = d.pick(&[
            PadMode::Constant,
            PadMode::Reflect,
            PadMode::Edge,
            PadMode::Wrap,
        ]);
        let pads = shape
            .iter()
            .map(|_| (d.below(4) as isize - 1, d.below(4) as isize - 1))
            .collect();
        let fill = Literal::zeros(dtype, &[]);
        let case = Case::of(Op::Pad { mode, pads }, vec![d.tensor(dtype, &shape), fill]);
        if mode == PadMode::Constant {
            case.of_nothing(0.0)
        } else {
            case
        }
    });
}

#[test]
fn orders_and_repetitions() {
    check("reshape", 50, |d| {
        let (shape, dtype) = (d.shape(3), any_type(d));
        let flat = vec![shape.iter().product()];
        Case::of(Op::Reshape { shape: flat }, vec![d.tensor(dtype, &shape)])
    });
    check("transpose", 100, |d| {
        let (shape, dtype) = (d.shape(4), any_type(d));
        let mut perm = vec![0, 1, 2, 3];
        (0..4).for_each(|i| perm.swap(i, d.below(4)));
        Case::of(Op::Transpose { perm }, vec![d.tensor(dtype, &shape)])
    });
    check("expand", 100, |d| {
        let (shape, dtype) = (d.shape(3), any_type(d));
        let own: Vec<usize> = shape
            .iter()
            .map(|&size| if d.flag() { 1 } else { size })
            .collect();
        Case::of(Op::Expand { shape }, vec![d.tensor(dtype, &own)])
    });
    check("tile", 100, |d| {
        let (shape, repeats, dtype) = (d.shape(3), d.shape(3), any_type(d));
        Case::of(Op::Tile { repeats }, vec![d.tensor(dtype, &shape)])
    });
    check("depth and space", 100, |d| {
        let (shape, block) = (d.shape(4), 1 + d.below(2));
        let (square, column_row_depth) = (block * block, d.flag());
        let [n, c, h, w] = [shape[0], shape[1], shape[2], shape[3]];
        match d.flag() {
            true => {
                let op = Op::DepthToSpace {
                    block,
                    column_row_depth,
                };
                Case::of(op, vec![d.floats(&[n, c * square, h, w])])
            }
            false => Case::of(
                Op::SpaceToDepth { block },
                vec![d.floats(&[n, c, h * block, w * block])],
            ),
        }
    });
    check("triangles", 100, |d| {
        let (shape, upper) = (d.shape(3), d.flag());
        let diagonal = d.below(9) as i64 - 4;
        match d.flag() {
            true => Case::of(Op::Trilu { upper, diagonal }, vec![d.floats(&shape)]),
            false => {
                let dtype = DType::I64;
                Case::of(Op::EyeLike { dtype, diagonal }, vec![d.floats(&shape[..2])])
            }
        }
    });
    check("reversed sequences", 50, |d| {
        let shape = d.shape(3);
        let [batch_axis, time_axis] = if d.flag() { [0, 1] } else { [1, 0] };
        let lengths: Vec<i64> = (0..shape[batch_axis])
            .map(|_| d.below(shape[time_axis] + 1) as i64)
            .collect();
        let op = Op::ReverseSequence {
            batch_axis,
            time_axis,
        };
        let lengths = Literal::from_i64(&[shape[batch_axis]], &lengths);
        Case::of(op, vec![d.floats(&shape), lengths])
    });
}

#[test]
fn by_indices() {
    check("gather", 200, |d| {
        let (shape, axis, dtype) = (d.shape(3), d.below(3), any_type(d));
        let rank = d.below(3);
        let of = d.shape(rank);
        Case::of(
            Op::Gather { axis },
            vec![d.tensor(dtype, &shape), d.indices(&of, shape[axis])],
        )
    });
    check("gather elements", 200, |d| {
        let (shape, axis) = (d.shape(3), d.below(3));
        let mut of: Vec<usize> = shape.iter().map(|&size| d.below(size + 1)).collect();
        of[axis] = d.size();
        Case::of(
            Op::GatherElements { axis },
            vec![d.floats(&shape), d.indices(&of, shape[axis])],
        )
    });
    check("gather by tuples", 200, |d| {
        let shape = d.shape(3);
        let (batch_dims, depth) = (d.below(2), d.below(3));
        let mut of = shape[..batch_dims].to_vec();
        of.extend([d.size(), depth]);
        let least = shape[batch_dims..(batch_dims + depth).min(3)]
            .iter()
            .copied()
            .min();
        let indices = d.indices(&of, least.unwrap_or(1));
        Case::of(Op::GatherNd { batch_dims }, vec![d.floats(&shape), indices])
    });
    let reductions = [
        ScatterReduction::None,
        ScatterReduction::Add,
        ScatterReduction::Max,
    ];
    check("scatter elements", 200, |d| {
        let (shape, axis, reduction) = (d.shape(3), d.below(3), d.pick(&reductions));
        let of: Vec<usize> = shape.iter().map(|&size| d.below(size + 1)).collect();
        // Each place once: which of two would stay is open.
        let rows: Vec<i64> = (0..of.iter().product::<usize>())
            .map(|i| (i / of[axis + 1..].iter().product::<usize>().max(1) % of[axis].max(1)) as i64)
            .collect();
        let indices = Literal::from_i64(&of, &rows);
        let op = Op::ScatterElements { axis, reduction };
        Case::of(op, vec![d.floats(&shape), indices, d.floats(&of)])
    });
    check("scatter by tuples", 200, |d| {
        let (shape, reduction) = (d.shape(3), d.pick(&reductions));
        let depth = d.below(3);
        let count = if d.flag() { 0 } else { d.below(2) };
        let least = shape[..depth].iter().copied().min().unwrap_or(1);
        let indices = d.indices(&[count, depth], least);
        let mut of = vec![count];
        of.extend(&shape[depth..]);
        Case::of(
            Op::ScatterNd { reduction },
            vec![d.floats(&shape), indices, d.floats(&of)],
        )
    });
    check("one hot", 100, |d| {
        let shape = d.shape(2);
        let op = Op::OneHot {
            axis: d.below(3),
            depth: d.size(),
        };
        Case::of(op, vec![d.indices(&shape, 4), d.floats(&[2])])
    });
}

#[test]
fn between_elements() {
    check("resize", 200, |d| {
        let rank = 1 + d.below(4);
        let (x, output_shape) = (d.shape(rank), d.shape(rank));
        let output_shape: Vec<usize> = (x.iter().zip(output_shape))
            .map(|(&own, other)| if own == 0 || d.flag() { own } else { other })
            .collect();
        let scales = x.iter().zip(&output_shape).map(|(&a, &b)| match a * b {
            0 => 1.0,
            _ => b as f32 / a as f32,
        });
        let attrs = ResizeAttrs {
            scales: scales.collect(),
            output_shape,
            mode: d.pick(&[ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic]),
            coordinates: d.pick(&[
                CoordinateTransform::HalfPixel,
                CoordinateTransform::AlignCorners,
            ]),
            nearest: NearestMode::Floor,
            cubic_a: -0.75,
            exclude_outside: d.flag(),
            extrapolation: 0.0,
            antialias: d.flag(),
            roi: Vec::new(),
        };
        let dtype = d.pick(&[DType::F32, DType::U8]);
        Case::of(Op::Resize(attrs), vec![d.tensor(dtype, &x)])
    });
    check("samples of a grid", 100, |d| {
        let (shape, places) = (d.shape(4), d.shape(2));
        let mode = d.pick(&[GridMode::Nearest, GridMode::Linear, GridMode::Cubic]);
        let padding = d.pick(&[
            GridPadding::Zeros,
            GridPadding::Border,
            GridPadding::Reflection,
        ]);
        let of = Sampling::Grid {
            mode,
            padding,
            align_corners: d.flag(),
        };
        let grid = [shape[0], places[0], places[1], 2];
        Case::of(Op::Sampling(of), vec![d.floats(&shape), d.floats(&grid)])
    });
    check("regions", 100, |d| {
        let (shape, count) = (d.shape(4), d.size());
        let of = RoiAlign {
            largest: d.flag(),
            output: [2, 3],
            samples: d.below(3),
            scale: 1.0,
            half_pixel: d.flag(),
        };
        let images = Literal::from_i64(&[count], &vec![0; count]);
        let inputs = vec![d.floats(&shape), d.floats(&[count, 4]), images];
        Case::of(Op::Sampling(Sampling::RoiAlign(of)), inputs)
    });
}

/// An operator that finds how much there is; the bounds are of all elements.
fn late(op: LateOp, bounds: &[(DType, Vec<usize>)]) -> Op {
    let bounds = bounds.iter().map(|(dtype, shape)| Bound {
        ty: TensorType::new(*dtype, shape),
        late: vec![true; shape.len()],
    });
    Op::Late(Box::new(Late {
        op,
        bounds: bounds.collect(),
        is_guarded: false,
    }))
}

/// As many results of as many elements are found as there are operands' elements: none of none.
fn check_found(name: &str, draw: impl Fn(&mut Draw) -> (LateOp, Vec<Literal>, usize)) {
    for number in 0..100 {
        let mut d = Draw(neap_testing::seed() + number);
        let (op, inputs, outputs) = draw(&mut d);
        let elements = inputs[0].elements();
        let rank = inputs[0].shape().len();
        let bounds: Vec<(DType, Vec<usize>)> = match &op {
            LateOp::NonZero => vec![(DType::I64, vec![rank, elements])],
            LateOp::NonMaxSuppression { .. } => vec![(DType::I64, vec![64, 3])],
            LateOp::Compress { axis: Some(_) } => {
                vec![(inputs[0].dtype(), inputs[0].shape().to_vec())]
            }
            LateOp::Unique {
                axis: Some(axis), ..
            } => {
                let along = inputs[0].shape()[*axis];
                let mut bounds = vec![(inputs[0].dtype(), inputs[0].shape().to_vec())];
                bounds.extend(vec![(DType::I64, vec![along]); outputs - 1]);
                bounds
            }
            _ => {
                let mut bounds = vec![(inputs[0].dtype(), vec![elements])];
                bounds.extend(vec![(DType::I64, vec![elements]); outputs - 1]);
                bounds
            }
        };
        let refs: Vec<Option<&Literal>> = inputs.iter().map(Some).collect();
        let found = neap_ops::evaluate_outputs(&late(op, &bounds), &refs, outputs);
        let shapes: Vec<_> = inputs.iter().map(Literal::shape).collect();
        let found = found.unwrap_or_else(|e| panic!("{name} of {shapes:?}: {e}"));
        if elements == 0 && !name.starts_with("boxes") {
            assert!(
                found.iter().all(|l| l.elements() == 0),
                "{name} of {shapes:?}: {found:?}"
            );
        }
    }
}

#[test]
fn nothing_is_found_in_nothing() {
    check_found("elements that are not zero", |d| {
        let rank = 1 + d.below(3);
        let shape = d.shape(rank);
        (LateOp::NonZero, vec![d.floats(&shape)], 1)
    });
    check_found("what a condition keeps", |d| {
        let (shape, axis) = (d.shape(2), d.below(2));
        let flat = d.flag();
        let of = if flat {
            shape[0] * shape[1]
        } else {
            shape[axis]
        };
        let op = LateOp::Compress {
            axis: (!flat).then_some(axis),
        };
        (op, vec![d.floats(&shape), d.tensor(DType::Bool, &[of])], 1)
    });
    check_found("what is there once", |d| {
        let (shape, axis) = (d.shape(2), d.below(2));
        // Of rows without elements there is one.
        let flat = d.flag() || shape[0] * shape[1] == 0;
        let op = LateOp::Unique {
            axis: (!flat).then_some(axis),
            sorted: d.flag(),
        };
        (op, vec![d.floats(&shape)], 4)
    });
    check_found("boxes that overlap little", |d| {
        let (classes, boxes) = (d.pick(&[0, 1, 3]), d.pick(&[0, 1, 7]));
        let batch = d.below(3);
        let most = Literal::from_i64(&[1], &[2]);
        let inputs = vec![
            d.floats(&[batch, boxes, 4]),
            d.floats(&[batch, classes, boxes]),
            most,
        ];
        let center_point_box = d.flag();
        (LateOp::NonMaxSuppression { center_point_box }, inputs, 1)
    });
}
