//! `Vulkan`: a device that has been warmed up, for the sessions of a process.

use crate::device::VulkanDevice;
use crate::error::VulkanError;
use crate::gpu::{Gpu, Options};
use crate::rates::measure;
use crate::slots::Slots;
use crate::steps::computed_here;
use neap_ir::Program;
use neap_runtime::{Accelerator, Cpu, Device, DeviceRates};
use std::sync::{Arc, Mutex, PoisonError};

/// An open device whose pipelines were all used once, with what the first session needs of it: so nothing more of the
/// driver's memory comes when a model runs, and a plan made after this counts with all of it.
#[derive(Debug)]
pub struct Vulkan {
    gpu: Arc<Gpu>,
    rates: DeviceRates,
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
        let rates = measure(&gpu, &mut slots)?;
        Ok(Vulkan {
            gpu,
            rates,
            slots: Mutex::new(Some(slots)),
        })
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Accelerator for Vulkan {
    fn name(&self) -> String {
        format!("vulkan: {}", self.gpu.name())
    }

    fn computes(&self, program: &Program) -> Vec<bool> {
        computed_here(program, &self.gpu)
    }

    fn rates(&self) -> Option<DeviceRates> {
        Some(self.rates)
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
