//! What is counted of language models.
//!
//! | metric | |
//! |---|---|
//! | `neap_tokens_total{model,kind}` | of answers that are over: `prompt`, of those `cached` ones computed before, `answer` |
//! | `neap_tokens_drafted_total{model}`, `neap_tokens_drafted_right_total{model}` | guessed by a look into the text; those that were right |
//! | `neap_weights_read_bytes_total{model}` | read from the file for passes |
//! | `neap_passes_total{model}` | over the weights |
//! | `neap_answers{model,state}` | answers that are `running`, requests that are `waiting` for a pass to end |
//! | `neap_positions{model}` | that all texts of the model have together |
//! | `neap_first_token_seconds{model}` | from a request to the first part of its answer |

use super::models::Models;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::Ordering::Relaxed;

/// From eight milliseconds on, each twice the one before: to four minutes.
const FIRST_BUCKET_S: f64 = 0.008;
const BUCKETS: u16 = 16;

pub struct Metrics {
    tokens: Family<Of, Counter>,
    drafted: Family<OfModel, Counter>,
    right: Family<OfModel, Counter>,
    read: Family<OfModel, Counter>,
    passes: Family<OfModel, Counter>,
    answers: Family<OfState, Gauge>,
    positions: Family<OfModel, Gauge>,
    first: Family<OfModel, Histogram>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfModel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Of {
    model: String,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfState {
    model: String,
    state: &'static str,
}

impl Metrics {
    pub fn register(r: &mut Registry) -> Metrics {
        let first = || Histogram::new(exponential_buckets(FIRST_BUCKET_S, 2.0, BUCKETS));
        let m = Metrics {
            tokens: Family::default(),
            drafted: Family::default(),
            right: Family::default(),
            read: Family::default(),
            passes: Family::default(),
            answers: Family::default(),
            positions: Family::default(),
            first: Family::new_with_constructor(first),
        };
        r.register("tokens", "Tokens of language models", m.tokens.clone());
        r.register(
            "tokens_drafted",
            "Tokens that were guessed",
            m.drafted.clone(),
        );
        let text = "Tokens that were guessed and right";
        r.register("tokens_drafted_right", text, m.right.clone());
        let text = "Weights of language models that were read for passes";
        r.register_with_unit("weights_read", text, Unit::Bytes, m.read.clone());
        r.register("passes", "Passes over weights", m.passes.clone());
        r.register("answers", "Answers under way", m.answers.clone());
        let text = "Positions that all texts of a model have together";
        r.register("positions", text, m.positions.clone());
        let text = "From a request to the first part of its answer";
        r.register_with_unit("first_token", text, Unit::Seconds, m.first.clone());
        m
    }

    /// Takes over what workers counted.
    pub fn note(&self, models: &Models) {
        for (model, worker) in models.ready() {
            let told = worker.told();
            let of = OfModel {
                model: model.into(),
            };
            let kinds = [
                ("prompt", told.tokens.prompt),
                ("cached", told.tokens.cached),
                ("answer", told.tokens.answer),
            ];
            for (kind, count) in kinds {
                let model = model.into();
                let counter = self.tokens.get_or_create_owned(&Of { model, kind });
                counter.inner().store(count, Relaxed);
            }
            for (family, count) in [
                (&self.drafted, told.figures.drafted),
                (&self.right, told.figures.right),
                (&self.read, told.figures.engine.loaded_bytes),
                (&self.passes, told.figures.engine.passes),
            ] {
                family.get_or_create(&of).inner().store(count, Relaxed);
            }
            for (state, count) in [("running", told.running), ("waiting", told.waiting)] {
                let model = model.into();
                let gauge = self.answers.get_or_create_owned(&OfState { model, state });
                gauge.set(count as i64);
            }
            let positions = self.positions.get_or_create(&of);
            positions.set(worker.context as i64);
            drop(self.first.get_or_create(&of));
        }
    }

    /// The first part of an answer came so long after its request.
    pub fn began(&self, model: &str, seconds: f64) {
        let of = OfModel {
            model: model.into(),
        };
        self.first.get_or_create(&of).observe(seconds);
    }
}
