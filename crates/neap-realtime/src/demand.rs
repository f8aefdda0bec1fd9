//! A sharper test than Theorem 1: processor demand under EDF with regions that nobody interrupts.
//!
//! ```text
//!   for every L at which a job can be due:   B(L) + Σᵢ max(0, ⌊(L − Dᵢ) / Tᵢ⌋ + 1) · eᵢ  ≤  L
//!   where                 B(L) = max { hⱼ − 1 : Dⱼ > L }, or 0
//! ```
//! `eᵢ` is the longest that a job of task i keeps the system busy. `hⱼ` (*hold*) is the longest that others wait once a
//! job of task j has begun something that is not interrupted. Times are whole nanoseconds.
//!
//! # Why it is sound
//!
//! Let a job miss its deadline d. H is the set of jobs whose deadlines are not after d. Let s be the last instant before at which either
//! no job of H is pending, or something of a job outside H begins. All pending jobs of H were released after s, but for one that may be
//! executing while a job outside H is fetched beside it; this one is part of the hold. What began outside H by s had its release by then and its
//! deadline after d, so its task j has Dⱼ > d − s, and it delays H by at most hⱼ − 1 beyond s + 1. From there to
//! d the system does nothing but work of H's jobs, and each one's work is at most eᵢ. So B(L) + demand(L) > L
//! for L = d − s − 1. The paper takes the largest hold, whatever L, and compares it with the shortest period.
//!
//! For tasks that only execute (hⱼ = Cⱼ, eᵢ = Cᵢ) the test is exact: a set that fails it misses a deadline when
//! the task that holds is released one nanosecond before all others (Jeffay, Stanat and Martel, RTSS 1991, Theorem 4.1; George,
//! Rivierre and Spuri, INRIA RR-2966, 1996, for any deadlines).
//!
//! Lengths that matter are deadlines below the longest busy period. They are visited downwards, as QPA does (Zhang and Burns, IEEE Transactions
//! on Computers 58(9), 2009), once for each range of L in which B(L) is constant.

use crate::ratio::Share;
use crate::simulate::Actor;
use crate::task::{LONGEST_NS, System};

/// One task, as the test sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub period_ns: u64,
    pub deadline_ns: u64,
    /// e: the longest that a job keeps the system busy.
    pub work_ns: u64,
    /// h: the longest that others wait for what a job has begun.
    pub hold_ns: u64,
    /// The last part of the work, which nobody interrupts.
    pub tail_ns: u64,
}

/// What the test says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Admitted,
    /// More work than time.
    Overloaded,
    /// Too much to do within an interval of this length.
    Misses {
        interval_ns: u64,
        demand_ns: u64,
        /// The task that holds others up, and how long.
        holder: Option<usize>,
        hold_ns: u64,
    },
    /// So near to full use that the busy period is too long to be looked at.
    Undecided,
}

impl Verdict {
    pub fn is_admitted(self) -> bool {
        self == Verdict::Admitted
    }
}

/// Steps before a busy period counts as too long.
const MOST_STEPS: u32 = 200_000;

/// The tasks of a system under the paper's policy with these volumes, in chunks.
///
/// A job's swap-in and execution are one region. Beside it waits at most one other job that executes already: it holds
/// others up before the region does, if the region's swap-in could begin, which needs a volume.
pub fn of_swapping(system: &System, volumes: &[u64]) -> Vec<Work> {
    let tasks = system.tasks.iter().zip(volumes).enumerate();
    tasks
        .map(|(i, (task, &chunks))| {
            let others = system.tasks.iter().enumerate().filter(|(k, _)| *k != i);
            let beside = others.map(|(_, t)| t.wcet_ns).max().unwrap_or(0);
            let before = match chunks {
                0 => 0,
                _ => beside.max(system.in_ns(chunks)),
            };
            Work {
                period_ns: task.period_ns,
                deadline_ns: task.deadline_ns,
                work_ns: system.occupation_ns(i, chunks),
                hold_ns: (before + task.wcet_ns).max(system.out_ns(chunks)),
                tail_ns: task.wcet_ns,
            }
        })
        .collect()
}

