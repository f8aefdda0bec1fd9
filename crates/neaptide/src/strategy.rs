//! How long is searched for a plan, and on which threads.

use neap_compile::Refine;
use neap_planner::{Parallel, PlanError, Planned, Planner, RefineOptions, Serial};
use neap_sim::CostProfile;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What [`Strategy::Search`](crate::Strategy::Search) may take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchEffort {
    pub seconds: f64,
    /// At most so many generations: where these end the search, the same plan is found every time.
    pub generations: u32,
    pub seed: u64,
    /// Threads to search on. The plan depends on them only by how far the search gets.
    pub threads: usize,
}

impl Default for SearchEffort {
    fn default() -> Self {
        Self {
            seconds: 2.0,
            generations: u32::MAX,
            seed: 0,
            threads: 2,
        }
    }
}

impl Refine for SearchEffort {
    fn refine(
        &self,
        planner: &Planner,
        room_bytes: u64,
        costs: &CostProfile,
    ) -> Result<Planned, PlanError> {
        let started = Instant::now();
        // Beyond a day, time is no limit.
        let limit = Duration::from_secs_f64(self.seconds.clamp(0.0, 86_400.0));
        let options = RefineOptions {
            seed: self.seed,
            generations: self.generations,
        };
        let threads = Threads(self.threads);
        let parallel: &dyn Parallel = if self.threads > 1 { &threads } else { &Serial };
        planner.search(
            room_bytes,
            costs,
            &options,
            parallel,
            &mut |_| match started.elapsed() >= limit {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            },
        )
    }
}

/// Jobs on a few threads, whoever is free next.
struct Threads(usize);

impl Parallel for Threads {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= count {
                    return;
                }
                job(i);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.0.min(count) {
                scope.spawn(work);
            }
            work();
        });
    }
}
