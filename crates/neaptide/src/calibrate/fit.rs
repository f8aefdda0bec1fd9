//! From observed runs to rates: whole steps as they were seen, and what slices and loads cost by least
//! squares over the steps of plans that stream.

use super::observe::{Moved, Seen};
use super::profile::ComputeRates;
use neap_plan::Workload;

/// Steps with fewer operations per byte wait for memory, steps with more for arithmetic.
const MEMORY_BELOW: f64 = 2.0;
const ARITHMETIC_ABOVE: f64 = 16.0;

/// Rates are taken from steps that together take at least so long.
const ENOUGH_NS: u64 = 200_000;

/// A compute's fixed cost lies in here: no step is shorter. What slices cost above it is fitted.
const OVERHEAD_NS: std::ops::RangeInclusive<u64> = 200..=2_000;

/// A whole step as it was seen.
#[derive(Debug, Clone, Copy)]
pub(super) struct WholeStep {
    pub flops: u64,
    pub touched_bytes: u64,
    pub ns: u64,
}

/// Replaces in `rates` what the steps tell.
pub(super) fn roofline(steps: &[WholeStep], rates: &mut ComputeRates) {
    if let Some(least) = steps.iter().map(|s| s.ns).filter(|&ns| ns > 0).min() {
        rates.compute_overhead_ns = least.clamp(*OVERHEAD_NS.start(), *OVERHEAD_NS.end());
    }
    let rate = |wanted: &dyn Fn(f64) -> bool, amount: &dyn Fn(&WholeStep) -> u64| {
        let (mut sum, mut ns) = (0.0, 0);
        for step in steps {
            if wanted(step.flops as f64 / step.touched_bytes.max(1) as f64) {
                sum += amount(step) as f64;
                ns += step.ns.saturating_sub(rates.compute_overhead_ns);
            }
        }
        (ns >= ENOUGH_NS && sum > 0.0).then(|| sum * 1e9 / ns as f64)
    };
    let flops = rate(&|intensity| intensity > ARITHMETIC_ABOVE, &|s| s.flops);
    let bytes = rate(&|intensity| intensity < MEMORY_BELOW, &|s| s.touched_bytes);
    rates.flops_per_second = flops.unwrap_or(rates.flops_per_second);
    rates.memory_bytes_per_second = bytes.unwrap_or(rates.memory_bytes_per_second);
}

/// How much longer a step took than whole and undisturbed, and why.
#[derive(Debug, Clone, Copy)]
pub(super) struct Excess {
    pub slices: f64,
    pub loads: f64,
    pub bytes: f64,
    pub excess_ns: f64,
    /// The step's time: long steps vary more.
    pub whole_ns: f64,
}

/// What the steps of a plan that streams tell, given the times of whole steps, net of the fixed cost.
pub(super) fn excesses(
    seen: &Seen,
    workload: &Workload,
    whole_ns: &[u64],
    overhead_ns: u64,
) -> Vec<Excess> {
    let steps = seen.steps.iter().zip(&workload.steps).zip(whole_ns);
    steps
        .filter(|((seen, step), whole)| **whole > 0 && seen.ns > 0 && step.rows.is_none())
        .map(|((seen, _), &whole)| {
            let plain_ns = whole + u64::from(seen.computes) * overhead_ns;
            Excess {
                slices: f64::from(if seen.computes > 1 { seen.computes } else { 0 }),
                loads: seen.loads_started,
                bytes: seen.loaded_bytes,
                excess_ns: seen.ns as f64 - plain_ns as f64,
                whole_ns: whole as f64,
            }
        })
        .collect()
}

/// Nanoseconds for a slice, a load and a byte loaded as other networks had them: steps that have much of one have much
/// of the others, and what is what then is mostly noise.
const USUAL: [f64; 3] = [20e3, 15e3, 0.05];

/// So much counts what is usual beside what the steps show. They show it badly: that all of them were slower in one
/// plan's runs than in another's looks like bytes that came meanwhile, and may be the machine's doing.
const USUAL_WEIGHT: f64 = 1.0;

/// Replaces costs of slices and loads in `rates` by those that explain the excesses best; none is
/// negative. Without slices and loads in them, nothing is learnt.
pub(super) fn disturbances(rows: &[Excess], rates: &mut ComputeRates) {
    let enough = |sum: f64, least: f64| sum >= least;
    let slices = enough(rows.iter().map(|r| r.slices).sum(), 8.0);
    let bytes = enough(rows.iter().map(|r| r.bytes).sum(), 4e6);
    let loads = enough(rows.iter().map(|r| r.loads).sum(), 8.0);
    let usable = [slices, loads, bytes];
    let Some(found) = least_squares(rows, usable) else {
        return;
    };
    if slices {
        rates.slice_overhead_ns = found[0].round() as u64;
    }
    if loads {
        rates.load_handling_ns = found[1].round() as u64;
    }
    if bytes {
        rates.load_handling_ns_per_byte = found[2];
    }
}

