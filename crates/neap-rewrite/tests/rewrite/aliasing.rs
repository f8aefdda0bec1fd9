//! Which values share memory, and that none is damaged (the interpreter looks at every byte).

use crate::build::Net;
use crate::lower::steps;
use neap_ir::ValueId;
use neap_ir::op::{Op, SliceRange, Unary};
use neap_ir::program::Storage;
use neap_rewrite::Lowered;

fn place(lowered: &Lowered, v: ValueId) -> (u32, u64) {
    match lowered.program.storage[v.index()] {
        Storage::Buffer {
            buffer,
            offset_bytes,
        } => (buffer, offset_bytes),
        other => panic!("{other:?}"),
    }
}

/// Not fusable, not in place for anything that follows: a fresh value.
fn fresh(net: &mut Net, x: ValueId) -> ValueId {
    let rank = net.shape(x).len();
    let perm: Vec<usize> = (0..rank).rev().collect();
    let y = net.transpose(x, &perm);
    let y = net.unary(Unary::Neg, y);
    net.transpose(y, &perm)
}

#[test]
fn reshapes_name_the_same_memory() {
    let mut net = Net::new();
    let x = net.input(&[2, 12]);
    let y = fresh(&mut net, x);
    let a = net.reshape(y, &[4, 6]);
    let b = net.reshape(a, &[24]);
    let c = net.reshape(b, &[2, 3, 4]);
    let z = net.unary(Unary::Exp, c);
    net.output(z);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Transpose", "Neg", "Transpose", "Exp"]);
    assert_eq!(place(&lowered, y), place(&lowered, c));
    // Nobody reads `c` again, so the result lies there too.
    assert_eq!(place(&lowered, z), place(&lowered, c));
}

#[test]
fn an_input_or_constant_reshaped_is_copied() {
    let mut net = Net::new();
    let x = net.input(&[2, 12]);
    let a = net.reshape(x, &[24]);
    let w = net.weight(&[24], 1.0);
    let w = net.reshape(w, &[2, 12]);
    net.output(a);
    net.output(w);
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Reshape", "Reshape"]);
}

/// DenseNet's pattern: each layer reads the concatenation of all before it.
#[test]
fn growing_concatenations_are_written_in_place() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 3, 3]);
    let mut parts = vec![net.conv(x, 16, 3, 1)];
    for _ in 0..3 {
        let all = net.concat(1, &parts);
        let y = net.batch_norm(all);
        let y = net.relu(y);
        parts.push(net.conv(y, 16, 3, 1));
    }
    let all = net.concat(1, &parts);
    let y = net.relu(all);
    net.output(y);
    let lowered = net.lower();
    assert!(!steps(&lowered).contains(&"Concat"));
    let of = |i: usize| place(&lowered, parts[i]);
    for i in 1..parts.len() {
        let block_bytes = 16 * 9 * 4;
        assert_eq!(of(i), (of(0).0, of(0).1 + i as u64 * block_bytes));
    }
}

#[test]
fn a_value_concatenated_twice_is_copied_once() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let y = fresh(&mut net, x);
    let both = net.concat(0, &[y, y]);
    let z = net.unary(Unary::Exp, both);
    net.output(z);
    let lowered = net.lower();
    assert_eq!(
        steps(&lowered).iter().filter(|s| **s == "Concat").count(),
        1
    );
    assert_eq!(place(&lowered, y), place(&lowered, both));
}

#[test]
fn nested_concatenations() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let parts: Vec<ValueId> = (0..4).map(|_| fresh(&mut net, x)).collect();
    let left = net.concat(0, &parts[..2]);
    let right = net.concat(0, &parts[2..]);
    let all = net.concat(0, &[right, left]);
    net.output(all);
    let lowered = net.lower();
    assert!(!steps(&lowered).contains(&"Concat"));
    let (buffer, base) = place(&lowered, all);
    let offsets = parts.iter().map(|&p| place(&lowered, p).1 - base);
    assert_eq!(offsets.collect::<Vec<_>>(), [96, 144, 0, 48]);
    assert!(parts.iter().all(|&p| place(&lowered, p).0 == buffer));
}

#[test]
fn concatenation_along_an_inner_axis_copies() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let (a, b) = (fresh(&mut net, x), fresh(&mut net, x));
    let both = net.concat(1, &[a, b]);
    net.output(both);
    assert!(steps(&net.lower()).contains(&"Concat"));
}

#[test]
fn split_parts_are_views() {
    let mut net = Net::new();
    let x = net.input(&[6, 4]);
    let y = fresh(&mut net, x);
    let parts = net.split(0, &[1, 3, 2], y);
    let range = SliceRange {
        start: 1,
        step: 1,
        len: 2,
    };
    let whole = SliceRange {
        start: 0,
        step: 1,
        len: 4,
    };
    let slice = Op::Slice {
        ranges: vec![range, whole],
    };
    let inner = net.op(slice, &[parts[1]]);
    for &v in parts.iter().chain([&inner]) {
        let z = fresh(&mut net, v);
        net.output(z);
    }
    let lowered = net.lower();
    assert!(!steps(&lowered).contains(&"Split"));
    let (buffer, base) = place(&lowered, y);
    assert_eq!(place(&lowered, parts[2]), (buffer, base + 4 * 16));
    assert_eq!(place(&lowered, inner), (buffer, base + 2 * 16));
}

