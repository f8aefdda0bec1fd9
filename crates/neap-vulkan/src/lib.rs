//! A device of the runtime: computes steps on Vulkan, in the memory in which the session's plan has them.
//!
//! ```text
//!   spaces of the plan   │ work ····· │ weights ····· │      host memory, which the device imports: no copies
//!                           ▲      ▲         ▲
//!                  storage ─┘      │         │             reads with O_DIRECT to where shaders read
//!   job ──► Dispatch ──► slot ──► queue ─────┘             one after the other; a timeline semaphore counts them
//!       └──► the processor, when all before is complete    what has no kernel here
//! ```
//! Whether a step is computed here follows from its operator, types and sizes and the device's limits, never from
//! addresses or slices. So a model has the same bits under every plan of one program.
//!
//! What makes the unsafe parts sound: an import lives no longer than the memory under it ([`neap_runtime::Device::detach`]),
//! a slot is written again only when the device is done with it, and a dispatch names only memory that its job names.

mod choose;
mod device;
mod dispatch;
mod error;
mod gpu;
mod imports;
mod instance;
mod kernel;
mod operators;
mod rates;
mod ready;
mod slots;
mod steps;
mod words;

pub use device::VulkanDevice;
pub use error::VulkanError;
pub use gpu::{Gpu, Limits, Options};
pub use ready::Vulkan;
