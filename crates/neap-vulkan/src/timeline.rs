//! `Timeline`: a semaphore that counts what is complete, shared by those who signal it and those who wait.

use crate::error::{Tried, VulkanError};
use crate::gpu::Gpu;
use ash::vk;
use std::sync::Arc;

pub(crate) struct Timeline {
    raw: vk::Semaphore,
    gpu: Arc<Gpu>,
}

impl Timeline {
    pub(crate) fn new(gpu: &Arc<Gpu>) -> Result<Arc<Timeline>, VulkanError> {
        let mut ty = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut ty);
        // SAFETY: what the information points to lives.
        let raw = unsafe { gpu.functions.create_semaphore(&info, None) };
        Ok(Arc::new(Timeline {
            raw: raw.tried("makes no semaphore")?,
            gpu: gpu.clone(),
        }))
    }

    pub(crate) fn raw(&self) -> vk::Semaphore {
        self.raw
    }

    /// The value that it has reached.
    pub(crate) fn reached(&self) -> Result<u64, VulkanError> {
        // SAFETY: the semaphore lives.
        let value = unsafe { self.gpu.functions.get_semaphore_counter_value(self.raw) };
        value.tried("is lost")
    }

    pub(crate) fn wait_for(&self, value: u64) -> Result<(), VulkanError> {
        let (semaphores, values) = ([self.raw], [value]);
        let info = vk::SemaphoreWaitInfo::default()
            .semaphores(&semaphores)
            .values(&values);
        // SAFETY: the semaphore lives.
        let waited = unsafe { self.gpu.functions.wait_semaphores(&info, u64::MAX) };
        waited.tried("is lost")
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: whoever submits work that names it holds it until that work is complete.
        unsafe { self.gpu.functions.destroy_semaphore(self.raw, None) };
    }
}