/// Tasks that only execute, in steps. Every job of an earlier deadline may interrupt one other job once, so it is charged
/// with the longest resume time of those that it can interrupt: those with longer deadlines.
pub fn of_steps(actors: &[Actor]) -> Vec<Work> {
    let works = actors.iter().map(|actor| {
        let later = actors.iter().filter(|a| a.deadline_ns > actor.deadline_ns);
        let later = later.filter(|a| a.step_ns < a.wcet_ns);
        let resume_ns = later.map(|a| a.resume_ns).max().unwrap_or(0);
        Work {
            period_ns: actor.period_ns,
            deadline_ns: actor.deadline_ns,
            work_ns: actor.wcet_ns + resume_ns,
            hold_ns: actor.step_ns.min(actor.wcet_ns),
            // Its last step may be short.
            tail_ns: match actor.step_ns < actor.wcet_ns {
                true => 1,
                false => actor.wcet_ns,
            },
        }
    });
    works.collect()
}

/// Work that must be done within an interval of this length by jobs released and due in it.
pub fn demand_ns(work: &[Work], interval_ns: u64) -> u64 {
    let each = work.iter().map(|w| jobs(w, interval_ns) * w.work_ns);
    each.fold(0, u64::saturating_add)
}

/// Jobs of a task that are released and due within an interval.
pub fn jobs(work: &Work, interval_ns: u64) -> u64 {
    interval_ns
        .checked_sub(work.deadline_ns)
        .map_or(0, |rest| rest / work.period_ns + 1)
}

/// B(L), and whose.
pub fn hold(work: &[Work], interval_ns: u64) -> (u64, Option<usize>) {
    let later = work.iter().enumerate();
    let later = later.filter(|(_, w)| w.deadline_ns > interval_ns && w.hold_ns > 1);
    let longest = later.max_by_key(|(_, w)| w.hold_ns);
    longest.map_or((0, None), |(i, w)| (w.hold_ns - 1, Some(i)))
}

pub fn utilisation(work: &[Work]) -> Share {
    work.iter().map(|w| Share::of(w.work_ns, w.period_ns)).sum()
}

/// Whether no job can miss its deadline.
pub fn check(work: &[Work]) -> Verdict {
    check_beside(work, 0)
}

/// Whether no job can miss its deadline beside work without deadlines, which begins only where no job is pending, and
/// nothing of which keeps a job waiting for longer than `others_hold_ns`.
///
/// Such work is a task whose deadline is after all others': it has no part in demand, and holds up every interval.
pub fn check_beside(work: &[Work], others_hold_ns: u64) -> Verdict {
    if utilisation(work) > Share::ONE {
        return Verdict::Overloaded;
    }
    let Some(limit_ns) = longest_interval_beside(work, others_hold_ns) else {
        return Verdict::Undecided;
    };
    // B(L) changes at deadlines only.
    let mut edges: Vec<u64> = work.iter().map(|w| w.deadline_ns).collect();
    edges.extend([limit_ns, 0]);
    edges.sort_unstable();
    edges.dedup();
    let mut steps = 0;
    for range in edges.windows(2) {
        let (low, high) = (range[0], range[1].min(limit_ns));
        let (hold_ns, holder) = match hold(work, low) {
            (hold_ns, _) if hold_ns < others_hold_ns.saturating_sub(1) => {
                (others_hold_ns - 1, None)
            }
            longest => longest,
        };
        let mut at = last_deadline_before(work, high);
        while let Some(interval_ns) = at.filter(|&l| l >= low) {
            steps += 1;
            if steps > MOST_STEPS {
                return Verdict::Undecided;
            }
            let demand_ns = demand_ns(work, interval_ns);
            let needed = demand_ns.saturating_add(hold_ns);
            if needed > interval_ns {
                return Verdict::Misses {
                    interval_ns,
                    demand_ns,
                    holder,
                    hold_ns,
                };
            }
            at = match needed < interval_ns {
                true => last_deadline_before(work, needed + 1),
                false => last_deadline_before(work, interval_ns),
            };
        }
    }
    Verdict::Admitted
}

