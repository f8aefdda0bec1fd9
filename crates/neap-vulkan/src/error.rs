//! Why there is no device, or why it failed.

use ash::vk;
use thiserror::Error;

#[derive(Debug, Error)]
pub enum VulkanError {
    #[error("no Vulkan here: {0}")]
    NoVulkan(String),
    #[error("no Vulkan device can be used: {0}")]
    NoDevice(String),
    #[error("the Vulkan device {what}: {result}")]
    Failed {
        what: &'static str,
        result: vk::Result,
    },
}

/// Names what was tried.
pub(crate) trait Tried<T> {
    fn tried(self, what: &'static str) -> Result<T, VulkanError>;
}

impl<T> Tried<T> for Result<T, vk::Result> {
    fn tried(self, what: &'static str) -> Result<T, VulkanError> {
        self.map_err(|result| VulkanError::Failed { what, result })
    }
}
