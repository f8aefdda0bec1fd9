//! What is counted and measured, and Prometheus' text of it.
//!
//! | metric | |
//! |---|---|
//! | `neap_requests_total{model}` | answered with tensors |
//! | `neap_refusals_total{model,why}` | not answered; `model` is empty where none of that name is loaded |
//! | `neap_latency_seconds{model}` | from the request's arrival to its answer, of those that were answered |
//! | `neap_run_seconds_total{model}`, `neap_rows_total{model}` | a request's part of the time that runs took, and its rows |
//! | `neap_deadlines_met_total{model}`, `neap_deadlines_missed_total{model}` | a request that found no room, or no answer in time, missed its deadline |
//! | `neap_loads_total{model,outcome}`, `neap_model_ready{model}` | `ok` or `failed`; whether it can be asked now |
//! | `neap_memory_bytes{kind,model}` | the budget, what the process is charged, requests, models |
//! | `neap_made_way_total` | runs that ended early for a request whose deadline is promised; they ran again |
//! | `neap_waiting` | requests that wait for their run |
//! | `neap_clients_gone_total` | clients that went away before their answer was made |
//! | `neap_connections`, `neap_connections_…_total` | open now; accepted, refused for want of a place, given up for others, timed out |
//! | `neap_received_bytes_total`, `neap_sent_bytes_total` | through connections, without what TLS adds |
//! | `neap_tokens_total{model,kind}` and others | of language models: [`openai::metrics`] |
//! | `neap_build_info{version}`, `process_…` | as Prometheus' own libraries tell them |
//!
//! All series of a model exist from the moment it is loaded, so that the first event is seen as a change.

use crate::core::Core;
use crate::executor::Done;
use crate::openai;
use crate::process;
use crate::refusal::Why;
use crate::traffic::Traffic;
use crate::triton::{Answered, Statistics};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
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
    loads: Family<OfLoad, Counter>,
    ready: Family<OfModel, Gauge>,
    memory: Family<OfKind, Gauge>,
    waiting: Gauge,
    made_way: Counter,
    pub clients_gone: Counter,
    of_traffic: OfTraffic,
    of_process: process::Metrics,
    /// What passes through connections.
    pub traffic: Arc<Traffic>,
    /// For clients of Triton.
    pub statistics: Statistics,
    pub language: openai::metrics::Metrics,
}

