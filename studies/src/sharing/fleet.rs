//! The processes of one way to share the machine: who is told what when a request comes.

use crate::peer::{Peer, median};
use crate::worker;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Instant;

/// A way to share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// One model with everything resident, whichever is asked for.
    NotShared,
    /// Each model has its part of what one takes, and streams.
    Divided,
    /// Each model has what the simulated study gives it.
    Owned,
    /// One model at a time is resident: the others' memory is given up, its weights are read, it runs.
    TimeShared,
    /// The same with weights read beside the run, in the order in which it needs them.
    TimeSharedOverlapped,
}

impl Way {
    pub const ALL: [Way; 5] = [
        Way::NotShared,
        Way::Divided,
        Way::Owned,
        Way::TimeShared,
        Way::TimeSharedOverlapped,
    ];

    /// How many models requests are for, of `models`.
    pub fn models(self, models: usize) -> usize {
        match self {
            Way::NotShared => 1,
            _ => models,
        }
    }

    fn is_time_shared(self) -> bool {
        matches!(self, Way::TimeShared | Way::TimeSharedOverlapped)
    }
}

/// A model and the budgets that the ways need.
pub struct Terms<'a> {
    pub model: &'a Path,
    pub cache: &'a Path,
    pub models: usize,
    pub smallest_bytes: u64,
    /// With everything resident.
    pub whole_bytes: u64,
    /// Of each model in [`Way::Owned`].
    pub own_bytes: u64,
}

/// What one request took, from when its turn came.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Served {
    pub service_ms: f64,
    /// Another model ran before.
    pub switched: bool,
}

/// The parts of a switch between two models, medians in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Switch {
    /// The model that was resident gives its memory to the kernel.
    pub giving_up_ms: f64,
    /// The next plans and gets memory.
    pub taking_ms: f64,
    /// Its weights are read, where that comes before the run.
    pub reading_ms: f64,
    /// Planning, which is part of both.
    pub planning_ms: f64,
}

pub struct Fleet {
    pub way: Way,
    /// A process for each model; one in all where nothing is shared.
    peers: Vec<Peer>,
    /// Budget in bytes of a model that is not resident.
    waiting: String,
    last: Option<usize>,
    switches: Vec<Switch>,
}

impl Fleet {
    pub fn start(way: Way, terms: &Terms) -> Result<Fleet> {
        let (count, bytes) = match way {
            Way::NotShared => (1, None),
            Way::Divided => (terms.models, Some(terms.whole_bytes / terms.models as u64)),
            Way::Owned => (terms.models, Some(terms.own_bytes)),
            Way::TimeShared | Way::TimeSharedOverlapped => {
                (terms.models, Some(terms.smallest_bytes))
            }
        };
        let budget = bytes.map_or("none".into(), |b: u64| b.to_string());
        let mut peers = Vec::with_capacity(count);
        for _ in 0..count {
            let peer = worker::start(terms.model, terms.cache, &["--budget", &budget])?;
            anyhow::ensure!(
                peer.ready["smallest_bytes"].is_null(),
                "{budget} bytes for each model are too few"
            );
            peers.push(peer);
        }
        let mut fleet = Fleet {
            way,
            peers,
            waiting: budget,
            last: None,
            switches: Vec::new(),
        };
        // What is resident is read, and buffers have been touched.
        for model in 0..count {
            fleet.peers[model].ask("settle")?;
            fleet.peers[model].run(1)?;
        }
        fleet.serve(0)?;
        fleet.serve(0)?;
        fleet.switches.clear();
        Ok(fleet)
    }

    /// Serves one request for a model.
    pub fn serve(&mut self, model: usize) -> Result<Served> {
        let model = model % self.peers.len();
        let started = Instant::now();
        let before = self.last.replace(model);
        let switched = before != Some(model);
        if switched && self.way.is_time_shared() {
            self.switch(before, model)?;
        }
        self.peers[model].run(1)?;
        Ok(Served {
            service_ms: ms(started),
            switched,
        })
    }

    /// Another model becomes the resident one.
    fn switch(&mut self, before: Option<usize>, model: usize) -> Result<()> {
        let mut switch = Switch::default();
        if let Some(before) = before {
            let started = Instant::now();
            let answer = self.peers[before].ask(&format!("budget {}", self.waiting))?;
            switch.giving_up_ms = ms(started);
            switch.planning_ms += answer["planning_ms"].as_f64().context("planning_ms")?;
        }
        let started = Instant::now();
        let answer = self.peers[model].ask("budget none")?;
        switch.taking_ms = ms(started);
        switch.planning_ms += answer["planning_ms"].as_f64().context("planning_ms")?;
        if self.way == Way::TimeShared {
            let started = Instant::now();
            self.peers[model].ask("settle")?;
            switch.reading_ms = ms(started);
        }
        self.switches.push(switch);
        Ok(())
    }

    /// Medians over the switches so far; `None` where there were none.
    pub fn median_switch(&self) -> Option<Switch> {
        let of =
            |part: fn(&Switch) -> f64| median(&self.switches.iter().map(part).collect::<Vec<_>>());
        (!self.switches.is_empty()).then(|| Switch {
            giving_up_ms: of(|s| s.giving_up_ms),
            taking_ms: of(|s| s.taking_ms),
            reading_ms: of(|s| s.reading_ms),
            planning_ms: of(|s| s.planning_ms),
        })
    }

    /// What the kernel charges all processes together: their peaks; with a machine that is time-shared what they
    /// take after a request, since their peaks never come together.
    pub fn memory_bytes(&mut self) -> Result<u64> {
        let key = match self.way.is_time_shared() {
            true => "memory_bytes",
            false => "peak_memory_bytes",
        };
        let mut sum = 0;
        for peer in &mut self.peers {
            sum += worker::number(&peer.ask("stats")?, key)?;
        }
        Ok(sum)
    }

    /// Bytes that a model of this way loads in a run.
    pub fn loaded_bytes(&self) -> Result<u64> {
        match self.way.is_time_shared() {
            true => Ok(0),
            false => worker::number(&self.peers[0].ready, "loaded_bytes_per_run"),
        }
    }
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
