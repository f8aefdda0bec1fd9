//! What can go wrong, sorted by what the caller can do about it.

use crate::budget::Bytes;
use crate::ledger::Ledger;
use neap_onnx::{Need, OnnxError};
use neap_plan::Violation;
use neap_store::StoreError;
use std::fmt::{self, Write};
use std::path::Path;
use thiserror::Error;

/// What every function of this crate that can fail gives.
pub type Result<T> = std::result::Result<T, Error>;

/// Each variant's text is one line a user understands.
#[derive(Debug, Error)]
pub enum Error {
    /// The model or an input is not what it should be, or the file cannot be read or written.
    #[error("{}", OneLine(.0))]
    BadInput(String),
    /// The model uses an operator, an element type or an operator set that the engine does not have, or sizes that are
    /// known only while it runs.
    #[error("{}", OneLine(.0))]
    Unsupported(String),
    /// The model leaves something open: opened with what it needs
    /// ([`OpenOptions::shapes`](crate::OpenOptions::shapes), [`value_hints`](crate::OpenOptions::value_hints),
    /// [`size_bounds`](crate::OpenOptions::size_bounds)) it may run. A host can say how, beside the text.
    #[error("{}", OneLine(.text))]
    Unbound { text: String, need: Need },
    /// The model cannot run in this much memory. `parts` adds up to `smallest_bytes`, the smallest budget that can be
    /// met; of a device's own memory, too, where plans are there.
    #[error("{}{}", infeasible_text(*budget_bytes, *of_machine, *smallest_bytes, parts), ByMicroBatches(*micro_batch))]
    Infeasible {
        budget_bytes: u64,
        smallest_bytes: u64,
        parts: Box<Ledger>,
        /// Of a training that sees its batches in parts: samples of a part within the smallest budget.
        micro_batch: Option<usize>,
        /// There is no budget: so much is all that the process could ever take.
        of_machine: bool,
    },
    /// A run failed after it had begun: its values cannot be computed with, such as an index out of range.
    #[error("{}", OneLine(.0))]
    Run(String),
    /// What a run needs failed, whoever asked for it: a file that cannot be read or is damaged, memory or threads that the
    /// kernel does not give, a device.
    #[error("{}", OneLine(.0))]
    Machine(String),
    /// A cached packed file turned out to be damaged while it ran, and was removed. Opening the model again packs it
    /// anew.
    #[error("{}", OneLine(.0))]
    DamagedCache(String),
    /// The caller asked a run to end early ([`CancelToken`](crate::CancelToken)).
    #[error("the run was cancelled")]
    Cancelled,
    /// Something here does not work as it should.
    #[error("{}", OneLine(.0))]
    Defect(String),
}

fn infeasible_text(
    budget_bytes: u64,
    of_machine: bool,
    smallest_bytes: u64,
    parts: &Ledger,
) -> String {
    let smallest = Bytes(smallest_bytes);
    match &parts.device {
        None if of_machine => format!(
            "the model does not fit in the memory that there is, {}: the smallest feasible budget is {smallest} ({smallest_bytes} bytes): {parts}",
            Bytes(budget_bytes)
        ),
        None => format!(
            "the budget of {} cannot be met: the smallest feasible budget is {smallest} ({smallest_bytes} bytes): {parts}",
            Bytes(budget_bytes)
        ),
        Some(device) => {
            let bytes = device.total_bytes();
            format!(
                "the budgets cannot be met: the smallest feasible pair is {smallest} ({smallest_bytes} bytes) of the host and {} ({bytes} bytes) of the device: {parts}",
                Bytes(bytes)
            )
        }
    }
}

/// A reason as it is told: names that it cites come from files, and may hold line breaks.
struct OneLine<'a>(&'a str);

impl fmt::Display for OneLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') {
                true => write!(f, "{}", c.escape_default())?,
                false => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// What a refusal adds where batches are seen in parts.
