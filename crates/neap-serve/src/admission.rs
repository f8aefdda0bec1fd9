//! Which models are promised their deadlines, and what others may do beside them.
//!
//! ```text
//!   measured at loading   longest run, longest time between two computes     of this plan, in this process
//!                         × (1 + margin) + a hand-over
//!   neap_realtime         do all promised deadlines hold?  for how long may others keep a promised request waiting?
//!   at run time           promised requests by deadline; others in the gaps: those of which too much is left when
//!                         a promised request comes are ended, and run again later ([`crate::way`])
//! ```
//! A model with a period is *promised* its deadline. Its requests are released at least a period apart: one that comes
//! early counts from when it should have come. Until then it may run in a gap, as what has no promise. If it is done before
//! its release, there was no promised request at all, and the next one may be released then: so who comes late once does not
//! stay late. What comes more often than the period allows is refused. A promised model
//! keeps its memory and its plan, so that what was measured stays true. Others have another share of memory when models
//! come and go: what was measured counts for the share that it was measured with. Nothing here looks at a clock.
//!
//! Source: processor demand with holds, as `neap_realtime::demand` has it.

use crate::fleet::served_name;
use neap_realtime::demand::{self, Verdict, Work};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// What is promised to requests of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Promise {
    /// Requests come at most so often.
    pub period: Duration,
    /// From a request to its answer.
    pub deadline: Duration,
}

impl Promise {
    /// So many requests are there at once at most: between a period before their release and their deadline. With
    /// deadlines of many periods that is more than ever come together, as they are answered earlier.
    pub fn most_at_once(self) -> u64 {
        let all = (ns(self.deadline) / ns(self.period).max(1)).saturating_add(2);
        all.min(MOST_AT_ONCE)
    }
}

/// What was measured of a model's runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The longest run.
    pub run_ns: u64,
    /// The longest time between two moments at which a run could be ended, its end included.
    pub step_ns: u64,
}

/// What a model's plan follows from, when everything else stays as it is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Share {
    pub resident_bytes: u64,
    pub work_bytes: u64,
    pub latency_ns: u64,
}

/// Memory is set aside for so many requests of a model at most.
const MOST_AT_ONCE: u64 = 8;

/// So many shares of a model are remembered.
const MOST_SHARES: usize = 8;

/// A request is taken from its connection, handed over to the thread that runs models, and its answer is handed back.
const HAND_OVER_NS: u64 = 1_000_000;

struct Standing {
    promise: Option<Promise>,
    /// The last one at the end.
    known: Vec<(Share, Measured)>,
    /// The share of now; `None` while that is being changed.
    share: Option<Share>,
    /// Before this no request is released.
    next_ns: u64,
    /// When the next request is to come, if none comes more often than it may: late ones may catch up by a period.
    expected_ns: Option<u64>,
    /// The model that this one is to follow: until then nothing is promised to it.
    follows: Option<String>,
}

impl Standing {
    fn in_force(&self) -> Option<Promise> {
        self.promise.filter(|_| self.follows.is_none())
    }

    /// With the share of now.
    fn measured(&self) -> Option<Measured> {
        let share = self.share?;
        let found = self.known.iter().find(|(known, _)| *known == share);
        found.map(|&(_, measured)| measured)
    }

    fn learn(&mut self, share: Share, measured: Measured) {
        self.known.retain(|(known, _)| *known != share);
        self.known.push((share, measured));
        if self.known.len() > MOST_SHARES {
            self.known.remove(0);
        }
    }

    /// The longest step that was ever seen, where that of now is not known.
    fn step_ns(&self) -> u64 {
        let steps = self.known.iter().map(|(_, measured)| measured.step_ns);
        match self.measured() {
            Some(measured) => measured.step_ns,
            None => steps.max().unwrap_or(0),
        }
    }
}

/// All models that were measured.
pub struct Admission {
    /// What is measured is taken to be so much longer: 0.5 is half.
    margin: f64,
    models: Mutex<BTreeMap<String, Standing>>,
}

/// When a promised request counts as come, and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    pub at_ns: u64,
    pub due_ns: u64,
}

/// What is told of a promised model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    pub promise: Promise,
    /// The longest that a run is taken to be.
    pub work_ns: u64,
}

impl Admission {
    pub fn new(margin: f64) -> Admission {
        Admission {
            margin,
            models: Mutex::default(),
        }
    }

    /// Whether anything is promised.
    pub fn promises(&self) -> bool {
        self.models().values().any(|m| m.in_force().is_some())
    }

