//! Stays that take their places before they are used and keep them after, so that transfers go on beside computing.
//!
//! ```text
//!   steps     │   │   │   │ uses │   │   │
//!   used                  ├──────┤
//!   stays     ├─ load ────┤      ├─ store ─┤       as long as both take, where there is memory for it
//! ```
//! Without this a layout puts something else there in the very step before, and behind the last use: then each load waits for what
//! was there, and what comes next waits for the store. Loads are timed backwards, each to be there when it is used and when the
//! next one begins; stores forwards.

use neap_plan::{StepRange, Workload};
use neap_sim::CostProfile;

use super::split::{Split, Stay, uses};

/// Steps that a stay would like to have its place for beside those that use it, those next to them first.
struct Wish {
    stay: usize,
    steps: StepRange,
    /// Before the first use, not behind the last.
    is_lead: bool,
}

/// The split with stays made longer, as far as no step needs more than `room_bytes`.
pub fn stretched(w: &Workload, split: &Split, costs: &CostProfile, room_bytes: u64) -> Split {
    let mut split = split.clone();
    let mut demand = demand(&split.workload);
    for wish in wishes(w, &split, costs) {
        let part = split.stays[wish.stay].part as usize;
        let buffer = &mut split.workload.buffers[part];
        let count = wish.steps.end - wish.steps.begin;
        for k in 0..count {
            let step = match wish.is_lead {
                true => wish.steps.end - 1 - k,
                false => wish.steps.begin + k,
            };
            let demand = &mut demand[step as usize];
            if *demand + buffer.bytes > room_bytes {
                break;
            }
            *demand += buffer.bytes;
            match wish.is_lead {
                true => buffer.live.begin = step,
                false => buffer.live.end = step + 1,
            }
        }
    }
    split
}

/// Bytes that each step needs.
fn demand(w: &Workload) -> Vec<u64> {
    let mut demand: Vec<u64> = w.steps.iter().map(|s| s.workspace_bytes).collect();
    for b in w.buffers.iter().filter(|b| !b.live.is_empty()) {
        let live = b.live.begin as usize..b.live.end as usize;
        demand[live].iter_mut().for_each(|d| *d += b.bytes);
    }
    demand
}

/// By the step that they are next to.
fn wishes(w: &Workload, split: &Split, costs: &CostProfile) -> Vec<Wish> {
    // Moments at which steps begin, without waiting; and the end of the last.
    let mut begins = vec![0u64];
    for (s, step) in w.steps.iter().enumerate() {
        let ns = costs.step_ns(s, step) + costs.compute_overhead_ns;
        begins.push(begins[s] + ns);
    }
    // While both go on, each has half.
    let ns_per_byte = 2e9 / costs.both_ways_rate();
    let move_ns = |stay: &Stay| {
        let bytes = split.workload.buffers[stay.part as usize].bytes;
        (bytes as f64 * ns_per_byte) as u64 + costs.request_latency_ns
    };
    let mut wishes = Vec::new();
    let mut order: Vec<usize> = (0..split.stays.len()).collect();
    order.sort_by_key(|&s| split.stays[s].used.begin);
    let mut free_ns = u64::MAX;
    for &s in order.iter().rev() {
        let stay = &split.stays[s];
        let Some(absence) = stay.after else { continue };
        let end_ns = free_ns.min(begins[stay.used.begin as usize]);
        free_ns = end_ns.saturating_sub(move_ns(stay));
        let begin = begins.partition_point(|&at| at <= free_ns) as u32 - 1;
        let left = absence.last_use.map_or(0, |last| last + 1);
        wishes.push(Wish {
            stay: s,
            steps: StepRange::new(begin.max(left).min(stay.used.begin), stay.used.begin),
            is_lead: true,
        });
    }
    let written = written(w, split);
    order.retain(|&s| written[s].is_some());
    order.sort_by_key(|&s| written[s]);
    let mut free_ns = 0;
    let last = w.steps.len() as u32;
    for &s in &order {
        let stay = &split.stays[s];
        let Some(absence) = stay.before else { continue };
        let ready = written[s].map_or(0, |step| step as usize + 1);
        free_ns = begins[ready].max(free_ns) + move_ns(stay);
        let end = (begins.partition_point(|&at| at < free_ns) as u32).min(last);
        let back = absence.next_use.unwrap_or(last);
        wishes.push(Wish {
            stay: s,
            steps: StepRange::new(stay.used.end, end.min(back).max(stay.used.end)),
            is_lead: false,
        });
    }
    wishes.sort_by_key(|wish| match wish.is_lead {
        true => wish.steps.end,
        false => wish.steps.begin,
    });
    wishes
}

/// By stay: the last step that writes it, if it is away behind it.
fn written(w: &Workload, split: &Split) -> Vec<Option<u32>> {
    let uses = uses(w);
    let last = |stay: &Stay| {
        stay.before?.last_use?;
        let of = uses[stay.buffer as usize].iter();
        let mut of = of.filter(|(step, writes)| *writes && stay.used.contains(*step));
        of.next_back().map(|&(step, _)| step)
    };
    split.stays.iter().map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spill::split::Traffic;
    use neap_plan::{BufferId, BufferSpec, StepSpec};

    /// One block, written by the first of six steps of 4,000 ns and read by the last. To move it takes 8,192 ns.
    #[test]
    fn stays_are_longer_by_what_transfers_take_where_there_is_room() {
        let step = |reads: &[u32], writes: &[u32]| StepSpec {
            reads: reads.iter().copied().map(BufferId).collect(),
            writes: writes.iter().copied().map(BufferId).collect(),
            ..StepSpec::default()
        };
        let mut steps = vec![step(&[], &[]); 6];
        steps[0] = step(&[], &[0]);
        steps[5] = step(&[0], &[]);
        let w = Workload {
            steps,
            buffers: vec![BufferSpec {
                name: "b".into(),
                bytes: 4096,
                align: 64,
                live: StepRange::new(0, 6),
                kept: false,
            }],
            ..Workload::default()
        };
        let costs = CostProfile::byte_per_ns(vec![4000; 6]);
        let split = Traffic::new(&w, false).split(0);
        let lives = |split: &Split| -> Vec<(u32, u32)> {
            let of = |s: &Stay| split.workload.buffers[s.part as usize].live;
            let lives = split.stays.iter().map(of);
            lives.map(|live| (live.begin, live.end)).collect()
        };
        assert_eq!(lives(&split), [(0, 1), (5, 6)]);
        let stretched = |room| lives(&stretched(&w, &split, &costs, room));
        assert_eq!(stretched(8192), [(0, 4), (2, 6)]);
        // The one that comes first has its wish.
        assert_eq!(stretched(4096), [(0, 4), (4, 6)]);
    }
}
