//! Answers as HTTP responses.

use crate::refusal::{Refusal, Why};
use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;

/// 200 with a JSON text.
pub fn json(value: &impl Serialize) -> Response {
    match serde_json::to_vec(value) {
        Ok(text) => with_json(StatusCode::OK, Body::from(text)),
        Err(error) => refused(&Refusal::new(Why::Internal, error.to_string())),
    }
}

/// The status of a refusal, with `{"error": "..."}`.
pub fn refused(refusal: &Refusal) -> Response {
    let status = StatusCode::from_u16(refusal.why.status());
    let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::json!({ "error": refusal.message }).to_string();
    let mut response = with_json(status, Body::from(text));
    if let Why::Busy { retry_after } | Why::TooOften { retry_after } = refusal.why {
        let seconds = retry_after.as_secs_f64().ceil() as u64;
        let headers = response.headers_mut();
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
    }
    if refusal.why == Why::Unknown {
        let scheme = HeaderValue::from_static("Bearer");
        let headers = response.headers_mut();
        headers.insert(header::WWW_AUTHENTICATE, scheme);
    }
    response.extensions_mut().insert(refusal.clone());
    response
}

/// A response with a body of JSON.
pub fn with_json(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
