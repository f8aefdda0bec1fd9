//! Budgets that change while a model runs: where they come from, and what is shown of it.
//!
//! ```text
//!   schedule │ follow (cgroup, psi) ─► budget due ─► Session::set_budget ─► runs ─► live view, trace, report
//! ```

mod args;
pub mod follow;
pub mod live;
pub mod peak;
pub mod repeat;
mod sample;
pub mod schedule;
pub mod slower;
pub mod trace;

pub use args::ChangeArgs;