/// What is counted elsewhere.
#[derive(Default)]
struct OfTraffic {
    open: Gauge,
    accepted: Counter,
    refused: Counter,
    given_up: Counter,
    timed_out: Counter,
    received: Counter,
    sent: Counter,
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
struct OfLoad {
    model: String,
    outcome: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfKind {
    kind: &'static str,
    /// Empty where it is of no one model.
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfBuild {
    version: &'static str,
}

fn of(model: &str) -> OfModel {
    OfModel {
        model: model.into(),
    }
}

impl Default for Metrics {
    fn default() -> Metrics {
        let latency = || Histogram::new(exponential_buckets(FIRST_BUCKET_S, 2.0, BUCKETS));
        let mut registry = Registry::default();
        let of_process = process::Metrics::register(&mut registry);
        let own = registry.sub_registry_with_prefix("neap");
        let language = openai::metrics::Metrics::register(own);
        let mut metrics = Metrics {
            registry,
            requests: Family::default(),
            refusals: Family::default(),
            latency: Family::new_with_constructor(latency),
            run_seconds: Family::default(),
            rows: Family::default(),
            met: Family::default(),
            missed: Family::default(),
            loads: Family::default(),
            ready: Family::default(),
            memory: Family::default(),
            waiting: Gauge::default(),
            made_way: Counter::default(),
            clients_gone: Counter::default(),
            of_traffic: OfTraffic::default(),
            of_process,
            traffic: Arc::default(),
            statistics: Statistics::default(),
            language,
        };
        metrics.register();
        for why in Why::NAMES {
            metrics.refusal("", why);
        }
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let r = self.registry.sub_registry_with_prefix("neap");
        r.register(
            "requests",
            "Requests answered with tensors",
            self.requests.clone(),
        );
        r.register(
            "refusals",
            "Requests refused, and why",
            self.refusals.clone(),
        );
        let latency = self.latency.clone();
        r.register_with_unit("latency", "From arrival to answer", Unit::Seconds, latency);
        let run_seconds = self.run_seconds.clone();
        r.register_with_unit("run", "Parts of runs' time", Unit::Seconds, run_seconds);
        r.register("rows", "Rows of answered requests", self.rows.clone());
        let text = "Answers within their deadline";
        r.register("deadlines_met", text, self.met.clone());
        let text = "Answers too late, or none";
        r.register("deadlines_missed", text, self.missed.clone());
        let text = "Models that were loaded, or could not be";
        r.register("loads", text, self.loads.clone());
        let text = "Whether a model can be asked";
        r.register("model_ready", text, self.ready.clone());
        let memory = self.memory.clone();
        r.register_with_unit("memory", "Where the budget goes", Unit::Bytes, memory);
        let text = "Runs that ended early for a promised deadline";
        r.register("made_way", text, self.made_way.clone());
        r.register("waiting", "Requests that wait", self.waiting.clone());
        let text = "Clients that went away before their answer was made";
        r.register("clients_gone", text, self.clients_gone.clone());
        let t = &self.of_traffic;
        r.register("connections", "Connections that are open", t.open.clone());
        let text = "Connections that came";
        r.register("connections_accepted", text, t.accepted.clone());
        let text = "Connections that found no place";
        r.register("connections_refused", text, t.refused.clone());
        let text = "Connections that were closed for others, as nothing was asked on them";
        r.register("connections_given_up", text, t.given_up.clone());
        let text = "Connections that were closed as nothing was asked or taken for too long";
        r.register("connections_timed_out", text, t.timed_out.clone());
        let text = "Bytes that clients sent";
        r.register_with_unit("received", text, Unit::Bytes, t.received.clone());
        let text = "Bytes that clients took";
        r.register_with_unit("sent", text, Unit::Bytes, t.sent.clone());
        let build = Family::<OfBuild, Gauge>::default();
        let version = env!("CARGO_PKG_VERSION");
        build.get_or_create(&OfBuild { version }).set(1);
        r.register("build_info", "What runs here", build);
    }

    /// A model was loaded, or could not be. From now on it is counted.
    pub fn loaded(&self, model: &str, is_ok: bool) {
        for (outcome, count) in [("ok", is_ok), ("failed", !is_ok)] {
            let model = model.into();
            let counter = self.loads.get_or_create_owned(&OfLoad { model, outcome });
            counter.inc_by(count.into());
        }
        let of = of(model);
        drop(self.requests.get_or_create(&of));
        drop(self.latency.get_or_create(&of));
        drop(self.run_seconds.get_or_create(&of));
        drop(self.rows.get_or_create(&of));
        drop(self.met.get_or_create(&of));
        drop(self.missed.get_or_create(&of));
        for why in Why::NAMES {
            self.refusal(model, why);
        }
    }

    fn refusal(&self, model: &str, why: &'static str) -> Counter {
        let model = model.into();
        self.refusals.get_or_create_owned(&OfRefusal { model, why })
    }

    /// A request of a model was answered.
    pub fn answered(&self, model: &str, done: &Done, own_rows: usize, latency: Duration) {
        let of = of(model);
        self.requests.get_or_create(&of).inc();
        self.latency
            .get_or_create(&of)
            .observe(latency.as_secs_f64());
        let part = own_rows as f64 / done.rows.max(1) as f64;
        let run_s = done.ran.as_secs_f64() * part;
        self.run_seconds.get_or_create(&of).inc_by(run_s);
        self.rows.get_or_create(&of).inc_by(own_rows as u64);
        let answered = Answered {
            rows: own_rows,
            rows_together: done.rows,
            waited: done.waited,
            ran: done.ran,
            latency,
        };
        self.statistics.answered(model, &answered);
    }

    /// A request of a language model was answered.
    pub fn talked(&self, model: &str, latency: Duration) {
        let of = of(model);
        self.requests.get_or_create(&of).inc();
        let latency_s = latency.as_secs_f64();
        self.latency.get_or_create(&of).observe(latency_s);
    }

    /// Whether a request with a deadline had its answer in time.
    pub fn deadline(&self, model: &str, is_met: bool) {
        let family = if is_met { &self.met } else { &self.missed };
        family.get_or_create(&of(model)).inc();
    }

    /// A request was refused. `model` is one that is loaded, or empty: clients could make up names without end.
    pub fn refused(&self, model: &str, why: Why) {
        self.refusal(model, why.name()).inc();
        if !model.is_empty() {
            self.statistics.failed(model);
        }
    }

    /// Everything, as text: of Prometheus, or of OpenMetrics.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn text(&self, core: &Core, is_open: bool) -> Result<String, std::fmt::Error> {
        self.note_memory(core);
        self.waiting.set(core.executor.waiting() as i64);
        let made_way = core.executor.made_way();
        self.made_way.inner().store(made_way, Relaxed);
        self.ready.clear();
        for model in core.served() {
            let is_ready = core.is_ready() && model.fault().is_none();
            let ready = self.ready.get_or_create(&of(&model.name));
            ready.set(is_ready.into());
        }
        self.language.note(&core.language);
        for (model, _) in core.language.ready() {
            let ready = self.ready.get_or_create(&of(model));
            ready.set(core.is_ready().into());
        }
        let (told, seen) = (&self.of_traffic, &self.traffic);
        told.open.set(seen.open.load(Relaxed) as i64);
        for (counter, seen) in [
            (&told.accepted, &seen.accepted),
            (&told.refused, &seen.turned_away),
            (&told.given_up, &seen.given_up),
            (&told.timed_out, &seen.timed_out),
            (&told.received, &seen.received_bytes),
            (&told.sent, &seen.sent_bytes),
        ] {
            counter.inner().store(seen.load(Relaxed), Relaxed);
        }
        self.of_process.note();
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(if is_open { text } else { in_prometheus(&text) })
    }

    fn note_memory(&self, core: &Core) {
        let of_model = |kind: &'static str, model: &str, bytes: u64| {
            let of = OfKind {
                kind,
                model: model.into(),
            };
            self.memory.get_or_create(&of).set(bytes as i64);
        };
        let kind = |kind: &'static str, bytes: u64| of_model(kind, "", bytes);
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
            of_model("model", &model.name, model.resident_bytes);
        }
        for (model, worker) in core.language.ready() {
            of_model("model", model, worker.told().memory_bytes);
        }
    }
}

