//! Refusals as clients of OpenAI read them: `{"error": {"message", "type", "param", "code"}}`.

use crate::http::answer::refused;
use crate::refusal::{Refusal, Why};
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Paths of OpenAI's.
const PREFIX: &str = "/v1/";

/// A refusal, and which part of the request it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub refusal: Refusal,
    of: Of,
}

/// What is told beside the message.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Of {
    param: Option<&'static str>,
    code: Option<&'static str>,
}

/// What comes of a request.
pub type Answered<T> = Result<T, Fault>;

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        Fault {
            refusal,
            of: Of::default(),
        }
    }
}

impl Fault {
    /// A parameter is not what it should be.
    pub fn of_param(param: &'static str, message: impl Into<String>) -> Fault {
        Fault::about(param, Refusal::malformed(message))
    }

    pub fn about(param: &'static str, refusal: Refusal) -> Fault {
        let of = Of {
            param: Some(param),
            code: None,
        };
        Fault { refusal, of }
    }

    pub fn coded(self, code: &'static str) -> Fault {
        let of = Of {
            code: Some(code),
            ..self.of
        };
        Fault { of, ..self }
    }

    /// As it stands in an answer.
    pub fn told(&self) -> Value {
        told(&self.refusal, self.of)
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = refused(&self.refusal);
        response.extensions_mut().insert(self.of);
        response
    }
}

fn told(refusal: &Refusal, of: Of) -> Value {
    let (kind, code) = match refusal.why {
        Why::Unknown => ("invalid_request_error", Some("invalid_api_key")),
        Why::Busy { .. } | Why::TooOften { .. } => ("rate_limit_error", Some("server_busy")),
        Why::NotReady => ("server_error", Some("not_ready")),
        Why::TooLate | Why::Machine | Why::Internal => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    let error = json!({
        "message": refusal.message,
        "type": kind,
        "param": of.param,
        "code": of.code.or(code),
    });
    json!({ "error": error })
}

/// The outermost layer: whoever refused, the answer has the shape that clients of OpenAI read.
pub async fn shaped(request: Request, next: Next) -> Response {
    let is_ours = request.uri().path().starts_with(PREFIX);
    let response = next.run(request).await;
    let refusal = response.extensions().get::<Refusal>().filter(|_| is_ours);
    let Some(refusal) = refusal.cloned() else {
        return response;
    };
    let of = response.extensions().get::<Of>().copied();
    let (parts, _) = response.into_parts();
    let text = told(&refusal, of.unwrap_or_default()).to_string();
    Response::from_parts(parts, Body::from(text))
}
