//! Data movement against index arithmetic, over random shapes.

use crate::support::*;
use neap_ir::op::{PadMode, ScatterReduction, SliceRange};
use neap_ir::{Literal, Op};
use neap_ops::evaluate;
use proptest::prelude::*;

/// Calls `f(index, flat)` for every element of a row-major tensor.
fn each(shape: &[usize], mut f: impl FnMut(&[usize], usize)) {
    let total: usize = shape.iter().product();
    for flat in 0..total {
        let (mut index, mut rest) = (vec![0; shape.len()], flat);
        for axis in (0..shape.len()).rev() {
            index[axis] = rest % shape[axis];
            rest /= shape[axis];
        }
        f(&index, flat);
    }
}

fn at(shape: &[usize], index: &[usize]) -> usize {
    shape
        .iter()
        .zip(index)
        .fold(0, |flat, (&d, &i)| flat * d + i)
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(1usize..12, 1..5)
}

proptest! {
    #[test]
    fn transpose(shape in shapes(), seed: u64) {
        let mut perm: Vec<usize> = (0..shape.len()).collect();
        let mut s = seed;
        for i in (1..perm.len()).rev() {
            perm.swap(i, (s % (i as u64 + 1)) as usize);
            s /= 7;
        }
        let x = ramp(&shape);
        let y = one(&Op::Transpose { perm: perm.clone() }, &[&x]);
        each(&shape, |index, flat| {
            let moved: Vec<usize> = perm.iter().map(|&p| index[p]).collect();
            assert_eq!(values(&y)[at(y.shape(), &moved)], flat as f32);
        });
    }

    #[test]
    fn slice(shape in shapes(), seed: u64) {
        let mut s = seed;
        let ranges: Vec<SliceRange> = shape.iter().map(|&d| {
            let mut pick = |n: usize| { s = s.rotate_left(9).wrapping_mul(0xD6E8_FEB8_6659_FD93); (s % n as u64) as usize };
            let start = pick(d);
            let step = pick(5) as isize - 2;
            let room = match step { 0 => d, s if s > 0 => (d - start).div_ceil(s as usize), s => start / s.unsigned_abs() + 1 };
            SliceRange { start, step, len: 1 + pick(room) }
        }).collect();
        let y = one(&Op::Slice { ranges: ranges.clone() }, &[&ramp(&shape)]);
        each(y.shape(), |index, flat| {
            let from: Vec<usize> = index.iter().zip(&ranges)
                .map(|(&i, r)| (r.start as isize + i as isize * r.step) as usize).collect();
            assert_eq!(values(&y)[flat], at(&shape, &from) as f32);
        });
    }

    #[test]
    fn split_then_concat_is_nothing(shape in shapes(), axis in 0usize..4, cut in 0usize..12) {
        let axis = axis % shape.len();
        let cut = cut % (shape[axis] + 1);
        let sizes = vec![cut, shape[axis] - cut];
        let x = noise(&shape, 3);
        let parts = evaluate(&Op::Split { axis, sizes }, &[Some(&x)]).expect("splits");
        prop_assert_eq!(one(&Op::Concat { axis }, &[&parts[0], &parts[1]]), x);
    }

    #[test]
    fn tile_and_expand(shape in shapes(), repeats in prop::collection::vec(0usize..4, 4)) {
        let repeats = repeats[..shape.len()].to_vec();
        let y = one(&Op::Tile { repeats }, &[&ramp(&shape)]);
        each(y.shape(), |index, flat| {
            let from: Vec<usize> = index.iter().zip(&shape).map(|(&i, &d)| i % d).collect();
            assert_eq!(values(&y)[flat], at(&shape, &from) as f32);
        });
        let mut wide = vec![3];
        wide.extend(&shape);
        let y = one(&Op::Expand { shape: wide }, &[&ramp(&shape)]);
        each(y.shape(), |index, flat| {
            assert_eq!(values(&y)[flat], at(&shape, &index[1..]) as f32);
        });
    }

    #[test]
    fn pads(shape in shapes(), raw in prop::collection::vec((-3isize..6, -3isize..6), 4), mode in 0usize..4) {
        let mode = [PadMode::Constant, PadMode::Reflect, PadMode::Edge, PadMode::Wrap][mode];
        let pads: Vec<(isize, isize)> = shape.iter().zip(&raw).map(|(&d, &(b, a))| {
            if d as isize + b.min(0) + a.min(0) < 1 { (b.max(0), a.max(0)) } else { (b, a) }
        }).collect();
        let y = one(&Op::Pad { mode, pads: pads.clone() }, &[&ramp(&shape), &f32s(&[], &[-1.0])]);
        each(y.shape(), |index, flat| {
            let mut outside = false;
            let from: Vec<usize> = (0..shape.len()).map(|axis| {
                let (before, after) = pads[axis];
                let kept = shape[axis] as isize + before.min(0) + after.min(0);
                let mut p = index[axis] as isize - before.max(0);
                outside |= p < 0 || p >= kept;
                match mode {
                    PadMode::Edge | PadMode::Constant => p = p.clamp(0, kept - 1),
                    PadMode::Wrap => while p < 0 || p >= kept { p += if p < 0 { kept } else { -kept } },
                    PadMode::Reflect if kept == 1 => p = 0,
                    PadMode::Reflect => while p < 0 || p >= kept { p = if p < 0 { -p } else { 2 * (kept - 1) - p } },
                }
                (p - before.min(0)) as usize
            }).collect();
            let expected = if mode == PadMode::Constant && outside { -1.0 } else { at(&shape, &from) as f32 };
            assert_eq!(values(&y)[flat], expected);
        });
    }

    #[test]
    fn gathers(shape in shapes(), axis in 0usize..4, picks in prop::collection::vec(-12i64..12, 1..6)) {
        let axis = axis % shape.len();
        let size = shape[axis] as i64;
        let picks: Vec<i64> = picks.iter().map(|p| p % size).collect();
        let y = one(&Op::Gather { axis }, &[&ramp(&shape), &i64s(&[picks.len()], &picks)]);
        each(y.shape(), |index, flat| {
            let mut from = index.to_vec();
            from[axis] = picks[index[axis]].rem_euclid(size) as usize;
            assert_eq!(values(&y)[flat], at(&shape, &from) as f32);
        });
    }

    #[test]
    fn scatter_elements_undoes_gather_elements(shape in shapes(), axis in 0usize..4, turn in 0usize..12) {
        // A rotation along the axis is a permutation, so scattering restores the data.
        let axis = axis % shape.len();
        let mut indices = Vec::new();
        each(&shape, |index, _| indices.push(((index[axis] + turn) % shape[axis]) as i64));
        let indices = i64s(&shape, &indices);
        let x = noise(&shape, 5);
        let moved = one(&Op::GatherElements { axis }, &[&x, &indices]);
        let op = Op::ScatterElements { axis, reduction: ScatterReduction::None };
        let zeros = Literal::zeros(neap_ir::DType::F32, &shape);
        prop_assert_eq!(one(&op, &[&zeros, &indices, &moved]), x);
    }

    #[test]
    fn depth_and_space_are_inverse(n in 1usize..3, c in 1usize..4, h in 1usize..5, w in 1usize..5, block in 1usize..4) {
        let x = noise(&[n, c * block * block, h, w], 1);
        let space = one(&Op::DepthToSpace { block, column_row_depth: false }, &[&x]);
        prop_assert_eq!(one(&Op::SpaceToDepth { block }, &[&space]), x);
    }
}

