//! Networks in strips, from the least memory that there is a plan for to all of it.

use crate::build::Net;
use crate::sessions::{Packed, Setting, plain_setting, run};
use neap_ir::op::{AttentionAttrs, HeadLayout, Op};
use neap_ir::{Literal, ValueId};
use neap_planner::Strategy;

const PLACES: usize = 40 * 32;

fn input(net: &mut Net, shape: &[usize]) -> Literal {
    let count = shape.iter().product();
    let data: Vec<f32> = (0..count).map(|_| net.random.float()).collect();
    Literal::from_f32(shape, &data)
}

/// Runs in strips, and compares bits with those of the network as a whole; gives what it takes at least.
fn same_bits(net: &mut Net, strip_bytes: u64) -> (Packed, u64) {
    let packed = Packed::with_strips(net.graph.clone(), Some(strip_bytes));
    let shapes: Vec<Vec<usize>> = packed
        .program
        .graph
        .inputs
        .iter()
        .map(|&v| net.shape(v))
        .collect();
    let inputs: Vec<Literal> = shapes.iter().map(|shape| input(net, shape)).collect();
    let mut whole = packed.open(&plain_setting(&packed)).expect("feasible");
    let expected = run(&mut whole, &inputs).expect("runs");
    for threads in [1, 3] {
        let (least, most) = packed.arena_range(threads, true);
        for arena_bytes in [least, least + (most - least) / 3, most] {
            let setting = Setting {
                arena_bytes,
                threads,
                banded: true,
                strategy: Strategy::Preload,
                ..plain_setting(&packed)
            };
            let mut session = packed.open(&setting).expect("feasible");
            for _ in 0..2 {
                let found = run(&mut session, &inputs).expect("runs");
                assert!(found == expected, "other bits under {setting:?}");
            }
        }
    }
    let (least, _) = packed.arena_range(1, true);
    (packed, least)
}

fn count(packed: &Packed, name: &str) -> usize {
    let strips = packed.banded.as_ref().expect("it is in strips");
    let nodes = strips.graph.nodes.iter();
    nodes.filter(|node| node.op.name() == name).count()
}

fn attention(net: &mut Net, rows: ValueId, layout: HeadLayout, mask: Option<ValueId>) -> ValueId {
    let [q, k, v] = [(); 3].map(|()| {
        let weight = net.weight(&[16, 32], 0.5);
        let made = net.op(Op::MatMul, &[rows, weight]);
        match layout {
            HeadLayout::HeadMajor => {
                let apart = net.reshape(made, &[1, PLACES, 4, 8]);
                net.transpose(apart, &[0, 2, 1, 3])
            }
            _ => made,
        }
    });
    let attrs = AttentionAttrs {
        heads: 4,
        kv_heads: 4,
        scale: 0.5,
        causal: false,
        nan_is_zero: false,
        q: layout,
        k: layout,
        v: layout,
        out: HeadLayout::RowMajor,
    };
    let operands: Vec<ValueId> = [q, k, v].into_iter().chain(mask).collect();
    let y = net.op(Op::Attention(attrs), &operands);
    let narrow = net.weight(&[32, 16], 0.2);
    net.op(Op::MatMul, &[y, narrow])
}

#[test]
fn attention_whose_keys_come_in_strips() {
    for (layout, is_masked) in [(HeadLayout::RowMajor, false), (HeadLayout::HeadMajor, true)] {
        let mut net = Net::seeded(7);
        let x = net.input(&[1, 16, 40, 32]);
        let mask = is_masked.then(|| net.input(&[1, 1, 1, PLACES]));
        let a = net.conv(x, 16, 3, 1);
        let last = net.transpose(a, &[0, 2, 3, 1]);
        let rows = net.reshape(last, &[1, PLACES, 16]);
        let y = attention(&mut net, rows, layout, mask);
        let y = net.add(y, rows);
        let last = net.reshape(y, &[1, 40, 32, 16]);
        let image = net.transpose(last, &[0, 3, 1, 2]);
        let y = net.conv(image, 16, 3, 1);
        net.output(y);
        for strip_bytes in [8 << 10, 60 << 10] {
            let (packed, least) = same_bits(&mut net, strip_bytes);
            assert!(count(&packed, "AttendKeys") > 4 && count(&packed, "Attention") == 0);
            let (whole, _) = packed.arena_range(1, false);
            assert!(least < whole, "{least} of {whole}");
        }
    }
}

/// Strips of results go where the caller wants them: of the plan's memory, results need none.
#[test]
fn results_in_strips_take_no_memory_of_the_plan() {
    let mut net = Net::seeded(3);
    let x = net.input(&[1, 16, 96, 32]);
    let a = net.conv(x, 16, 3, 1);
    let wide = net.conv(a, 64, 3, 1);
    let narrow = net.conv(a, 1, 3, 1);
    net.output(wide);
    net.output(narrow);
    let (packed, _) = same_bits(&mut net, 8 << 10);
    assert!(count(&packed, "PutRows") > 8);
    let buffers = packed.workload(1, true).buffers;
    assert_eq!(buffers.iter().filter(|b| b.bytes == 0).count(), 2);
    let longest = buffers.iter().map(|b| b.bytes).max();
    assert!(longest < Some(64 * 96 * 32), "{longest:?}");
    let buffers = packed.workload(1, false).buffers;
    assert!(buffers.iter().all(|b| b.bytes > 0));
}
