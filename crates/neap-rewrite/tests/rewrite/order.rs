//! Other orders of steps.

use crate::build::{Net, Random};
use crate::interpret;
use crate::lower::ANY_GAIN;
use neap_ir::{NodeId, Program, ValueId};
use neap_rewrite::{Lowered, OrderLimits, reordered, step_bytes, with_less_memory};

/// Names of the steps' nodes, in order.
fn names(program: &Program) -> Vec<&str> {
    let name = |n: &NodeId| program.graph.nodes[n.index()].name.as_str();
    program.steps.iter().map(name).collect()
}

fn peak_bytes(program: &Program) -> u64 {
    step_bytes(program).into_iter().max().unwrap_or(0)
}

/// Two branches that begin large and end small, exported one layer of both at a time.
fn branches(net: &mut Net, side: usize) -> Lowered {
    let x = net.input(&[1, 16, side, side]);
    let [a, b] = [x; 2].map(|x| net.conv(x, 64, 1, 1));
    let [a, b] = [a, b].map(|x| net.conv(x, 16, 1, 2));
    let sum = net.add(a, b);
    net.output(sum);
    net.lower()
}

#[test]
fn a_branch_is_finished_before_the_next_begins() {
    let lowered = branches(&mut Net::new(), 16);
    let given = &lowered.program;
    let found = with_less_memory(given, &ANY_GAIN).expect("there is a better order");
    // The large results were both live, and are not any more.
    let large_bytes = 64 * 16 * 16 * 4;
    assert!(peak_bytes(given) >= 2 * large_bytes);
    assert!(peak_bytes(&found) < 2 * large_bytes);
    let (mut before, mut after) = (names(given), names(&found));
    assert_ne!(before, after);
    before.sort_unstable();
    after.sort_unstable();
    assert_eq!(before, after);
    assert_ne!(given.digest, found.digest);
    // It is the best already.
    assert!(with_less_memory(&found, &ANY_GAIN).is_none());
}

#[test]
fn small_programs_and_small_gains_are_left_alone() {
    let lowered = branches(&mut Net::new(), 16);
    assert!(with_less_memory(&lowered.program, &OrderLimits::default()).is_none());
    let more = OrderLimits {
        peak_gain: 0.9,
        ..ANY_GAIN
    };
    assert!(with_less_memory(&lowered.program, &more).is_none());
    let fewer = OrderLimits {
        most_nodes: 2,
        ..ANY_GAIN
    };
    assert!(with_less_memory(&lowered.program, &fewer).is_none());
    // Large enough, it is changed by default too.
    let lowered = branches(&mut Net::new(), 160);
    assert!(with_less_memory(&lowered.program, &OrderLimits::default()).is_some());
}

#[test]
fn a_chain_has_one_order() {
    let mut net = Net::new();
    let x = net.input(&[1, 16, 16, 16]);
    let y = net.conv(x, 64, 1, 1);
    let z = net.conv(y, 16, 1, 1);
    net.output(z);
    let lowered = net.lower();
    assert!(with_less_memory(&lowered.program, &ANY_GAIN).is_none());
}

/// Whatever the order, no value is damaged before it is read; the orders are random topological ones.
#[test]
fn any_order_gives_the_same() {
    let mut changed = 0;
    for seed in 0..200 {
        let mut net = Net::seeded(seed + 1);
        let x = net.input(&[1, 16, 4, 4]);
        let mut pool = vec![x];
        for _ in 0..net.random.below(14) + 4 {
            let one = pool[net.random.below(pool.len())];
            let channels = net.shape(one)[1];
            let has_as_many = |&v: &ValueId| net.shape(v)[1] == channels;
            let same: Vec<ValueId> = pool.iter().copied().filter(has_as_many).collect();
            let other = *net.random.pick(&same);
            let made = match net.random.below(5) {
                0 => net.conv(one, 32, 1, 1),
                1 => net.relu(one),
                2 => net.add(one, other),
                3 if channels <= 64 => net.concat(1, &[one, other]),
                _ => net.conv(one, 16, 3, 1),
            };
            pool.push(made);
        }
        // All that nobody reads: nothing is dead.
        let uses = net.graph.use_counts();
        pool.iter()
            .filter(|v| **v != x && uses[v.index()] == 0)
            .for_each(|&v| net.output(v));
        let lowered = net.lower();
        let order = random_order(&lowered.program, &mut net.random);
        changed += usize::from(!order.is_sorted());
        let made = reordered(&lowered.program, &order);
        interpret::compare(&net.graph, &lowered, &made, &mut net.random);
    }
    assert!(changed > 100, "{changed} orders were others");
}

fn random_order(program: &Program, random: &mut Random) -> Vec<NodeId> {
    let graph = &program.graph;
    let producers = graph.producers();
    let mut is_done = vec![false; graph.nodes.len()];
    let mut order = Vec::new();
    while order.len() < graph.nodes.len() {
        let is_ready = |&at: &usize| {
            let mut before = graph.nodes[at]
                .present_inputs()
                .filter_map(|v| producers[v.index()]);
            !is_done[at] && before.all(|n| is_done[n.index()])
        };
        let ready: Vec<usize> = (0..graph.nodes.len()).filter(is_ready).collect();
        let next = *random.pick(&ready);
        is_done[next] = true;
        order.push(NodeId(next as u32));
    }
    order
}
