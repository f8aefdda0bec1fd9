//! A process that trains, in a memory cgroup of its own: it runs, was killed, or refuses its limit.

use super::figures::{End, Limit, Planned, Ran, Row, Who};
use crate::group::Group;
use crate::peer::{Peer, REST, median};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::process::Command;

pub struct Entrant {
    who: Who,
    limit: Option<Limit>,
    state: State,
    /// Milliseconds of measured steps.
    times: Vec<f64>,
    /// Of all steps.
    losses: Vec<f64>,
}

enum State {
    /// The process ends before its group goes.
    Running {
        peer: Peer,
        group: Group,
    },
    Ended(End),
}

impl Entrant {
    /// Starts a process in a new group.
    pub fn start(who: Who, limit: Option<Limit>, command: &Command) -> Result<Entrant> {
        let group = Group::new(limit.map(|limit| limit.bytes))?;
        let state = match Peer::start(&mut group.around(command)) {
            Ok(peer) => match peer.ready["smallest_bytes"].as_u64() {
                Some(smallest_bytes) => State::Ended(End::Refused { smallest_bytes }),
                None => State::Running { peer, group },
            },
            Err(_) if group.kills()? > 0 => State::Ended(End::Killed),
            Err(error) => return Err(error),
        };
        Ok(Entrant {
            who,
            limit,
            state,
            times: Vec::new(),
            losses: Vec::new(),
        })
    }

    /// The first line it said, as long as it runs.
    pub fn ready(&self) -> Option<&Value> {
        match &self.state {
            State::Running { peer, .. } => Some(&peer.ready),
            State::Ended(_) => None,
        }
    }

    /// Takes steps that are not measured.
    pub fn warm_up(&mut self, steps: usize) -> Result<()> {
        self.take(steps).map(drop)
    }

    /// One measured step.
    pub fn turn(&mut self) -> Result<()> {
        std::thread::sleep(REST);
        let taken = self.take(1)?;
        self.times.extend(taken);
        Ok(())
    }

    /// Milliseconds of each; none where it does not run.
    fn take(&mut self, steps: usize) -> Result<Vec<f64>> {
        let State::Running { peer, group } = &mut self.state else {
            return Ok(Vec::new());
        };
        let answer = match peer.ask(&format!("run {steps}")) {
            Err(_) if group.kills()? > 0 => {
                self.state = State::Ended(End::Killed);
                return Ok(Vec::new());
            }
            answer => answer?,
        };
        self.losses.extend(numbers(&answer, "losses")?);
        numbers(&answer, "latency_ms")
    }

    /// The most that the kernel has charged by now; `None` where it does not run.
    pub fn peak_bytes(&self) -> Result<Option<u64>> {
        match &self.state {
            State::Running { group, .. } => group.peak_bytes().map(Some),
            State::Ended(_) => Ok(None),
        }
    }

    /// Of all of its steps, where it still runs.
    pub fn losses(&self) -> Option<&[f64]> {
        matches!(self.state, State::Running { .. }).then_some(&self.losses)
    }

    /// Ends it.
    pub fn row(self) -> Result<Row> {
        // Borrowed: taken apart, the group would go before its process.
        let end = match &self.state {
            State::Ended(end) => end.clone(),
            State::Running { peer, group } => End::Ran(Ran {
                peak_bytes: group.peak_bytes()?,
                step_ms: median(&self.times),
                plan: planned(&peer.ready),
            }),
        };
        Ok(Row {
            who: self.who,
            limit: self.limit,
            end,
        })
    }
}

/// Of our worker; PyTorch has no plan.
fn planned(ready: &Value) -> Option<Planned> {
    Some(Planned {
        strategy: ready["strategy"].as_str()?.into(),
        stored_bytes: ready["stored_bytes"].as_u64()?,
        loaded_bytes: ready["loaded_bytes"].as_u64()?,
        recomputed_flops: ready["recomputed_flops"].as_u64()?,
        predicted_ms: ready["predicted_ms"].as_f64()?,
        opened_s: ready["opened_s"].as_f64()?,
    })
}

fn numbers(answer: &Value, key: &str) -> Result<Vec<f64>> {
    let list = answer[key].as_array().context("a worker's answer")?;
    let found: Vec<f64> = list.iter().filter_map(Value::as_f64).collect();
    // Not a number is written as null.
    ensure!(found.len() == list.len(), "{key} are {list:?}");
    Ok(found)
}
