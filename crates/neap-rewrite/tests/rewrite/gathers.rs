//! Gathers at constant positions.

use crate::build::Net;
use crate::lower::{nodes, steps};
use neap_ir::op::{Op, Unary};

/// The operators that remain of `Relu(Gather(Abs(x), positions))` over an axis.
fn lowered(
    axis: usize,
    shape: &[usize],
    positions: &[i64],
) -> (Vec<&'static str>, Vec<&'static str>) {
    let mut net = Net::new();
    let x = net.input(&[4, 6, 5]);
    let x = net.unary(Unary::Abs, x);
    let indices = net.integers(shape, positions);
    let rows = net.op(Op::Gather { axis }, &[x, indices]);
    let y = net.relu(rows);
    net.graph.outputs = vec![y];
    let lowered = net.lower();
    (nodes(&lowered), steps(&lowered))
}

#[test]
fn of_equal_distances_are_slices() {
    let (nodes, steps) = lowered(0, &[2], &[1, 2]);
    assert!(
        nodes.contains(&"Slice") && !nodes.contains(&"Gather"),
        "{nodes:?}"
    );
    // It lies in its input's memory.
    assert_eq!(steps.len(), 2, "{steps:?}");
    let (nodes, steps) = lowered(0, &[], &[-1]);
    assert!(
        nodes.contains(&"Reshape") && !nodes.contains(&"Gather"),
        "{nodes:?}"
    );
    assert_eq!(steps.len(), 2, "{steps:?}");
    for (axis, shape, positions) in [
        (1, &[2, 1][..], &[3, 1][..]),
        (2, &[1, 3], &[0, 2, 4]),
        (1, &[], &[5]),
    ] {
        let (nodes, _) = lowered(axis, shape, positions);
        assert!(
            nodes.contains(&"Slice") && !nodes.contains(&"Gather"),
            "{nodes:?}"
        );
    }
}

#[test]
fn others_stay() {
    let (nodes, _) = lowered(1, &[3], &[0, 1, 3]);
    assert!(nodes.contains(&"Gather"), "{nodes:?}");
    let (nodes, _) = lowered(1, &[2], &[2, 2]);
    assert!(nodes.contains(&"Gather"), "{nodes:?}");
}
