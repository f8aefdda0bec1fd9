//! Who gets how much: resident weights of every model, and one work memory that is large enough for each.
//!
//! ```text
//!   candidates of a model    work │▒│ ▒▒ │▒▒▒▒│▒▒▒▒▒▒     the same with more memory: faster
//!                        resident │ │▓   │▓▓▓ │▓▓▓▓▓▓▓▓
//!
//!   for each size of work    what every model can do within it, by its resident weights  ─► allocate::curves
//! ```
//! For each size of work memory the division is exact ([`neap_planner::allocate::curves`]): the largest weighted latency is
//! as small as it can be with these candidates. What is left then makes others faster, the slowest first, one candidate at a
//! time. The best of all sizes is taken.

use neap_planner::allocate::{self, Curve};
use std::cmp::Ordering;

/// A plan that a model could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Candidate {
    /// What it was planned for: all of its memory and page tables.
    pub room_bytes: u64,
    /// Shared with others.
    pub work_bytes: u64,
    /// The model's own: weights that stay, and page tables.
    pub own_bytes: u64,
    pub latency_ns: u64,
}

/// A model as memory is divided among several.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim<'a> {
    /// Not empty.
    pub candidates: &'a [Candidate],
    pub weight: f64,
    /// Candidates for less are not taken, unless there are no others.
    pub least_bytes: u64,
}

/// A division of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Division {
    pub work_bytes: u64,
    /// By claim.
    pub shares: Vec<Candidate>,
}

/// Memory is less than this, the least with which all claims can be met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooLittle {
    pub least_bytes: u64,
}

impl Division {
    /// Of everything.
    pub fn bytes(&self) -> u64 {
        sum(self.shares.iter().map(|s| s.own_bytes)).saturating_add(self.work_bytes)
    }
}

impl<'a> Claim<'a> {
    fn admissible(&self) -> impl Iterator<Item = &'a Candidate> + use<'a> {
        let least = self.candidates.iter().map(|c| c.room_bytes).max();
        let least = least.map_or(0, |most| most.min(self.least_bytes));
        let all = self.candidates.iter();
        all.filter(move |c| c.room_bytes >= least)
    }

    /// Latency by its own memory, with so much work memory; `None` when that is too little.
    fn curve(&self, work_bytes: u64) -> Option<Curve> {
        let within = self.admissible().filter(|c| c.work_bytes <= work_bytes);
        let points = within.map(|c| (c.own_bytes, c.latency_ns));
        Curve::new(points.collect(), self.weight)
    }

    /// The candidate within both that is faster than another, and of those takes least memory.
    fn next_faster(&self, than: &Candidate, work_bytes: u64, own_bytes: u64) -> Option<Candidate> {
        let within = self
            .admissible()
            .filter(|c| c.work_bytes <= work_bytes && c.own_bytes <= own_bytes);
        within
            .filter(|c| c.latency_ns < than.latency_ns)
            .min_by_key(|c| (c.own_bytes, c.latency_ns, c.work_bytes))
            .copied()
    }

    /// The fastest candidate within both; of those, the one with least memory.
    fn fastest(&self, work_bytes: u64, own_bytes: u64) -> Option<Candidate> {
        let within = self
            .admissible()
            .filter(|c| c.work_bytes <= work_bytes && c.own_bytes <= own_bytes);
        within
            .min_by_key(|c| (c.latency_ns, c.own_bytes, c.work_bytes))
            .copied()
    }
}

