//! The process around the engine: what it is charged, and what of it may be given back.
//!
//! ```text
//!   a program of its own   OwnProcess   counts pages and cgroups; trims heap and program between stages of work
//!   a library in another   Embedded     counts pages; touches nothing that is not the engine's
//! ```

use crate::memory;
use std::fmt;

/// The process that a model is opened in. It is asked when budgets of the whole process are planned, and told when
/// memory that the engine used for a while is free again.
pub trait Host: fmt::Debug + Send + Sync {
    /// Bytes that the kernel charges the process now, arenas of open sessions included, with what its program text
    /// will take when a model runs.
    fn charged_bytes(&self) -> u64;

    /// The most that the process could ever take, which is the limit where no lower budget is given; `None` for no limit at all.
    fn machine_bytes(&self) -> Option<u64> {
        memory::machine_bytes()
    }

    /// A stage of work has ended: pages that the allocator holds and nobody uses can be the kernel's.
    fn trim_heap(&self) {}

    /// The same of program text and constants that nobody uses just now.
    fn trim_program(&self) {}

    /// Both.
    fn trim(&self) {
        self.trim_heap();
        self.trim_program();
    }
}

/// A process with other work too: the default. Nothing is trimmed or mapped anew, be it the program's, another
/// library's or the allocator's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Embedded;

impl Host for Embedded {
    /// Resident pages and page tables, and the program text that a run may come to touch.
    fn charged_bytes(&self) -> u64 {
        memory::embedded_bytes()
    }
}

/// A process that exists to run models. Memory is given back between stages of work, so that smaller budgets are
/// feasible: the allocator's free pages, and pages of the program and its libraries, which are then mapped in small
/// pieces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnProcess {
    /// This process is alone in a memory cgroup, whose count is then believed.
    pub own_cgroup: bool,
}

impl Host for OwnProcess {
    fn charged_bytes(&self) -> u64 {
        memory::current_bytes(self.own_cgroup)
    }

    fn trim_heap(&self) {
        memory::trim_heap();
    }

    fn trim_program(&self) {
        memory::trim_program();
    }
}
