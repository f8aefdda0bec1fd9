//! Why a request is not answered with tensors: one line, and what kind of reason it is.

use crate::catalogue::shown;
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
    /// It asks on behalf of somebody who may not, or means another server.
    Foreign,
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
    /// The path is asked in another way.
    NoMethod,
    /// The model is there, but not loaded; or the server ends.
    NotReady,
    /// The answer was not ready in time.
    TooLate,
    /// What the server needs for it failed: a model's file, memory, a device.
    Machine,
    /// A defect of this program.
    Internal,
}

/// Which model a refused request was for: beside a [`Refusal`] in the answer, for counts and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfModel(pub String);

impl Why {
    /// Every kind, as metrics have it.
    pub const NAMES: [&str; 15] = [
        "malformed",
        "unknown",
        "foreign",
        "not_found",
        "no_length",
        "too_large",
        "media_type",
        "too_slow",
        "busy",
        "too_often",
        "no_method",
        "not_ready",
        "too_late",
        "machine",
        "internal",
    ];
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

    /// Tells the operator: of defects and damage as an error, of what the server had no room or time for as a warning, and
    /// of what the client did wrong as news.
    pub fn log(&self, method: &str, path: &str, model: Option<&str>) {
        let (why, reason, path) = (self.why.name(), self.message.as_str(), shown(path));
        let model = model.map(shown);
        macro_rules! tell {
            ($level:ident) => {
                tracing::$level!(method, path, model, why, reason, "refused")
            };
        }
        match self.why {
            Why::Machine | Why::Internal => tell!(error),
            Why::Busy { .. } | Why::TooOften { .. } | Why::TooLate | Why::NotReady => tell!(warn),
            _ => tell!(info),
        }
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
            Error::Machine(_) | Error::DamagedCache(_) => Why::Machine,
            // Runs are cancelled when nobody waits for them, or the server ends.
            Error::Cancelled | Error::Defect(_) => Why::Internal,
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
            Why::Foreign => "foreign",
            Why::NoMethod => "no_method",
            Why::NotFound => "not_found",
            Why::NoLength => "no_length",
            Why::TooLarge => "too_large",
            Why::MediaType => "media_type",
            Why::TooSlow => "too_slow",
            Why::Busy { .. } => "busy",
            Why::TooOften { .. } => "too_often",
            Why::NotReady => "not_ready",
            Why::TooLate => "too_late",
            Why::Machine => "machine",
            Why::Internal => "internal",
        }
    }

    /// The status of an HTTP response.
    pub fn status(self) -> u16 {
        match self {
            Why::Malformed => 400,
            Why::Unknown => 401,
            Why::Foreign => 403,
            Why::NotFound => 404,
            Why::NoMethod => 405,
            Why::TooSlow => 408,
            Why::NoLength => 411,
            Why::TooLarge => 413,
            Why::MediaType => 415,
            Why::Busy { .. } | Why::TooOften { .. } => 429,
            Why::Machine | Why::Internal => 500,
            Why::NotReady => 503,
            Why::TooLate => 504,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neaptide::Error;

    #[test]
    fn faults_of_the_servers_side_are_not_the_clients() {
        let status = |error: Error| Refusal::of_run(error).why.status();
        for own in [Error::Machine, Error::DamagedCache, Error::Defect] {
            assert_eq!(status(own("it is damaged".into())), 500);
        }
        assert_eq!(status(Error::Cancelled), 500);
        for theirs in [Error::Run, Error::BadInput] {
            assert_eq!(status(theirs("index 7 of 3".into())), 400);
        }
    }

    #[test]
    fn every_kind_has_a_name_that_metrics_know() {
        let after = Duration::from_secs(1);
        let all = [
            Why::Malformed,
            Why::Unknown,
            Why::Foreign,
            Why::NotFound,
            Why::NoLength,
            Why::TooLarge,
            Why::MediaType,
            Why::TooSlow,
            Why::Busy { retry_after: after },
            Why::TooOften { retry_after: after },
            Why::NoMethod,
            Why::NotReady,
            Why::TooLate,
            Why::Machine,
            Why::Internal,
        ];
        assert_eq!(all.map(Why::name), Why::NAMES);
    }
}
