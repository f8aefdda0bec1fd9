//! Against a naive reference: what a backward pass does, node by node, with any set of values dropped.

use super::*;
use crate::Random;
use neap_sim::CostProfile;

/// Time of what is computed again, and the most memory, when these values are dropped.
fn reference(tape: &Tape, is_dropped: &[bool]) -> (u64, u64) {
    let count = tape.values.len();
    let reads = tape.reads();
    // By value: nodes at which it, and its copy, are in memory.
    let mut first = vec![(0, 0); count];
    let mut copy: Vec<Option<(usize, usize)>> = vec![None; count];
    for (v, value) in tape.values.iter().enumerate() {
        let last = if is_dropped[v] {
            reads[v].forward
        } else {
            reads[v].last()
        };
        first[v] = (value.made_by, last);
    }
    let mut ns = 0;
    fn make(
        tape: &Tape,
        is_dropped: &[bool],
        v: usize,
        at: usize,
        first: &mut [(usize, usize)],
        copy: &mut [Option<(usize, usize)>],
    ) -> u64 {
        if !is_dropped[v] {
            first[v].1 = first[v].1.max(at);
            return 0;
        }
        if let Some(copy) = &mut copy[v] {
            copy.1 = copy.1.max(at);
            return 0;
        }
        copy[v] = Some((at, at));
        let node = &tape.nodes[tape.values[v].made_by];
        let operands = node.reads.iter();
        node.ns
            + operands
                .map(|&u| make(tape, is_dropped, u, at, first, copy))
                .sum::<u64>()
    }
    for at in tape.forward..tape.nodes.len() {
        for &v in &tape.nodes[at].reads {
            ns += make(tape, is_dropped, v, at, &mut first, &mut copy);
        }
    }
    let most = (0..tape.nodes.len()).map(|at| {
        let mut bytes = tape.nodes[at].live_bytes as i64 + tape.states_bytes as i64;
        for v in 0..count {
            let size = tape.values[v].bytes as i64;
            let within = |(from, to): (usize, usize)| from <= at && at <= to;
            bytes -= size * i64::from(within((tape.values[v].made_by, reads[v].last())));
            bytes += size * i64::from(within(first[v]));
            bytes += size * i64::from(copy[v].is_some_and(within));
        }
        bytes as u64
    });
    (ns, most.max().unwrap_or(0))
}

/// A chain of `count` layers, whose backward pass reads each layer's operand and result.
fn chain(count: usize, random: &mut Random) -> Tape {
    let mut draw = |from: u64, to: u64| from + random.below((to - from) as usize) as u64;
    let values: Vec<TapeValue> = (0..count)
        .map(|made_by| TapeValue {
            made_by,
            bytes: draw(1, 40),
            is_cheap: false,
        })
        .collect();
    let mut nodes = Vec::new();
    for at in 0..count {
        nodes.push(TapeNode {
            ns: draw(1, 100),
            reads: at.checked_sub(1).into_iter().collect(),
            ..TapeNode::default()
        });
    }
    // The loss.
    nodes.push(TapeNode {
        ns: 1,
        reads: vec![count - 1],
        ..TapeNode::default()
    });
    let forward = nodes.len();
    for at in (0..count).rev() {
        nodes.push(TapeNode {
            ns: draw(1, 200),
            reads: at.checked_sub(1).into_iter().chain([at]).collect(),
            ..TapeNode::default()
        });
    }
    let mut tape = Tape {
        nodes,
        forward,
        values,
        states_bytes: draw(0, 50),
    };
    let reads = tape.reads();
    for at in 0..tape.nodes.len() {
        let live = tape.values.iter().zip(&reads);
        let live = live.filter(|(v, r)| v.made_by <= at && at <= r.last());
        tape.nodes[at].live_bytes = live.map(|(v, _)| v.bytes).sum::<u64>() + draw(0, 30);
    }
    tape
}

fn flags(tape: &Tape, dropped: &[usize]) -> Vec<bool> {
    (0..tape.values.len())
        .map(|v| dropped.contains(&v))
        .collect()
}

const WITHOUT_SWAPS: Limits = Limits {
    pieces: 32,
    times: 64,
    branches: 100_000,
    swaps: false,
};