    pub fn is_promised(&self, name: &str) -> bool {
        let models = self.models();
        models.get(name).is_some_and(|m| m.in_force().is_some())
    }

    /// Takes a model in, if all promises hold with it. `others_ns` is how long changes of memory keep requests waiting. One
    /// that `follows` another is promised nothing before [`Admission::follow`]; all promises hold with it then.
    ///
    /// # Errors
    /// Why not, on one line.
    pub fn admit(
        &self,
        name: &str,
        promise: Option<Promise>,
        (share, measured): (Share, Measured),
        others_ns: u64,
        follows: Option<&str>,
    ) -> Result<(), String> {
        let mut models = self.models();
        let was = models.remove(name);
        let mut standing = Standing {
            promise,
            known: was.as_ref().map_or(Vec::new(), |was| was.known.clone()),
            share: Some(share),
            next_ns: was.as_ref().map_or(0, |was| was.next_ns),
            expected_ns: was.as_ref().and_then(|was| was.expected_ns),
            follows: None,
        };
        standing.learn(share, measured);
        models.insert(name.into(), standing);
        let before = follows.and_then(|old| models.remove_entry(old));
        let checked = self.check(&models, others_ns);
        models.extend(before);
        match (&checked, was) {
            (Ok(()), _) => {
                if let Some(standing) = models.get_mut(name) {
                    standing.follows = follows.map(str::to_string);
                }
            }
            (Err(_), Some(was)) => drop(models.insert(name.into(), was)),
            (Err(_), None) => drop(models.remove(name)),
        }
        checked
    }

    /// The model takes the place of the one that it was to follow, between two promised requests: when none waits
    /// or runs, all deadlines hold before with the old one, and from now on with the new one. Requests stay a period of the old one apart.
    pub fn follow(&self, name: &str) {
        let mut models = self.models();
        let old = models.get(name).and_then(|m| m.follows.clone());
        let old = old.and_then(|old| models.remove(&old));
        if let Some(standing) = models.get_mut(name) {
            standing.follows = None;
            if let Some(old) = old {
                standing.next_ns = old.next_ns;
                standing.expected_ns = old.expected_ns;
            }
        }
    }

    /// What was measured of a model that has this share.
    pub fn known(&self, name: &str, share: Share) -> Option<Measured> {
        let models = self.models();
        let mut known = models.get(name)?.known.iter();
        let found = known.find(|(other, _)| *other == share);
        found.map(|&(_, measured)| measured)
    }

    /// Memory is about to be divided anew: nobody knows how long runs without a promise are, until shares are noted.
    pub fn doubt(&self) {
        let mut models = self.models();
        let others = models.values_mut().filter(|m| m.promise.is_none());
        others.for_each(|m| m.share = None);
    }

    /// The share of each model from now on.
    pub fn note_shares(&self, shares: &BTreeMap<String, Share>) {
        for (name, standing) in &mut *self.models() {
            if standing.promise.is_none() {
                standing.share = shares.get(name).copied();
            }
        }
    }

    /// A model is gone.
    pub fn forget(&self, name: &str) {
        self.models().remove(name);
    }

    /// For how long a run without a promise may keep promised requests waiting; `None` when nothing is promised.
    pub fn room_ns(&self) -> Option<u64> {
        let work = self.work(&self.models());
        match work.is_empty() {
            true => None,
            // Promises that hold leave 0 at least.
            false => Some(demand::most_beside_ns(&work).unwrap_or(0)),
        }
    }

    /// The longest that a run of this model is taken to be, with the memory that it has now; `None` where nobody knows.
    pub fn bound_of_run_ns(&self, name: &str) -> Option<u64> {
        let models = self.models();
        let measured = models.get(name).and_then(Standing::measured);
        measured.map(|measured| self.bound_ns(measured.run_ns))
    }

    /// Whether a request of a promised model may begin before its release: its run can be ended in time, as those of models
    /// without a promise.
    pub fn may_be_early(&self, name: &str, room_ns: u64) -> bool {
        let models = self.models();
        let measured = models.get(name).and_then(Standing::measured);
        measured.is_some_and(|measured| self.bound_ns(measured.step_ns) <= room_ns)
    }