/// What moving loads takes: a fixed time for each group, and a rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Transfer {
    pub latency_ns: f64,
    pub ns_per_byte: f64,
}

/// As much as this share of all groups, a belief about latency counts: groups of one size do not tell it
/// from the rate.
const BELIEF: f64 = 0.05;

/// Groups that took more than so many times what they should were held up by something else.
const HELD_UP: f64 = 1.6;

/// Rate and latency with the least squares of relative errors; `None` if too little was moved to tell.
pub(super) fn transfer(groups: &[Moved], believed_latency_ns: f64) -> Option<Transfer> {
    const LEAST_GROUPS: usize = 16;
    let mut found: Option<Transfer> = None;
    for _ in 0..3 {
        let (mut n, mut a11, mut a12, mut a22, mut b1, mut b2) = (0usize, 0.0, 0.0, 0.0, 0.0, 0.0);
        for group in groups.iter().filter(|g| g.ns > 0) {
            let (bytes, ns) = (group.bytes as f64, group.ns as f64);
            if found.is_some_and(|f| ns > HELD_UP * (f.latency_ns + bytes * f.ns_per_byte)) {
                continue;
            }
            let weight = 1.0 / (ns * ns);
            n += 1;
            a11 += weight;
            a12 += weight * bytes;
            a22 += weight * bytes * bytes;
            b1 += weight * ns;
            b2 += weight * bytes * ns;
        }
        if n < LEAST_GROUPS {
            return found;
        }
        let belief = BELIEF * n as f64 / believed_latency_ns.max(1.0).powi(2);
        (a11, b1) = (a11 + belief, b1 + belief * believed_latency_ns);
        let determinant = a11 * a22 - a12 * a12;
        let latency_ns = ((a22 * b1 - a12 * b2) / determinant).max(0.0);
        let ns_per_byte = (b2 - a12 * latency_ns) / a22;
        if !(latency_ns.is_finite() && ns_per_byte > 0.0 && ns_per_byte.is_finite()) {
            return found;
        }
        found = Some(Transfer {
            latency_ns,
            ns_per_byte,
        });
    }
    found
}

/// Non-negative least squares in three unknowns, by trying all sets of them; each is drawn towards what is usual.
fn least_squares(rows: &[Excess], usable: [bool; 3]) -> Option<[f64; 3]> {
    let mut normal = [[0.0f64; 3]; 3];
    let mut right = [0.0f64; 3];
    for row in rows {
        let weight = 1.0 / row.whole_ns.max(20_000.0);
        let x = [row.slices, row.loads, row.bytes];
        for i in 0..3 {
            right[i] += weight * x[i] * row.excess_ns;
            for j in 0..3 {
                normal[i][j] += weight * x[i] * x[j];
            }
        }
    }
    for i in 0..3 {
        right[i] += USUAL_WEIGHT * normal[i][i] * USUAL[i];
        normal[i][i] *= 1.0 + USUAL_WEIGHT;
    }
    let mut best: Option<(f64, [f64; 3])> = None;
    for set in 0..8u32 {
        let members: Vec<usize> = (0..3).filter(|i| set >> i & 1 == 1).collect();
        if members.iter().any(|&i| !usable[i]) {
            continue;
        }
        let Some(x) = solve(&normal, &right, &members) else {
            continue;
        };
        if x.iter().any(|v| !v.is_finite() || *v < 0.0) {
            continue;
        }
        // Squares explained: right · x is the reduction at the optimum of a set.
        let gain = (0..3).map(|i| right[i] * x[i]).sum::<f64>();
        if best.is_none_or(|(most, _)| gain > most) {
            best = Some((gain, x));
        }
    }
    best.map(|(_, x)| x)
}

