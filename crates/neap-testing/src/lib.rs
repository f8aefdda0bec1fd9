//! What tests of several crates share: skips that cannot be overlooked, and an allocator that counts, threads that stay.

mod allocations;
mod cases;
mod crew;
mod gguf;
mod pictures;
mod seed;
mod skip;

pub use allocations::{Allocations, Counting, counted, kept_bytes, most_bytes};
pub use cases::cases;
pub use crew::together;
pub use gguf::{GgufWriter, TensorType};
pub use pictures::{jpeg, png};
pub use seed::seed;
pub use skip::{absent, skip};