    /// When a request of a promised model counts as come; `None` for models without a promise.
    ///
    /// # Errors
    /// How long to wait before asking again, for one that comes too often.
    pub fn release(&self, name: &str, now_ns: u64) -> Option<Result<Released, Duration>> {
        let mut models = self.models();
        let standing = models.get_mut(name)?;
        let promise = standing.in_force()?;
        let (period_ns, deadline_ns) = (ns(promise.period), ns(promise.deadline));
        let expected_ns = standing.expected_ns;
        let early_ns = expected_ns.map_or(0, |at| at.saturating_sub(now_ns));
        if early_ns > period_ns {
            return Some(Err(Duration::from_nanos(early_ns - period_ns)));
        }
        let at_ns = standing.next_ns.max(now_ns);
        standing.next_ns = at_ns.saturating_add(period_ns);
        let since_ns = now_ns.saturating_sub(period_ns);
        let next_ns = expected_ns.map(|at| at.max(since_ns).saturating_add(period_ns));
        standing.expected_ns = next_ns.or(Some(now_ns));
        Some(Ok(Released {
            at_ns,
            due_ns: at_ns.saturating_add(deadline_ns),
        }))
    }

    /// A request of a promised model that was to be released then is done before: another may be released in its place.
    pub fn done_early(&self, name: &str, released_ns: u64) {
        let mut models = self.models();
        let Some(standing) = models.get_mut(name) else {
            return;
        };
        let period_ns = standing.in_force().map(|promise| ns(promise.period));
        if period_ns.and_then(|p| released_ns.checked_add(p)) == Some(standing.next_ns) {
            standing.next_ns = released_ns;
        }
    }

    /// Every promise, by model.
    pub fn told(&self) -> BTreeMap<String, Told> {
        let models = self.models();
        let work = self.work(&models);
        let promised = models
            .iter()
            .filter_map(|(name, m)| Some((name, m.in_force()?)));
        let told = promised.zip(work).map(|((name, promise), work)| {
            let work_ns = work.work_ns;
            (name.clone(), Told { promise, work_ns })
        });
        told.collect()
    }

    fn check(&self, models: &BTreeMap<String, Standing>, others_ns: u64) -> Result<(), String> {
        let work = self.work(models);
        if work.is_empty() {
            return Ok(());
        }
        let Some(room_ns) = demand::most_beside_ns(&work) else {
            return Err(self.why(models, &work));
        };
        let others = models.iter().filter(|(_, m)| m.in_force().is_none());
        let step = |name: &str| format!("a step of '{}'", served_name(name));
        let others = others.map(|(name, m)| (step(name), m.step_ns()));
        let all = others.chain([("a change of memory".to_string(), others_ns)]);
        for (what, step_ns) in all {
            let hold_ns = self.bound_ns(step_ns);
            if hold_ns > room_ns {
                return Err(format!(
                    "{what} may keep requests waiting for {}, and their deadlines leave {}",
                    time(hold_ns),
                    time(room_ns)
                ));
            }
        }
        Ok(())
    }

    fn why(&self, models: &BTreeMap<String, Standing>, work: &[Work]) -> String {
        let promised = models.iter().filter(|(_, m)| m.in_force().is_some());
        let needs: Vec<String> = promised
            .zip(work)
            .map(|((name, _), w)| {
                let period = Duration::from_nanos(w.period_ns);
                let name = served_name(name);
                format!("'{name}' takes up to {} every {period:?}", time(w.work_ns))
            })
            .collect();
        let needs = needs.join(", ");
        match demand::check(work) {
            Verdict::Overloaded => format!("there is more work than time: {needs}"),
            Verdict::Misses {
                interval_ns,
                demand_ns,
                hold_ns,
                ..
            } => format!(
                "a deadline could be missed: within {} up to {} must be done: {needs}",
                time(interval_ns),
                time(demand_ns.saturating_add(hold_ns))
            ),
            Verdict::Admitted | Verdict::Undecided => {
                format!("it cannot be shown that deadlines hold: {needs}")
            }
        }
    }

    /// Promised models, by name.
    fn work(&self, models: &BTreeMap<String, Standing>) -> Vec<Work> {
        let promised = models
            .values()
            .filter_map(|m| Some((m.in_force()?, m.measured()?)));
        let work = promised.map(|(promise, measured)| {
            let work_ns = self.bound_ns(measured.run_ns);
            Work {
                period_ns: ns(promise.period),
                deadline_ns: ns(promise.deadline),
                work_ns,
                hold_ns: work_ns,
                tail_ns: work_ns,
            }
        });
        work.collect()
    }

    /// With margin and hand-over.
    fn bound_ns(&self, measured_ns: u64) -> u64 {
        let longer_ns = (measured_ns as f64 * (1.0 + self.margin)).ceil() as u64;
        longer_ns.saturating_add(HAND_OVER_NS)
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Standing>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn time(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

#[cfg(test)]
mod tests;
