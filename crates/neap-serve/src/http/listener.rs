//! Connections: how many at once, how long each may take, and how they end.

use super::tls::SENDING_BYTES;
use crate::options::Limits;
use axum::Router;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, Sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// What a connection keeps of a request's head, at most.
const HEAD_BYTES: usize = 32 << 10;

/// A request has no more headers.
const MOST_HEADERS: usize = 64;

/// What a client of gRPC may send before it is read.
const WINDOW_BYTES: u32 = 64 << 10;

/// Requests of one such client at once.
const MOST_STREAMS: u32 = 16;

/// How clients talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// As gRPC does.
    Http2,
}

impl Protocol {
    /// For one connection: its buffers, its task.
    pub fn connection_bytes(self) -> u64 {
        let buffers = match self {
            Protocol::Http1 => 2 * HEAD_BYTES as u64,
            Protocol::Http2 => u64::from(WINDOW_BYTES) + HEAD_BYTES as u64,
        };
        buffers + (16 << 10)
    }
}

/// What a client hears when too many are connected.
const FULL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\n\
    content-type: application/json\r\ncontent-length: 44\r\n\r\n{\"error\":\"too many clients are connected\"}  ";

/// Serves `router` on connections of `listener`, with TLS if there is an acceptor for it, until `end` is ready; then lets those that are under way finish, for as
/// long as the limits say. The number of those that were cut off.
pub async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limits: Limits,
    protocol: Protocol,
    end: impl Future<Output = ()>,
) -> usize {
    let places = Arc::new(Semaphore::new(limits.connections));
    let graceful = GracefulShutdown::new();
    let mut end = std::pin::pin!(end);
    loop {
        let accepted = tokio::select! {
            () = &mut end => break,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // No descriptor was left, or the client is gone. Others may end meanwhile.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let Ok(place) = places.clone().try_acquire_owned() else {
            if protocol == Protocol::Http1 && tls.is_none() {
                let _ = stream.try_write(FULL);
            }
            continue;
        };
        // Small answers are sent at once.
        let _ = stream.set_nodelay(true);
        let stream = Patient::new(stream, limits.arriving);
        let service = TowerToHyperService::new(router.clone());
        let (watcher, tls, limits) = (graceful.watcher(), tls.clone(), limits.clone());
        tokio::spawn(async move {
            // Clients that vanish or send rubbish are no concern of others.
            if let Some(stream) = opened(stream, tls, limits.arriving).await {
                let io = TokioIo::new(stream);
                match protocol {
                    Protocol::Http1 => {
                        let connection = http1(&limits).serve_connection(io, service);
                        let _ = watcher.watch(connection).await;
                    }
                    Protocol::Http2 => {
                        let connection = http2(&limits).serve_connection(io, service);
                        let _ = watcher.watch(connection).await;
                    }
                }
            }
            drop(place);
        });
    }
    drop(listener);
    let open = graceful.count();
    match tokio::time::timeout(limits.ending, graceful.shutdown()).await {
        Ok(()) => 0,
        Err(_) => open,
    }
}

fn http1(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.arriving)
        .max_buf_size(HEAD_BYTES)
        .max_headers(MOST_HEADERS);
    builder
}

fn http2(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES as u32)
        .max_send_buf_size(WINDOW_BYTES as usize)
        // A client that is gone without a word is noticed.
        .keep_alive_interval(limits.arriving)
        .keep_alive_timeout(limits.arriving);
    builder
}

/// A connection that requests come on; `None` where the client does not agree on how to hide them, or not in time.
async fn opened(
    stream: Patient,
    tls: Option<TlsAcceptor>,
    patience: Duration,
) -> Option<Connection> {
    let Some(tls) = tls else {
        return Some(Connection::Plain(stream));
    };
    let opening = tls.accept_with(stream, |session| {
        session.set_buffer_limit(Some(SENDING_BYTES));
    });
    let opened = tokio::time::timeout(patience, opening).await.ok()?.ok()?;
    Some(Connection::Tls(Box::new(opened)))
}

enum Connection {
    Plain(Patient),
    Tls(Box<TlsStream<Patient>>),
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_read(context, into),
            Connection::Tls(stream) => Pin::new(stream).poll_read(context, into),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Connection::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
            Connection::Tls(stream) => Pin::new(stream).poll_write_vectored(context, pieces),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Connection::Plain(stream) => stream.is_write_vectored(),
            Connection::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_flush(context),
            Connection::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Connection::Tls(stream) => Pin::new(stream).poll_shutdown(context),
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
    fn the_answer_of_a_full_server_is_whole() {
        let text = std::str::from_utf8(FULL).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())));
        let error: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(error["error"].is_string());
    }
}