/// Gauss elimination on the rows and columns in `members`; zeros elsewhere.
fn solve(normal: &[[f64; 3]; 3], right: &[f64; 3], members: &[usize]) -> Option<[f64; 3]> {
    let n = members.len();
    let mut a: Vec<Vec<f64>> = members
        .iter()
        .map(|&i| {
            members
                .iter()
                .map(|&j| normal[i][j])
                .chain([right[i]])
                .collect()
        })
        .collect();
    for k in 0..n {
        let pivot = a[k][k];
        // The matrix is positive semidefinite: a vanishing pivot means dependent columns.
        if pivot <= 1e-12 * normal[members[k]][members[k]] {
            return None;
        }
        for i in 0..n {
            if i != k {
                let factor = a[i][k] / pivot;
                for j in k..=n {
                    a[i][j] -= factor * a[k][j];
                }
            }
        }
    }
    let mut x = [0.0; 3];
    for (k, &i) in members.iter().enumerate() {
        x[i] = a[k][n] / a[k][k];
    }
    Some(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates() -> ComputeRates {
        ComputeRates {
            flops_per_second: 1e11,
            memory_bytes_per_second: 1e10,
            compute_overhead_ns: 5_000,
            slice_overhead_ns: 1,
            load_handling_ns: 2,
            load_handling_ns_per_byte: 3.0,
        }
    }

    fn row(slices: f64, loads: f64, bytes: f64, excess_ns: f64) -> Excess {
        Excess {
            slices,
            loads,
            bytes,
            excess_ns,
            whole_ns: 1e6,
        }
    }

    /// Steps with slices, loads and bytes in different shares, and what these cost in them.
    fn rows([slice, load, byte]: [f64; 3]) -> Vec<Excess> {
        let of = |i: usize| {
            let [slices, loads, bytes] = [i % 5, i % 3, i % 7].map(|n| n as f64);
            let bytes = 1e6 * bytes;
            row(
                slices,
                loads,
                bytes,
                slice * slices + load * loads + byte * bytes,
            )
        };
        (0..105).map(of).collect()
    }

    #[test]
    fn costs_are_found_and_drawn_towards_the_usual_ones() {
        let mut found = rates();
        disturbances(&rows(USUAL), &mut found);
        assert_eq!(found.slice_overhead_ns, USUAL[0] as u64);
        assert_eq!(found.load_handling_ns, USUAL[1] as u64);
        assert!((found.load_handling_ns_per_byte - USUAL[2]).abs() < 1e-9);
        // Twice the usual bytes, say the steps.
        disturbances(&rows([USUAL[0], USUAL[1], 0.1]), &mut found);
        assert!((0.06..0.1).contains(&found.load_handling_ns_per_byte));
        // Where steps have bytes only, loads and slices keep what they had.
        let before = found;
        let bytes_only: Vec<Excess> = (1..20)
            .map(|i| row(0.0, 0.0, 1e6 * f64::from(i), 2e5 * f64::from(i)))
            .collect();
        disturbances(&bytes_only, &mut found);
        assert_eq!(found.slice_overhead_ns, before.slice_overhead_ns);
        assert_eq!(found.load_handling_ns, before.load_handling_ns);
        assert!((0.1..0.2).contains(&found.load_handling_ns_per_byte));
    }

    #[test]
    fn rate_and_latency_are_found_in_groups_of_many_sizes_whatever_is_held_up() {
        let moved = |bytes: u64, ns: u64| Moved { bytes, ns };
        let groups = |sizes: &[u64]| -> Vec<Moved> {
            let all = sizes.iter().cycle().take(200).enumerate();
            all.map(|(i, &bytes)| {
                let ns = 60_000 + bytes / 2;
                moved(bytes, if i % 23 == 7 { 6 * ns } else { ns })
            })
            .collect()
        };
        let found = transfer(&groups(&[40_000, 300_000, 4 << 20]), 100_000.0).unwrap();
        assert!((found.latency_ns / 60_000.0 - 1.0).abs() < 0.1, "{found:?}");
        assert!((found.ns_per_byte / 0.5 - 1.0).abs() < 0.02, "{found:?}");
        // Of one size: what is believed, and the rate that goes with it.
        let found = transfer(&groups(&[4 << 20]), 100_000.0).unwrap();
        assert!(
            (found.latency_ns / 100_000.0 - 1.0).abs() < 0.05,
            "{found:?}"
        );
        let whole_ns = found.latency_ns + found.ns_per_byte * f64::from(4 << 20);
        assert!((whole_ns / 2_157_152.0 - 1.0).abs() < 0.01, "{found:?}");
        assert_eq!(transfer(&groups(&[1 << 20])[..3], 100_000.0), None);
    }

    #[test]
    fn no_cost_is_negative_and_what_was_not_seen_stays() {
        // Slices seem to make steps much faster: noise.
        let rows: Vec<Excess> = (0..20)
            .map(|i| row(f64::from(i % 4), 0.0, 0.0, -3e4 * f64::from(i % 4)))
            .collect();
        let mut found = rates();
        disturbances(&rows, &mut found);
        assert_eq!(found.slice_overhead_ns, 0);
        assert_eq!(
            (found.load_handling_ns, found.load_handling_ns_per_byte),
            (2, 3.0)
        );
        let before = found;
        disturbances(&[], &mut found);
        assert_eq!(found, before);
    }

    #[test]
    fn rates_come_from_the_steps_that_show_them() {
        let step = |flops, touched_bytes, ns| WholeStep {
            flops,
            touched_bytes,
            ns,
        };
        let steps = [
            step(100_000_000, 1_000, 1_001_000),
            step(100, 4_000_000, 401_000),
            step(0, 64, 1_000),
        ];
        let mut found = rates();
        roofline(&steps, &mut found);
        assert_eq!(found.compute_overhead_ns, 1_000);
        assert!((found.flops_per_second / 1e11 - 1.0).abs() < 1e-9);
        assert!((found.memory_bytes_per_second / 1e10 - 1.0).abs() < 1e-3);
        let before = found;
        roofline(&[], &mut found);
        assert_eq!(found, before);
    }
}
