//! Swap planning: what leaves fast memory, what comes back, and when (SwapAdvisor, Section 4.2).
//!
//! The schedule is scanned once. Each operator's tensors must be in memory; where there is no room, the
//! tensor of the same class that is used again last goes (Belady), if its last use is long enough ago that
//! its memory is free in time. What is decided is held as counts, so that three lanes can follow it:
//!
//! ```text
//!   compute   op1 ─── op2 ─────────── op3         op3 may start when 3 loads and 1 store are done
//!   load      W1  W2         ┌─ W3 ───┘           W3 may start when op1 is done and W1's place is free
//!   store            A1 ─────┘
//! ```

use std::collections::{BinaryHeap, VecDeque};

use super::dataflow::{Dataflow, OpId, TensorId, TensorKind};
use super::device::Device;

/// "When `computes` operators and `stores` stores are done."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct After {
    pub computes: u32,
    pub stores: u32,
}

impl After {
    fn and(self, other: After) -> After {
        After {
            computes: self.computes.max(other.computes),
            stores: self.stores.max(other.stores),
        }
    }
}

/// A transfer into fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapIn {
    pub tensor: TensorId,
    pub after: After,
}

/// A transfer out of fast memory, of a tensor whose copy in backing memory is not the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapOut {
    pub tensor: TensorId,
    pub after_computes: u32,
}

/// When an operator may start, beside having its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Needs {
    pub loads: u32,
    pub stores: u32,
}

/// A stay of a tensor in fast memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stay {
    pub tensor: TensorId,
    /// Its memory is its own from then on.
    pub from: After,
    /// One past the schedule position of its last use in this stay; the schedule's length when it stays for good.
    pub to: u32,
    /// Position of the first operator that has it.
    pub first_use: u32,
    /// The load that brings it; none for what an operator makes, and what is there at the start.
    pub load: Option<u32>,
    /// The store that writes it back at the end.
    pub store: Option<u32>,
    /// There at the start of a run, and again at its end.
    pub initial: bool,
}

/// Everything that a run does, lane by lane.
#[derive(Clone, Debug, Default)]
pub struct SwapPlan {
    pub order: Vec<OpId>,
    pub needs: Vec<Needs>,
    pub loads: Vec<SwapIn>,
    pub stores: Vec<SwapOut>,
    pub stays: Vec<Stay>,
}

/// Whom to send away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Eviction {
    /// Who is used again last; of those not used within the threshold, where there are any.
    #[default]
    Belady,
    /// Who was used longest ago.
    Lru,
}

/// Fast memory as the scan sees it: classes, each with so much room, and what a tensor takes of its class.
/// One class of bytes is an allocator without fragmentation; classes of objects are the paper's pools.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// By tensor size.
    pub class_of_size: Vec<u16>,
    /// By tensor size.
    pub takes: Vec<u64>,
    /// By class.
    pub room: Vec<u64>,
}

impl Memory {
    /// The paper's pools.
    pub fn pools(allocation: &super::Allocation) -> Self {
        Self {
            class_of_size: allocation.class_of_size.clone(),
            takes: vec![1; allocation.class_of_size.len()],
            room: allocation.objects.iter().map(|&n| u64::from(n)).collect(),
        }
    }

    /// One class of `bytes`, in which tensors take whole `granule_bytes`.
    pub fn bytes(flow: &Dataflow, bytes: u64, granule_bytes: u64) -> Self {
        let takes = flow
            .sizes()
            .iter()
            .map(|s| s.next_multiple_of(granule_bytes));
        Self {
            class_of_size: vec![0; flow.sizes().len()],
            takes: takes.collect(),
            room: vec![bytes],
        }
    }
}

/// How swaps are planned.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub eviction: Eviction,
    /// The recency threshold, in times that the tensor for which there must be room takes to move.
    pub recency: f64,
    /// Parameters that are there at the start stay to the end, where they are. Otherwise one may go and come
    /// back within a run, to another place than where it began.
    pub keeps_initial: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            eviction: Eviction::Belady,
            recency: 1.0,
            keeps_initial: false,
        }
    }
}

const NEVER: u32 = u32::MAX;

/// So many are looked at for one that was not used lately: where all are used all the time, none is found.
const MOST_PASSED_OVER: usize = 32;

#[derive(Clone, Copy, Default)]
struct State {
    resident: bool,
    /// Its copy in backing memory is missing or old.
    dirty: bool,
    /// There since the start of the run, and not used yet.
    unused: bool,
    /// Position of its last use; `NEVER` before the first.
    last_use: u32,
    /// Index of its next use in `uses`.
    next: u32,
    /// Changes with each use, so that old heap entries are known.
    key: u32,
    stay: u32,
    /// One past the store that wrote it, to wait for before it is read back.
    stored: u32,
    pinned_at: u32,
}

