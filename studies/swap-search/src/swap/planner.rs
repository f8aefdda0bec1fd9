//! `SwapPlanner`: scans a schedule operator by operator and makes room for what each needs, twice over so that
//! runs can follow each other.

use super::classes::Classes;
use super::places::Places;
use super::scan::{NEVER, Scan};
use super::{Addresses, Memory, Needs, Rules, SwapOut, SwapPlan};
use crate::dataflow::{Dataflow, OpId, TensorId, TensorKind};
use crate::device::Device;

/// Rounds in which parameters are taken out of those that are there at the start, before that is given up.
const MOST_ROUNDS: usize = 4;

/// Room that is wanted for a tensor.
pub struct Wish {
    pub tensor: TensorId,
    /// Index of its size.
    pub size: usize,
    /// What it takes of its class.
    pub takes: u64,
    /// It is loaded, not made.
    pub loads: bool,
    pub position: u32,
    /// Memory that was in use so short a time ago is not free in time.
    pub wait_ns: f64,
}

/// A run to be planned.
#[derive(Clone, Copy, Debug)]
pub struct SwapTask<'a> {
    pub flow: &'a Dataflow,
    pub order: &'a [OpId],
    pub memory: &'a Memory,
    pub device: &'a Device,
    pub rules: &'a Rules,
}

/// What is searched for room.
enum Room {
    Classes(Classes),
    Places(Places),
}

/// Scans schedules; keeps its memory from one to the next.
pub struct SwapPlanner {
    scan: Scan,
    room: Room,
}

impl Default for SwapPlanner {
    fn default() -> Self {
        Self {
            scan: Scan::default(),
            room: Room::Classes(Classes::default()),
        }
    }
}

impl SwapPlanner {
    /// Plans a run that can be repeated.
    ///
    /// `None` when some operator's tensors do not fit together.
    pub fn plan(&mut self, task: &SwapTask) -> Option<&SwapPlan> {
        self.scan.find_uses(task.flow, task.order);
        self.find_kept(task)?;
        Some(&self.scan.plan)
    }

    /// Twice over, so that parameters that are there at the end of a run are used at the beginning of the next.
    fn find_kept(&mut self, task: &SwapTask) -> Option<()> {
        let SwapTask {
            flow,
            order,
            memory,
            rules,
            ..
        } = *task;
        let none = vec![None; flow.tensors().len()];
        self.scan(task, &none, false)?;
        let mut initial = self.scan.parameters_at_end(flow);
        if initial.iter().all(Option::is_none) {
            return Some(());
        }
        let has_places = memory.addresses == Addresses::Contiguous;
        // A parameter that was there at the end, but is not when more is there at the start, is taken out.
        for round in 1..=MOST_ROUNDS {
            if initial.iter().all(Option::is_none) {
                // The last scan still began with some.
                break;
            }
            // Each that is taken out moves others; in the end, those left stay, whatever that costs.
            let keeps = has_places && round == MOST_ROUNDS;
            if self.scan(task, &initial, keeps).is_none() {
                break;
            }
            let at_end = self.scan.parameters_at_end(flow);
            let mut is_stable = true;
            if rules.keeps_initial || has_places {
                for stay in self.scan.plan.stays.iter().filter(|s| s.initial) {
                    if (stay.to as usize) < order.len() {
                        is_stable = false;
                        initial[stay.tensor.index()] = None;
                    }
                }
            }
            for t in 0..initial.len() {
                let stays = initial[t].is_some() && !self.scan.removed[t];
                is_stable &= !stays || at_end[t].is_some();
                if !stays || at_end[t].is_none() {
                    initial[t] = None;
                }
            }
            if is_stable {
                return Some(());
            }
        }
        self.scan(task, &none, false)
    }

    /// Prefers to send some tensors away, and to keep others: by tensor, in positions by which its next use
    /// is taken to be later.
    pub fn set_bias(&mut self, bias: &[i32]) {
        self.scan.bias.clear();
        self.scan.bias.extend_from_slice(bias);
    }

    /// The plan that was made last.
    pub fn take_plan(&mut self) -> SwapPlan {
        std::mem::take(&mut self.scan.plan)
    }

