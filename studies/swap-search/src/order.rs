//! Schedules: topological orders, crossed over and mutated (SwapAdvisor, Section 5.2).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::dataflow::{Dataflow, OpId, TensorKind};
use neap_planner::Random;

/// An order in which the next operator is any that is ready.
pub fn random(flow: &Dataflow, random: &mut Random) -> Vec<OpId> {
    let given = flow.given_order();
    mutate(flow, &given, 1.0, random)
}

/// Both children of two parents that are cut at `cut`.
///
/// ```text
///   SCH1  1 2 3 4 5      child 1: first of SCH2, the rest as in SCH1     2 3 4 | 1 5
///   SCH2  2 3 4 1 5      child 2: first of SCH1, the rest as in SCH2     1 2 3 | 4 5
/// ```
///
/// What is taken from the front of a topological order has nothing that it waits for behind the cut, so
/// the children are topological orders too.
pub fn cross(a: &[OpId], b: &[OpId], cut: usize) -> [Vec<OpId>; 2] {
    let join = |front: &[OpId], rest: &[OpId]| {
        let mut child = Vec::with_capacity(rest.len());
        let mut taken = vec![false; rest.len()];
        for &op in &front[..cut.min(front.len())] {
            taken[op.index()] = true;
            child.push(op);
        }
        child.extend(rest.iter().filter(|op| !taken[op.index()]));
        child
    };
    [join(b, a), join(a, b)]
}

/// Plays a scheduler: with `probability` any ready operator is next, else the one that is earliest in
/// `order`. Most of the order stays, and several operators move at once.
pub fn mutate(flow: &Dataflow, order: &[OpId], probability: f64, random: &mut Random) -> Vec<OpId> {
    let n = order.len();
    let mut position = vec![0u32; n];
    for (i, op) in order.iter().enumerate() {
        position[op.index()] = i as u32;
    }
    let mut waits = flow.waits().to_vec();
    // Those ready, once in any order to draw from and once by position; `slot` finds one in the first.
    let mut ready: Vec<OpId> = Vec::new();
    let mut slot = vec![u32::MAX; n];
    let mut earliest = BinaryHeap::new();
    let add = |op: OpId,
               ready: &mut Vec<OpId>,
               slot: &mut Vec<u32>,
               earliest: &mut BinaryHeap<Reverse<(u32, OpId)>>| {
        slot[op.index()] = ready.len() as u32;
        ready.push(op);
        earliest.push(Reverse((position[op.index()], op)));
    };
    for &op in order {
        if waits[op.index()] == 0 {
            add(op, &mut ready, &mut slot, &mut earliest);
        }
    }
    let mut out = Vec::with_capacity(n);
    while !ready.is_empty() {
        let op = if random.chance(probability) {
            ready[random.below(ready.len())]
        } else {
            loop {
                let Reverse((_, op)) = earliest.pop().expect("each ready one is in it");
                if slot[op.index()] != u32::MAX {
                    break op;
                }
            }
        };
        let at = slot[op.index()] as usize;
        slot[op.index()] = u32::MAX;
        ready.swap_remove(at);
        if let Some(moved) = ready.get(at) {
            slot[moved.index()] = at as u32;
        }
        out.push(op);
        for &next in flow.after(op) {
            waits[next.index()] -= 1;
            if waits[next.index()] == 0 {
                add(next, &mut ready, &mut slot, &mut earliest);
            }
        }
    }
    out
}

/// Moves one operator to another place among those it may take.
pub fn move_one(flow: &Dataflow, order: &[OpId], random: &mut Random) -> Vec<OpId> {
    let n = order.len();
    let mut out = order.to_vec();
    if n < 2 {
        return out;
    }
    let mut position = vec![0u32; n];
    for (i, op) in order.iter().enumerate() {
        position[op.index()] = i as u32;
    }
    // A few tries: most operators of a chain cannot move at all.
    for _ in 0..16 {
        let at = random.below(n);
        let op = order[at];
        let before = order[..at]
            .iter()
            .rposition(|&p| flow.after(p).contains(&op));
        let low = before.map_or(0, |p| p + 1);
        let successors = flow.after(op).iter().map(|a| position[a.index()] as usize);
        let high = successors.min().unwrap_or(n) - 1;
        if low < high {
            let to = low + random.below(high - low);
            let to = if to >= at { to + 1 } else { to };
            let op = out.remove(at);
            out.insert(to, op);
            break;
        }
    }
    out
}

