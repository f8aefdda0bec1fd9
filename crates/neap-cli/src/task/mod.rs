//! `neap tasks FILE.toml`: several models at once, one total of memory.
//!
//! ```text
//!   neap tasks              members: a process for each model, on its own processors
//!     read the file
//!     start members ───────► open the model
//!     curve ───────────────► one after another
//!                  ◄──────── predicted latency by budget
//!     allocate the total
//!     open B ──────────────► session within B, warm-up
//!                  ◄──────── opened
//!     go ──────────────────► run, run, run …
//!     the total moves:
//!       budget B ──────────► members that shrink, between two of their runs; then those that grow
//!                  ◄──────── adapted
//!                  ◄──────── done: figures
//!     report
//! ```
//! With `--enforce` all members are in one memory cgroup with the total as hard limit. With `--one-process` there are no
//! members: the models take turns in this process (`one`).

mod file;
mod fleet;
mod member;
mod message;
mod one;
mod report;
mod run;

pub use file::Policy;
pub use member::{MemberArgs, run as member};
pub use run::{Settings, run};