struct ByMicroBatches(Option<usize>);

impl fmt::Display for ByMicroBatches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(samples) => write!(f, ", by micro-batches of {samples}"),
            None => Ok(()),
        }
    }
}

impl Error {
    /// [`Error::Defect`]: a planner's fault.
    pub(crate) fn bad_plan(violation: Violation) -> Error {
        Error::Defect(format!("the planner made a bad plan: {violation}"))
    }

    /// [`Error::Infeasible`]; `smallest` is named.
    pub fn infeasible(budget_bytes: u64, smallest: Ledger) -> Error {
        Error::Infeasible {
            budget_bytes,
            smallest_bytes: smallest.total_bytes(),
            parts: Box::new(smallest),
            micro_batch: None,
            of_machine: false,
        }
    }

    /// As it is told where no budget was given: the bytes are the machine's.
    pub(crate) fn without_budget(mut self) -> Error {
        if let Error::Infeasible { of_machine, .. } = &mut self {
            *of_machine = true;
        }
        self
    }
}

impl From<neap_runtime::RuntimeError> for Error {
    fn from(error: neap_runtime::RuntimeError) -> Error {
        use neap_runtime::RuntimeError;
        let text = error.to_string();
        match error {
            RuntimeError::Cancelled => Error::Cancelled,
            RuntimeError::Plan(_) | RuntimeError::Panicked { .. } => Error::Defect(text),
            RuntimeError::Store(_)
            | RuntimeError::Arena { .. }
            | RuntimeError::Threads { .. }
            | RuntimeError::Device { .. }
            | RuntimeError::Unusable => Error::Machine(text),
            _ => Error::Run(text),
        }
    }
}

impl From<OnnxError> for Error {
    fn from(error: OnnxError) -> Error {
        let text = error.to_string();
        if let Some(need) = error.need() {
            return Error::Unbound { text, need };
        }
        match error {
            OnnxError::UnsupportedOp { .. }
            | OnnxError::Unsupported { .. }
            | OnnxError::Opset { .. }
            | OnnxError::DynamicShape { .. } => Error::Unsupported(text),
            _ => Error::BadInput(text),
        }
    }
}

/// What is wrong with the packed file at `path`, in words that name it.
pub(crate) fn packed_error(path: &Path, error: &StoreError) -> String {
    match error {
        StoreError::Corrupt { .. } | StoreError::Read { .. } => {
            format!("{} is damaged ({error})", path.display())
        }
        _ => error.to_string(),
    }
}

impl From<neap_autodiff::AutodiffError> for Error {
    fn from(error: neap_autodiff::AutodiffError) -> Error {
        use neap_autodiff::AutodiffError;
        let text = error.to_string();
        match error {
            AutodiffError::NoDerivative { .. } => Error::Unsupported(text),
            AutodiffError::Request(_) => Error::BadInput(text),
            AutodiffError::Infer(_) | AutodiffError::Graph(_) => Error::Defect(text),
        }
    }
}

macro_rules! bad_input {
    ($($type:ty),*) => {$(
        impl From<$type> for Error {
            fn from(error: $type) -> Error {
                Error::BadInput(error.to_string())
            }
        }
    )*};
}

impl From<neap_compile::LowerError> for Error {
    fn from(error: neap_compile::LowerError) -> Error {
        match error {
            neap_compile::LowerError::TooLarge { bytes } => {
                let smallest = Ledger {
                    arena_bytes: bytes,
                    ..Ledger::default()
                };
                let machine_bytes = crate::memory::machine_bytes().unwrap_or(u64::MAX);
                Error::infeasible(machine_bytes, smallest).without_budget()
            }
            other => Error::BadInput(other.to_string()),
        }
    }
}

bad_input!(
    neap_compile::ProgramError,
    neap_rewrite::RewriteError,
    neap_ir::GraphError,
    neap_store::StoreError,
    neap_ops::OpError
);