#[test]
fn indices_out_of_range_are_errors() {
    let x = ramp(&[3, 2]);
    for bad in [3, -4] {
        assert!(try_one(&Op::Gather { axis: 0 }, &[&x, &i64s(&[1], &[bad])]).is_err());
        assert!(
            try_one(
                &Op::GatherNd { batch_dims: 0 },
                &[&x, &i64s(&[1, 1], &[bad])]
            )
            .is_err()
        );
        let indices = i64s(&[1, 1], &[bad]);
        assert!(try_one(&Op::GatherElements { axis: 0 }, &[&x, &indices]).is_err());
        let scatter = Op::ScatterNd {
            reduction: ScatterReduction::None,
        };
        assert!(try_one(&scatter, &[&x, &indices, &ramp(&[1, 2])]).is_err());
    }
}

#[test]
fn depth_to_space_modes_differ() {
    let x = ramp(&[1, 8, 1, 1]);
    let dcr = one(
        &Op::DepthToSpace {
            block: 2,
            column_row_depth: false,
        },
        &[&x],
    );
    assert_eq!(values(&dcr), [0.0, 2.0, 4.0, 6.0, 1.0, 3.0, 5.0, 7.0]);
    let crd = one(
        &Op::DepthToSpace {
            block: 2,
            column_row_depth: true,
        },
        &[&x],
    );
    assert_eq!(values(&crd), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
}

#[test]
fn gather_nd_with_batches() {
    let y = one(
        &Op::GatherNd { batch_dims: 1 },
        &[&ramp(&[2, 2, 2]), &i64s(&[2, 1], &[1, 0])],
    );
    assert_eq!(values(&y), [2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn scatter_reduces_in_order() {
    let op = |reduction| Op::ScatterNd { reduction };
    let (x, i) = (f32s(&[2], &[1.0, 2.0]), i64s(&[3, 1], &[0, 0, 1]));
    let u = f32s(&[3], &[5.0, 3.0, -1.0]);
    let run = |r| values(&one(&op(r), &[&x, &i, &u])).to_vec();
    assert_eq!(run(ScatterReduction::None), [3.0, -1.0]);
    assert_eq!(run(ScatterReduction::Add), [9.0, 1.0]);
    assert_eq!(run(ScatterReduction::Mul), [15.0, -2.0]);
    assert_eq!(run(ScatterReduction::Max), [5.0, 2.0]);
    assert_eq!(run(ScatterReduction::Min), [1.0, -1.0]);
}

#[test]
fn makes_masks_and_indices() {
    let y = one(
        &Op::OneHot { axis: 1, depth: 3 },
        &[&i64s(&[3], &[1, -1, 7]), &f32s(&[2], &[2.0, 5.0])],
    );
    assert_eq!(values(&y), [2.0, 5.0, 2.0, 2.0, 2.0, 5.0, 2.0, 2.0, 2.0]);
    let y = one(
        &Op::EyeLike {
            dtype: neap_ir::DType::I64,
            diagonal: 1,
        },
        &[&ramp(&[2, 3])],
    );
    assert_eq!(ints(&y), [0, 1, 0, 0, 0, 1]);
    let x = ramp(&[2, 3]);
    let upper = one(
        &Op::Trilu {
            upper: true,
            diagonal: 1,
        },
        &[&x],
    );
    assert_eq!(values(&upper), [0.0, 1.0, 2.0, 0.0, 0.0, 5.0]);
    let lower = one(
        &Op::Trilu {
            upper: false,
            diagonal: -1,
        },
        &[&x],
    );
    assert_eq!(values(&lower), [0.0, 0.0, 0.0, 3.0, 0.0, 0.0]);
    let extreme = one(
        &Op::Trilu {
            upper: true,
            diagonal: i64::MIN,
        },
        &[&x],
    );
    assert_eq!(extreme, x);
}

#[test]
fn reverses_sequences() {
    let op = Op::ReverseSequence {
        batch_axis: 1,
        time_axis: 0,
    };
    let y = one(&op, &[&ramp(&[3, 2]), &i64s(&[2], &[3, 2])]);
    assert_eq!(values(&y), [4.0, 3.0, 2.0, 1.0, 0.0, 5.0]);
    assert!(try_one(&op, &[&ramp(&[3, 2]), &i64s(&[2], &[3, 4])]).is_err());
}

#[test]
fn cumulates() {
    let run = |exclusive, reverse, axis| {
        let op = Op::CumSum {
            axis,
            exclusive,
            reverse,
        };
        values(&one(
            &op,
            &[&f32s(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])],
        ))
        .to_vec()
    };
    assert_eq!(run(false, false, 1), [1.0, 3.0, 6.0, 4.0, 9.0, 15.0]);
    assert_eq!(run(true, false, 1), [0.0, 1.0, 3.0, 0.0, 4.0, 9.0]);
    assert_eq!(run(false, true, 0), [5.0, 7.0, 9.0, 4.0, 5.0, 6.0]);
}
