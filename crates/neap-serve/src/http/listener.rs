//! Connections: how many at once, how long each may take, and how they end.
//!
//! ```text
//!   nothing is asked for too long   asked to end, then closed        also before the first request
//!   a part of an answer not taken   closed
//!   another needs the place         closed (see `places`)
//!   the server ends                 what is under way is answered
//! ```

use super::places::{Guest, Places, Seat, UnderWay};
use super::protocol::{DOOR_HEAD_BYTES, HEAD_BYTES, Protocol, WINDOW_BYTES};
use super::wire::{self, Wire};
use crate::options::Limits;
use crate::traffic::Traffic;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::response::Response;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;

/// A request has no more headers.
const MOST_HEADERS: usize = 64;

/// Requests of one such client at once.
const MOST_STREAMS: u32 = 16;

/// A connection that was asked to end may take so long for it while nothing is under way.
const LEAVING: Duration = Duration::from_millis(250);

/// How a request came.
#[derive(Debug, Clone, Copy)]
pub struct Arrival {
    pub client: SocketAddr,
    /// The server listens for this machine only.
    pub is_near: bool,
    /// There is no place for it: it hears of health and metrics, and to come again for all else.
    pub is_at_the_door: bool,
}

/// What all connections of one address share.
#[derive(Clone)]
pub struct Serving {
    pub tls: Option<TlsAcceptor>,
    pub router: Router,
    pub limits: Limits,
    pub protocol: Protocol,
    pub traffic: Arc<Traffic>,
    /// Becomes true when the server ends.
    pub end: watch::Receiver<bool>,
}