#[derive(Default)]
struct Class {
    free: VecDeque<(u64, After)>,
    free_room: u64,
    /// By key, then tensor; entries whose key is not the tensor's are old.
    leavers: BinaryHeap<(u32, u32)>,
    /// Those there at the start and not yet used, whose first use is last on top.
    unused: BinaryHeap<(u32, u32)>,
}

/// Scans schedules; keeps its memory from one to the next.
#[derive(Default)]
pub struct SwapPlanner {
    states: Vec<State>,
    classes: Vec<Class>,
    uses: Vec<u32>,
    uses_of: Vec<u32>,
    elapsed_ns: Vec<f64>,
    passed_over: Vec<(u32, u32)>,
    removed: Vec<bool>,
    /// By tensor, added to its next use when it is chosen who goes: more lets it go earlier. May be empty.
    bias: Vec<i32>,
    plan: SwapPlan,
}

impl SwapPlanner {
    /// Plans a run of `order` in `memory` that can be repeated: twice over, so that parameters that are there
    /// at the end of a run are used at the beginning of the next.
    ///
    /// `None` when some operator's tensors do not fit together.
    pub fn plan(
        &mut self,
        flow: &Dataflow,
        order: &[OpId],
        memory: &Memory,
        device: &Device,
        rules: &Rules,
    ) -> Option<&SwapPlan> {
        self.find_uses(flow, order);
        let none = vec![false; flow.tensors().len()];
        self.scan(flow, order, memory, device, rules, &none)?;
        let mut initial = self.parameters_at_end(flow);
        // A parameter that was there at the end, but is not when more is there at the start, is taken out.
        for _ in 0..6 {
            if !initial.contains(&true) {
                return Some(&self.plan);
            }
            self.scan(flow, order, memory, device, rules, &initial)?;
            let at_end = self.parameters_at_end(flow);
            let mut is_stable = true;
            if rules.keeps_initial {
                for stay in self.plan.stays.iter().filter(|s| s.initial) {
                    let stays = stay.to as usize == order.len();
                    is_stable &= stays;
                    initial[stay.tensor.index()] &= stays;
                }
            }
            for t in 0..initial.len() {
                let stays = initial[t] && !self.removed[t];
                is_stable &= !stays || at_end[t];
                initial[t] = stays && at_end[t];
            }
            if is_stable {
                return Some(&self.plan);
            }
        }
        self.scan(flow, order, memory, device, rules, &none)?;
        Some(&self.plan)
    }

    /// Prefers to send some tensors away, and to keep others: by tensor, in positions by which its next use
    /// is taken to be later.
    pub fn set_bias(&mut self, bias: &[i32]) {
        self.bias.clear();
        self.bias.extend_from_slice(bias);
    }

    /// The plan that was made last.
    pub fn take_plan(&mut self) -> SwapPlan {
        std::mem::take(&mut self.plan)
    }

    fn find_uses(&mut self, flow: &Dataflow, order: &[OpId]) {
        self.uses_of.clear();
        self.uses_of.push(0);
        let mut sum = 0;
        for n in flow.uses() {
            sum += n;
            self.uses_of.push(sum);
        }
        self.uses.clear();
        self.uses.resize(sum as usize, 0);
        let mut filled = self.uses_of.clone();
        self.elapsed_ns.clear();
        let mut elapsed_ns = 0.0;
        for (position, &op) in order.iter().enumerate() {
            self.elapsed_ns.push(elapsed_ns);
            elapsed_ns += flow.operators()[op.index()].compute_ns as f64;
            for touch in flow.touches(op) {
                let at = &mut filled[touch.tensor.index()];
                self.uses[*at as usize] = position as u32;
                *at += 1;
            }
        }
        self.elapsed_ns.push(elapsed_ns);
    }

    fn parameters_at_end(&self, flow: &Dataflow) -> Vec<bool> {
        let each = self.states.iter().zip(flow.tensors());
        each.map(|(s, t)| s.resident && t.kind == TensorKind::Parameter)
            .collect()
    }

