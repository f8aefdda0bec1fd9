//! `neap serve`: a folder of models and language models over the network, within one budget.

mod language;

use crate::args::EngineArgs;
use crate::cgroup::limits;
use crate::cgroup::supervise::{self, Ended};
use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use crate::progress::note;
use clap::{Args, ValueEnum};
use neap_serve::{
    CacheType, Language, Limits, LogFilter, LogFormat, Logging, Options, ServeError, Tls, Token,
    Welcome,
};
use neaptide::{Budget, Cache, parse_bytes};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The variable that says what is told where no option does.
const LOG: &str = "NEAP_LOG";

#[derive(Args)]
pub struct ServeArgs {
    /// A folder with NAME.onnx or NAME/1/model.onnx, each with an optional NAME.toml; and language models: MODEL.gguf, or
    /// NAME=MODEL.gguf
    #[arg(required = true, value_name = "FOLDER|[NAME=]GGUF")]
    models: Vec<PathBuf>,
    /// Memory that the whole process may take: 256MiB, auto or none
    ///
    /// 256M is 256MiB, and a number without a unit is bytes. auto is what can be spared here.
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = limits::budget)]
    memory_budget: Budget,
    /// Of the budget, what a language model takes at most [default: an equal part of what is left for models]
    #[arg(long, value_name = "NAME=SIZE", value_parser = language::share)]
    share: Vec<(String, u64)>,
    /// Tokens that all texts of one language model have together
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = crate::numbers::whole::<u32>(64..=1 << 24))]
    context: u32,
    /// How language models keep keys and values: f16, f32, or int8
    #[arg(long, value_name = "TYPE", default_value = "f16", value_parser = str::parse::<CacheType>)]
    kv: CacheType,
    /// End at the start if a model cannot be loaded, instead of serving the others
    #[arg(long)]
    strict: bool,
    /// Let the kernel enforce the budget, as the limit of a memory cgroup
    #[arg(long)]
    enforce: bool,
    /// Where clients ask over HTTP; port 0 is any free one
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:8000")]
    http: SocketAddr,
    /// Where clients ask over gRPC [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    grpc: Option<SocketAddr>,
    /// Where Prometheus finds /metrics [default: nowhere]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Of the budget, what requests may take together [default: an eighth of it]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    request_memory: Option<u64>,
    /// The largest body of a request
    #[arg(long, value_name = "SIZE", default_value = "64MiB", value_parser = parse_bytes)]
    max_body: u64,
    /// Clients that may be connected at once
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = crate::numbers::whole::<u16>(1..=65_535))]
    max_connections: u16,
    /// Requests that may wait for their run; more are refused at once
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = crate::numbers::whole::<u16>(1..=65_535))]
    max_waiting: u16,
    /// How long a client may take to send a request, or to take any part of an answer
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = crate::budgets::schedule::parse_time)]
    client_timeout: Duration,
    /// How long an answer may take
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = crate::budgets::schedule::parse_time)]
    answer_timeout: Duration,
    /// How long requests under way may take when the server is asked to end
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = crate::budgets::schedule::parse_time)]
    drain_timeout: Duration,
    /// Where deadlines are promised: runs are taken to be so many per cent longer than measured
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = crate::numbers::whole::<u16>(0..=1000))]
    margin: u16,
    /// Answer only those who show the token in this file: `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Speak TLS everywhere, with the certificate in this file (PEM, and those between it and one that clients know)
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key (PEM)
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Pages of this origin may ask from a browser: https://page.example, or * for all; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Another name of this server, beside addresses and localhost: models.example, or * for all. On addresses that are not
    /// loopback any name is taken, unless some are given
    #[arg(long, value_name = "NAME")]
    allow_host: Vec<String>,
    /// Tell of each request, too
    #[arg(long)]
    access_log: bool,
    /// Tell what happens from this level on: off, error, warn, info, debug, trace, or TARGET=LEVEL,...
    /// [default: NEAP_LOG, or info; warn with --quiet]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<LogFilter>,
    /// How lines of the log look on standard error: text, or json, an object each
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: Format,
    /// Keep packed models here instead of beside the model or in the user's cache folder
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<PathBuf>,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

impl From<Format> for LogFormat {
    fn from(format: Format) -> LogFormat {
        match format {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
        }
    }
}

pub fn run(args: &ServeArgs, quiet: bool) -> Outcome {
    if args.engine.keep_activations {
        return Err(bad("--keep-activations is for `neap run`"));
    }
    let budget_bytes = match args.memory_budget {
        Budget::Unlimited => None,
        Budget::Bytes(bytes) => Some(bytes),
        budget => {
            return Err(bad(format!(
                "--memory-budget {budget}: a percentage is of one model; give a size"
            )));
        }
    };
    match (
        supervise::own_limit_bytes().filter(|_| args.enforce),
        budget_bytes,
    ) {
        (Some(limit), _) => here(args, Some(limit), true, quiet),
        (None, Some(limit)) if args.enforce => enforced(limit),
        (None, None) if args.enforce => {
            Err(bad("--enforce needs a limit: give --memory-budget SIZE"))
        }
        (None, budget) => here(args, budget, false, quiet),
    }
}

