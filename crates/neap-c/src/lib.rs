//! The C library: opaque handles over [`neaptide::Runner`], status codes, no global state.
//!
//! ```text
//!   C's pointers ─► checked (given) ─► Runner │ errors and panics ─► NeapStatus, NeapError (failure)
//! ```
//! `include/neaptide.h` is made from these files by `cargo xtask test --part c`, which also builds and runs the examples.
//! Names of functions and layouts of structures that are here stay; what is new gets new names. `tests/abi.rs` has a list of them.

mod cancel;
mod failure;
mod given;
mod layout;
mod options;
mod session;
mod tensor;
mod version;
