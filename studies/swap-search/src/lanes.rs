//! What a swap plan takes: compute, load and store lanes side by side.
//!
//! Each lane does its work in order, and the next piece starts when the lane is free and what it waits for
//! is done. Loads and stores share a link: alone, either has the one-way rate; together, half of the
//! both-ways rate each.

use crate::dataflow::Dataflow;
use crate::device::Device;
use crate::swap::SwapPlan;

/// How a run of a plan goes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    pub total_ns: f64,
    /// Of that, what the compute lane stands still.
    pub stall_ns: f64,
    pub loaded_bytes: u64,
    pub stored_bytes: u64,
}

/// A transfer on its way: first its latency, then its bytes.
#[derive(Clone, Copy)]
struct Transfer {
    latency_ns: f64,
    bytes: f64,
}

impl Transfer {
    fn new(bytes: u64, device: &Device) -> Self {
        Self {
            latency_ns: device.transfer_latency_ns as f64,
            bytes: bytes as f64,
        }
    }

    fn moves(&self) -> bool {
        self.latency_ns <= 0.0
    }

    fn next_ns(&self, bytes_per_ns: f64) -> f64 {
        if self.moves() {
            self.bytes / bytes_per_ns
        } else {
            self.latency_ns
        }
    }

    /// Whether it is done.
    fn pass(&mut self, ns: f64, bytes_per_ns: f64) -> bool {
        const ROUNDING: f64 = 1e-6;
        if self.moves() {
            self.bytes -= ns * bytes_per_ns;
        } else {
            self.latency_ns -= ns;
            if self.latency_ns <= ROUNDING {
                self.latency_ns = 0.0;
            }
        }
        self.moves() && self.bytes <= ROUNDING * bytes_per_ns
    }
}

/// Plays one run of `plan`. `None` when a lane waits for what never comes, which no planner's plan does.
pub fn play(flow: &Dataflow, plan: &SwapPlan, device: &Device) -> Option<Outcome> {
    let bytes_of = |t: super::TensorId| flow.tensors()[t.index()].bytes;
    let one_way = device.one_way_bytes_per_second / 1e9;
    let shared = one_way.min(device.both_ways_bytes_per_second / 2e9);
    let (mut computes, mut loads, mut stores) = (0, 0, 0);
    let mut now_ns = 0.0f64;
    let mut busy_ns = 0.0f64;
    let mut compute: Option<f64> = None;
    let mut load: Option<Transfer> = None;
    let mut store: Option<Transfer> = None;
    let mut outcome = Outcome::default();
    loop {
        if compute.is_none() && computes < plan.order.len() {
            let needs = plan.needs[computes];
            if needs.loads as usize <= loads && needs.stores as usize <= stores {
                let ns = flow.operators()[plan.order[computes].index()].compute_ns as f64;
                busy_ns += ns;
                compute = Some(ns);
            }
        }
        if load.is_none()
            && let Some(next) = plan.loads.get(loads)
            && next.after.computes as usize <= computes
            && next.after.stores as usize <= stores
        {
            let bytes = bytes_of(next.tensor);
            outcome.loaded_bytes += bytes;
            load = Some(Transfer::new(bytes, device));
        }
        if store.is_none()
            && let Some(next) = plan.stores.get(stores)
            && next.after_computes as usize <= computes
        {
            let bytes = bytes_of(next.tensor);
            outcome.stored_bytes += bytes;
            store = Some(Transfer::new(bytes, device));
        }
        let both = load.is_some_and(|l| l.moves()) && store.is_some_and(|s| s.moves());
        let rate = if both { shared } else { one_way };
        let mut step_ns = compute.unwrap_or(f64::INFINITY);
        for transfer in [&load, &store].into_iter().flatten() {
            step_ns = step_ns.min(transfer.next_ns(rate));
        }
        if step_ns == f64::INFINITY {
            break;
        }
        now_ns += step_ns;
        if let Some(left) = &mut compute {
            *left -= step_ns;
            if *left <= 1e-6 {
                compute = None;
                computes += 1;
            }
        }
        if load.as_mut().is_some_and(|l| l.pass(step_ns, rate)) {
            load = None;
            loads += 1;
        }
        if store.as_mut().is_some_and(|s| s.pass(step_ns, rate)) {
            store = None;
            stores += 1;
        }
    }
    let is_done =
        computes == plan.order.len() && loads == plan.loads.len() && stores == plan.stores.len();
    outcome.total_ns = now_ns;
    outcome.stall_ns = now_ns - busy_ns;
    is_done.then_some(outcome)
}

#[cfg(test)]
mod tests {
    use super::super::dataflow::{OpId, TensorId, TensorKind};
    use super::super::swap::{After, Needs, SwapIn, SwapOut};
    use super::*;
    use crate::testing::flow;

    /// 1 byte/ns one way, 1.5 both ways, no latency.
    const LINK: Device = Device {
        one_way_bytes_per_second: 1e9,
        both_ways_bytes_per_second: 1.5e9,
        transfer_latency_ns: 0,
    };

    fn two_ops() -> Dataflow {
        use TensorKind::{Activation, Parameter};
        flow(
            &[
                (100, Parameter),
                (60, Activation),
                (100, Parameter),
                (10, Activation),
            ],
            &[(50, &[0], &[1]), (70, &[2], &[3])],
        )
    }

    fn plan(second_after: u32) -> SwapPlan {
        let load = |t, computes| SwapIn {
            tensor: TensorId(t),
            after: After {
                computes,
                stores: 0,
            },
        };
        SwapPlan {
            order: vec![OpId(0), OpId(1)],
            needs: [1, 2].map(|loads| Needs { loads, stores: 0 }).to_vec(),
            loads: vec![load(0, 0), load(2, second_after)],
            ..SwapPlan::default()
        }
    }

    #[test]
    fn lanes_overlap() {
        // W1 0..100, op1 100..150, W2 100..200, op2 200..270
        let outcome = play(&two_ops(), &plan(0), &LINK).unwrap();
        assert_eq!((outcome.total_ns, outcome.stall_ns), (270.0, 150.0));
        // W2 only after op1: 150..250
        assert_eq!(play(&two_ops(), &plan(1), &LINK).unwrap().total_ns, 320.0);
        let slow = Device {
            transfer_latency_ns: 10,
            ..LINK
        };
        assert_eq!(play(&two_ops(), &plan(1), &slow).unwrap().total_ns, 340.0);
    }

    #[test]
    fn both_ways_share_the_link() {
        let mut p = plan(1);
        p.stores.push(SwapOut {
            tensor: TensorId(1),
            after_computes: 1,
        });
        // From 150 on, W2 (100) and A1 (60) at 0.75 each: A1 done at 230, W2 has 40 left, alone: 270.
        let outcome = play(&two_ops(), &p, &LINK).unwrap();
        assert!((outcome.total_ns - 340.0).abs() < 1e-6, "{outcome:?}");
        assert_eq!((outcome.loaded_bytes, outcome.stored_bytes), (200, 60));
    }

    #[test]
    fn what_never_comes_is_seen() {
        let mut p = plan(0);
        p.needs[1].stores = 1;
        assert!(play(&two_ops(), &p, &LINK).is_none());
    }
}
