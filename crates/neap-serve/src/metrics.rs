//! What is counted and measured, and Prometheus' text of it.
//!
//! | metric | |
//! |---|---|
//! | `neap_requests_total{model}` | answered with tensors |
//! | `neap_refusals_total{model,why}` | not answered; `model` is empty where none of that name is loaded |
//! | `neap_latency_seconds{model}` | from the request's arrival to its answer, of those that were answered |
//! | `neap_run_seconds_total{model}`, `neap_rows_total{model}` | a request's part of the time that runs took, and its rows |
//! | `neap_deadlines_met_total{model}`, `neap_deadlines_missed_total{model}` | a request that found no room, or no answer in time, missed its deadline |
//! | `neap_memory_bytes{kind}` | the budget, what the process is charged, requests, models |
//! | `neap_made_way` | runs that ended early for a request whose deadline is promised; they ran again |
//! | `neap_waiting` | requests that wait for their run |

use crate::core::Core;
use crate::executor::Done;
use crate::refusal::Why;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// From half a millisecond on, each twice the one before: to half a minute.
const FIRST_BUCKET_S: f64 = 0.0005;
const BUCKETS: u16 = 17;

/// All counters.
pub struct Metrics {
    registry: Registry,
    requests: Family<OfModel, Counter>,
    refusals: Family<OfRefusal, Counter>,
    latency: Family<OfModel, Histogram>,
    run_seconds: Family<OfModel, Counter<f64, AtomicU64>>,
    rows: Family<OfModel, Counter>,
    met: Family<OfModel, Counter>,
    missed: Family<OfModel, Counter>,
    memory: Family<OfKind, Gauge>,
    waiting: Gauge,
    made_way: Gauge,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRefusal {
    model: String,
    why: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: String,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let latency = || Histogram::new(exponential_buckets(FIRST_BUCKET_S, 2.0, BUCKETS));
        let mut metrics = Metrics {
            registry: Registry::with_prefix("neap"),
            requests: Family::default(),
            refusals: Family::default(),
            latency: Family::new_with_constructor(latency),
            run_seconds: Family::default(),
            rows: Family::default(),
            met: Family::default(),
            missed: Family::default(),
            memory: Family::default(),
            waiting: Gauge::default(),
            made_way: Gauge::default(),
        };
        let r = &mut metrics.registry;
        r.register(
            "requests",
            "Requests answered with tensors",
            metrics.requests.clone(),
        );
        r.register(
            "refusals",
            "Requests refused, and why",
            metrics.refusals.clone(),
        );
        let latency = metrics.latency.clone();
        r.register_with_unit("latency", "From arrival to answer", Unit::Seconds, latency);
        let run_seconds = metrics.run_seconds.clone();
        r.register_with_unit("run", "Parts of runs' time", Unit::Seconds, run_seconds);
        r.register("rows", "Rows of answered requests", metrics.rows.clone());
        r.register(
            "deadlines_met",
            "Answers within their deadline",
            metrics.met.clone(),
        );
        r.register(
            "deadlines_missed",
            "Answers too late, or none",
            metrics.missed.clone(),
        );
        let memory = metrics.memory.clone();
        r.register_with_unit("memory", "Where the budget goes", Unit::Bytes, memory);
        r.register(
            "made_way",
            "Runs that ended early for a promised deadline",
            metrics.made_way.clone(),
        );
        r.register("waiting", "Requests that wait", metrics.waiting.clone());
        metrics
    }
}

impl Metrics {
    /// A request of a model was answered.
    pub fn answered(&self, model: &str, done: &Done, own_rows: usize, latency: Duration) {
        let of = OfModel {
            model: model.into(),
        };
        self.requests.get_or_create(&of).inc();
        self.latency
            .get_or_create(&of)
            .observe(latency.as_secs_f64());
        let part = own_rows as f64 / done.rows.max(1) as f64;
        let run_s = done.ran.as_secs_f64() * part;
        self.run_seconds.get_or_create(&of).inc_by(run_s);
        self.rows.get_or_create(&of).inc_by(own_rows as u64);
    }

    /// Whether a request with a deadline had its answer in time.
    pub fn deadline(&self, model: &str, is_met: bool) {
        let family = if is_met { &self.met } else { &self.missed };
        let of = OfModel {
            model: model.into(),
        };
        family.get_or_create(&of).inc();
    }

    /// A request was refused. `model` is one that is loaded, or empty: clients could make up names without end.
    pub fn refused(&self, model: &str, why: Why) {
        let of = OfRefusal {
            model: model.into(),
            why: why.name(),
        };
        self.refusals.get_or_create(&of).inc();
    }

    /// Everything, as text.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn text(&self, core: &Core) -> Result<String, std::fmt::Error> {
        let kind = |kind: &str, bytes: u64| {
            let of = OfKind { kind: kind.into() };
            self.memory.get_or_create(&of).set(bytes as i64);
        };
        self.memory.clear();
        if let Some(budget) = core.budget_bytes() {
            kind("budget", budget);
        }
        kind("process", core.process_bytes());
        kind("requests", core.pool.used_bytes());
        kind("requests_limit", core.pool.limit_bytes());
        kind("requests_most", core.pool.most_bytes());
        kind("requests_promised", core.pool.promised_bytes());
        let ledger = core.executor.ledger();
        kind("engine", ledger.parts.base_bytes());
        kind("work", ledger.shared_bytes);
        for model in ledger.models {
            kind(&format!("model:{}", model.name), model.resident_bytes);
        }
        self.waiting.set(core.executor.waiting() as i64);
        self.made_way.set(core.executor.made_way() as i64);
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
