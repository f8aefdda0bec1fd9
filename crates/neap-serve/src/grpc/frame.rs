//! One message each way, as gRPC lays it over HTTP/2.
//!
//! ```text
//!   body   is compressed: 1 byte | length: 4 bytes, big-endian | message
//!   end    trailers: grpc-status, grpc-message
//! ```
//! A message's memory is held before it is read, which is why no framework reads it. Source: "gRPC over HTTP2".

use super::scan;
use crate::core::Core;
use crate::pool::Held;
use crate::refusal::{Refusal, Why};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use http_body_util::BodyExt;
use hyper::body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

const PREFIX: usize = 5;

/// Of a message that is sent, at once.
pub const PIECE_BYTES: usize = 16 << 10;

/// A message where nothing large is expected.
const SMALL_BYTES: u64 = 16 << 10;

/// A message takes its bytes; raw tensors are copied to where they are aligned.
const COPIES: u64 = 2;

/// Beside the message itself.
const FIXED_BYTES: u64 = 8 << 10;

/// Reads the one message of a request, which is small.
///
/// # Errors
/// As [`read_large`].
pub async fn read<M: prost::Message + Default>(
    core: &Core,
    request: Request,
) -> Result<M, Refusal> {
    let limit = SMALL_BYTES.min(core.limits.body_bytes);
    let (bytes, _held) = in_time(core, request, limit, &mut None).await?;
    decoded(bytes)
}

/// Reads the one message of a request for tensors, with its memory. `decoded_bytes` says what it takes once it is decoded,
/// beside its bytes. `model` is told as soon as it is seen, as a promised one has memory of its own.
///
/// # Errors
/// A message that is too large, too slow, or no such message; no memory for it.
pub async fn read_large<M: prost::Message + Default>(
    core: &Core,
    request: Request,
    model: &mut Option<String>,
    decoded_bytes: impl FnOnce(&[u8]) -> Result<u64, Refusal>,
) -> Result<(M, Held), Refusal> {
    let (bytes, mut held) = in_time(core, request, core.limits.body_bytes, model).await?;
    core.hold_more(&mut held, decoded_bytes(&bytes)?)?;
    Ok((decoded(bytes)?, held))
}

pub fn decoded<M: prost::Message + Default>(bytes: Bytes) -> Result<M, Refusal> {
    M::decode(bytes)
        .map_err(|e| Refusal::malformed(format!("the message is not what is expected: {e}")))
}

async fn in_time(
    core: &Core,
    request: Request,
    limit: u64,
    model: &mut Option<String>,
) -> Result<(Bytes, Held), Refusal> {
    let patience = core.limits.arriving;
    let mut messages = Messages::new(request.into_body());
    let read = async {
        let only = messages.next(core, limit, model).await?;
        let only = only.ok_or_else(|| Refusal::malformed(ENDS_EARLY))?;
        match messages.next(core, limit, &mut None).await? {
            None => Ok(only),
            Some(_) => Err(Refusal::malformed("more than one message is sent")),
        }
    };
    let read = tokio::time::timeout(patience, read).await;
    read.unwrap_or_else(|_| {
        let message = format!("the message did not arrive within {patience:?}");
        Err(Refusal::new(Why::TooSlow, message))
    })
}

const ENDS_EARLY: &str = "the message ends early";

/// Messages that a client sends, one after the other.
pub struct Messages {
    body: Body,
    /// What has come and is of no message yet.
    rest: Bytes,
}

impl Messages {
    pub fn new(body: Body) -> Messages {
        Messages {
            body,
            rest: Bytes::new(),
        }
    }

    /// The next message, with its memory; `None` at the end. `model` is told as soon as it is seen.
    ///
    /// # Errors
    /// A message that is too large or has no memory, or ends early.
    pub async fn next(
        &mut self,
        core: &Core,
        limit: u64,
        model: &mut Option<String>,
    ) -> Result<Option<(Bytes, Held)>, Refusal> {
        let mut prefix = Vec::with_capacity(PREFIX);
        while prefix.len() < PREFIX {
            if !self.has_more().await? {
                return match prefix.is_empty() {
                    true => Ok(None),
                    false => Err(Refusal::malformed(ENDS_EARLY)),
                };
            }
            prefix.extend_from_slice(&self.take(PREFIX - prefix.len()));
        }
        let &[compressed, a, b, c, d] = prefix.as_slice() else {
            return Err(Refusal::malformed(ENDS_EARLY));
        };
        let len = u32::from_be_bytes([a, b, c, d]);
        // Where the name comes with the beginning, the model's own memory can be used.
        let has_more = len > 0 && self.has_more().await?;
        *model = scan::model_name(&self.rest)
            .filter(|_| has_more)
            .map(str::to_string);
        let held = held_for(core, model.as_deref(), compressed, len, limit)?;
        let len = len as usize;
        let mut message = Vec::with_capacity(len);
        while message.len() < len {
            if !self.has_more().await? {
                return Err(Refusal::malformed(ENDS_EARLY));
            }
            message.extend_from_slice(&self.take(len - message.len()));
        }
        Ok(Some((message.into(), held)))
    }

    fn take(&mut self, most: usize) -> Bytes {
        self.rest.split_to(most.min(self.rest.len()))
    }