    /// A run that begins with the parameters of `initial`, which must stay if it `keeps` them.
    fn scan(&mut self, task: &SwapTask, initial: &[Option<u64>], keeps: bool) -> Option<()> {
        let SwapTask {
            flow,
            order,
            memory,
            rules,
            ..
        } = *task;
        self.begin(task, initial, keeps)?;
        for (position, &op) in order.iter().enumerate() {
            let position = position as u32;
            let touches = flow.touches(op);
            for touch in touches {
                self.scan.states[touch.tensor.index()].pinned_at = position;
            }
            self.scan.plan.needs.push(Needs::default());
            let stays = self.scan.plan.stays.len();
            if !self.seat_all(task, op, position) {
                self.seat_together(task, op, position, stays)?;
            }
            self.scan.plan.needs[position as usize].loads = self.scan.plan.loads.len() as u32;
            for touch in touches {
                let t = touch.tensor;
                let size = flow.size_index(t);
                let gone = self.scan.use_now(flow, rules, t, touch.writes, position);
                let stay = self.scan.states[t.index()].stay;
                let offset = self.scan.plan.stays[stay as usize].offset;
                match (&mut self.room, gone) {
                    (Room::Classes(room), Some(after)) => room.free(memory, size, after, offset),
                    (Room::Classes(room), None) => room.may_leave(&self.scan, memory, size, t),
                    (Room::Places(room), Some(after)) => room.segments.free(t.0, after),
                    (Room::Places(room), None) => room.may_leave(&self.scan, t.0),
                }
            }
        }
        self.store_what_changed(flow, initial);
        Some(())
    }

    /// Nothing has run yet; the parameters of `initial` are there, and must stay if the scan `keeps` them.
    fn begin(&mut self, task: &SwapTask, initial: &[Option<u64>], keeps: bool) -> Option<()> {
        let SwapTask {
            flow,
            order,
            memory,
            rules,
            ..
        } = *task;
        self.scan.reset(flow, order);
        match (&self.room, &memory.addresses) {
            (Room::Places(_), Addresses::Contiguous)
            | (Room::Classes(_), Addresses::Counted | Addresses::Objects(_)) => {}
            (_, Addresses::Contiguous) => self.room = Room::Places(Places::default()),
            (_, Addresses::Counted | Addresses::Objects(_)) => {
                self.room = Room::Classes(Classes::default());
            }
        }
        let there = initial.iter().enumerate();
        let there = there.filter_map(|(t, offset)| Some((TensorId(t as u32), (*offset)?)));
        match &mut self.room {
            Room::Classes(room) => {
                room.reset(memory);
                for (tensor, _) in there {
                    let offset = room.begin_with(memory, flow.size_index(tensor), tensor)?;
                    self.scan.begin_with(flow, tensor, offset, keeps);
                }
                room.begin(&self.scan);
            }
            Room::Places(room) => {
                let takes = |t: TensorId| memory.takes[flow.size_index(t)];
                let places = there.clone().map(|(t, offset)| (offset, takes(t), t.0));
                let mut places: Vec<_> = places.collect();
                room.set_rules(order.len(), &rules.places);
                room.reset(memory.room[0], initial.len(), &mut places);
                for (tensor, offset) in there {
                    self.scan.begin_with(flow, tensor, offset, keeps);
                    room.may_leave(&self.scan, tensor.0);
                }
            }
        }
        Some(())
    }

