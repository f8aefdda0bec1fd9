//! Why a request is not answered with tensors: one line, and what kind of reason it is.

use std::time::Duration;

/// One line for the client, and its kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    pub why: Why,
    pub message: String,
}

/// The kind decides the HTTP status and the gRPC code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// The request is not what it should be.
    Malformed,
    /// Who asks does not show the token.
    Unknown,
    /// There is no such model or page.
    NotFound,
    /// The body's length must be said beforehand.
    NoLength,
    /// More bytes than this server ever takes.
    TooLarge,
    /// A form of content that is not read here.
    MediaType,
    /// The body did not arrive in time.
    TooSlow,
    /// Memory or queue are full now.
    Busy {
        /// After so long it may be worth trying again.
        retry_after: Duration,
    },
    /// Requests of a model that is promised its deadline come more often than they may.
    TooOften {
        /// After so long the next may come.
        retry_after: Duration,
    },
    /// The model is there, but not loaded; or the server ends.
    NotReady,
    /// The answer was not ready in time.
    TooLate,
    /// A defect, of this program or of the machine.
    Internal,
}

impl Refusal {
    pub fn new(why: Why, message: impl Into<String>) -> Refusal {
        Refusal {
            why,
            message: message.into(),
        }
    }

    pub fn malformed(message: impl Into<String>) -> Refusal {
        Refusal::new(Why::Malformed, message)
    }

    pub fn busy(message: impl Into<String>, retry_after: Duration) -> Refusal {
        Refusal::new(Why::Busy { retry_after }, message)
    }

    /// Of what the engine said of a run.
    pub fn of_run(error: neaptide::Error) -> Refusal {
        use neaptide::Error;
        let why = match &error {
            Error::BadInput(_) | Error::Unsupported(_) | Error::Unbound { .. } | Error::Run(_) => {
                Why::Malformed
            }
            // Shapes that need more memory than there is.
            Error::Infeasible { .. } => Why::TooLarge,
            // Runs are cancelled when nobody waits for them, or the server ends.
            Error::Cancelled | Error::DamagedCache(_) | Error::Defect(_) => Why::Internal,
        };
        Refusal::new(why, error.to_string())
    }
}

impl Why {
    /// As metrics have it.
    pub fn name(self) -> &'static str {
        match self {
            Why::Malformed => "malformed",
            Why::Unknown => "unknown",
            Why::NotFound => "not_found",
            Why::NoLength => "no_length",
            Why::TooLarge => "too_large",
            Why::MediaType => "media_type",
            Why::TooSlow => "too_slow",
            Why::Busy { .. } => "busy",
            Why::TooOften { .. } => "too_often",
            Why::NotReady => "not_ready",
            Why::TooLate => "too_late",
            Why::Internal => "internal",
        }
    }

    /// The status of an HTTP response.
    pub fn status(self) -> u16 {
        match self {
            Why::Malformed => 400,
            Why::Unknown => 401,
            Why::NotFound => 404,
            Why::TooSlow => 408,
            Why::NoLength => 411,
            Why::TooLarge => 413,
            Why::MediaType => 415,
            Why::Busy { .. } | Why::TooOften { .. } => 429,
            Why::Internal => 500,
            Why::NotReady => 503,
            Why::TooLate => 504,
        }
    }
}
