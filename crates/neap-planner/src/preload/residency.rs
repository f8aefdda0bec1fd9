//! Which units stay in memory for the whole cycle, and how fast the plan is then.
//!
//! The units whose loads are waited for longest per byte go first, then those that arrive just in time,
//! which leaves the rest more slack; a share of all bytes at a time, with the plan simulated anew in between.
//! The order does not depend on how much memory there is: more memory keeps a superset, and since fewer
//! loads never make a plan slower, more memory never predicts slower.

use std::cmp::Reverse;

use neap_plan::{AfterCompute, Workload};
use neap_sim::{CostProfile, LoadCost, Prediction, STEADY_RUNS, Simulator, Work};

use super::place::{Streamed, starts};
use crate::base_layout::BaseLayout;
use crate::schedule::{Kind, Schedule, Slice};

/// Rounds of choosing that bring all units into order.
const ROUNDS: u64 = 4;

/// Into more parts one step's weights are not torn by choosing who becomes resident: small parts do not come in huge
/// pages, and to give them up again takes long.
const MOST_PARTS: u64 = 32;

/// Groups of loads to try, as multiples of the profile's.
pub const LARGER_GROUPS: [u64; 2] = [2, 4];

/// A schedule with addresses, in a window of the arena; what is resident lies above the window.
pub struct Window<'a> {
    pub w: &'a Workload,
    pub base_layout: &'a BaseLayout,
    pub schedule: &'a Schedule,
    pub offsets: &'a [u64],
    pub window_bytes: u64,
    /// Loads may start in the run before theirs.
    pub cyclic: bool,
}

/// A window's plan for one set of resident units.
#[derive(Clone, Debug, Default)]
pub struct Simulated {
    pub prediction: Prediction,
    /// Slices, neighbours with resident weights merged.
    pub slices: Vec<Slice>,
    /// By slice of the schedule: its index among the merged ones.
    pub merged_index: Vec<u32>,
    pub streamed: Vec<Streamed>,
    pub after: Vec<AfterCompute>,
    /// By merged slice: how many loads it needs.
    pub needs: Vec<u32>,
    /// How loads are handed over.
    pub group_bytes: u64,
}

