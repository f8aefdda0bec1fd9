//! What every request meets first, over HTTP and gRPC.
//!
//! ```text
//!   an id, in every line of the log ─► whom it asks (Host) and on whose behalf (Origin) ─► a place ─► the token ─► answer
//! ```
//! Source: W3C "Trace Context".

use super::listener::Arrival;
use super::visitors::{check_host, foreign_origin, host_of, is_question, may_ask};
use crate::catalogue::shown;
use crate::core::Core;
use crate::logging::ACCESS;
use crate::refusal::{OfModel, Refusal, Why};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime};
use tracing::Instrument;

/// Names a request in logs, of the client's or here, and in its answer.
pub const REQUEST_ID: &str = "x-request-id";

/// A longer one is not taken over.
const MOST_ID_BYTES: usize = 128;

/// What a page of another origin may read of an answer.
const TOLD_HEADERS: &str =
    "inference-header-content-length, server-timing, retry-after, x-request-id";

/// How a protocol refuses, and what anybody may ask.
pub struct Manner {
    pub refused: fn(&Refusal) -> Response,
    /// For whoever finds no place and shows no token.
    pub is_open: fn(&str) -> bool,
    /// Reads what a client is still sending of a request that is refused.
    pub is_grpc: bool,
}

/// What requests meet.
#[derive(Clone)]
pub struct Front {
    pub core: Arc<Core>,
    pub manner: &'static Manner,
}

/// The middleware.
pub async fn front(State(front): State<Front>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let id = id_of(request.headers());
    let trace = trace_of(request.headers());
    let span = match &trace {
        Some((trace, parent)) => {
            tracing::error_span!("request", id = %id, trace_id = %trace, parent_id = %parent)
        }
        None => tracing::error_span!("request", id = %id),
    };
    let arrival = request.extensions().get::<Arrival>().copied();
    let (method, path) = (request.method().clone(), request.uri().path().to_string());
    let told = async {
        let mut response = front.answered(request, arrival, next).await;
        front.tell(&response, &method, &path, arrival, began);
        if let Ok(id) = HeaderValue::from_str(&id) {
            let name = HeaderName::from_static(REQUEST_ID);
            response.headers_mut().insert(name, id);
        }
        response
    };
    told.instrument(span).await
}

impl Front {
    async fn answered(&self, request: Request, arrival: Option<Arrival>, next: Next) -> Response {
        let origin = match self.admitted(&request, arrival) {
            Ok(origin) => origin,
            Err(refusal) => {
                let mut response = self.refused(request, &refusal).await;
                if self.manner.is_grpc && refusal.why == Why::MediaType {
                    *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
                }
                return response;
            }
        };
        let mut response = match &origin {
            Some(_) if is_question(&request) => may_ask(request.headers()),
            _ => match self.let_in(&request, arrival) {
                Ok(()) => next.run(request).await,
                Err(refusal) => {
                    let mut response = self.refused(request, &refusal).await;
                    if arrival.is_some_and(|a| a.is_at_the_door) && !self.manner.is_grpc {
                        let close = HeaderValue::from_static("close");
                        response.headers_mut().insert(header::CONNECTION, close);
                    }
                    response
                }
            },
        };
        if let Some(origin) = origin {
            let headers = response.headers_mut();
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
            headers.insert(header::VARY, HeaderValue::from_static("origin"));
            let told = HeaderValue::from_static(TOLD_HEADERS);
            headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, told);
        }
        response
    }

    /// Whether this server is meant, and by somebody who may: the origin of another page, if it is one of those.
    fn admitted(
        &self,
        request: &Request,
        arrival: Option<Arrival>,
    ) -> Result<Option<HeaderValue>, Refusal> {
        let welcome = &self.core.welcome;
        if !self.manner.is_grpc {
            let host = host_of(request)?;
            let is_near = arrival.is_none_or(|a| a.is_near);
            check_host(welcome, host.as_ref(), is_near)?;
            return foreign_origin(welcome, request, host.as_ref());
        }
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.map_or(&b""[..], |kind| kind.as_bytes());
        if !kind.starts_with(b"application/grpc") {
            let message = "requests of gRPC have the content type application/grpc";
            return Err(Refusal::new(Why::MediaType, message));
        }
        foreign_origin(welcome, request, None)
    }

    /// Whether there is a place for it, and it shows the token.
    fn let_in(&self, request: &Request, arrival: Option<Arrival>) -> Result<(), Refusal> {
        let path = request.uri().path();
        let is_at_the_door = arrival.is_some_and(|a| a.is_at_the_door);
        if is_at_the_door && !((self.manner.is_open)(path) || path == "/metrics") {
            let after = std::time::Duration::from_secs(1);
            return Err(Refusal::busy("too many clients are connected", after));
        }
        match (self.manner.is_open)(path) {
            true => Ok(()),
            false => self.core.check_token(request.headers()),
        }
    }

    /// At the door, what the client still sends is read after the answer.
    async fn refused(&self, request: Request, refusal: &Refusal) -> Response {
        let arrival = request.extensions().get::<Arrival>();
        if !self.manner.is_grpc && !arrival.is_some_and(|a| a.is_at_the_door) {
            super::body::discard(&self.core, request).await;
        }
        (self.manner.refused)(refusal)
    }

    /// Counts a refusal, and tells the operator.
    fn tell(
        &self,
        response: &Response,
        method: &Method,
        path: &str,
        arrival: Option<Arrival>,
        began: Instant,
    ) {
        let extensions = response.extensions();
        if let Some(refusal) = extensions.get::<Refusal>() {
            let model = extensions.get::<OfModel>().map(|model| model.0.as_str());
            if model.is_none() {
                self.core.metrics.refused("", refusal.why);
            }
            refusal.log(method.as_str(), path, model);
        }
        if self.core.tells_access {
            let status = response.status().as_u16();
            let ms = began.elapsed().as_secs_f64() * 1e3;
            let client = arrival.map(|a| a.client.to_string()).unwrap_or_default();
            tracing::info!(target: ACCESS, client, method = %method, path = shown(path), status, ms, "answered");
        }
    }
}

