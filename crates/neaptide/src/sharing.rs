//! `Sharing`: which steps an accelerator leaves to the processor, by what both are known to take.
//!
//! ```text
//!   costs of the device  ──┐
//!                          ├─► a program's steps, divided: the same for every budget, plan and run
//!   costs of the processor ┘
//! ```
//! It is made once, before a session is opened. What is measured later changes predictions, and not who computes.

use crate::calibrate::{Known, known};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::options::RunOptions;
use neap_compile::{Divide, Divided, StepCost, StepTimes, on_device};
use neap_ir::Program;
use neap_plan::{KernelId, Workload};
use neap_runtime::Accelerator;
use neap_sim::CostProfile;
use std::sync::Arc;

/// A device and the processor, and what computing takes on each.
#[derive(Debug)]
pub struct Sharing {
    accelerator: Arc<dyn Accelerator>,
    device: Rates,
    processor: Rates,
}

/// Of one of them.
#[derive(Debug)]
struct Rates {
    costs: CostProfile,
    times: StepTimes,
}

impl Rates {
    fn of(known: Known) -> Rates {
        Rates {
            costs: known.costs,
            times: known.times,
        }
    }

    /// Of each step by its direct kernel, the cost of a compute included; `estimates` are used for what was never measured.
    fn ns(&self, program: &Program, direct: &Workload, estimates: Vec<u64>) -> Vec<u64> {
        let costs = CostProfile {
            step_ns: estimates,
            ..self.costs.clone()
        };
        let steps = direct.steps.iter().enumerate();
        let each = steps.map(|(i, step)| {
            // Whatever kernel the workload names: the division must not depend on one that was made before.
            let measured = self.times.of(program, i, KernelId::DIRECT);
            measured.unwrap_or_else(|| costs.step_ns(i, step)) + costs.compute_overhead_ns
        });
        each.collect()
    }
}

impl Sharing {
    /// By what [`RunOptions::calibration`] finds of the accelerator of `options` and of the processor.
    ///
    /// # Errors
    /// [`Error::BadInput`] without an accelerator, and for one with plans in its own memory; as calibrating.
    pub fn new(model: &Model, options: &RunOptions) -> Result<Arc<Sharing>> {
        let bad = |what: &str| Err(Error::BadInput(what.into()));
        let Some(accelerator) = options.accelerator.clone() else {
            return bad("there is no device to share steps with");
        };
        if accelerator.own_memory().is_some() {
            return bad("steps are shared with a device in the host's memory only");
        }
        let alone = RunOptions {
            sharing: None,
            // Steps are divided by what direct kernels take.
            exact: true,
            ..model.in_bytes(options)
        };
        let processor = RunOptions {
            accelerator: None,
            ..alone.clone()
        };
        Ok(Arc::new(Sharing {
            accelerator,
            device: Rates::of(known(model, &alone)?),
            processor: Rates::of(known(model, &processor)?),
        }))
    }
}

impl Divide for Sharing {
    fn divide(&self, program: &Program, direct: &Workload) -> Divided {
        let computes = self.accelerator.computes(program);
        let estimates = self.accelerator.step_ns(program);
        let device = self.device.ns(program, direct, estimates);
        let processor = self.processor.ns(program, direct, Vec::new());
        let steps: Vec<StepCost> = (computes.iter().zip(device).zip(processor))
            .map(|((&computes, device_ns), processor_ns)| StepCost {
                device_ns: computes.then_some(device_ns),
                processor_ns,
            })
            .collect();
        let wait_ns = self.accelerator.rates().map_or(0, |rates| rates.wait_ns);
        let here = on_device(&steps, wait_ns);
        let overhead_ns = self.device.costs.compute_overhead_ns;
        let mut was_here = false;
        let step_ns = steps.iter().zip(&here).map(|(step, &here)| {
            let waited_ns = if was_here && !here { wait_ns } else { 0 };
            was_here = here;
            let ns = match (here, step.device_ns) {
                (true, Some(ns)) => ns,
                _ => step.processor_ns + waited_ns,
            };
            // Plans count with the overhead of the device. Nothing would mean that it is not known.
            ns.saturating_sub(overhead_ns).max(1)
        });
        Divided {
            step_ns: step_ns.collect(),
            left: (computes.iter().zip(&here))
                .map(|(computes, here)| *computes && !here)
                .collect(),
        }
    }
}