/// The longest that work without deadlines may keep a job waiting ([`check_beside`]); `None` when deadlines are missed
/// without it.
pub fn most_beside_ns(work: &[Work]) -> Option<u64> {
    let admits = |hold_ns: u64| check_beside(work, hold_ns).is_admitted();
    if !admits(0) {
        return None;
    }
    // Whoever waits for so long is late.
    let shortest = work.iter().map(|w| w.deadline_ns).min();
    let (mut low, mut high) = (0, shortest.unwrap_or(LONGEST_NS).saturating_add(2));
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        match admits(middle) {
            true => low = middle,
            false => high = middle,
        }
    }
    Some(low)
}

/// The latest deadline of any job before that instant, when all are released at once.
fn last_deadline_before(work: &[Work], before_ns: u64) -> Option<u64> {
    let each = work.iter().filter_map(|w| {
        let rest = before_ns.checked_sub(w.deadline_ns + 1)?;
        Some(w.deadline_ns + rest / w.period_ns * w.period_ns)
    });
    each.max()
}

/// No miss ends a longer interval than this; `None` where it is not found in reasonable time.
pub fn longest_interval_ns(work: &[Work]) -> Option<u64> {
    longest_interval_beside(work, 0)
}

fn longest_interval_beside(work: &[Work], others_hold_ns: u64) -> Option<u64> {
    let hold_ns = longest_hold_ns(work).max(others_hold_ns);
    let busy = busy_period_beside(work, others_hold_ns);
    // Demand is at most U · L + Σ (Tᵢ − Dᵢ)⁺ · eᵢ / Tᵢ.
    let used = utilisation(work).as_f64();
    let early: f64 = work
        .iter()
        .map(|w| {
            let slack = w.period_ns.saturating_sub(w.deadline_ns);
            slack as f64 * w.work_ns as f64 / w.period_ns as f64
        })
        .sum();
    let bound = (hold_ns as f64 + early) / (1.0 - used) * (1.0 + 1e-9) + 2.0;
    let longest = work.iter().map(|w| w.deadline_ns).max().unwrap_or(0);
    let linear = (used < 1.0 - 1e-12 && bound < u64::MAX as f64 / 4.0)
        .then_some((bound as u64).max(longest + 1));
    // After all periods' least common multiple the same lengths come again, with as much more time as work.
    let again = hyperperiod_ns(work).and_then(|h| h.checked_add(longest + 1));
    [busy, linear, again].into_iter().flatten().min()
}

/// The least common multiple of the periods, if it is not absurdly long.
pub fn hyperperiod_ns(work: &[Work]) -> Option<u64> {
    work.iter().try_fold(1u64, |all, w| {
        let (mut a, mut b) = (all, w.period_ns);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        (all / a)
            .checked_mul(w.period_ns)
            .filter(|&h| h < u64::MAX / 4)
    })
}

/// How long the system can be busy without a pause; `None` as for [`longest_interval_ns`].
pub fn busy_period_ns(work: &[Work]) -> Option<u64> {
    busy_period_beside(work, 0)
}

fn longest_hold_ns(work: &[Work]) -> u64 {
    work.iter().map(|w| w.hold_ns).max().unwrap_or(0)
}

