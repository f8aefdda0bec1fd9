//! `ModelStreamInfer`: requests one after the other on one stream, each answered before the next is read.
//!
//! A request that is refused is answered with its reason, and the stream goes on. It ends when the client ends it, or when
//! no request comes for as long as a client may take to send one.

use super::frame::{self, Messages, PIECE_BYTES, decoded, end_of, framed, trailers};
use super::messages::{InferRequest, StreamResponse};
use super::{infer, scan};
use crate::core::Core;
use crate::refusal::{Refusal, Why};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::mpsc;
use tracing::Instrument;

/// What is sent, frame by frame.
pub type Sender = mpsc::Sender<Frame<Bytes>>;

pub fn answered(core: Arc<Core>, request: Request) -> Response {
    let mut messages = Messages::new(request.into_body());
    streamed(core, async move |core, sender| {
        while let Some(response) = next(&core, &mut messages).await? {
            if !send(&sender, response).await {
                break;
            }
        }
        Ok(())
    })
}

/// A response whose messages `work` sends, one after the other. It ends when `work` does, or when the client is gone.
pub fn streamed<F>(core: Arc<Core>, work: impl FnOnce(Arc<Core>, Sender) -> F) -> Response
where
    F: Future<Output = Result<(), Refusal>> + Send + 'static,
{
    let (sender, frames) = mpsc::channel(1);
    let work = work(core.clone(), sender.clone());
    let all = async move {
        let ended = tokio::select! {
            ended = work => ended,
            // The client is gone.
            () = sender.closed() => return,
        };
        let end = match ended {
            Ok(()) => trailers(0, ""),
            Err(refusal) => {
                core.metrics.refused("", refusal.why);
                end_of(&refusal)
            }
        };
        // Nobody may hear it any more.
        let _ = sender.send(Frame::trailers(end)).await;
    };
    tokio::spawn(all.in_current_span());
    frame::respond(Body::new(Frames(frames)))
}

/// What the next request is answered with; `None` at the end.
async fn next(core: &Core, messages: &mut Messages) -> Result<Option<Bytes>, Refusal> {
    let patience = core.limits.arriving;
    let mut name = None;
    let read = messages.next(core, core.limits.body_bytes, &mut name);
    let read = tokio::time::timeout(patience, read).await;
    let read = read.unwrap_or_else(|_| {
        let message = format!("no request came within {patience:?}");
        Err(Refusal::new(Why::TooSlow, message))
    })?;
    let Some((bytes, mut held)) = read else {
        return Ok(None);
    };
    let answered = async {
        core.check_ready()?;
        core.hold_more(&mut held, scan::decoded_bytes(&bytes)?)?;
        let request: InferRequest = decoded(bytes)?;
        name = Some(request.model_name.clone());
        infer::response_of(core, request, held).await
    };
    let (response, held) = match answered.await {
        Ok((response, held)) => (StreamResponse::of(response), Some(held)),
        Err(refusal) => {
            let name = name.unwrap_or_default();
            core.note_refusal(&name, &refusal);
            refusal.log("POST", "ModelStreamInfer", Some(&name));
            (StreamResponse::refused(refusal.message), None)
        }
    };
    framed(&response, held).map(Some)
}

/// Whether the client took it.
pub async fn send(sender: &Sender, mut message: Bytes) -> bool {
    while !message.is_empty() {
        let piece = message.split_to(message.len().min(PIECE_BYTES));
        if sender.send(Frame::data(piece)).await.is_err() {
            return false;
        }
    }
    true
}

struct Frames(mpsc::Receiver<Frame<Bytes>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|frame| frame.map(Ok))
    }
}