/// Follows `order` up to position `from`, then for `count` operators prefers those whose parameters were used
/// lately, so that these need not be loaded again, and of those who became ready last; then `order` again.
/// "Lately" is within `warm_bytes` of other parameters.
///
/// ```text
///   layer 1   1  3  5            time step by time step, every operator wants other parameters;
///   layer 2   2  4  6            regrouped: 1 3 5 2 4 6
/// ```
pub fn regroup(
    flow: &Dataflow,
    order: &[OpId],
    from: usize,
    count: usize,
    warm_bytes: u64,
) -> Vec<OpId> {
    let n = order.len();
    let mut waits = flow.waits().to_vec();
    let mut done = vec![false; n];
    // Operators that are ready, in the order in which they became so.
    let mut ready: Vec<OpId> = Vec::new();
    let mut used_at: Vec<Option<u64>> = vec![None; flow.tensors().len()];
    let mut clock_bytes = 0u64;
    ready.extend(order.iter().filter(|op| waits[op.index()] == 0).rev());
    let mut out = Vec::with_capacity(n);
    let mut next = 0;
    let cold_bytes = |op: OpId, used_at: &[Option<u64>], clock_bytes: u64| -> u64 {
        let parameters = flow.touches(op).iter().map(|x| x.tensor.index());
        parameters
            .filter(|&t| flow.tensors()[t].kind == TensorKind::Parameter)
            .filter(|&t| used_at[t].is_none_or(|at| clock_bytes - at > warm_bytes))
            .map(|t| flow.tensors()[t].bytes)
            .sum()
    };
    while out.len() < n {
        let op = if (from..from.saturating_add(count)).contains(&out.len()) {
            let mut best = (u64::MAX, 0);
            for (slot, &op) in ready.iter().enumerate().rev() {
                let cold = cold_bytes(op, &used_at, clock_bytes);
                if cold < best.0 {
                    best = (cold, slot);
                }
                if cold == 0 {
                    break;
                }
            }
            ready[best.1]
        } else {
            while done[order[next].index()] {
                next += 1;
            }
            order[next]
        };
        if let Some(slot) = ready.iter().rposition(|&r| r == op) {
            ready.remove(slot);
        }
        clock_bytes += cold_bytes(op, &used_at, clock_bytes);
        for touch in flow.touches(op) {
            used_at[touch.tensor.index()] = Some(clock_bytes);
        }
        done[op.index()] = true;
        out.push(op);
        for &after in flow.after(op) {
            waits[after.index()] -= 1;
            if waits[after.index()] == 0 {
                ready.push(after);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::random_flow;

    fn ids(list: &[u32]) -> Vec<OpId> {
        list.iter().map(|i| OpId(i - 1)).collect()
    }

    #[test]
    fn the_papers_figure_4() {
        let [c1, c2] = cross(&ids(&[1, 2, 3, 4, 5]), &ids(&[2, 3, 4, 1, 5]), 3);
        assert_eq!(c1, ids(&[2, 3, 4, 1, 5]));
        assert_eq!(c2, ids(&[1, 2, 3, 4, 5]));
    }

    #[test]
    fn everything_stays_topological() {
        for seed in 0..40 {
            let flow = random_flow(seed, 30);
            let mut r = Random::new(seed, 1, 0);
            let a = random(&flow, &mut r);
            let b = random(&flow, &mut r);
            assert!(flow.is_topological(&a) && flow.is_topological(&b));
            let cut = r.below(a.len() + 1);
            for child in cross(&a, &b, cut) {
                assert!(flow.is_topological(&child), "seed {seed}");
                assert!(flow.is_topological(&mutate(&flow, &child, 0.3, &mut r)));
                assert!(flow.is_topological(&move_one(&flow, &child, &mut r)));
                let (from, count) = (r.below(30), r.below(30));
                let regrouped = regroup(&flow, &child, from, count, 500);
                assert!(flow.is_topological(&regrouped));
                assert_eq!(regrouped[..from], child[..from]);
            }
        }
    }

    #[test]
    fn without_mutation_the_order_stays() {
        let flow = random_flow(5, 40);
        let a = random(&flow, &mut Random::new(1, 0, 0));
        assert_eq!(mutate(&flow, &a, 0.0, &mut Random::new(2, 0, 0)), a);
    }
}