fn busy_period_beside(work: &[Work], others_hold_ns: u64) -> Option<u64> {
    let hold_ns = longest_hold_ns(work).max(others_hold_ns);
    let mut length = hold_ns.saturating_add(work.iter().map(|w| w.work_ns).sum());
    for _ in 0..MOST_STEPS {
        let jobs = work.iter().map(|w| {
            let count = length.div_ceil(w.period_ns).max(1);
            count.saturating_mul(w.work_ns)
        });
        let next = jobs.fold(hold_ns, u64::saturating_add);
        if next == length {
            // Half-open: a deadline at its very end is looked at, too.
            return Some(length.saturating_add(1));
        }
        if next > u64::MAX / 4 {
            return None;
        }
        length = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(wcet: u64, period: u64, deadline: u64) -> Work {
        Work {
            period_ns: period,
            deadline_ns: deadline,
            work_ns: wcet,
            hold_ns: wcet,
            tail_ns: wcet,
        }
    }

    /// Every length one after another, as far as any could matter.
    fn check_slowly(work: &[Work], others_hold_ns: u64) -> bool {
        let limit = 2 * 3 * 4 * 5 * 7 * 6;
        let held = |l| hold(work, l).0.max(others_hold_ns.saturating_sub(1));
        utilisation(work) <= Share::ONE
            && (0..limit).all(|l| match demand_ns(work, l) {
                0 => true,
                demand => demand + held(l) <= l,
            })
    }

    #[test]
    fn others_may_hold_as_long_as_there_is_slack() {
        // 3 in 6 has 3 left; that one waits for 4 before it begins is 3 of waiting.
        assert_eq!(most_beside_ns(&[plain(3, 6, 6)]), Some(4));
        assert_eq!(most_beside_ns(&[plain(7, 6, 6)]), None);
        let two = [plain(1, 4, 4), plain(2, 8, 8)];
        assert_eq!(most_beside_ns(&two), Some(4));
        assert!(check_beside(&two, 4).is_admitted());
        assert!(matches!(
            check_beside(&two, 5),
            Verdict::Misses { holder: None, .. }
        ));
        assert!(most_beside_ns(&[]).is_some());
    }

    #[test]
    fn the_longest_of_later_deadlines_is_waited_for() {
        // Jeffay's example of blocking: 1 in 3 fits beside 3 in 6, but not beside 4 in 8.
        assert!(check(&[plain(1, 3, 3), plain(3, 6, 6)]).is_admitted());
        assert_eq!(
            check(&[plain(1, 3, 3), plain(4, 8, 8)]),
            Verdict::Misses {
                interval_ns: 3,
                demand_ns: 1,
                holder: Some(1),
                hold_ns: 3
            }
        );
        assert_eq!(
            check(&[plain(2, 3, 3), plain(3, 6, 6)]),
            Verdict::Overloaded
        );
    }

    #[test]
    fn leaping_downwards_finds_what_every_length_finds() {
        let mut random = crate::Random::new(5, 0);
        let (mut admitted, mut refused) = (0, 0);
        for _ in 0..4000 {
            let count = 1 + random.index(4);
            let work: Vec<Work> = (0..count)
                .map(|_| {
                    let period: u64 = [2, 3, 4, 5, 6, 7, 10, 12][random.index(8)];
                    let wcet = random.between(1, period.div_ceil(2));
                    let mut w = plain(wcet, period, random.between(wcet, 2 * period));
                    w.hold_ns = random.between(0, 2 * wcet);
                    w
                })
                .collect();
            let others = random.below(4);
            let slow = check_slowly(&work, others);
            let leaping = check_beside(&work, others).is_admitted();
            assert_eq!(leaping, slow, "{others} beside {work:?}");
            if slow {
                let most = most_beside_ns(&work).expect("admitted with some");
                assert!(most >= others && check_slowly(&work, most));
                assert!(!check_slowly(&work, most + 1), "{most} beside {work:?}");
            }
            *(if slow { &mut admitted } else { &mut refused }) += 1;
        }
        assert!(admitted > 300 && refused > 300, "{admitted} {refused}");
    }
}