/// Divides `total_bytes` among claims.
///
/// # Errors
/// [`TooLittle`] names the least with which there is a division.
pub(super) fn divide(claims: &[Claim], total_bytes: u64) -> Result<Division, TooLittle> {
    let mut best: Option<(Vec<f64>, Division)> = None;
    let mut least_bytes = u64::MAX;
    for work_bytes in work_sizes(claims) {
        let curves = claims.iter().map(|claim| claim.curve(work_bytes));
        let Some(curves) = curves.collect::<Option<Vec<_>>>() else {
            continue;
        };
        let least = sum(curves.iter().map(Curve::least_bytes)).saturating_add(work_bytes);
        least_bytes = least_bytes.min(least);
        let Some(room_bytes) = total_bytes.checked_sub(work_bytes) else {
            continue;
        };
        let Ok(budgets) = allocate::curves(&curves, room_bytes) else {
            continue;
        };
        let shares = claims.iter().zip(&budgets);
        let shares = shares.map(|(claim, &own)| claim.fastest(work_bytes, own));
        let Some(mut shares) = shares.collect::<Option<Vec<_>>>() else {
            continue;
        };
        spend(claims, &mut shares, work_bytes, room_bytes);
        let found = Division {
            work_bytes: shares.iter().map(|s| s.work_bytes).max().unwrap_or(0),
            shares,
        };
        let times = times(claims, &found);
        let is_better = best.as_ref().is_none_or(|(best_times, best)| {
            let order = compare(&times, best_times);
            order.then(found.bytes().cmp(&best.bytes())) == Ordering::Less
        });
        if is_better {
            best = Some((times, found));
        }
    }
    match (best, claims.is_empty()) {
        (Some((_, division)), _) => Ok(division),
        (None, true) => Ok(Division {
            work_bytes: 0,
            shares: Vec::new(),
        }),
        (None, false) => Err(TooLittle { least_bytes }),
    }
}

/// Gives what is left of `room_bytes` to whom it makes faster: the slowest of those that it can goes over to its next
/// faster candidate, again and again.
fn spend(claims: &[Claim], shares: &mut [Candidate], work_bytes: u64, room_bytes: u64) {
    let used = sum(shares.iter().map(|s| s.own_bytes));
    let mut left = room_bytes.saturating_sub(used);
    loop {
        let next = |at: usize| {
            let share = shares[at];
            claims[at].next_faster(&share, work_bytes, share.own_bytes.saturating_add(left))
        };
        let faster = (0..claims.len()).filter_map(|at| Some((at, next(at)?)));
        let time = |at: usize| claims[at].weight * shares[at].latency_ns as f64;
        // Of equally slow ones the first.
        let slowest = faster.max_by(|(a, _), (b, _)| time(*a).total_cmp(&time(*b)).then(b.cmp(a)));
        let Some((at, faster)) = slowest else {
            return;
        };
        // It may take less than before.
        left = (left.saturating_add(shares[at].own_bytes)).saturating_sub(faster.own_bytes);
        shares[at] = faster;
    }
}

