//! `Vulkan`: a device that has been warmed up, for the sessions of a process.

use crate::costs::Costs;
use crate::device::VulkanDevice;
use crate::dispatch::Dispatch;
use crate::error::VulkanError;
use crate::gpu::{Gpu, Options};
use crate::rates::measure;
use crate::scratch::each_with_scratch;
use crate::slots::Slots;
use crate::steps::{computed_here, each_slice, each_step};
use neap_ir::Program;
use neap_ops::{Choice, ScratchKernel};
use neap_runtime::{Accelerator, Cpu, Device, DeviceRates, OwnMemoryFigures};
use std::sync::{Arc, Mutex, PoisonError};

/// An open device whose pipelines were all used once, with what the first session needs of it: so nothing more of the
/// driver's memory comes when a model runs, and a plan made after this counts with all of it.
#[derive(Debug)]
pub struct Vulkan {
    gpu: Arc<Gpu>,
    rates: DeviceRates,
    costs: Costs,
    /// Of the device's memory, taken when everything was used once.
    reserve_bytes: u64,
    /// For the next session.
    slots: Mutex<Option<Slots>>,
}

impl Vulkan {
    /// Opens the device, warms it up and measures how fast it is, which takes some tens of milliseconds.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open(options: &Options) -> Result<Vulkan, VulkanError> {
        let gpu = Gpu::open(options)?;
        let mut slots = Slots::new(gpu.clone())?;
        slots.use_all()?;
        let (rates, costs) = measure(&gpu, options.program.as_deref(), &mut slots)?;
        gpu.blocks.forget_peak();
        Ok(Vulkan {
            reserve_bytes: gpu.taken_bytes(),
            gpu,
            rates,
            costs,
            slots: Mutex::new(Some(slots)),
        })
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// What dispatches of one job take, beside the overhead of the first; 0 where that follows from rates.
    fn ns(&self, dispatches: &[Dispatch]) -> u64 {
        let ns: Option<f64> = dispatches.iter().map(|one| self.costs.ns(one)).sum();
        let more = dispatches.len().saturating_sub(1) as u64;
        ns.map_or(0, |ns| ns as u64 + more * self.rates.job_overhead_ns)
    }
}

impl Accelerator for Vulkan {
    fn name(&self) -> String {
        match self.gpu.has_own_memory() {
            true => format!("vulkan: {}, in its own memory", self.gpu.name()),
            false => format!("vulkan: {}", self.gpu.name()),
        }
    }

    fn computes(&self, program: &Program) -> Vec<bool> {
        computed_here(program, self.gpu.offer())
    }

    fn rates(&self) -> Option<DeviceRates> {
        Some(self.rates)
    }

    fn step_ns(&self, program: &Program) -> Vec<u64> {
        let mut all = Vec::with_capacity(program.steps.len());
        each_step(program, self.gpu.offer(), &mut |dispatches| {
            all.push(self.ns(dispatches.unwrap_or_default()));
        });
        all
    }

    fn least_slice_ns(&self, program: &Program) -> Vec<u64> {
        let mut all = Vec::with_capacity(program.steps.len());
        each_slice(program, self.gpu.offer(), &mut |dispatches| {
            all.push(dispatches.map_or(0, |dispatches| self.ns(dispatches)));
        });
        all
    }

    fn with_scratch(&self, program: &Program) -> Vec<Option<ScratchKernel>> {
        let mut all = Vec::with_capacity(program.steps.len());
        each_with_scratch(program, self.gpu.offer(), &mut |found| {
            all.push(found.map(|(workspace_bytes, dispatches)| ScratchKernel {
                choice: Choice::DEVICE_WINOGRAD,
                workspace_bytes,
                ns: self.ns(dispatches),
            }));
        });
        all
    }

    fn own_memory(&self) -> Option<OwnMemoryFigures> {
        let gpu = &self.gpu;
        gpu.has_own_memory().then(|| OwnMemoryFigures {
            reserve_bytes: self.reserve_bytes,
            most_bytes: gpu.own_bytes().saturating_sub(self.reserve_bytes),
            peak_bytes: gpu.blocks.peak_bytes(),
        })
    }

    fn device(&self, cpu: Cpu) -> Result<Box<dyn Device>, String> {
        let ready = (self.slots.lock().unwrap_or_else(PoisonError::into_inner)).take();
        let slots = ready.map_or_else(|| Slots::new(self.gpu.clone()), Ok);
        let device = slots.map(|slots| VulkanDevice::with(self.gpu.clone(), slots, cpu));
        match device {
            Ok(device) => Ok(Box::new(device)),
            Err(e) => Err(e.to_string()),
        }
    }
}