    fn scan(
        &mut self,
        flow: &Dataflow,
        order: &[OpId],
        memory: &Memory,
        device: &Device,
        rules: &Rules,
        initial: &[bool],
    ) -> Option<()> {
        self.reset(flow, order, memory, initial)?;
        let n = order.len() as u32;
        for (position, &op) in order.iter().enumerate() {
            let position = position as u32;
            let touches = flow.touches(op);
            for touch in touches {
                self.states[touch.tensor.index()].pinned_at = position;
            }
            let mut needs = Needs::default();
            // What must be loaded first: it has the longer way.
            for loads in [true, false] {
                for touch in touches.iter().filter(|touch| touch.reads == loads) {
                    let t = touch.tensor;
                    if self.states[t.index()].resident {
                        continue;
                    }
                    let size = flow.size_index(t);
                    let class = usize::from(memory.class_of_size[size]);
                    let takes = memory.takes[size];
                    let bytes = flow.tensors()[t.index()].bytes;
                    let wait_ns = rules.recency * device.transfer_ns(bytes);
                    let from =
                        self.allocate(class, takes, loads, position, wait_ns, rules, memory, flow)?;
                    let stay = self.plan.stays.len() as u32;
                    let state = &mut self.states[t.index()];
                    let load = loads.then_some(self.plan.loads.len() as u32);
                    if loads {
                        let after = After {
                            stores: from.stores.max(state.stored),
                            ..from
                        };
                        self.plan.loads.push(SwapIn { tensor: t, after });
                    } else {
                        needs.stores = needs.stores.max(from.stores);
                    }
                    state.resident = true;
                    state.dirty = false;
                    state.stay = stay;
                    self.plan.stays.push(Stay {
                        tensor: t,
                        from,
                        to: n,
                        first_use: position,
                        load,
                        store: None,
                        initial: false,
                    });
                }
            }
            needs.loads = self.plan.loads.len() as u32;
            self.plan.needs.push(needs);
            for touch in touches {
                self.use_now(flow, memory, rules, touch.tensor, touch.writes, position, n);
            }
        }
        // Changed parameters that are not there when the next run begins are written back.
        for (t, tensor) in flow.tensors().iter().enumerate() {
            let state = &self.states[t];
            let kept = initial[t] && !self.removed[t];
            if tensor.kind == TensorKind::Parameter && state.resident && state.dirty && !kept {
                self.plan.stays[state.stay as usize].store = Some(self.plan.stores.len() as u32);
                self.plan.stores.push(SwapOut {
                    tensor: TensorId(t as u32),
                    after_computes: state.last_use + 1,
                });
            }
        }
        Some(())
    }

    fn reset(
        &mut self,
        flow: &Dataflow,
        order: &[OpId],
        memory: &Memory,
        initial: &[bool],
    ) -> Option<()> {
        self.plan.order.clear();
        self.plan.order.extend_from_slice(order);
        self.plan.needs.clear();
        self.plan.loads.clear();
        self.plan.stores.clear();
        self.plan.stays.clear();
        self.removed.clear();
        self.removed.resize(flow.tensors().len(), false);
        self.states.clear();
        for t in 0..flow.tensors().len() {
            self.states.push(State {
                last_use: NEVER,
                next: self.uses_of[t],
                pinned_at: NEVER,
                ..State::default()
            });
        }
        self.classes.resize_with(memory.room.len(), Class::default);
        for (class, &room) in self.classes.iter_mut().zip(&memory.room) {
            class.leavers.clear();
            class.unused.clear();
            class.free.clear();
            class.free_room = room;
        }
        for (t, _) in initial.iter().enumerate().filter(|(_, there)| **there) {
            let tensor = TensorId(t as u32);
            let size = flow.size_index(tensor);
            let class = &mut self.classes[usize::from(memory.class_of_size[size])];
            class.free_room = class.free_room.checked_sub(memory.takes[size])?;
            let first_use = self.uses[self.uses_of[t] as usize];
            class.unused.push((first_use, tensor.0));
            let state = &mut self.states[t];
            state.resident = true;
            state.unused = true;
            state.dirty = flow.is_written(tensor);
            state.stay = self.plan.stays.len() as u32;
            self.plan.stays.push(Stay {
                tensor,
                from: After::default(),
                to: order.len() as u32,
                first_use,
                load: None,
                store: None,
                initial: true,
            });
        }
        for class in &mut self.classes {
            class.free.push_back((class.free_room, After::default()));
        }
        Some(())
    }

    /// Makes room in a class. For a load, of what has been free longest; for a result, of what became
    /// free last, since its operator comes after all of that anyway.
    fn allocate(
        &mut self,
        class: usize,
        takes: u64,
        early: bool,
        position: u32,
        wait_ns: f64,
        rules: &Rules,
        memory: &Memory,
        flow: &Dataflow,
    ) -> Option<After> {
        while self.classes[class].free_room < takes {
            self.evict(class, position, wait_ns, rules, memory, flow)?;
        }
        let class = &mut self.classes[class];
        class.free_room -= takes;
        let mut left = takes;
        let mut from = After::default();
        while left > 0 {
            let end = if early {
                class.free.front_mut()
            } else {
                class.free.back_mut()
            };
            let (room, after) = end?;
            let part = left.min(*room);
            if part > 0 {
                from = from.and(*after);
            }
            *room -= part;
            left -= part;
            if *room == 0 {
                if early {
                    class.free.pop_front();
                } else {
                    class.free.pop_back();
                }
            }
        }
        Some(from)
    }