/// Every size of work memory that makes a difference, ascending.
fn work_sizes(claims: &[Claim]) -> Vec<u64> {
    let all = claims.iter().flat_map(Claim::admissible);
    let mut sizes: Vec<u64> = all.map(|c| c.work_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// Weighted latencies, the largest first.
fn times(claims: &[Claim], division: &Division) -> Vec<f64> {
    let pairs = claims.iter().zip(&division.shares);
    let mut times: Vec<f64> = pairs
        .map(|(claim, share)| claim.weight * share.latency_ns as f64)
        .collect();
    times.sort_unstable_by(|a, b| b.total_cmp(a));
    times
}

fn compare(a: &[f64], b: &[f64]) -> Ordering {
    let pairs = a.iter().zip(b);
    pairs.fold(Ordering::Equal, |order, (a, b)| order.then(a.total_cmp(b)))
}

fn sum(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(work: u64, own: u64, ns: u64) -> Candidate {
        Candidate {
            room_bytes: work + own,
            work_bytes: work,
            own_bytes: own,
            latency_ns: ns,
        }
    }

    fn claim(candidates: &[Candidate]) -> Claim<'_> {
        Claim {
            candidates,
            weight: 1.0,
            least_bytes: 0,
        }
    }

    /// Every choice of one candidate for each claim.
    fn by_hand(claims: &[Claim], total: u64) -> Option<Vec<f64>> {
        let mut choices = vec![Vec::new()];
        for claim in claims {
            let longer = choices.iter().flat_map(|shares: &Vec<Candidate>| {
                claim.candidates.iter().map(|&c| {
                    let mut shares = shares.clone();
                    shares.push(c);
                    shares
                })
            });
            choices = longer.collect();
        }
        let divisions = choices.into_iter().map(|shares| Division {
            work_bytes: shares.iter().map(|s| s.work_bytes).max().unwrap_or(0),
            shares,
        });
        let feasible = divisions.filter(|d| d.bytes() <= total);
        feasible
            .map(|d| times(claims, &d))
            .min_by(|a, b| compare(a, b))
    }

    #[test]
    fn as_good_as_every_choice_that_there_is() {
        let mut seed = 0x2545_F491_4F6C_DD1D_u64;
        let mut next = |n: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            (seed >> 20) % n
        };
        let mut met = 0;
        for _ in 0..300 {
            let models: Vec<Vec<Candidate>> = (0..3)
                .map(|_| {
                    let count = 1 + next(4);
                    let mut ns = 1000;
                    let mut own = next(5);
                    (0..count)
                        .map(|_| {
                            ns -= 1 + next(200);
                            own += next(20);
                            candidate(1 + next(10), own, ns)
                        })
                        .collect()
                })
                .collect();
            let weights = [1.0, 2.0, 0.5];
            let claims: Vec<Claim> = models
                .iter()
                .zip(weights)
                .map(|(model, weight)| Claim {
                    weight,
                    ..claim(model)
                })
                .collect();
            for total in [5, 20, 40, 80, 200] {
                let found = divide(&claims, total);
                let expected = by_hand(&claims, total);
                match (found, expected) {
                    (Ok(found), Some(expected)) => {
                        assert!(found.bytes() <= total);
                        // Where two are as slow, of the others less is promised.
                        assert_eq!(times(&claims, &found)[0], expected[0]);
                        met += 1;
                    }
                    (Err(TooLittle { least_bytes }), None) => {
                        assert!(least_bytes > total);
                        assert!(divide(&claims, least_bytes).is_ok());
                        assert!(divide(&claims, least_bytes - 1).is_err());
                    }
                    other => panic!("{other:?} of {total}"),
                }
            }
        }
        assert!(met > 500, "{met}");
    }

    #[test]
    fn work_memory_counts_once() {
        let one = [candidate(100, 10, 50), candidate(100, 40, 20)];
        let claims = vec![claim(&one); 4];
        assert_eq!(divide(&claims, 139), Err(TooLittle { least_bytes: 140 }));
        let least = divide(&claims, 140).expect("feasible");
        assert_eq!((least.work_bytes, least.bytes()), (100, 140));
        let all = divide(&claims, 260).expect("feasible");
        assert!(all.shares.iter().all(|s| s.latency_ns == 20));
    }

    #[test]
    fn more_work_memory_is_taken_where_it_pays() {
        let with_work = [candidate(10, 10, 100), candidate(50, 10, 30)];
        let claims = [claim(&with_work), claim(&with_work)];
        let small = divide(&claims, 69).expect("feasible");
        assert_eq!((small.work_bytes, small.shares[0].latency_ns), (10, 100));
        let large = divide(&claims, 70).expect("feasible");
        assert_eq!((large.work_bytes, large.shares[1].latency_ns), (50, 30));
    }

    /// The second step is too large for all of four, so two of them take it.
    #[test]
    fn what_is_left_makes_some_faster() {
        let candidates = [candidate(10, 0, 100), candidate(10, 30, 40)];
        let four = [claim(&candidates); 4];
        let found = divide(&four, 10 + 2 * 30 + 29).expect("feasible");
        let times: Vec<u64> = found.shares.iter().map(|s| s.latency_ns).collect();
        assert_eq!(times, [40, 40, 100, 100]);
        assert_eq!(found.bytes(), 70);
        let mut urgent = four;
        urgent[3].weight = 2.0;
        let found = divide(&urgent, 10 + 30).expect("feasible");
        assert_eq!(found.shares[3].latency_ns, 40);
    }

    #[test]
    fn a_model_that_must_not_be_slow_has_its_least() {
        let candidates = [candidate(10, 0, 100), candidate(10, 30, 40)];
        let one = claim(&candidates);
        let other = Claim {
            least_bytes: 40,
            weight: 0.1,
            ..one
        };
        let found = divide(&[one, other], 50).expect("feasible");
        assert_eq!(found.shares[1].latency_ns, 40);
        assert!(divide(&[one, other], 39).is_err());
        let endless = Claim {
            least_bytes: u64::MAX,
            ..one
        };
        assert_eq!(divide(&[endless], 40).expect("the largest").bytes(), 40);
        assert_eq!(divide(&[], 0).expect("nothing").bytes(), 0);
    }
}
