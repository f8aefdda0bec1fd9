//! A Vulkan device for a benchmark's sessions.

use anyhow::Result;
use neaptide::{Accelerator, Model};
use std::sync::Arc;

/// The device for a model, used once; plans are in its own memory, perhaps over a slower link, or in the host's.
///
/// # Errors
/// When there is none.
pub fn device(model: &Model, own_memory: bool, link: Option<u64>) -> Result<Arc<dyn Accelerator>> {
    let options = neap_vulkan::Options {
        program: Some(model.program().clone()),
        own_memory,
        link_bytes_per_second: link.map(|rate| rate as f64),
        ..neap_vulkan::Options::default()
    };
    Ok(Arc::new(neap_vulkan::Vulkan::open(&options)?))
}
