//! Which models are promised their deadlines, and what others may do beside them.
//!
//! ```text
//!   measured at loading   longest run, longest time between two computes     of this plan, in this process
//!                         × (1 + margin) + a hand-over
//!   neap_realtime         do all promised deadlines hold?  for how long may others keep a promised request waiting?
//!   at run time           promised requests by deadline; others in the gaps: those whose run may be too long
//!                         for that are ended when a promised request comes, and run again later
//! ```
//! A model with a period is *promised* its deadline. Its requests are released at least a period apart: one that comes
//! early counts from when it should have come, and one that comes earlier than that is refused. A promised model
//! keeps its memory and its plan, so that what was measured stays true. Others have another share of memory when models
//! come and go: what was measured counts for the share that it was measured with. Nothing here looks at a clock.
//!
//! Source: processor demand with holds, as `neap_realtime::demand` has it.

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
}

impl Standing {
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
        self.models().values().any(|m| m.promise.is_some())
    }

    pub fn is_promised(&self, name: &str) -> bool {
        self.models().get(name).is_some_and(|m| m.promise.is_some())
    }

    /// Takes a model in, if all promises hold with it. `others_ns` is how long changes of memory keep requests waiting.
    ///
    /// # Errors
    /// Why not, on one line.
    pub fn admit(
        &self,
        name: &str,
        promise: Option<Promise>,
        (share, measured): (Share, Measured),
        others_ns: u64,
    ) -> Result<(), String> {
        let mut models = self.models();
        let was = models.remove(name);
        let mut standing = Standing {
            promise,
            known: was.as_ref().map_or(Vec::new(), |was| was.known.clone()),
            share: Some(share),
            next_ns: was.as_ref().map_or(0, |was| was.next_ns),
        };
        standing.learn(share, measured);
        models.insert(name.into(), standing);
        let checked = self.check(&models, others_ns);
        if checked.is_err() {
            match was {
                Some(was) => models.insert(name.into(), was),
                None => models.remove(name),
            };
        }
        checked
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

    /// Whether a run of this model may go on to its end when a promised request comes.
    pub fn may_go_on(&self, name: &str, room_ns: Option<u64>) -> bool {
        let Some(room_ns) = room_ns else {
            return true;
        };
        let models = self.models();
        let measured = models.get(name).and_then(Standing::measured);
        measured.is_some_and(|measured| self.bound_ns(measured.run_ns) <= room_ns)
    }

    /// When a request of a promised model counts as come; `None` for models without a promise.
    ///
    /// # Errors
    /// How long to wait before asking again, for one that comes more than a period too early.
    pub fn release(&self, name: &str, now_ns: u64) -> Option<Result<Released, Duration>> {
        let mut models = self.models();
        let standing = models.get_mut(name)?;
        let promise = standing.promise?;
        let (period_ns, deadline_ns) = (ns(promise.period), ns(promise.deadline));
        let at_ns = standing.next_ns.max(now_ns);
        let early_ns = at_ns - now_ns;
        if early_ns > period_ns {
            return Some(Err(Duration::from_nanos(early_ns - period_ns)));
        }
        standing.next_ns = at_ns.saturating_add(period_ns);
        Some(Ok(Released {
            at_ns,
            due_ns: at_ns.saturating_add(deadline_ns),
        }))
    }

    /// Every promise, by model.
    pub fn told(&self) -> BTreeMap<String, Told> {
        let models = self.models();
        let work = self.work(&models);
        let promised = models
            .iter()
            .filter_map(|(name, m)| Some((name, m.promise?)));
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
        let others = models.iter().filter(|(_, m)| m.promise.is_none());
        let others = others.map(|(name, m)| (format!("a step of '{name}'"), m.step_ns()));
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
        let promised = models.iter().filter(|(_, m)| m.promise.is_some());
        let needs: Vec<String> = promised
            .zip(work)
            .map(|((name, _), w)| {
                let period = Duration::from_nanos(w.period_ns);
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
            .filter_map(|m| Some((m.promise?, m.measured()?)));
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
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn promise(period_ms: u64, deadline_ms: u64) -> Option<Promise> {
        Some(Promise {
            period: Duration::from_millis(period_ms),
            deadline: Duration::from_millis(deadline_ms),
        })
    }

    fn measured(run_ms: u64, step_ms: u64) -> Measured {
        Measured {
            run_ns: run_ms * MS,
            step_ns: step_ms * MS,
        }
    }

    const SHARE: Share = Share {
        resident_bytes: 1,
        work_bytes: 2,
        latency_ns: 3,
    };

    fn with_share(run_ms: u64, step_ms: u64) -> (Share, Measured) {
        (SHARE, measured(run_ms, step_ms))
    }

    /// A model's figures are those of the share that it has.
    #[test]
    fn what_was_measured_belongs_to_a_share() {
        let all = Admission::new(0.0);
        let other = Share {
            work_bytes: 9,
            ..SHARE
        };
        let shares = |share| BTreeMap::from([("b".to_string(), share), ("a".to_string(), share)]);
        all.admit("a", promise(50, 50), with_share(9, 1), 0)
            .unwrap();
        all.admit("b", None, with_share(20, 5), 0).unwrap();
        let may_go_on = || all.may_go_on("b", all.room_ns());
        assert!(may_go_on());
        all.doubt();
        assert!(!may_go_on());
        all.note_shares(&shares(other));
        assert!(!may_go_on());
        assert_eq!(all.known("b", other), None);
        // With that share its steps are too long, and it stays as it was with the first.
        let refused = all.admit("b", None, (other, measured(90, 45)), 0);
        assert!(refused.is_err() && !may_go_on());
        all.note_shares(&shares(SHARE));
        assert!(may_go_on());
        assert_eq!(all.known("b", SHARE), Some(measured(20, 5)));
        all.admit("b", None, (other, measured(90, 5)), 0).unwrap();
        assert!(!may_go_on());
        assert_eq!(all.known("b", SHARE), Some(measured(20, 5)));
        // A promised model keeps its plan.
        assert_eq!(all.told()["a"].work_ns, 10 * MS);
        for at in 0..2 * MOST_SHARES as u64 {
            let share = Share {
                latency_ns: at,
                ..SHARE
            };
            all.admit("b", None, (share, measured(20, 5)), 0).unwrap();
        }
        assert_eq!(all.known("b", SHARE), None);
    }

    #[test]
    fn promises_that_cannot_be_kept_are_not_made() {
        let all = Admission::new(0.0);
        assert_eq!(all.room_ns(), None);
        assert!(all.may_go_on("any", None));
        all.admit("a", promise(50, 50), with_share(9, 1), 0)
            .unwrap();
        // 10 of 50: others may hold for 40 and one.
        assert_eq!(all.room_ns(), Some(40 * MS + 1));
        all.admit("slow", None, with_share(500, 30), 0).unwrap();
        all.admit("fast", None, with_share(20, 5), 0).unwrap();
        let room = all.room_ns();
        assert!(all.may_go_on("fast", room) && !all.may_go_on("slow", room));
        assert!(!all.may_go_on("unknown", room));
        all.doubt();
        assert!(!all.may_go_on("fast", room) && all.may_go_on("fast", None));
        let refused = all
            .admit("coarse", None, with_share(90, 45), 0)
            .unwrap_err();
        assert!(
            refused.contains("'coarse'") && refused.contains("46.0 ms"),
            "{refused}"
        );
        let refused = all
            .admit("b", promise(100, 15), with_share(9, 1), 0)
            .unwrap_err();
        assert!(
            refused.contains("'a' takes up to 10.0 ms every 50ms"),
            "{refused}"
        );
        let refused = all
            .admit("b", promise(40, 40), with_share(35, 1), 0)
            .unwrap_err();
        assert!(refused.contains("more work than time"), "{refused}");
        // What was refused left nothing.
        assert_eq!(all.room_ns(), Some(40 * MS + 1));
        assert_eq!(all.told()["a"].work_ns, 10 * MS);
        assert_eq!(all.told().len(), 1);
        let refused = all.admit("c", None, with_share(1, 1), 60 * MS).unwrap_err();
        assert!(refused.contains("change of memory"), "{refused}");
        all.forget("a");
        assert!(!all.promises());
        all.admit("coarse", None, with_share(90, 45), 0).unwrap();
    }

    #[test]
    fn a_margin_counts() {
        let all = Admission::new(0.5);
        all.admit("a", promise(30, 30), with_share(20, 1), 0)
            .unwrap_err();
        all.admit("a", promise(32, 32), with_share(20, 1), 0)
            .unwrap();
        assert_eq!(all.told()["a"].work_ns, 31 * MS);
    }

    #[test]
    fn so_many_requests_at_once() {
        let most = |period, deadline| promise(period, deadline).unwrap().most_at_once();
        assert_eq!((most(50, 50), most(50, 49), most(50, 120)), (3, 2, 4));
        assert_eq!(most(1, 5000), MOST_AT_ONCE);
    }

    #[test]
    fn requests_are_released_a_period_apart() {
        let all = Admission::new(0.0);
        all.admit("a", promise(50, 20), with_share(5, 1), 0)
            .unwrap();
        all.admit("b", None, with_share(5, 1), 0).unwrap();
        let at = |now_ms: u64| {
            let released = all.release("a", now_ms * MS).expect("promised");
            released.map(|r| (r.at_ns / MS, r.due_ns / MS))
        };
        assert_eq!(at(100), Ok((100, 120)));
        assert_eq!(at(140), Ok((150, 170)));
        assert_eq!(at(150), Ok((200, 220)));
        assert_eq!(at(160), Err(Duration::from_millis(40)));
        assert_eq!(at(200), Ok((250, 270)));
        assert_eq!(at(900), Ok((900, 920)));
        assert_eq!(all.release("b", 0), None);
        assert_eq!(all.release("c", 0), None);
    }
}
