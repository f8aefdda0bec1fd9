//! What a budget and a context give: `neap plan` of a language model.

use super::failure;
use crate::failure::{Failure, Outcome, bad};
use neap_chat::{CacheType, Ledger};
use neap_llm::{Engine, Model, Rates};
use neaptide::{Budget, Bytes, OwnProcess};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

/// One budget with one context.
#[derive(Serialize)]
pub struct Choice {
    context: usize,
    /// `None`: as much as the model takes.
    budget_bytes: Option<u64>,
    cache_bytes: u64,
    resident_weight_bytes: u64,
    weight_bytes: u64,
    /// Attention left out.
    predicted_tokens_per_second: f64,
}

/// Contexts that are shown where none is asked for.
const CONTEXTS: [usize; 3] = [512, 2048, 8192];

/// Budgets that are shown where none is asked for, in hundredths of the weights.
const SHARES: [u64; 4] = [100, 60, 40, 25];

/// What is asked.
pub struct Question {
    pub budget: Budget,
    pub context: Option<u32>,
    pub cache: CacheType,
    pub threads: usize,
    /// Computing and reading are timed first, for less than a second; else built-in rates are taken.
    pub is_measured: bool,
}

/// What budgets and contexts give, and the same as text.
pub fn choices(path: &Path, question: &Question) -> Outcome<(Vec<Choice>, String)> {
    let model = Model::open(path).map_err(|e| failure(e.into()))?;
    let weights = model.matrix_bytes();
    let Question {
        budget, context, ..
    } = *question;
    let measure = || Rates::measure(&model, question.threads).ok();
    let measured = question.is_measured.then(measure).flatten();
    let rates = measured.unwrap_or_default();
    let options = |context, memory_budget| neap_llm::Options {
        memory_budget,
        context,
        // An answer, and a text that is kept.
        sequences: 2,
        cache: question.cache,
        threads: question.threads,
        host: Arc::new(OwnProcess { own_cgroup: false }),
        rates,
        ..neap_llm::Options::default()
    };
    let contexts = match context {
        Some(context) => vec![context as usize],
        None => CONTEXTS
            .into_iter()
            .filter(|&c| c <= model.config.trained_context)
            .collect(),
    };
    let mut choices = Vec::new();
    for context in contexts {
        let of = |budget| choice(&model, &options(context, budget));
        match budget {
            Budget::Bytes(bytes) => choices.push(of(Some(bytes))?),
            Budget::Unlimited => {
                choices.push(of(None)?);
                for share in SHARES {
                    match of(Some(weights / 100 * share)) {
                        Err(Failure::Infeasible(_)) => {}
                        choice => choices.push(choice?),
                    }
                }
                // What is too small is refused with what is enough.
                if let Err(neap_llm::Error::Budget { smallest_bytes, .. }) =
                    Engine::of(model.clone(), &options(context, Some(1)))
                {
                    match of(Some(smallest_bytes + SLACK)) {
                        Err(Failure::Infeasible(_)) => {}
                        choice => choices.push(choice?),
                    }
                }
            }
            other => {
                return Err(bad(format!(
                    "--memory-budget {other}: write a size for a language model"
                )));
            }
        }
    }
    let text = text(&choices, rates, measured.is_some());
    Ok((choices, text))
}

/// The process grows a little from one plan to the next.
const SLACK: u64 = 1 << 20;

fn choice(model: &Model, options: &neap_llm::Options) -> Outcome<Choice> {
    let engine = Engine::of(model.clone(), options).map_err(|e| failure(e.into()))?;
    let Ledger {
        weights_bytes,
        all_weights_bytes,
        whole_cache_bytes,
        ..
    } = engine.ledger();
    Ok(Choice {
        context: engine.context(),
        budget_bytes: options.memory_budget,
        cache_bytes: whole_cache_bytes,
        resident_weight_bytes: weights_bytes,
        weight_bytes: all_weights_bytes,
        predicted_tokens_per_second: 1e9 / engine.predicted_ns().max(1) as f64,
    })
}

fn text(choices: &[Choice], rates: Rates, is_measured: bool) -> String {
    let mut text = format!(
        "computes with {:.1} GB/s of weights, reads {:.1} GB/s ({})\n\
         context    budget        cache         weights in memory   predicted\n",
        rates.weight_bytes_per_second / 1e9,
        rates.drive_bytes_per_second / 1e9,
        if is_measured {
            "measured now"
        } else {
            "built in"
        },
    );
    for choice in choices {
        let budget = choice
            .budget_bytes
            .map_or_else(|| "none".into(), |bytes| Bytes(bytes).to_string());
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:<10} {budget:<13} {:<13} {:>5.1} %             {:.1} tokens/s",
            choice.context,
            Bytes(choice.cache_bytes).to_string(),
            100.0 * choice.resident_weight_bytes as f64 / choice.weight_bytes.max(1) as f64,
            choice.predicted_tokens_per_second,
        );
    }
    text
}
