//! `Vulkan`: a device that has been warmed up, for the sessions of a process.

use crate::device::VulkanDevice;
use crate::error::VulkanError;
use crate::gpu::{Gpu, Options};
use crate::slots::Slots;
use neap_runtime::{Accelerator, Cpu, Device};
use std::sync::{Arc, Mutex, PoisonError};

/// An open device whose pipelines were all used once, with what the first session needs of it: so nothing more of the
/// driver's memory comes when a model runs, and a plan made after this counts with all of it.
#[derive(Debug)]
pub struct Vulkan {
    gpu: Arc<Gpu>,
    /// For the next session.
    slots: Mutex<Option<Slots>>,
}

impl Vulkan {
    /// Opens the device and warms it up.
    ///
    /// # Errors
    /// As [`Gpu::open`].
    pub fn open(options: &Options) -> Result<Vulkan, VulkanError> {
        let gpu = Gpu::open(options)?;
        let mut slots = Slots::new(gpu.clone())?;
        slots.use_all()?;
        Ok(Vulkan {
            gpu,
            slots: Mutex::new(Some(slots)),
        })
    }

    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Accelerator for Vulkan {
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
