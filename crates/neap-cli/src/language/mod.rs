//! Language models: options, opening one within a budget, and what is said of its speed at the end.

pub mod answer;
pub mod args;
pub mod plan;
pub mod session;

use crate::cgroup::supervise::{self, Ended};
use crate::failure::{Failure, Outcome, bad};
use args::ModelArgs;
use neap_chat::Runner;
use neaptide::{Budget, Bytes, OwnProcess};
use std::sync::Arc;

/// How this process is limited.
#[derive(Clone, Copy)]
pub struct Limit {
    pub budget_bytes: Option<u64>,
    /// It is alone in a cgroup with the budget as hard limit.
    pub own_cgroup: bool,
}

/// Does `here` in this process, or with `--enforce` has this command run in a cgroup of its own.
pub fn limited(args: &ModelArgs, here: impl FnOnce(Limit) -> Outcome) -> Outcome {
    let budget_bytes = match args.memory_budget {
        Budget::Bytes(bytes) => Some(bytes),
        Budget::Unlimited => None,
        other => {
            return Err(bad(format!(
                "--memory-budget {other}: write a size for a language model"
            )));
        }
    };
    let own_limit = supervise::own_limit_bytes().filter(|_| args.enforce);
    if own_limit.is_none() && args.enforce {
        let limit = budget_bytes
            .ok_or_else(|| bad("--enforce needs a limit: give --memory-budget SIZE"))?;
        return match supervise::run_again(limit)? {
            Ended::Well => Ok(()),
            Ended::OutOfMemory => Err(out_of_memory(args, limit)),
        };
    }
    here(Limit {
        budget_bytes: own_limit.or(budget_bytes),
        own_cgroup: own_limit.is_some(),
    })
}

/// After the kernel ended it: a budget so small that not even the refusal fits into it, or a defect.
fn out_of_memory(args: &ModelArgs, limit: u64) -> Failure {
    let tiny = Limit {
        budget_bytes: Some(1),
        own_cgroup: false,
    };
    match open(args, tiny, 1) {
        Err(Failure::Infeasible(text)) => {
            Failure::Infeasible(text.replacen("0.1 MiB", &Bytes(limit).to_string(), 1))
        }
        Err(other) => other,
        Ok(_) => Failure::Internal(supervise::out_of_memory(limit)),
    }
}

/// A model that answers so many requests at once.
pub fn open(args: &ModelArgs, limit: Limit, most_requests: usize) -> Outcome<Runner> {
    let options = neap_chat::Options {
        engine: engine_options(args, limit),
        most_requests,
        most_kept: most_requests.min(8),
        most_draft: args.draft.into(),
    };
    Runner::open(&args.model, &options).map_err(failure)
}

pub fn engine_options(args: &ModelArgs, limit: Limit) -> neap_llm::Options {
    neap_llm::Options {
        memory_budget: limit.budget_bytes,
        context: args.context as usize,
        cache: args.kv,
        threads: args.threads(),
        chunk: args.chunk.into(),
        io: args.io.mode(),
        host: Arc::new(OwnProcess {
            own_cgroup: limit.own_cgroup,
        }),
        ..neap_llm::Options::default()
    }
}

pub fn failure(error: neap_chat::Error) -> Failure {
    match error.smallest_budget_bytes() {
        Some(_) => Failure::Infeasible(error.to_string()),
        None => bad(error),
    }
}
