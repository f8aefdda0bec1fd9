//! `libneap_hook.so`: for `LD_PRELOAD`, under CUDA programs as they are.
//!
//! ```text
//!   program ─ dlsym, cuGetProcAddress ─► ours, by the driver's names           resolve, export, real
//!     launches, copies, fills      wait for the program's turn                 work, waits, gate
//!     allocations                  lie in chunks that can leave the card       alloc, vmm ─► memory ─► range, physical, arena
//!     questions about memory       are answered within the program's quota     info
//!   scheduler ─► agent             whose turn it is, and what leaves or comes back
//! ```
//! The scheduler is the daemon of `neap-gpud`. Without `NEAP_GPU_SOCKET` in the environment nothing is changed.

mod agent;
mod alloc;
mod arena;
mod card;
mod contexts;
mod export;
mod gate;
mod info;
mod job;
mod memory;
mod physical;
mod range;
mod real;
mod resolve;
mod settings;
mod vmm;
mod waits;
mod work;