/// Has this command run in a cgroup of its own.
fn enforced(limit_bytes: u64) -> Outcome {
    match supervise::run_again(limit_bytes) {
        Ok(Ended::Well) => Ok(()),
        Ok(Ended::OutOfMemory) => Err(Failure::Internal(supervise::out_of_memory(limit_bytes))),
        // A signal is how a server is told to end.
        Err(Failure::Interrupted(_)) => Ok(()),
        Err(failure) => Err(failure),
    }
}

/// What is told: as the option says, or the environment.
fn log_filter(args: &ServeArgs, quiet: bool) -> Result<LogFilter, Failure> {
    if let Some(filter) = &args.log_level {
        return Ok(filter.clone());
    }
    match std::env::var(LOG) {
        Ok(text) if !text.is_empty() => (text.parse()).map_err(|e| bad(format!("{LOG}: {e}"))),
        _ if quiet => Ok(LogFilter::quiet()),
        _ => Ok(LogFilter::default()),
    }
}

fn here(args: &ServeArgs, budget_bytes: Option<u64>, own_cgroup: bool, quiet: bool) -> Outcome {
    let format = LogFormat::from(args.log_format);
    let logging = Logging::start(log_filter(args, quiet)?, format);
    let _logging = logging.map_err(|e| Failure::Internal(e.to_string()))?;
    let (folder, models) = language::divided(&args.models, &args.share).map_err(bad)?;
    let options = Options {
        folder,
        language: Language {
            models,
            context: args.context as usize,
            cache: args.kv,
            ..Language::default()
        },
        is_strict: args.strict,
        budget_bytes,
        request_bytes: args.request_memory,
        own_cgroup,
        http: args.http,
        grpc: args.grpc,
        metrics: args.metrics,
        run: args.engine.options(Budget::Unlimited),
        cache: args.cache_dir.clone().map_or(Cache::Auto, Cache::Folder),
        margin: f64::from(args.margin) / 100.0,
        limits: Limits {
            body_bytes: args.max_body,
            connections: usize::from(args.max_connections),
            waiting: usize::from(args.max_waiting),
            arriving: args.client_timeout,
            answering: args.answer_timeout,
            ending: args.drain_timeout,
        },
        tls: (args.tls_cert.clone().zip(args.tls_key.clone()))
            .map(|(certificate, key)| Tls { certificate, key }),
        token: match &args.token_file {
            Some(path) => Some(Token::read(path).map_err(bad)?),
            None => None,
        },
        welcome: Welcome {
            hosts: args.allow_host.clone(),
            origins: args.allow_origin.clone(),
        },
        tells_access: args.access_log,
    };
    let say = |text: &str| match format {
        LogFormat::Text => note(text),
        LogFormat::Json => neap_serve::tell(text),
    };
    let _deferred = interrupt::defer();
    let ended = neap_serve::serve(
        &options,
        &mut |ready| {
            for (name, reason) in &ready.refused {
                say(&format!("'{name}' is not served: {reason}"));
            }
            // Whoever starts servers waits for this line, so it is not progress.
            let also = |kind: &str, at: Option<SocketAddr>| {
                at.map_or(String::new(), |at| format!(", {kind}://{at}"))
            };
            let s = if options.tls.is_some() { "s" } else { "" };
            say(&format!(
                "serving {} models on http{s}://{}{}{}",
                ready.models.len(),
                ready.http,
                also(&format!("grpc{s}"), ready.grpc),
                also(&format!("metrics http{s}"), ready.metrics)
            ));
        },
        &|| interrupt::noted().is_some(),
    )?;
    if ended.cut_off > 0 {
        say(&format!("{} connections were cut off", ended.cut_off));
    } else if !quiet {
        say("ended");
    }
    Ok(())
}

impl From<ServeError> for Failure {
    fn from(error: ServeError) -> Failure {
        let text = error.to_string();
        match error {
            ServeError::BadInput(_) => Failure::BadInput(text),
            ServeError::Infeasible(_) => Failure::Infeasible(text),
            ServeError::LanguageModel { error, .. } => match error.smallest_budget_bytes() {
                Some(_) => Failure::Infeasible(text),
                None => Failure::BadInput(text),
            },
            ServeError::Defect(_) => Failure::Internal(text),
            ServeError::Model { error, .. } => match Failure::from(error) {
                Failure::Infeasible(_) => Failure::Infeasible(text),
                Failure::Internal(_) => Failure::Internal(text),
                _ => Failure::BadInput(text),
            },
        }
    }
}
