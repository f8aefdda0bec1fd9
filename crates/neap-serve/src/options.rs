//! What is served, and what clients may cost.

use crate::http::tls::Tls;
use crate::openai::Language;
use crate::token::Token;
use neaptide::{Cache, RunOptions};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// What is served, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where models are; `None`: language models only.
    pub folder: Option<PathBuf>,
    pub language: Language,
    /// A model of the folder that cannot be loaded ends the server at the start.
    pub is_strict: bool,
    /// Of the whole process; `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// Of it, what requests may take together [default: an eighth, or a gibibyte without a limit].
    pub request_bytes: Option<u64>,
    /// This process is alone in a memory cgroup.
    pub own_cgroup: bool,
    pub http: SocketAddr,
    pub grpc: Option<SocketAddr>,
    /// Where Prometheus asks.
    pub metrics: Option<SocketAddr>,
    /// Threads, kernels and the like; its budget is not looked at.
    pub run: RunOptions,
    pub cache: Cache,
    /// How much longer than measured runs are taken to be where deadlines are promised: 0.5 is half.
    pub margin: f64,
    pub limits: Limits,
    /// Without it, who listens on the way reads along.
    pub tls: Option<Tls>,
    /// What clients must show to be answered.
    pub token: Option<Token>,
    pub welcome: Welcome,
    /// A line of the log for each request.
    pub tells_access: bool,
}

/// Who may ask besides those who reach the server by its address.
#[derive(Debug, Clone, Default)]
pub struct Welcome {
    /// Names of this server, beside addresses and `localhost`; `*` for any.
    pub hosts: Vec<String>,
    /// Origins whose pages may ask (`https://page.example`); `*` for any.
    pub origins: Vec<String>,
}

/// Bounds on what one client may cost.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Of the body of one request.
    pub body_bytes: u64,
    /// Connections at once, for each address.
    pub connections: usize,
    /// Requests that wait for their run.
    pub waiting: usize,
    /// For a request's head, then for its body, to arrive; and for a connection on which nothing is asked.
    pub arriving: Duration,
    /// For an answer to be ready.
    pub answering: Duration,
    /// For requests that run when the server is asked to end.
    pub ending: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 64 << 20,
            connections: 32,
            waiting: 64,
            arriving: Duration::from_secs(10),
            answering: Duration::from_secs(60),
            ending: Duration::from_secs(30),
        }
    }
}