/// Serves connections of `listener` until the end; then lets those that are under way finish, for as long as the limits
/// say. The number of those that were cut off.
pub async fn serve(listener: TcpListener, serving: Serving) -> usize {
    let places = Places::new(serving.limits.connections);
    let mut end = serving.end.clone();
    // Behind a proxy that shares the machine, others come from here, too: what counts is where the server listens.
    let here = listener.local_addr();
    let is_near = here.is_ok_and(|at| at.ip().to_canonical().is_loopback());
    loop {
        let next = async {
            let (stream, client) = listener.accept().await?;
            Ok::<_, std::io::Error>((stream, client, places.seat().await))
        };
        let accepted = tokio::select! {
            () = over(&mut end) => break,
            accepted = next => accepted,
        };
        let Ok((stream, client, seat)) = accepted else {
            // No descriptor was left, or the client is gone. Others may end meanwhile.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        serving.traffic.accepted.fetch_add(1, Relaxed);
        let of_another = u64::from(seat.is_of_another);
        serving.traffic.given_up.fetch_add(of_another, Relaxed);
        let turned_away = u64::from(seat.guest.is_at_the_door());
        serving.traffic.turned_away.fetch_add(turned_away, Relaxed);
        // Small answers are sent at once.
        let _ = stream.set_nodelay(true);
        let arrival = Arrival {
            client,
            is_near,
            is_at_the_door: seat.guest.is_at_the_door(),
        };
        let serving = serving.clone();
        tokio::spawn(async move {
            let traffic = serving.traffic.clone();
            traffic.open.fetch_add(1, Relaxed);
            // Clients that vanish or send rubbish are no concern of others.
            serving.attend(stream, arrival, &seat).await;
            drop(seat);
            traffic.open.fetch_sub(1, Relaxed);
        });
    }
    drop(listener);
    match tokio::time::timeout(serving.limits.ending, places.empty()).await {
        Ok(()) => 0,
        Err(_) => places.taken(),
    }
}

/// Ready when the server ends.
async fn over(end: &mut watch::Receiver<bool>) {
    // An error means that the sender is gone, which is the end, too.
    let _ = end.wait_for(|&is_over| is_over).await.is_ok();
}

impl Serving {
    /// All of a connection.
    async fn attend(self, stream: tokio::net::TcpStream, arrival: Arrival, seat: &Seat) {
        let is_http1 = self.protocol == Protocol::Http1;
        let (tls, traffic) = (self.tls.clone(), self.traffic.clone());
        let patience = self.limits.arriving;
        let mut end = self.end.clone();
        let opening = wire::opened(stream, tls, patience, traffic, is_http1);
        let opened = tokio::select! {
            opened = opening => opened,
            () = seat.guest.sent_away() => None,
            () = over(&mut end) => None,
        };
        let Some(wire) = opened else {
            return;
        };
        let service = Service {
            router: TowerToHyperService::new(self.router.clone()),
            guest: seat.guest.clone(),
            arrival,
        };
        let io = TokioIo::new(wire);
        match self.protocol {
            Protocol::Http1 => {
                let connection = http1(arrival.is_at_the_door).serve_connection(io, service);
                self.follow(std::pin::pin!(connection), &seat.guest).await;
            }
            Protocol::Http2 => {
                let connection = http2(patience).serve_connection(io, service);
                self.follow(std::pin::pin!(connection), &seat.guest).await;
            }
        }
    }

    /// Until a connection ends by itself, or has to.
    async fn follow<C: Connection>(&self, mut connection: Pin<&mut C>, guest: &Guest) {
        let mut end = self.end.clone();
        let patience = self.limits.arriving;
        let mut leaving: Option<Instant> = None;
        loop {
            let now = Instant::now();
            let due = match (guest.idle_since(), leaving) {
                (Some(since), Some(asked)) => since.max(asked) + LEAVING,
                (Some(since), None) => since + patience,
                (None, _) => now + patience,
            };
            let stuck = guest.stuck_since().filter(|_| C::WATCHES_ANSWERS);
            let due = stuck.map_or(due, |since| due.min(since + patience));
            let is_over = tokio::select! {
                _ = connection.as_mut() => return,
                () = guest.sent_away() => {
                    connection.as_mut().leave();
                    // A client of gRPC hears that nothing was lost.
                    poll_fn(|context| {
                        let _ = connection.as_mut().poll(context);
                        Poll::Ready(())
                    })
                    .await;
                    return;
                }
                () = over(&mut end), if leaving.is_none() => true,
                () = tokio::time::sleep_until(due) => false,
            };
            if is_over {
                connection.as_mut().leave();
                leaving = Some(Instant::now());
                continue;
            }
            let now = Instant::now();
            let since = |moment: Option<Instant>| moment.map(|moment| now - moment);
            let is_stuck = C::WATCHES_ANSWERS
                && since(guest.stuck_since()).is_some_and(|stuck| stuck >= patience);
            let idle = since(guest.idle_since());
            match leaving {
                _ if is_stuck => {
                    self.traffic.timed_out.fetch_add(1, Relaxed);
                    return;
                }
                Some(asked) if now - asked >= LEAVING && idle.is_some_and(|i| i >= LEAVING) => {
                    return;
                }
                None if idle.is_some_and(|idle| idle >= patience) => {
                    self.traffic.timed_out.fetch_add(1, Relaxed);
                    connection.as_mut().leave();
                    leaving = Some(now);
                }
                _ => {}
            }
        }
    }
}

/// A connection as its protocol has it.
trait Connection: Future<Output = hyper::Result<()>> + Send {
    /// Bytes of an answer may wait although the socket takes bytes.
    const WATCHES_ANSWERS: bool;

    /// Takes no more requests, and ends when those under way are answered.
    fn leave(self: Pin<&mut Self>);
}

impl Connection for http1::Connection<TokioIo<Wire>, Service> {
    const WATCHES_ANSWERS: bool = false;

    fn leave(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

impl Connection for http2::Connection<TokioIo<Wire>, Service, TokioExecutor> {
    const WATCHES_ANSWERS: bool = true;

    fn leave(self: Pin<&mut Self>) {
        self.graceful_shutdown();
    }
}

/// How long a head may take is seen to by [`Serving::follow`].
fn http1(is_at_the_door: bool) -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .header_read_timeout(None)
        .max_buf_size(if is_at_the_door {
            DOOR_HEAD_BYTES
        } else {
            HEAD_BYTES
        })
        .max_headers(MOST_HEADERS);
    builder
}

fn http2(patience: Duration) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(HEAD_BYTES as u32)
        .max_send_buf_size(WINDOW_BYTES as usize)
        // A client that is gone without a word is noticed.
        .keep_alive_interval(patience)
        .keep_alive_timeout(patience);
    builder
}

/// What answers the requests of one connection.
struct Service {
    router: TowerToHyperService<Router>,
    guest: Arc<Guest>,
    arrival: Arrival,
}

impl hyper::service::Service<Request<Incoming>> for Service {
    type Response = Response<Answer>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let mut under_way = self.guest.asks();
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(self.arrival);
        let answered = self.router.call(request);
        Box::pin(async move {
            let response = answered.await?;
            under_way.answers(true);
            Ok(response.map(|body| Answer { body, under_way }))
        })
    }
}

/// The body of an answer, which is under way until all of it was taken.
struct Answer {
    body: Body,
    under_way: UnderWay,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        self.under_way.answers(frame.is_ready());
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