/// Overlapping slices are fine to read, but neither may be overwritten while the other is needed.
#[test]
fn overlapping_slices_do_not_damage_each_other() {
    let mut net = Net::new();
    let x = net.input(&[6, 4]);
    let y = fresh(&mut net, x);
    let cut = |net: &mut Net, start: usize| {
        let range = |start, len| SliceRange {
            start,
            step: 1,
            len,
        };
        let ranges = vec![range(start, 4), range(0, 4)];
        net.op(Op::Slice { ranges }, &[y])
    };
    let (a, b) = (cut(&mut net, 0), cut(&mut net, 2));
    let p = net.relu(a);
    let q = net.relu(b);
    let sum = net.add(p, q);
    net.output(sum);
    let lowered = net.lower();
    let overlap = |u: ValueId, v: ValueId| place(&lowered, u).0 == place(&lowered, v).0;
    assert!(overlap(a, b) && !overlap(p, b));
    assert!(overlap(q, b));
}

/// ShuffleNet's pattern: half of the channels passes by, the other half is still read while the
/// concatenation's second part is computed.
#[test]
fn the_bypassed_half_does_not_cover_the_other() {
    for late_reader in [false, true] {
        let mut net = Net::new();
        let x = net.input(&[1, 32, 4, 4]);
        let x = net.conv(x, 32, 3, 1);
        let halves = net.split(1, &[16, 16], x);
        let branch = net.conv(halves[1], 16, 3, 1);
        if late_reader {
            let y = net.unary(Unary::Exp, halves[1]);
            net.output(y);
        }
        let joined = net.concat(1, &[halves[0], branch]);
        let y = net.conv(joined, 32, 1, 1);
        net.output(y);
        net.lower();
    }
}

#[test]
fn a_shifted_copy_of_itself() {
    let mut net = Net::new();
    let x = net.input(&[8, 2]);
    let x = fresh(&mut net, x);
    let halves = net.split(0, &[4, 4], x);
    let a = net.concat(0, &[halves[0], x, halves[0]]);
    let b = net.concat(0, &[halves[1], halves[0]]);
    let c = net.concat(0, &[x, halves[1], x]);
    for v in [a, b, c] {
        let y = net.unary(Unary::Exp, v);
        net.output(y);
    }
    net.lower();
}

#[test]
fn in_place_where_nobody_reads_again() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let y = fresh(&mut net, x);
    let a = net.unary(Unary::Exp, y);
    let other = fresh(&mut net, x);
    let b = net.add(other, a);
    net.output(b);
    let lowered = net.lower();
    assert_eq!(place(&lowered, y), place(&lowered, a));
    assert!([place(&lowered, a), place(&lowered, other)].contains(&place(&lowered, b)));
}

#[test]
fn not_in_place_when_read_later() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let y = fresh(&mut net, x);
    let a = net.unary(Unary::Exp, y);
    let b = net.mul(a, y);
    net.output(b);
    let lowered = net.lower();
    assert_ne!(place(&lowered, y).0, place(&lowered, a).0);
}

#[test]
fn not_over_what_the_caller_gave_or_gets() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let a = net.unary(Unary::Exp, x);
    net.output(a);
    let b = net.unary(Unary::Neg, a);
    net.output(b);
    let w = net.weight(&[2, 6], 1.0);
    let c = net.unary(Unary::Sin, w);
    net.output(c);
    let lowered = net.lower();
    assert_ne!(place(&lowered, a).0, place(&lowered, b).0);
    assert_eq!(lowered.program.storage[x.index()], Storage::Input(0));
}

/// `x + conv(x)`: the sum may not be written over `x`, which the convolution still reads.
#[test]
fn not_over_the_convolved_input() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 5, 5]);
    let x = net.conv(x, 16, 1, 1);
    let y = net.conv(x, 16, 3, 1);
    let sum = net.add(x, y);
    net.output(sum);
    let lowered = net.lower();
    assert_eq!(
        steps(&lowered),
        ["Reorder", "PanelConv", "PanelConv", "Reorder"]
    );
    let nodes = &lowered.program.graph.nodes;
    let last = nodes[2].outputs[0].expect("an output");
    assert_ne!(place(&lowered, x).0, place(&lowered, last).0);
}

#[test]
fn padded_channels_are_not_joined_in_place() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 3, 3]);
    let a = net.conv(x, 24, 1, 1);
    let b = net.conv(x, 16, 1, 1);
    let joined = net.concat(1, &[a, b]);
    let y = net.relu(joined);
    net.output(y);
    net.lower();
}

#[test]
fn the_same_output_twice() {
    let mut net = Net::new();
    let x = net.input(&[2, 6]);
    let a = net.unary(Unary::Exp, x);
    let view = net.reshape(a, &[12]);
    for v in [a, view, a] {
        net.output(v);
    }
    let lowered = net.lower();
    assert_eq!(steps(&lowered), ["Exp"]);
}
