//! What a scan knows at one position of the schedule: which tensors are in memory and since when, when each is
//! used next, and the plan so far.

use super::{After, Eviction, Rules, Stay, SwapIn, SwapOut, SwapPlan};
use crate::dataflow::{Dataflow, OpId, TensorId, TensorKind};

pub const NEVER: u32 = u32::MAX;

#[derive(Clone, Copy, Default)]
pub struct State {
    pub resident: bool,
    /// Its copy in backing memory is missing or old.
    pub dirty: bool,
    /// There since the start of the run, and not used yet.
    pub unused: bool,
    /// Position of its last use; `NEVER` before the first.
    pub last_use: u32,
    /// Index of its next use in `uses`.
    next: u32,
    /// When it is used again, or how lately it was: those with the highest go first. Changes with each use, so
    /// that old heap entries are known.
    pub key: u32,
    pub stay: u32,
    /// One past the store that wrote it, to wait for before it is read back.
    pub stored: u32,
    /// Position of the operator that has it last; it must not go while that is scanned.
    pub pinned_at: u32,
    /// It is there at the start, and must stay.
    pub is_kept: bool,
}

impl State {
    /// Whether it is stored when it leaves.
    pub fn stores(&self) -> bool {
        self.dirty && !self.unused
    }

    /// Whether it must not go while the operator at `position` is scanned.
    pub fn is_pinned(&self, position: u32) -> bool {
        self.is_kept || self.pinned_at == position
    }
}

#[derive(Default)]
pub struct Scan {
    pub states: Vec<State>,
    pub uses: Vec<u32>,
    pub uses_of: Vec<u32>,
    /// By position, the time of all operators before it.
    pub elapsed_ns: Vec<f64>,
    /// Parameters that were to be there at the start, and gave way before they were used.
    pub removed: Vec<bool>,
    /// By tensor, added to its next use when it is chosen who goes: more lets it go earlier. May be empty.
    pub bias: Vec<i32>,
    pub plan: SwapPlan,
}

impl Scan {
    pub fn find_uses(&mut self, flow: &Dataflow, order: &[OpId]) {
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

    pub fn reset(&mut self, flow: &Dataflow, order: &[OpId]) {
        self.plan.order.clear();
        self.plan.order.extend_from_slice(order);
        self.plan.needs.clear();
        self.plan.loads.clear();
        self.plan.stores.clear();
        self.plan.stays.clear();
        self.removed.clear();
        self.removed.resize(flow.tensors().len(), false);
        self.states.clear();
        let uses_of = &self.uses_of[..flow.tensors().len()];
        self.states.extend(uses_of.iter().map(|&next| State {
            last_use: NEVER,
            next,
            pinned_at: NEVER,
            ..State::default()
        }));
    }

    /// A parameter is there when the run begins; it stays if it `is_kept`.
    pub fn begin_with(&mut self, flow: &Dataflow, tensor: TensorId, offset: u64, is_kept: bool) {
        let t = tensor.index();
        let first_use = self.uses[self.uses_of[t] as usize];
        let state = &mut self.states[t];
        state.resident = true;
        state.unused = true;
        state.is_kept = is_kept;
        state.key = first_use;
        state.dirty = flow.is_written(tensor);
        state.stay = self.plan.stays.len() as u32;
        self.plan.stays.push(Stay {
            tensor,
            offset,
            from: After::default(),
            to: self.plan.order.len() as u32,
            first_use,
            load: None,
            store: None,
            initial: true,
        });
    }

    /// The tensor is in memory from now on: loaded, or made by the operator at `position`.
    pub fn seat(&mut self, tensor: TensorId, loads: bool, position: u32, from: After, offset: u64) {
        let plan = &mut self.plan;
        let state = &mut self.states[tensor.index()];
        let load = loads.then_some(plan.loads.len() as u32);
        if loads {
            let after = After {
                stores: from.stores.max(state.stored),
                ..from
            };
            plan.loads.push(SwapIn { tensor, after });
        } else {
            let needs = &mut plan.needs[position as usize];
            needs.stores = needs.stores.max(from.stores);
        }
        state.resident = true;
        state.dirty = false;
        state.stay = plan.stays.len() as u32;
        plan.stays.push(Stay {
            tensor,
            offset,
            from,
            to: plan.order.len() as u32,
            first_use: position,
            load,
            store: None,
            initial: false,
        });
    }

    /// By tensor, where parameters lie that are in memory at the end.
    pub fn parameters_at_end(&self, flow: &Dataflow) -> Vec<Option<u64>> {
        let each = self.states.iter().zip(flow.tensors());
        each.map(|(s, t)| {
            let is_there = s.resident && t.kind == TensorKind::Parameter;
            is_there.then(|| self.plan.stays[s.stay as usize].offset)
        })
        .collect()
    }

    /// Whether the tensor has not been used for `wait_ns` at `position`.
    pub fn is_old(&self, tensor: usize, position: u32, wait_ns: f64) -> bool {
        let state = &self.states[tensor];
        let used = state.last_use.wrapping_add(1) as usize;
        state.unused || self.elapsed_ns[position as usize] - self.elapsed_ns[used] >= wait_ns
    }

    /// Sends a tensor away, which is stored first where it has changed: when its memory is free.
    pub fn send_away(&mut self, tensor: usize) -> After {
        let state = &mut self.states[tensor];
        state.resident = false;
        let stay = &mut self.plan.stays[state.stay as usize];
        if state.unused {
            // It waited since the start of the run, and now comes when it is first needed: it never was there.
            state.unused = false;
            self.removed[tensor] = true;
            stay.to = 0;
            stay.initial = false;
            return After::default();
        }
        let mut after = After {
            computes: state.last_use + 1,
            stores: 0,
        };
        stay.to = after.computes;
        if state.dirty {
            stay.store = Some(self.plan.stores.len() as u32);
            self.plan.stores.push(SwapOut {
                tensor: TensorId(tensor as u32),
                after_computes: after.computes,
            });
            after.stores = self.plan.stores.len() as u32;
            state.stored = after.stores;
        }
        after
    }

    /// The operator at `position` uses the tensor. Says when its memory is free if nobody uses it again.
    pub fn use_now(
        &mut self,
        flow: &Dataflow,
        rules: &Rules,
        tensor: TensorId,
        writes: bool,
        position: u32,
    ) -> Option<After> {
        let n = self.plan.order.len() as u32;
        let t = tensor.index();
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
                TensorKind::Activation | TensorKind::Input | TensorKind::Apart => {
                    state.resident = false;
                    self.plan.stays[state.stay as usize].to = position + 1;
                    return Some(After {
                        computes: position + 1,
                        stores: 0,
                    });
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
        None
    }
}
