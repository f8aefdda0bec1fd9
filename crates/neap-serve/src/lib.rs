//! Serves models over the network, within one memory budget.
//!
//! ```text
//!   budget  = the process               measured before models are loaded
//!           + connections               their number × what one may keep
//!           + requests                  bodies, tensors, answers: `Pool`
//!           + a reserve                 opening a model, and what allocators waver
//!           + models                    the rest: `Fleet`
//! ```
//! Whatever a client sends costs bounded memory and bounded time: what does not fit is refused at once.
//!
//! Language models have shares of what models have, a named or an equal one each: [`openai`].
//!
//! Sources: Open Inference Protocol (KServe), Triton's extensions for binary tensors and model repositories; OpenAI's API.

#![forbid(unsafe_code)]

mod admission;
mod advice;
mod buffer;
mod catalogue;
mod changes;
mod core;
mod datatype;
mod elements;
mod executor;
mod files;
mod fleet;
mod grpc;
mod halves;
mod http;
mod logging;
mod measuring;
mod metrics;
mod openai;
mod options;
mod pool;
mod process;
mod queue;
mod refusal;
mod repository;
mod settings;
#[cfg(test)]
mod simulation;
mod token;
mod traffic;
mod triton;
mod v2;
mod way;

pub use crate::http::tls::Tls;
pub use crate::logging::{LogFilter, LogFormat, Logging, LoggingError, tell};
pub use crate::openai::{Language, LanguageModel};
pub use crate::options::{Limits, Options, Welcome};
pub use crate::token::Token;
pub use neap_chat::CacheType;

use crate::core::{Core, Loaded};
use crate::executor::Executor;
use crate::fleet::{Fleet, Opening};
use crate::http::listener::{self, Serving};
use crate::http::protocol::Protocol;
use crate::http::tls;
use crate::openai::Models;
use crate::pool::Pool;
use crate::repository::Repository;
use neaptide::{OwnProcess, memory};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use thiserror::Error;
use tokio::net::TcpListener;

/// Of the budget, for opening and packing models beside those that run, and for what allocators and the kernel charge
/// in batches.
const RESERVE_BYTES: u64 = 8 << 20;

/// Requests may take this part of the budget, if nothing else is said.
const REQUEST_SHARE: u64 = 8;

/// How often is looked whether the server is to end.
const LOOK: Duration = Duration::from_millis(20);

/// Why nothing is served any more.
#[derive(Debug, Error)]
pub enum ServeError {
    /// Something given is wrong, or an address is taken.
    #[error("{0}")]
    BadInput(String),
    /// A model of the folder cannot be loaded.
    #[error("model '{name}': {error}")]
    Model {
        name: String,
        error: neaptide::Error,
    },
    /// A language model cannot be loaded.
    #[error("model '{name}': {error}")]
    LanguageModel {
        name: String,
        error: Box<neap_chat::Error>,
    },
    /// The budget is too small for the server alone.
    #[error("{0}")]
    Infeasible(String),
    /// Something here does not work as it should.
    #[error("{0}")]
    Defect(String),
}

/// What has been begun when the server is ready.
#[derive(Debug, Clone)]
pub struct Ready {
    pub http: SocketAddr,
    pub grpc: Option<SocketAddr>,
    pub metrics: Option<SocketAddr>,
    /// Models that are loaded.
    pub models: Vec<String>,
    /// Models that cannot be opened, do not fit, or cannot be served beside promised deadlines, and why.
    pub refused: Vec<(String, String)>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Connections that did not end in time, and were cut off.
    pub cut_off: usize,
}

/// Listens, loads every model of the folder, and serves until `is_over` says so; then answers what is under way. `on_ready` is
/// told when the models are loaded: until then the server says that it lives and is not ready.
///
/// # Errors
/// [`ServeError`], before anything was served.
pub fn serve(
    options: &Options,
    on_ready: &mut dyn FnMut(&Ready),
    is_over: &dyn Fn() -> bool,
) -> Result<Ended, ServeError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(|e| ServeError::Defect(format!("no runtime can be made: {e}")))?;
    let ended = runtime.block_on(serve_on(options, on_ready, is_over));
    // A file system that hangs is not waited for.
    runtime.shutdown_background();
    ended
}

