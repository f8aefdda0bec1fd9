//! A device of the runtime: computes steps on Vulkan, in the memory in which the session's plan has them.
//!
//! That memory is the host's, or the card's own ([`Options::own_memory`]).
//!
//! ```text
//!   spaces of the plan   │ work ····· │ weights ····· │      host memory, which the device imports: no copies
//!                           ▲      ▲         ▲
//!                  storage ─┘      │         │             reads with O_DIRECT to where shaders read
//!
//!   spaces of the plan   │ work ····· │ weights ····· │      or blocks of the card's memory, mapped
//!                           ▲ link       ▲
//!       storage ──► ring ───┴────────────┘                   pinned memory of the host, copied by a queue of its own
//!
//!   job ──► Dispatch ──► slot ──► queue ─────┘             one after the other; a timeline semaphore counts them
//!       └──► the processor, when all before is complete    what has no kernel here
//! ```
//! Whether a step is computed here follows from its operator, types and sizes and the device's limits, never from
//! addresses or slices. So a model has the same bits under every plan of one program.
//!
//! What makes the unsafe parts sound: an import lives no longer than the memory under it ([`neap_runtime::Device::detach`]),
//! a slot is written again only when the device is done with it, and a dispatch names only memory that its job names.

mod block;
mod card;
mod choose;
mod costs;
mod device;
mod dispatch;
mod error;
mod gpu;
mod imports;
mod instance;
mod kernel;
mod known;
mod limits;
mod link;
mod operators;
mod pinned;
mod rates;
mod ready;
mod scratch;
mod slots;
mod steps;
mod throttle;
mod tiles;
mod timeline;
mod words;

pub use device::VulkanDevice;
pub use error::VulkanError;
pub use gpu::{Gpu, Options};
pub use limits::Limits;
pub use ready::Vulkan;