impl Window<'_> {
    /// Bytes of the units that are not resident in every plan, and of those that are; the same bytes count once.
    pub fn unit_bytes(&self) -> (u64, u64) {
        let units = self.schedule.units.iter().enumerate();
        let once = units.filter(|&(i, _)| !self.schedule.repeats(i));
        let sum = |resident: bool| {
            let those = once.clone().filter(|(_, u)| u.resident == resident);
            those.map(|(_, u)| u.file.len()).sum()
        };
        (sum(false), sum(true))
    }

    /// The best set of resident units within `room_bytes`, simulated. `None` if those that must be
    /// resident do not fit.
    pub fn fill(
        &self,
        room_bytes: u64,
        costs: &CostProfile,
        sim: &mut Simulator,
    ) -> Option<(Vec<bool>, Simulated)> {
        let (all_bytes, forced_bytes) = self.unit_bytes();
        let mut room = room_bytes.checked_sub(forced_bytes)?;
        let mut resident: Vec<bool> = self.schedule.units.iter().map(|u| u.resident).collect();
        let mut simulated = self.simulate(&resident, costs, sim);
        let share = all_bytes.div_ceil(ROUNDS).max(1);
        let mut ranked: Vec<(Reverse<u128>, u64, u32)> = Vec::new();
        loop {
            self.rank(&simulated, sim, &mut ranked);
            let mut taken = 0;
            for &(.., unit) in &ranked {
                if resident[unit as usize] {
                    // It is the same bytes as one before.
                    continue;
                }
                let bytes = self.schedule.units[unit as usize].file.len();
                if bytes > room {
                    // To go on with smaller ones would keep a set that more memory does not.
                    if taken > 0 {
                        simulated = self.simulate(&resident, costs, sim);
                    }
                    return Some((resident, simulated));
                }
                resident[unit as usize] = true;
                for twin in self.schedule.twins(unit) {
                    resident[twin as usize] = true;
                }
                room -= bytes;
                taken += bytes;
                if taken >= share {
                    break;
                }
            }
            if taken == 0 {
                return Some((resident, simulated));
            }
            simulated = self.simulate(&resident, costs, sim);
        }
    }

    /// Streamed units in the order in which they should become resident: `(stall, slack, unit)`. Neighbours of one step go
    /// together in large steps, up to one of [`MOST_PARTS`].
    fn rank(
        &self,
        simulated: &Simulated,
        sim: &Simulator,
        ranked: &mut Vec<(Reverse<u128>, u64, u32)>,
    ) {
        ranked.clear();
        let place = |s: &Streamed| {
            let file = self.schedule.units[s.unit as usize].file;
            let step = simulated.slices[s.first as usize].step;
            let panels = &self.w.steps[step as usize].panels;
            let all = panels.map_or(file, |p| p.file_range(p.all()));
            let part_bytes = (all.len() / MOST_PARTS).max(1);
            (step, file.begin.saturating_sub(all.begin) / part_bytes)
        };
        let mut load = 0;
        for together in simulated.streamed.chunk_by(|a, b| place(a) == place(b)) {
            let (mut bytes, mut stall_ns, mut slack_ns) = (0, 0, u64::MAX);
            for (load, s) in (load..).zip(together) {
                bytes += self.schedule.units[s.unit as usize].file.len();
                stall_ns += u128::from(sim.stalls()[s.first as usize]);
                slack_ns = slack_ns.min(sim.slack_ns(load, s.first as usize));
            }
            load += together.len();
            // Stall per mebibyte; integers keep the order the same on every machine.
            let stall = Reverse((stall_ns << 20) / u128::from(bytes.max(1)));
            ranked.extend(together.iter().map(|s| (stall, slack_ns, s.unit)));
        }
        ranked.sort_unstable();
    }

    /// Dependencies and predicted time with the given units resident.
    pub fn simulate(
        &self,
        resident: &[bool],
        costs: &CostProfile,
        sim: &mut Simulator,
    ) -> Simulated {
        let mut out = self.merge(resident);
        let n = out.slices.len();
        let step_first: Vec<u32> = self
            .schedule
            .step_first
            .iter()
            .map(|&c| {
                out.merged_index
                    .get(c as usize)
                    .copied()
                    .unwrap_or(n as u32)
            })
            .collect();
        let units = self
            .schedule
            .units
            .iter()
            .enumerate()
            .filter(|(i, _)| !resident[*i]);
        out.streamed = units
            .map(|(i, u)| Streamed {
                unit: i as u32,
                first: out.merged_index[u.first as usize],
                last: out.merged_index[u.last as usize],
            })
            .collect();
        out.after = starts(
            self.schedule,
            self.base_layout,
            self.window_bytes,
            self.offsets,
            &out.streamed,
            &step_first,
            self.cyclic,
        );
        out.group_bytes = costs.group_bytes;
        out.needs = vec![0; n];
        let mut next = 0;
        for c in 0..n {
            while out
                .streamed
                .get(next)
                .is_some_and(|s| s.first as usize <= c)
            {
                next += 1;
            }
            out.needs[c] = next as u32;
        }
        out.prediction = self.time(&out, costs, sim);
        out
    }

    /// The same with loads handed over in larger groups, where that is faster: the larger, the less the
    /// storage's latency is felt, and the longer the first load of a group waits for its last.
    pub fn regroup(&self, simulated: &mut Simulated, costs: &CostProfile, sim: &mut Simulator) {
        if costs.group_bytes == 0 || simulated.prediction.stall_ns == 0 {
            return;
        }
        for times in LARGER_GROUPS {
            let group_bytes = costs.group_bytes.saturating_mul(times);
            let before = std::mem::replace(&mut simulated.group_bytes, group_bytes);
            let found = self.time(simulated, costs, sim);
            if found.latency_ns < simulated.prediction.latency_ns {
                simulated.prediction = found;
            } else {
                simulated.group_bytes = before;
            }
        }
    }

    fn time(&self, simulated: &Simulated, costs: &CostProfile, sim: &mut Simulator) -> Prediction {
        let bytes = |s: &Streamed| self.schedule.units[s.unit as usize].file.len();
        let loads: Vec<_> = simulated
            .streamed
            .iter()
            .zip(&simulated.after)
            .map(|(s, a)| (bytes(s), a.run_back, a.computes))
            .collect();
        let computes: Vec<_> = simulated
            .slices
            .iter()
            .zip(&simulated.needs)
            .map(|(s, &needs)| {
                let reads_rows = self.base_layout.reads_rows[s.step as usize];
                Work {
                    ns: costs.slice_ns(self.w, s.id(), s.panels, reads_rows),
                    needs,
                    reads: reads_rows && self.w.steps[s.step as usize].rows.is_some(),
                }
            })
            .collect();
        let cost = LoadCost {
            group_bytes: simulated.group_bytes,
            ..LoadCost::from(costs)
        };
        sim.play(cost, &loads, &computes, STEADY_RUNS, |_| {})
    }

    /// Neighbouring slices of one step whose panels are resident become one compute.
    fn merge(&self, resident: &[bool]) -> Simulated {
        const NONE: u32 = u32::MAX;
        let mut panels_unit = vec![NONE; self.schedule.slices.len()];
        for want in self
            .schedule
            .wants
            .iter()
            .filter(|want| want.kind == Kind::Panels)
        {
            panels_unit[want.first as usize] = want.unit;
        }
        let is_resident = |c: usize| panels_unit[c] != NONE && resident[panels_unit[c] as usize];
        let mut out = Simulated::default();
        for (c, slice) in self.schedule.slices.iter().enumerate() {
            match out.slices.last_mut() {
                Some(last) if last.step == slice.step && is_resident(c) && is_resident(c - 1) => {
                    last.panels.end = slice.panels.end;
                }
                _ => out.slices.push(*slice),
            }
            out.merged_index.push(out.slices.len() as u32 - 1);
        }
        out
    }
}