async fn serve_on(
    options: &Options,
    on_ready: &mut dyn FnMut(&Ready),
    is_over: &dyn Fn() -> bool,
) -> Result<Ended, ServeError> {
    let hiding = |protocol| options.tls.as_ref().map(|tls| tls.acceptor(protocol));
    let tls1 = hiding(Protocol::Http1).transpose();
    let tls1 = tls1.map_err(ServeError::BadInput)?;
    let tls2 = hiding(Protocol::Http2).transpose();
    let tls2 = tls2.map_err(ServeError::BadInput)?;
    let repository = Repository::open(options.folder.as_deref()).map_err(ServeError::BadInput)?;
    let http = bound("HTTP", options.http).await?;
    let grpc = bound_if("gRPC", options.grpc).await?;
    let metrics = bound_if("metrics", options.metrics).await?;
    let core = Arc::new(begin(options, repository)?);
    tracing::info!(
        http = %http.1,
        grpc = grpc.as_ref().map(|(_, at)| tracing::field::display(*at)),
        metrics = metrics.as_ref().map(|(_, at)| tracing::field::display(*at)),
        "listening"
    );
    warn_of_openness(options);
    let ready = Ready {
        http: http.1,
        grpc: grpc.as_ref().map(|(_, at)| *at),
        metrics: metrics.as_ref().map(|(_, at)| *at),
        models: Vec::new(),
        refused: Vec::new(),
    };
    let (end, ended) = tokio::sync::watch::channel(false);
    let has_failed = AtomicBool::new(false);
    let watch = async {
        while !is_over() && !has_failed.load(Relaxed) {
            tokio::time::sleep(LOOK).await;
        }
        core.end();
        tracing::info!("ending");
        // Nobody may listen any more.
        let _ = end.send(true);
    };
    let load = async {
        let loaded = load(&core, options.is_strict).await;
        match loaded {
            Ok(Some(loaded)) if !is_over() => on_ready(&Ready {
                models: loaded.models,
                refused: loaded.refused,
                ..ready.clone()
            }),
            Ok(_) => {}
            Err(error) => {
                has_failed.store(true, Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    let on = async |listener: Option<(TcpListener, SocketAddr)>, router, protocol| match listener {
        Some((listener, _)) => {
            let tls = match protocol {
                Protocol::Http1 => tls1.clone(),
                Protocol::Http2 => tls2.clone(),
            };
            let serving = Serving {
                tls,
                router,
                limits: core.limits.clone(),
                protocol,
                traffic: core.metrics.traffic.clone(),
                end: ended.clone(),
            };
            listener::serve(listener, serving).await
        }
        None => 0,
    };
    let (over_http, over_grpc, of_metrics, (), loaded) = tokio::join!(
        on(Some(http), http::router(core.clone()), Protocol::Http1),
        on(grpc, grpc::router(core.clone()), Protocol::Http2),
        on(metrics, http::metrics_router(core.clone()), Protocol::Http1),
        watch,
        load
    );
    let cut_off = over_http + over_grpc + of_metrics;
    core.language.close(cut_off > 0);
    core.executor.close(cut_off > 0);
    loaded.map(|()| Ended { cut_off })
}

/// Loads language models, then those of the folder.
async fn load(core: &Core, is_strict: bool) -> Result<Option<Loaded>, ServeError> {
    let (mut models, unserved) = core.language.load().await;
    let mut refused = Vec::new();
    for (name, error) in unserved {
        core.metrics.loaded(&name, false);
        match is_strict {
            true => {
                return Err(ServeError::LanguageModel {
                    name,
                    error: Box::new(error),
                });
            }
            false => refused.push((name, error.to_string())),
        }
    }
    models
        .iter()
        .for_each(|name| core.metrics.loaded(name, true));
    let loaded = core.load_all().await?;
    Ok(loaded.map(|loaded| {
        models.extend(loaded.models);
        refused.extend(loaded.refused);
        Loaded { models, refused }
    }))
}

/// Who listens for other machines without a token is everybody's.
fn warn_of_openness(options: &Options) {
    let open = [Some(options.http), options.grpc, options.metrics];
    let open = open
        .into_iter()
        .flatten()
        .filter(|at| !at.ip().is_loopback());
    for at in open.filter(|_| options.token.is_none()) {
        tracing::warn!(%at, "whoever reaches this address may ask, load and unload: --token-file limits that");
    }
}

/// A socket that listens, and where.
async fn bound(what: &str, at: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let cannot = |error| ServeError::BadInput(format!("cannot serve {what} on {at}: {error}"));
    let listener = TcpListener::bind(at).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    Ok((listener, address))
}

async fn bound_if(
    what: &str,
    at: Option<SocketAddr>,
) -> Result<Option<(TcpListener, SocketAddr)>, ServeError> {
    match at {
        Some(at) => bound(what, at).await.map(Some),
        None => Ok(None),
    }
}

/// What all connections may keep.
fn connections_bytes(options: &Options) -> u64 {
    let http1 = 1 + u64::from(options.metrics.is_some());
    let http2 = u64::from(options.grpc.is_some());
    let tls_bytes = options.tls.as_ref().map_or(0, |_| tls::CONNECTION_BYTES);
    let all =
        |protocol: Protocol| protocol.connections_bytes(options.limits.connections, tls_bytes);
    http1 * all(Protocol::Http1) + http2 * all(Protocol::Http2)
}

/// Divides the budget, and starts the thread that runs models.
fn begin(options: &Options, repository: Repository) -> Result<Core, ServeError> {
    let limits = &options.limits;
    let request_bytes = options.request_bytes.unwrap_or_else(|| {
        let budget = options.budget_bytes;
        budget.map_or(1 << 30, |bytes| bytes / REQUEST_SHARE)
    });
    memory::trim();
    let beside = [
        ("the process", memory::current_bytes(options.own_cgroup)),
        ("connections", connections_bytes(options)),
        ("requests", request_bytes),
        ("a reserve", RESERVE_BYTES),
    ];
    let beside_bytes: u64 = beside.iter().map(|(_, bytes)| bytes).sum();
    let models_bytes = match options.budget_bytes {
        None => None,
        Some(budget) => Some(budget.checked_sub(beside_bytes).ok_or_else(|| {
            let parts = beside.map(|(name, bytes)| format!("{name} {}", neaptide::Bytes(bytes)));
            ServeError::Infeasible(format!(
                "the budget of {} is too small for a server without models: {}",
                neaptide::Bytes(budget),
                parts.join(" + ")
            ))
        })?),
    };
    let opening = Opening {
        run: options.run.clone(),
        cache: options.cache.clone(),
        host: Arc::new(OwnProcess {
            own_cgroup: options.own_cgroup,
        }),
        ending: Arc::default(),
    };
    let shares = options
        .language
        .shares(models_bytes, options.folder.is_some());
    let shares = shares.map_err(ServeError::Infeasible)?;
    let language_bytes: u64 = shares.language.iter().flatten().sum();
    let language = Models::new(
        options.language.clone(),
        shares.language,
        options.run.clone(),
        opening.host.clone(),
    );
    let fleet = Fleet::new(shares.folder, beside_bytes + language_bytes, &opening)
        .map_err(|e| ServeError::Defect(format!("no engine can be made: {e}")))?;
    let pool = Pool::new(request_bytes);
    let executor = Executor::start(fleet, limits.waiting, options.margin, pool.clone())
        .map_err(|e| ServeError::Defect(format!("no thread can be started: {e}")))?;
    Ok(Core::new(
        options, pool, executor, language, repository, opening,
    ))
}
