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

use neap_plan::{BufferSpec, StepRange, Workload};
use neap_sim::CostProfile;

use super::split::{Split, Stay, uses};

/// Steps that a stay would like to have its place for beside those that use it, those next to them first.
struct Wish {
    stay: usize,
    steps: StepRange,
    /// Before the first use, not behind the last.
    is_lead: bool,
}

/// How much sooner loads are to be there than they are needed, and later stores may be done than they should. Each is wished when
/// all have what they can have of the one before.
const MARGINS_NS: &[u64] = &[0, 1_000_000, 4_000_000, 16_000_000];

/// The split with stays made longer, as far as no step needs more than `room_bytes`.
pub fn stretched(w: &Workload, split: &Split, costs: &CostProfile, room_bytes: u64) -> Split {
    let mut split = split.clone();
    let mut demand = demand(&split.workload);
    for &margin_ns in MARGINS_NS {
        for wish in wishes(w, &split, costs, margin_ns) {
            let part = split.stays[wish.stay].part as usize;
            lengthen(
                &mut split.workload.buffers[part],
                &wish,
                &mut demand,
                room_bytes,
            );
        }
    }
    split
}

/// From where the buffer's life has got already.
fn lengthen(buffer: &mut BufferSpec, wish: &Wish, demand: &mut [u64], room_bytes: u64) {
    let mut has_room = |step: u32| {
        let demand = &mut demand[step as usize];
        let fits = *demand + buffer.bytes <= room_bytes;
        *demand += if fits { buffer.bytes } else { 0 };
        fits
    };
    let live = &mut buffer.live;
    match wish.is_lead {
        true => {
            while live.begin > wish.steps.begin && has_room(live.begin - 1) {
                live.begin -= 1;
            }
        }
        false => {
            while live.end < wish.steps.end && has_room(live.end) {
                live.end += 1;
            }
        }
    }
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
fn wishes(w: &Workload, split: &Split, costs: &CostProfile, margin_ns: u64) -> Vec<Wish> {
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
        let begin_ns = free_ns.saturating_sub(margin_ns);
        let begin = begins.partition_point(|&at| at <= begin_ns) as u32 - 1;
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
        let end_ns = free_ns + margin_ns;
        let end = (begins.partition_point(|&at| at < end_ns) as u32).min(last);
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
    use neap_plan::{BufferId, StepSpec};

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
        // What transfers take is three steps, and margins are longer than all of them.
        assert_eq!(stretched(8192), [(0, 5), (1, 6)]);
        // The one that comes first has its wish. Of what is left, margins take what they can.
        assert_eq!(stretched(4096), [(0, 4), (4, 6)]);
    }

    /// Two buffers of a block, away at once. Each load takes two steps of 5,000 ns.
    #[test]
    fn margins_come_behind_what_transfers_take() {
        let step = |reads: &[u32], writes: &[u32]| StepSpec {
            reads: reads.iter().copied().map(BufferId).collect(),
            writes: writes.iter().copied().map(BufferId).collect(),
            ..StepSpec::default()
        };
        let mut steps = vec![step(&[], &[]); 10];
        steps[0] = step(&[], &[0, 1]);
        steps[6] = step(&[0], &[]);
        steps[9] = step(&[1], &[]);
        let buffer = |end| BufferSpec {
            name: "b".into(),
            bytes: 4096,
            align: 64,
            live: StepRange::new(0, end),
            kept: false,
        };
        let w = Workload {
            steps,
            buffers: vec![buffer(7), buffer(10)],
            ..Workload::default()
        };
        let costs = CostProfile::byte_per_ns(vec![5000; 10]);
        let split = Traffic::new(&w, false).split(0);
        let loaded = |room: u64| -> Vec<(u32, u32)> {
            let longer = stretched(&w, &split, &costs, room);
            let stays = longer.stays.iter().filter(|s| s.after.is_some());
            let of = |s: &Stay| longer.workload.buffers[s.part as usize].live;
            stays.map(of).map(|live| (live.begin, live.end)).collect()
        };
        // In one block the first is in the way of the second, which has the two steps that it takes.
        assert_eq!(loaded(4096), [(4, 7), (7, 10)]);
        // In four, both come as soon as their stores are done with.
        assert_eq!(loaded(4 * 4096), [(1, 7), (1, 10)]);
    }
}
