//! Every way in which a command can end other than well, and its exit code.

use crate::advice;
use crate::names;
use std::fmt;

/// What is said on standard error, and the exit code; see [`Failure::exit_code`].
#[derive(Debug)]
pub enum Failure {
    /// Something the user gave is wrong or cannot be read or written.
    BadInput(String),
    /// The budget cannot be met.
    Infeasible(String),
    /// A cached packed model was damaged, and is removed.
    DamagedCache(String),
    /// A defect of this program, or of the machine.
    Internal(String),
    /// A signal asked for the end.
    Interrupted(i32),
    /// Whoever read standard output has gone away.
    ClosedPipe,
    /// Another process has already said what went wrong.
    Reported(u8),
}

pub type Outcome<T = ()> = Result<T, Failure>;

/// One line about something the user gave.
pub fn bad(message: impl fmt::Display) -> Failure {
    Failure::BadInput(message.to_string())
}

impl Failure {
    pub fn exit_code(&self) -> u8 {
        match self {
            Failure::BadInput(_) | Failure::DamagedCache(_) => 2,
            Failure::Infeasible(_) => 3,
            Failure::Internal(_) => 70,
            Failure::Interrupted(signal) => 128u8.saturating_add(*signal as u8),
            Failure::ClosedPipe => 0,
            Failure::Reported(code) => *code,
        }
    }

    /// The line for standard error, if there is something to say.
    pub fn message(&self) -> Option<String> {
        match self {
            Failure::BadInput(text) | Failure::Infeasible(text) => Some(format!("error: {text}")),
            Failure::DamagedCache(text) => Some(format!(
                "error: {text}; it is removed, and the same command packs the model again"
            )),
            Failure::Internal(text) => Some(format!("internal error: {text}")),
            Failure::Interrupted(_) => Some("interrupted".into()),
            Failure::ClosedPipe | Failure::Reported(_) => None,
        }
    }
}

impl From<neaptide::Error> for Failure {
    fn from(error: neaptide::Error) -> Failure {
        use neaptide::Error;
        match error {
            Error::BadInput(text)
            | Error::Unsupported(text)
            | Error::Run(text)
            | Error::Machine(text) => Failure::BadInput(text),
            Error::Unbound { text, need } => Failure::BadInput(advice::with_option(&text, &need)),
            Error::Infeasible { .. } => Failure::Infeasible(error.to_string()),
            Error::Cancelled => Failure::BadInput(error.to_string()),
            Error::DamagedCache(text) => Failure::DamagedCache(text),
            Error::Defect(text) => Failure::Internal(text),
        }
    }
}

impl From<neap_zoo::ZooError> for Failure {
    fn from(error: neap_zoo::ZooError) -> Failure {
        bad(error)
    }
}

/// A message on one line, however it was written.
pub fn one_line(text: &str) -> String {
    names::shown(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}