#[test]
fn on_chains_nothing_is_better_than_what_the_program_finds() {
    let mut random = Random::new(1, 0, 0);
    let mut tight = 0;
    for count in [2, 3, 5, 7, 8, 9] {
        for _ in 0..6 {
            let tape = chain(count, &mut random);
            let all: Vec<(u64, u64)> = (0..1u32 << count)
                .map(|set| {
                    let is_dropped: Vec<bool> = (0..count).map(|v| set >> v & 1 == 1).collect();
                    reference(&tape, &is_dropped)
                })
                .collect();
            let (_, whole) = all[0];
            let least = all.iter().map(|&(_, bytes)| bytes).min().unwrap();
            for share in 0..=4 {
                let limit = least + (whole - least) * share / 4;
                let within = all.iter().filter(|&&(_, bytes)| bytes <= limit);
                let best = within.map(|&(ns, _)| ns).min().unwrap();
                let costs = CostProfile::default();
                let found = cheapest(&tape, limit, &costs, WITHOUT_SWAPS).unwrap();
                assert!(found.is_proven);
                let (ns, bytes) = reference(&tape, &flags(&tape, &found.dropped));
                assert_eq!((ns, found.peak_bytes), (best, bytes), "{tape:?} in {limit}");
                assert!(bytes <= limit);
                tight += u64::from(ns > 0);
            }
            if least > 1 {
                let costs = CostProfile::default();
                assert_eq!(cheapest(&tape, least - 1, &costs, WITHOUT_SWAPS), None);
            }
        }
    }
    assert!(tight > 60, "{tight}");
}

#[test]
fn segments_of_a_long_chain_take_about_the_square_root() {
    let mut random = Random::new(2, 0, 0);
    let mut tape = chain(100, &mut random);
    for value in &mut tape.values {
        value.bytes = 10;
    }
    tape.states_bytes = 0;
    let reads = tape.reads();
    for at in 0..tape.nodes.len() {
        let live = reads.iter().zip(&tape.values);
        let live = live.filter(|(r, v)| v.made_by <= at && at <= r.last());
        tape.nodes[at].live_bytes = 10 * live.count() as u64;
    }
    let (ns, whole) = reference(&tape, &[false; 100]);
    assert_eq!((ns, whole), (0, 1000));
    let dropped = segments(&tape);
    let (ns, bytes) = reference(&tape, &flags(&tape, &dropped));
    // Nine borders and one segment of ten.
    assert!((190..=230).contains(&bytes), "{bytes}");
    let forward: u64 = tape.nodes[..100].iter().map(|n| n.ns).sum();
    assert!(ns > 0 && ns < forward);
    // The program does as well in as much memory, coarse as it is.
    for pieces in [16, 20] {
        let limits = Limits {
            pieces,
            times: 256,
            branches: 300,
            swaps: false,
        };
        let found = cheapest(&tape, bytes, &CostProfile::default(), limits).unwrap();
        let (again, peak) = reference(&tape, &flags(&tape, &found.dropped));
        assert!(peak <= bytes, "{pieces}: {peak} of {bytes}");
        // Cut elsewhere, it may compute a little more.
        assert!(again <= ns * 11 / 10, "{pieces}: {again} of {ns}");
    }
}

/// A fast drive takes what is not in memory; a slow one does not.
#[test]
fn what_is_cheaper_to_move_is_moved() {
    let mut random = Random::new(3, 0, 0);
    let tape = chain(9, &mut random);
    let (_, whole) = reference(&tape, &[false; 9]);
    let limits = Limits {
        swaps: true,
        ..WITHOUT_SWAPS
    };
    let with_rate = |storage_bytes_per_second| {
        let costs = CostProfile {
            storage_bytes_per_second,
            load_handling_ns_per_byte: 0.0,
            ..CostProfile::default()
        };
        cheapest(&tape, whole * 3 / 4, &costs, limits).unwrap()
    };
    let fast = with_rate(1e15);
    assert!(
        fast.swapped_bytes > 0 && fast.dropped.is_empty(),
        "{fast:?}"
    );
    let slow = with_rate(1e3);
    assert!(
        slow.swapped_bytes == 0 && !slow.dropped.is_empty(),
        "{slow:?}"
    );
}

#[test]
fn a_tape_that_contradicts_itself_has_no_choice() {
    let mut tape = chain(4, &mut Random::new(4, 0, 0));
    tape.values[2].made_by = 99;
    let costs = CostProfile::default();
    assert_eq!(cheapest(&tape, 1 << 20, &costs, Limits::default()), None);
    assert!(segments(&tape).is_empty());
    assert_eq!(
        cheapest(&Tape::default(), 0, &costs, Limits::default()),
        None
    );
}
