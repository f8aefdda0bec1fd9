//! The bytes of a connection: with TLS or without, counted, and closed so that the client hears the last answer.

use super::tls::SENDING_BYTES;
use crate::traffic::Traffic;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// After its last answer a connection is read for so long: one that is closed with something unread is reset, and the
/// client does not see the answer.
const LINGER: Duration = Duration::from_secs(2);

/// Bytes that nobody needs are read in pieces of this size.
const PIECE_BYTES: usize = 4 << 10;

/// A connection as HTTP sees it.
pub struct Wire {
    stream: Stream,
    traffic: Arc<Traffic>,
    /// Says in JSON what the library of HTTP/1.1 refuses by itself.
    is_told: bool,
    /// Of such a refusal, what is to be sent, and the length of what it stands for.
    telling: Option<(Vec<u8>, usize)>,
    closing: Closing,
}

enum Closing {
    NotYet,
    Written,
    Reading(Pin<Box<Sleep>>),
}

/// A connection that requests come on; `None` where the client does not agree on how to hide them, or not in time.
pub async fn opened(
    stream: TcpStream,
    tls: Option<TlsAcceptor>,
    patience: Duration,
    traffic: Arc<Traffic>,
    is_told: bool,
) -> Option<Wire> {
    let stream = Patient::new(stream, patience);
    let stream = match tls {
        None => Stream::Plain(stream),
        Some(tls) => {
            let opening = tls.accept_with(stream, |session| {
                session.set_buffer_limit(Some(SENDING_BYTES));
            });
            let opened = tokio::time::timeout(patience, opening).await.ok()?.ok()?;
            Stream::Tls(Box::new(opened))
        }
    };
    Some(Wire {
        stream,
        traffic,
        is_told,
        telling: None,
        closing: Closing::NotYet,
    })
}

impl Wire {
    /// Sends all of a refusal in the place of another text: the length of that.
    fn poll_tell(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        while let Some((text, replaced)) = &mut self.telling {
            if text.is_empty() {
                let replaced = *replaced;
                self.telling = None;
                return Poll::Ready(Ok(replaced));
            }
            let sent = ready!(Pin::new(&mut self.stream).poll_write(context, text))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            text.drain(..sent);
        }
        Poll::Ready(Ok(0))
    }
}

/// The same as JSON, if `head` is what the library of HTTP/1.1 says of a request that it cannot read.
fn in_json(head: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(head).ok()?;
    let status = text.strip_prefix("HTTP/1.1 ")?;
    let (first, rest) = status.split_once("\r\n")?;
    let is_own = rest.contains("content-length: 0\r\n") && !rest.contains(super::front::REQUEST_ID);
    if !is_own || !text.ends_with("\r\n\r\n") {
        return None;
    }
    let reason = match first.get(..3)? {
        "400" => "this is not a request of HTTP/1.1",
        "408" => "the request did not arrive in time",
        "414" => "the path is too long",
        "431" => "the head of the request is too large or has too many headers",
        _ => return None,
    };
    let body = serde_json::json!({ "error": reason }).to_string();
    let length = body.len();
    Some(
        format!(
            "HTTP/1.1 {first}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\
             connection: close\r\n\r\n{body}"
        )
        .into_bytes(),
    )
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        let more = into.filled().len() - before;
        self.traffic.received_bytes.fetch_add(more as u64, Relaxed);
        read
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.telling.is_none() && self.is_told {
            self.telling = in_json(bytes).map(|text| (text, bytes.len()));
        }
        if self.telling.is_some() {
            return self.poll_tell(context);
        }
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.traffic.note_sent(&sent);
        sent
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let [only] = pieces {
            return self.poll_write(context, only);
        }
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.traffic.note_sent(&sent);
        sent
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.closing {
                Closing::NotYet => {
                    ready!(Pin::new(&mut self.stream).poll_shutdown(context))?;
                    self.closing = Closing::Written;
                }
                Closing::Written => {
                    self.closing = Closing::Reading(Box::pin(tokio::time::sleep(LINGER)));
                }
                Closing::Reading(end) => {
                    if end.as_mut().poll(context).is_ready() {
                        return Poll::Ready(Ok(()));
                    }
                    let mut piece = [0; PIECE_BYTES];
                    let mut piece = ReadBuf::new(&mut piece);
                    let read = ready!(self.as_mut().poll_read(context, &mut piece));
                    // The client has closed it, too.
                    if read.is_err() || piece.filled().is_empty() {
                        return Poll::Ready(Ok(()));
                    }
                }
            }
        }
    }
}

enum Stream {
    Plain(Patient),
    Tls(Box<TlsStream<Patient>>),
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

/// A connection on which a client that takes nothing of an answer for too long is cut off.
struct Patient {
    stream: TcpStream,
    patience: Duration,
    /// Runs while something is to be sent that the client does not take.
    waiting: Option<Pin<Box<Sleep>>>,
}

impl Patient {
    fn new(stream: TcpStream, patience: Duration) -> Patient {
        Patient {
            stream,
            patience,
            waiting: None,
        }
    }

    /// `sent`, or an error when nothing could be sent for too long.
    fn watch<T>(
        &mut self,
        context: &mut Context<'_>,
        sent: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if sent.is_ready() {
            self.waiting = None;
            return sent;
        }
        let until = Instant::now() + self.patience;
        let sleep = || Box::pin(tokio::time::sleep_until(until));
        let waiting = self.waiting.get_or_insert_with(sleep);
        match waiting.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for Patient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Patient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, sent)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.watch(context, sent)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, sent)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sent = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_library_refuses_by_itself_is_told_as_json() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
        let text = String::from_utf8(in_json(own).unwrap()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 431 Request Header Fields Too Large\r\n"));
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(error["error"].as_str().unwrap().contains("too large"));
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\nx-request-id: 7\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n{}",
            b"\xff\xfe",
            b"",
        ] {
            assert!(in_json(other).is_none());
        }
    }
}
