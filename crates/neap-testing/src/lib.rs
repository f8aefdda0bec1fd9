//! What tests of several crates share: skips that cannot be overlooked, and an allocator that counts.

mod allocations;
mod cases;
mod seed;
mod skip;

pub use allocations::{Allocations, Counting, counted};
pub use cases::cases;
pub use seed::seed;
pub use skip::{absent, skip};
