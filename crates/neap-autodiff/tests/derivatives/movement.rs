//! Data movement.

use crate::difference::{check, check_outputs, frozen, index, noise};
use neap_ir::Op;
use neap_ir::op::{PadMode, SliceRange};

#[test]
fn concat_and_split() {
    for axis in [0, 1] {
        check(
            Op::Concat { axis },
            &[noise(&[2, 3]), noise(&[2, 3]), frozen(&[2, 3])],
        );
    }
    let op = Op::Concat { axis: 1 };
    check(op, &[frozen(&[2, 1, 2]), noise(&[2, 3, 2])]);
    let op = Op::Split {
        axis: 1,
        sizes: vec![1, 3, 2],
    };
    check_outputs(op, &[noise(&[2, 6])], 3);
}

#[test]
fn slices() {
    let range = |start, step, len| SliceRange { start, step, len };
    let table = [
        vec![range(0, 1, 4), range(0, 1, 5)],
        vec![range(1, 1, 2), range(0, 1, 5)],
        vec![range(0, 2, 2), range(1, 3, 2)],
        vec![range(3, -1, 4), range(4, -2, 3)],
        vec![range(2, 1, 1), range(3, -1, 2)],
    ];
    for ranges in table {
        check(Op::Slice { ranges }, &[noise(&[4, 5])]);
    }
}

#[test]
fn shapes_and_axes() {
    check(Op::Reshape { shape: vec![3, 4] }, &[noise(&[2, 6])]);
    for perm in [vec![2, 0, 1], vec![1, 2, 0], vec![0, 2, 1]] {
        check(Op::Transpose { perm }, &[noise(&[2, 3, 4])]);
    }
    check(
        Op::Expand {
            shape: vec![4, 2, 3],
        },
        &[noise(&[2, 1])],
    );
    check(Op::Expand { shape: vec![2, 3] }, &[noise(&[])]);
    check(
        Op::Tile {
            repeats: vec![2, 1, 3],
        },
        &[noise(&[2, 3, 2])],
    );
    for column_row_depth in [false, true] {
        let op = Op::DepthToSpace {
            block: 2,
            column_row_depth,
        };
        check(op, &[noise(&[2, 8, 2, 3])]);
    }
    check(Op::SpaceToDepth { block: 2 }, &[noise(&[2, 3, 4, 2])]);
    for upper in [false, true] {
        check(Op::Trilu { upper, diagonal: 1 }, &[noise(&[2, 3, 4])]);
    }
}

#[test]
fn sequences_reversed() {
    let lengths = index(&[3], &[2, 4, 1]);
    let op = Op::ReverseSequence {
        batch_axis: 1,
        time_axis: 0,
    };
    check(op, &[noise(&[4, 3, 2]), lengths]);
}

#[test]
fn padding() {
    let table = [
        (PadMode::Constant, vec![(1, 2), (0, 1)]),
        (PadMode::Constant, vec![(-1, 2), (0, -1)]),
        (PadMode::Reflect, vec![(2, 1), (0, 2)]),
        (PadMode::Edge, vec![(2, 3), (1, 0)]),
        (PadMode::Wrap, vec![(2, 1), (0, 3)]),
    ];
    for (mode, pads) in table {
        check(Op::Pad { mode, pads }, &[noise(&[3, 4])]);
    }
}
