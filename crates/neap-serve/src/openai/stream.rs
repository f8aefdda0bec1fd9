//! Answers piece by piece, as server-sent events; and what is waited for in either form.

use super::answering::Answering;
use super::fault::{Answered, Fault};
use super::worker::{Events, fault_of};
use crate::core::Core;
use crate::pool::Held;
use crate::refusal::{Refusal, Why};
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use hyper::body::Frame;
use neap_chat::Event;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::time::{Sleep, sleep};

/// Pieces that are sent together at most, where so many came.
const MOST_TOGETHER: usize = 256;

/// When a request came, and what is counted of its answer.
pub struct Timing {
    model: String,
    core: Arc<Core>,
    arrived: Instant,
    has_begun: bool,
}

impl Timing {
    pub fn new(core: &Arc<Core>, model: &str, arrived: Instant) -> Timing {
        Timing {
            model: model.into(),
            core: core.clone(),
            arrived,
            has_begun: false,
        }
    }

    /// The first part of the answer is one.
    pub fn note(&mut self, event: &Event) {
        if self.has_begun || !matches!(event, Event::Text(_) | Event::Reasoning(_)) {
            return;
        }
        self.has_begun = true;
        let seconds = self.arrived.elapsed().as_secs_f64();
        self.core.metrics.language.began(&self.model, seconds);
    }

    /// All answers are given.
    pub fn end(&self) {
        let elapsed = self.arrived.elapsed();
        self.core.metrics.talked(&self.model, elapsed);
    }
}

/// Answers that are under way, for somebody who waits. When it is dropped, as with a connection that ends, nobody does.
pub struct Waited {
    events: Events,
    core: Arc<Core>,
    timing: Timing,
    is_over: bool,
    /// Until any part of an answer has to come.
    due: Pin<Box<Sleep>>,
    patience: Duration,
    _held: Held,
}

impl Waited {
    pub fn new(core: &Arc<Core>, events: Events, timing: Timing, held: Held) -> Waited {
        let patience = core.limits.answering;
        Waited {
            events,
            core: core.clone(),
            timing,
            is_over: false,
            due: Box::pin(sleep(patience)),
            patience,
            _held: held,
        }
    }

    /// The next event.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Answered<(usize, Event)>> {
        match self.events.poll_recv(context) {
            Poll::Ready(Some(event)) => {
                self.timing.note(&event.1);
                self.due
                    .as_mut()
                    .reset(tokio::time::Instant::now() + self.patience);
                return Poll::Ready(Ok(event));
            }
            Poll::Ready(None) => return Poll::Ready(Err(lost())),
            Poll::Pending => {}
        }
        match self.due.as_mut().poll(context) {
            Poll::Ready(()) => {
                let message = format!("no part of an answer within {:?}", self.patience);
                Poll::Ready(Err(Refusal::new(Why::TooLate, message).into()))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    /// Nobody waits any more because all is told.
    fn end(&mut self) {
        self.is_over = true;
    }
}

impl Drop for Waited {
    fn drop(&mut self) {
        if !self.is_over {
            self.core.metrics.clients_gone.inc();
            tracing::info!("the client is gone before its answer was made");
        }
    }
}

fn lost() -> Fault {
    Refusal::new(Why::Internal, "the answer was lost").into()
}

/// Waits for the whole answer.
///
/// # Errors
/// Why there is none.
pub async fn whole(mut answering: Answering, mut waited: Waited) -> Answered<Value> {
    while !answering.is_over() {
        let event = std::future::poll_fn(|context| waited.poll(context)).await;
        let (at, event) = event.inspect_err(|_| waited.is_over = true)?;
        answering.take(at, event);
        if let Some(refusal) = answering.failed().and_then(fault_of) {
            waited.end();
            return Err(refusal.into());
        }
    }
    waited.end();
    waited.timing.end();
    Ok(answering.whole())
}

/// The response that tells an answer as it comes.
pub fn pieces(answering: Answering, waited: Waited) -> Response {
    let stream = Stream {
        ready: answering.begin().into(),
        answering,
        waited,
    };
    let mut response = Response::new(Body::new(stream));
    let headers = response.headers_mut();
    let kind = HeaderValue::from_static("text/event-stream; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, kind);
    let fresh = HeaderValue::from_static("no-cache");
    headers.insert(header::CACHE_CONTROL, fresh);
    // Proxies are not to collect pieces.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Stream {
    answering: Answering,
    waited: Waited,
    ready: VecDeque<Value>,
}

impl Stream {
    /// What is ready as one text; nothing where that is nothing.
    fn text(&mut self) -> Option<Bytes> {
        let mut text = String::new();
        for piece in self.ready.drain(..) {
            // A text takes what is written.
            let _ = write!(text, "data: {piece}\n\n");
        }
        if self.waited.is_over {
            text.push_str("data: [DONE]\n\n");
        }
        (!text.is_empty()).then(|| text.into())
    }

    /// After a fault nothing comes but what it is.
    fn fail(&mut self, fault: &Fault) {
        self.ready.push_back(fault.told());
        self.waited
            .core
            .metrics
            .refused(&self.waited.timing.model, fault.refusal.why);
        self.waited.end();
    }
}

impl hyper::body::Body for Stream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.waited.is_over {
            return Poll::Ready(None);
        }
        // Events without a piece of their own are no reason to wait: nobody would wake this.
        while self.ready.len() < MOST_TOGETHER {
            let Poll::Ready(event) = self.waited.poll(context) else {
                break;
            };
            match event {
                Ok((at, event)) => {
                    let told = self.answering.take(at, event);
                    self.ready.extend(told);
                }
                Err(fault) => self.fail(&fault),
            }
            if let Some(refusal) = self.answering.failed().and_then(fault_of) {
                self.fail(&refusal.into());
            }
            if self.answering.is_over() && !self.waited.is_over {
                self.waited.end();
                self.waited.timing.end();
            }
            if self.waited.is_over {
                break;
            }
        }
        match self.text() {
            Some(text) => Poll::Ready(Some(Ok(Frame::data(text)))),
            None => Poll::Pending,
        }
    }
}