/// The text of OpenMetrics as Prometheus' older one: a counter has the name of its samples, and there are no units and no end.
fn in_prometheus(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("# HELP ") {
            help = of.split_once(' ');
        } else if let Some((name, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|of| of.split_once(' '))
        {
            let end = if kind == "counter" { "_total" } else { "" };
            if let Some((_, told)) = help.filter(|(of, _)| *of == name) {
                out += &format!("# HELP {name}{end} {told}\n");
            }
            out += &format!("# TYPE {name}{end} {kind}\n");
        } else if !line.starts_with("# ") {
            out += line;
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_of_a_model_exists_before_anything_happens_and_has_a_help_text() {
        let metrics = Metrics::default();
        metrics.loaded("a", true);
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        let text = in_prometheus(&text);
        for series in [
            "neap_requests_total{model=\"a\"} 0",
            "neap_refusals_total{model=\"a\",why=\"machine\"} 0",
            "neap_refusals_total{model=\"\",why=\"unknown\"} 0",
            "neap_deadlines_missed_total{model=\"a\"} 0",
            "neap_loads_total{model=\"a\",outcome=\"ok\"} 1",
            "neap_loads_total{model=\"a\",outcome=\"failed\"} 0",
            "neap_made_way_total 0",
            "neap_clients_gone_total 0",
            "neap_connections_refused_total 0",
            "neap_received_bytes_total 0",
        ] {
            assert!(
                text.lines().any(|line| line == series),
                "no {series} in {text}"
            );
        }
        let mut helped = std::collections::BTreeSet::new();
        let mut typed = std::collections::BTreeSet::new();
        for line in text.lines() {
            let word = |at: usize| line.split([' ', '{']).nth(at).unwrap();
            match line.split(' ').nth(1) {
                Some("HELP") => assert!(helped.insert(word(2)), "twice: {line}"),
                Some("TYPE") => {
                    let is_counter = line.ends_with(" counter");
                    assert_eq!(is_counter, word(2).ends_with("_total"), "{line}");
                    assert!(typed.insert(word(2)), "twice: {line}");
                }
                _ => {
                    let name = word(0);
                    let family = ["_bucket", "_sum", "_count"];
                    let family = family.iter().find_map(|end| name.strip_suffix(end));
                    let family = family.filter(|f| typed.contains(f)).unwrap_or(name);
                    assert!(helped.contains(family) && typed.contains(family), "{line}");
                }
            }
        }
        assert!(!text.contains("# UNIT") && !text.contains("# EOF"));
    }
}