/// The client's own id, or a new one.
fn id_of(headers: &HeaderMap) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let own = headers.get(REQUEST_ID).and_then(|id| id.to_str().ok());
    if let Some(own) = own.filter(|id| !id.is_empty() && id.len() <= MOST_ID_BYTES) {
        return own.to_string();
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let seconds = now.map_or(0, |now| now.as_secs());
    let number = NEXT.fetch_add(1, Relaxed);
    format!("{seconds:x}-{:x}-{number:x}", std::process::id())
}

/// The trace and the caller's part in it, of `traceparent: 00-TRACE-PARENT-FLAGS`.
fn trace_of(headers: &HeaderMap) -> Option<(String, String)> {
    let text = headers.get("traceparent")?.to_str().ok()?;
    let mut parts = text.split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let is_hex = part
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        (part.len() == digits && is_hex).then_some(part)
    };
    let (version, trace, parent, _) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let is_one = |part: &str| part.bytes().any(|b| b != b'0');
    let is_whole = version != "ff" && (version != "00" || parts.next().is_none());
    (is_whole && is_one(trace) && is_one(parent)).then(|| (trace.to_string(), parent.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(HeaderName::from_static(name), value.parse().unwrap());
        headers
    }

    #[test]
    fn requests_have_the_ids_that_their_clients_gave_them() {
        assert_eq!(id_of(&headers("x-request-id", "seven")), "seven");
        let (a, b) = (id_of(&HeaderMap::new()), id_of(&HeaderMap::new()));
        assert_ne!(a, b);
        let trace = |text: &str| trace_of(&headers("traceparent", text));
        let (id, parent) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let whole = format!("00-{id}-{parent}-01");
        assert_eq!(trace(&whole), Some((id.into(), parent.into())));
        assert!(trace(&format!("01-{id}-{parent}-01-more")).is_some());
        for wrong in [
            format!("00-{id}-{parent}-01-more"),
            format!("ff-{id}-{parent}-01"),
            format!("00-{}-{parent}-01", "0".repeat(32)),
            format!("00-{}-{parent}-01", id.to_uppercase()),
            format!("00-{id}-{parent}"),
            "rubbish".into(),
        ] {
            assert_eq!(trace(&wrong), None, "{wrong}");
        }
    }
}
