//! A memory cgroup of one's own: found, made, limited, watched and removed.
//!
//! ```text
//!   v1   <memory mount>/<own group>/neaptide-<pid>      memory.limit_in_bytes, memory.memsw.limit_in_bytes
//!   v2   <mount>/<own group>/neaptide-<pid>             memory.max, memory.swap.max = 0
//!        <mount>/<parent of own group>/neaptide-<pid>   where the own group may not have children
//! ```

mod find;
mod group;
pub mod limits;
pub mod supervise;

pub use find::{Found, Version, find};
pub use group::Group;

/// Groups are named so; the process that made one follows.
const PREFIX: &str = "neaptide-";