    /// Whether something is there that was not taken; waits for it.
    async fn has_more(&mut self) -> Result<bool, Refusal> {
        while self.rest.is_empty() {
            let Some(frame) = self.body.frame().await else {
                return Ok(false);
            };
            let frame = frame.map_err(|_| Refusal::malformed(ENDS_EARLY))?;
            if let Ok(data) = frame.into_data() {
                self.rest = data;
            }
        }
        Ok(true)
    }
}

fn held_for(
    core: &Core,
    model: Option<&str>,
    compressed: u8,
    len: u32,
    limit: u64,
) -> Result<Held, Refusal> {
    if compressed != 0 {
        let message = "compressed messages are not read here";
        return Err(Refusal::new(Why::MediaType, message));
    }
    if u64::from(len) > limit {
        let message = format!("the message is larger than {limit} bytes");
        return Err(Refusal::new(Why::TooLarge, message));
    }
    core.hold(model, u64::from(len) * COPIES + FIXED_BYTES)
}

/// A response with one message; `held` is given back when it is sent.
pub fn answer(message: &impl prost::Message, held: Option<Held>) -> Response {
    match framed(message, held) {
        Ok(message) => {
            let trailers = Some(trailers(0, ""));
            respond(Body::new(Sending { message, trailers }))
        }
        Err(refusal) => refused(&refusal),
    }
}

/// A message as it is sent; `held` is given back when all of it is.
///
/// # Errors
/// One that is too large for gRPC.
pub fn framed(message: &impl prost::Message, held: Option<Held>) -> Result<Bytes, Refusal> {
    let len = message.encoded_len();
    let len_bytes = u32::try_from(len).map(u32::to_be_bytes);
    let len_bytes =
        len_bytes.map_err(|_| Refusal::new(Why::TooLarge, "the answer is too large for gRPC"))?;
    let mut bytes = Vec::with_capacity(PREFIX + len);
    bytes.push(0);
    bytes.extend(len_bytes);
    // A vector takes everything.
    let _ = message.encode(&mut bytes);
    Ok(Bytes::from_owner(Message { bytes, _held: held }))
}

/// A response without a message: its status, in trailers.
pub fn refused(refusal: &Refusal) -> Response {
    let mut response = respond(Body::new(Sending {
        message: Bytes::new(),
        trailers: Some(end_of(refusal)),
    }));
    response.extensions_mut().insert(refusal.clone());
    response
}

/// The trailers of a refusal.
pub fn end_of(refusal: &Refusal) -> HeaderMap {
    let mut all = trailers(code(refusal.why), &refusal.message);
    if let Why::Busy { retry_after } | Why::TooOften { retry_after } = refusal.why {
        // What clients that retry look for.
        let ms = retry_after.as_millis() as u64;
        all.insert("grpc-retry-pushback-ms", HeaderValue::from(ms));
    }
    all
}

pub fn respond(body: Body) -> Response {
    let mut response = Response::new(body);
    let kind = HeaderValue::from_static("application/grpc");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The status code of a refusal.
fn code(why: Why) -> u16 {
    match why {
        // INVALID_ARGUMENT
        Why::Malformed | Why::NoLength => 3,
        // DEADLINE_EXCEEDED
        Why::TooSlow | Why::TooLate => 4,
        // NOT_FOUND
        Why::NotFound => 5,
        // RESOURCE_EXHAUSTED
        Why::TooLarge | Why::Busy { .. } | Why::TooOften { .. } => 8,
        // PERMISSION_DENIED
        Why::Foreign => 7,
        // UNIMPLEMENTED
        Why::MediaType | Why::NoMethod => 12,
        // INTERNAL
        Why::Machine | Why::Internal => 13,
        // UNAVAILABLE
        Why::NotReady => 14,
        // UNAUTHENTICATED
        Why::Unknown => 16,
    }
}

/// `grpc-status: 12`: there is no such method.
pub fn no_method(path: &str) -> Response {
    let message = format!("there is no method {}", crate::catalogue::shown(path));
    refused(&Refusal::new(Why::MediaType, message))
}

pub fn trailers(code: u16, message: &str) -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from(code));
    if !message.is_empty()
        && let Ok(message) = HeaderValue::from_str(&percent(message))
    {
        trailers.insert("grpc-message", message);
    }
    trailers
}

/// Printable ASCII as it is, other bytes as `%XX`.
fn percent(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' => out += "%25",
            b' '..=b'~' => out.push(char::from(byte)),
            _ => out += &format!("%{byte:02X}"),
        }
    }
    out
}

/// A message with its memory, which is given back when all of it is on its way.
struct Message {
    bytes: Vec<u8>,
    _held: Option<Held>,
}

impl AsRef<[u8]> for Message {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// A message in pieces, each as the client takes it, then trailers.
struct Sending {
    message: Bytes,
    trailers: Option<HeaderMap>,
}

impl hyper::body::Body for Sending {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if !self.message.is_empty() {
            let len = self.message.len().min(PIECE_BYTES);
            let piece = self.message.split_to(len);
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let trailers = self.trailers.take();
        Poll::Ready(trailers.map(|all| Ok(Frame::trailers(all))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_printable() {
        assert_eq!(percent("50% of 'ä'\n"), "50%25 of '%C3%A4'%0A");
        let all = trailers(3, "a\u{0}b");
        assert_eq!(all["grpc-message"], "a%00b");
        assert_eq!(all["grpc-status"], "3");
    }
}
