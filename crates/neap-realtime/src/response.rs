//! How long a job of each task may take from its release to its completion, at most.
//!
//! Spuri's analysis of EDF (INRIA RR-2772, 1996) with the hold of [`crate::demand`]: the longest response is found in a
//! busy interval in which all other tasks release at its beginning and as often as they may. A job
//! released `a` after the beginning begins its last part, which nobody interrupts, at the least S with
//!
//! ```text
//!   S = B(a + Dᵢ) + Σⱼ min(⌊S / Tⱼ⌋, ⌊(a + Dᵢ − Dⱼ) / Tⱼ⌋)⁺¹ · eⱼ + (⌊a / Tᵢ⌋ + 1) · eᵢ − tailᵢ     over j ≠ i with Dⱼ ≤ a + Dᵢ
//! ```
//! and its response is S + tail − a. Releases that matter are those at which its deadline meets another's.

use crate::demand::{Work, busy_period_ns, hold};

/// More candidates than this are not looked at; the deadline is the bound then.
const MOST_CANDIDATES: usize = 20_000;

/// Bounds by task, of a set that [`crate::demand::check`] admits. None is above the deadline.
pub fn bounds_ns(work: &[Work]) -> Vec<u64> {
    let Some(limit_ns) = busy_period_ns(work) else {
        return work.iter().map(|w| w.deadline_ns).collect();
    };
    (0..work.len())
        .map(|task| bound_ns(work, task, limit_ns))
        .collect()
}

fn bound_ns(work: &[Work], task: usize, limit_ns: u64) -> u64 {
    let own = &work[task];
    let mut releases = vec![0u64];
    for other in work {
        // a = k T + D − Dᵢ ≥ 0
        let behind = own.deadline_ns.saturating_sub(other.deadline_ns);
        let mut due = other.deadline_ns + behind.div_ceil(other.period_ns) * other.period_ns;
        while due - own.deadline_ns < limit_ns {
            releases.push(due - own.deadline_ns);
            if releases.len() > MOST_CANDIDATES {
                return own.deadline_ns;
            }
            due += other.period_ns;
        }
    }
    releases.sort_unstable();
    releases.dedup();
    let longest = releases.into_iter().map(|a| response_ns(work, task, a));
    longest.max().unwrap_or(0).min(own.deadline_ns)
}

fn response_ns(work: &[Work], task: usize, release_ns: u64) -> u64 {
    let own = &work[task];
    let due = release_ns + own.deadline_ns;
    let before = (release_ns / own.period_ns + 1) * own.work_ns - own.tail_ns;
    let fixed = hold(work, due).0 + before;
    let mut start = fixed;
    loop {
        let others = work.iter().enumerate().filter(|(j, _)| *j != task);
        let others = others.filter(|(_, w)| w.deadline_ns <= due);
        let jobs = others.map(|(_, w)| {
            let count = (start / w.period_ns).min((due - w.deadline_ns) / w.period_ns) + 1;
            count * w.work_ns
        });
        let next = jobs.fold(fixed, u64::saturating_add);
        if next <= start || next > due {
            let end = next.max(start).saturating_add(own.tail_ns);
            return end.saturating_sub(release_ns).max(own.work_ns);
        }
        start = next;
    }
}
