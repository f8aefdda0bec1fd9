//! Random graphs of views, joins and element-wise sums: the densest sharing of memory there is.

use crate::build::{Net, Random, square};
use neap_ir::ValueId;
use neap_ir::op::{Activation, Op, SliceRange, Unary};

const GRAPHS: u64 = 400;

#[test]
fn plain_graphs_share_memory_without_damage() {
    each(0..GRAPHS, &|net| {
        let shape: &[usize] = if net.random.chance(50) { &[8] } else { &[4, 2] };
        let x = net.input(shape);
        let mut pool = vec![net.unary(Unary::Sin, x)];
        for _ in 0..net.random.below(12) + 3 {
            let at = net.random.below(pool.len());
            let v = plain_op(net, pool[at], &pool);
            pool.extend(v);
        }
        pool
    });
}

#[test]
fn blocked_graphs_share_memory_without_damage() {
    each(0..GRAPHS / 4, &|net| {
        let batch = if net.random.chance(20) { 2 } else { 1 };
        let x = net.input(&[batch, 16, 2, 2]);
        let mut pool = vec![net.conv(x, 32, 1, 1)];
        for _ in 0..net.random.below(8) + 2 {
            let at = net.random.below(pool.len());
            let v = blocked_op(net, pool[at], &pool);
            pool.extend(v);
        }
        pool
    });
}

/// Some results of `build` become the graph's outputs.
fn each(seeds: std::ops::Range<u64>, build: &dyn Fn(&mut Net) -> Vec<ValueId>) {
    for seed in seeds {
        let seed = seed + neap_testing::seed();
        let run = std::panic::AssertUnwindSafe(|| {
            let mut net = Net::seeded(seed + 1);
            let pool = build(&mut net);
            let last = pool[pool.len() - 1];
            net.output(last);
            for &v in &pool[..pool.len() - 1] {
                if net.random.chance(20) {
                    net.output(v);
                }
            }
            net.lower();
        });
        if let Err(payload) = std::panic::catch_unwind(run) {
            eprintln!("the failing seed is {seed}");
            std::panic::resume_unwind(payload);
        }
    }
}

/// A value of the type of `x`, perhaps `x` itself.
fn alike(net: &mut Net, x: ValueId, pool: &[ValueId]) -> ValueId {
    let same: Vec<ValueId> = pool
        .iter()
        .copied()
        .filter(|&v| net.graph.ty(v) == net.graph.ty(x))
        .collect();
    *net.random.pick(&same)
}

fn cut(random: &mut Random, shape: &[usize], axis: usize, unit: usize) -> Vec<SliceRange> {
    shape
        .iter()
        .enumerate()
        .map(|(i, &d)| {
            if i != axis {
                return SliceRange {
                    start: 0,
                    step: 1,
                    len: d,
                };
            }
            let start = random.below(d / unit) * unit;
            let len = random.below(d - start) + 1;
            SliceRange {
                start,
                step: 1,
                len,
            }
        })
        .collect()
}

fn plain_op(net: &mut Net, x: ValueId, pool: &[ValueId]) -> Vec<ValueId> {
    let shape = net.shape(x);
    let elements: usize = shape.iter().product();
    let made = match net.random.below(9) {
        0 => net.unary(Unary::Sin, x),
        1 | 2 => {
            let y = alike(net, x, pool);
            net.add(x, y)
        }
        3 => net.reshape(x, &[elements]),
        4 if elements.is_multiple_of(2) => net.reshape(x, &[elements / 2, 2]),
        5 if shape[0] >= 2 => {
            let first = net.random.below(shape[0] - 1) + 1;
            return net.split(0, &[first, shape[0] - first], x);
        }
        6 => {
            let ranges = cut(&mut net.random, &shape, 0, 1);
            net.op(Op::Slice { ranges }, &[x])
        }
        7 | 8 if elements <= 64 => {
            let joinable: Vec<ValueId> = pool
                .iter()
                .copied()
                .filter(|&v| net.shape(v)[1..] == shape[1..])
                .collect();
            let mut parts = vec![x];
            for _ in 0..net.random.below(3) {
                parts.push(*net.random.pick(&joinable));
            }
            net.concat(0, &parts)
        }
        _ => net.unary(Unary::Neg, x),
    };
    vec![made]
}

fn blocked_op(net: &mut Net, x: ValueId, pool: &[ValueId]) -> Vec<ValueId> {
    let channels = net.shape(x)[1];
    let made = match net.random.below(8) {
        0 => net.conv(x, 16, 1, 1),
        1 => {
            let y = net.conv(x, channels, 1, 1);
            let other = alike(net, y, &[pool, &[y][..]].concat());
            net.add(y, other)
        }
        2 => {
            let weight = net.weight(&[channels, 1, 3, 3], 0.3);
            net.op(Op::Conv(square(3, 1), channels), &[x, weight])
        }
        3 if channels > 16 => {
            let first = (net.random.below(channels.div_ceil(16) - 1) + 1) * 16;
            return net.split(1, &[first, channels - first], x);
        }
        4 if channels >= 16 => {
            let shape = net.shape(x);
            let ranges = cut(&mut net.random, &shape, 1, 16);
            net.op(Op::Slice { ranges }, &[x])
        }
        5 | 6 if channels <= 64 => {
            let mut parts = vec![x];
            for _ in 0..net.random.below(3) {
                parts.push(*net.random.pick(pool));
            }
            net.concat(1, &parts)
        }
        _ => net.activation(Activation::LeakyRelu { alpha: 0.5 }, x),
    };
    vec![made]
}