    /// Makes room for each of an operator's tensors that is not there; false where there is none.
    fn seat_all(&mut self, task: &SwapTask, op: OpId, position: u32) -> bool {
        let SwapTask {
            flow,
            memory,
            device,
            rules,
            ..
        } = *task;
        let touches = flow.touches(op);
        if let Room::Places(room) = &mut self.room
            && !memory.fixed.is_empty()
        {
            for touch in touches {
                let tensor = touch.tensor;
                let Some(offset) = memory.fixed_at(tensor) else {
                    continue;
                };
                if self.scan.states[tensor.index()].resident {
                    continue;
                }
                let takes = memory.takes[flow.size_index(tensor)];
                let Some(from) = room.take(&mut self.scan, offset, takes, tensor.0, position)
                else {
                    return false;
                };
                self.scan.seat(tensor, touch.reads, position, from, offset);
                // What is made is nowhere else.
                self.scan.states[tensor.index()].is_kept = !touch.reads;
            }
        }
        // What must be loaded first: it has the longer way.
        for loads in [true, false] {
            for touch in touches.iter().filter(|t| t.reads == loads) {
                let tensor = touch.tensor;
                if self.scan.states[tensor.index()].resident {
                    continue;
                }
                let size = flow.size_index(tensor);
                let bytes = flow.tensors()[tensor.index()].bytes;
                let wish = Wish {
                    tensor,
                    size,
                    takes: memory.takes[size],
                    loads,
                    position,
                    wait_ns: rules.recency * device.transfer_ns(bytes),
                };
                let scan = &mut self.scan;
                let found = match &mut self.room {
                    Room::Classes(room) => room.allocate(scan, &wish, rules, memory, flow),
                    Room::Places(room) => room.allocate(scan, &wish, rules),
                };
                let Some((from, offset)) = found else {
                    return false;
                };
                self.scan.seat(tensor, loads, position, from, offset);
            }
        }
        true
    }

    /// Where an operator's tensors lie in each other's way: all of them go, and come back side by side.
    /// `stays` is how many there were before the operator.
    fn seat_together(
        &mut self,
        task: &SwapTask,
        op: OpId,
        position: u32,
        stays: usize,
    ) -> Option<()> {
        let SwapTask {
            flow,
            memory,
            rules,
            ..
        } = *task;
        let Room::Places(room) = &mut self.room else {
            return None;
        };
        if !memory.fixed.is_empty() {
            return None;
        }
        let scan = &mut self.scan;
        let takes = |t: TensorId| memory.takes[flow.size_index(t)];
        for stay in scan.plan.stays.drain(stays..) {
            scan.states[stay.tensor.index()].resident = false;
            room.segments.free(stay.tensor.0, stay.from);
            if let Some(load) = stay.load {
                scan.plan.loads.truncate(load as usize);
            }
        }
        let touches = flow.touches(op);
        for touch in touches {
            scan.states[touch.tensor.index()].pinned_at = NEVER;
        }
        let wish = Wish {
            tensor: TensorId(u32::MAX),
            size: 0,
            takes: touches.iter().map(|t| takes(t.tensor)).sum(),
            loads: true,
            position,
            wait_ns: 0.0,
        };
        let place = room.choose(scan, &wish, rules)?;
        room.clear(scan, place, wish.takes);
        for touch in touches {
            let t = touch.tensor;
            if scan.states[t.index()].resident {
                let after = scan.send_away(t.index());
                room.segments.free(t.0, after);
            }
        }
        // What went below has joined segments.
        let mut place = room.segments.at(place.offset);
        for loads in [true, false] {
            for touch in touches.iter().filter(|t| t.reads == loads) {
                let Room::Places(room) = &mut self.room else {
                    return None;
                };
                let bytes = takes(touch.tensor);
                let t = touch.tensor;
                let from = room.segments.occupy(place, bytes, t.0);
                let offset = place.offset;
                if bytes > 0 {
                    place = room.segments.above(t.0);
                }
                self.scan.seat(t, loads, position, from, offset);
                self.scan.states[t.index()].pinned_at = position;
            }
        }
        Some(())
    }

    /// Changed parameters that are not there when the next run begins are written back.
    fn store_what_changed(&mut self, flow: &Dataflow, initial: &[Option<u64>]) {
        let scan = &mut self.scan;
        for (t, tensor) in flow.tensors().iter().enumerate() {
            let state = &scan.states[t];
            let kept = initial[t].is_some() && !scan.removed[t];
            if tensor.kind == TensorKind::Parameter && state.resident && state.dirty && !kept {
                scan.plan.stays[state.stay as usize].store = Some(scan.plan.stores.len() as u32);
                scan.plan.stores.push(SwapOut {
                    tensor: TensorId(t as u32),
                    after_computes: state.last_use + 1,
                });
            }
        }
    }
}