    fn evict(
        &mut self,
        class: usize,
        position: u32,
        wait_ns: f64,
        rules: &Rules,
        memory: &Memory,
        flow: &Dataflow,
    ) -> Option<()> {
        // Parameters that have waited since the start of the run: they come when they are first needed.
        let mut pinned = None;
        while let Some((first_use, t)) = self.classes[class].unused.pop() {
            let state = &mut self.states[t as usize];
            if !state.unused {
                continue;
            }
            if state.pinned_at == position {
                pinned = Some((first_use, t));
                continue;
            }
            state.unused = false;
            state.resident = false;
            self.removed[t as usize] = true;
            let stay = &mut self.plan.stays[state.stay as usize];
            // It never was there.
            stay.to = 0;
            stay.initial = false;
            let takes = memory.takes[flow.size_index(TensorId(t))];
            let class = &mut self.classes[class];
            class.free.push_front((takes, After::default()));
            class.free_room += takes;
            class.unused.extend(pinned);
            return Some(());
        }
        self.classes[class].unused.extend(pinned);
        self.passed_over.clear();
        let now_ns = self.elapsed_ns[position as usize];
        let mut chosen = None;
        let mut second = None;
        while let Some(entry @ (key, t)) = self.classes[class].leavers.pop() {
            let state = &self.states[t as usize];
            if !state.resident || state.key != key {
                continue;
            }
            if state.pinned_at != position {
                let last_ns = self.elapsed_ns[state.last_use as usize + 1];
                if rules.eviction == Eviction::Lru || now_ns - last_ns >= wait_ns {
                    chosen = Some(entry);
                    break;
                }
                if second.is_none() {
                    second = Some(entry);
                    continue;
                }
            }
            self.passed_over.push(entry);
            if self.passed_over.len() > MOST_PASSED_OVER {
                break;
            }
        }
        let leavers = &mut self.classes[class].leavers;
        leavers.extend(self.passed_over.drain(..));
        if chosen.is_some() {
            leavers.extend(second);
        }
        let (_, t) = chosen.or(second)?;
        let state = &mut self.states[t as usize];
        let mut after = After {
            computes: state.last_use + 1,
            stores: 0,
        };
        let stay = &mut self.plan.stays[state.stay as usize];
        stay.to = after.computes;
        if state.dirty {
            stay.store = Some(self.plan.stores.len() as u32);
            self.plan.stores.push(SwapOut {
                tensor: TensorId(t),
                after_computes: after.computes,
            });
            after.stores = self.plan.stores.len() as u32;
            state.stored = after.stores;
        }
        state.resident = false;
        let takes = memory.takes[flow.size_index(TensorId(t))];
        let class = &mut self.classes[class];
        class.free.push_back((takes, after));
        class.free_room += takes;
        Some(())
    }

    fn use_now(
        &mut self,
        flow: &Dataflow,
        memory: &Memory,
        rules: &Rules,
        tensor: TensorId,
        writes: bool,
        position: u32,
        n: u32,
    ) {
        let t = tensor.index();
        let size = flow.size_index(tensor);
        let class = &mut self.classes[usize::from(memory.class_of_size[size])];
        let state = &mut self.states[t];
        state.last_use = position;
        state.unused = false;
        state.dirty |= writes;
        state.next += 1;
        let next_use = match self.uses.get(state.next as usize) {
            Some(&next) if state.next < self.uses_of[t + 1] => next,
            _ => match flow.tensors()[t].kind {
                TensorKind::Parameter => n + self.uses[self.uses_of[t] as usize],
                TensorKind::Output => n,
                TensorKind::Activation | TensorKind::Input => {
                    state.resident = false;
                    self.plan.stays[state.stay as usize].to = position + 1;
                    let takes = memory.takes[size];
                    let after = After {
                        computes: position + 1,
                        stores: 0,
                    };
                    class.free.push_back((takes, after));
                    class.free_room += takes;
                    return;
                }
            },
        };
        state.key = match rules.eviction {
            Eviction::Belady => {
                let bias = self.bias.get(t).copied().unwrap_or(0);
                next_use.saturating_add_signed(bias)
            }
            Eviction::Lru => NEVER - position,
        };
        class.leavers.push((state.key, tensor.0));
    }
}
