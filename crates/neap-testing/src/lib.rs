//! What tests of several crates share: skips that cannot be overlooked, and an allocator that counts.

mod allocations;
mod skip;

pub use allocations::{Allocations, Counting, counted};
pub use skip::{absent, skip};
