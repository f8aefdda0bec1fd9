//! How much of each task is swapped: the paper's optimisation (RT-Swap, Equation 1), as an integer program.
//!
//! ```text
//!   minimise Σ xᵢ    over chunk sizes δ and whole numbers of chunks xᵢ
//!   where    xᵢ ≤ mᵢˢ                                   (1b)
//!            Σ mⱼ − Σ xⱼ + xᵢ ≤ mᴰ        for each i     (1c)
//!            B ≥ Oᴼᵘᵗ(xᵢ), Oᴵⁿ(xᵢ) + Cᵢ, C₁ + C₂         (2)
//!            B / T₀ + Σ (Oᴼᵘᵗ(xᵢ) + Oᴵⁿ(xᵢ) + Cᵢ) / Tᵢ ≤ 1 (3)
//! ```
//! What the solver finds counts only if the equations hold in whole numbers, too.

use crate::demand;
use crate::task::{SwapCost, System};
use crate::theorem::{self, recurrence_ns};
use microlp::{ComparisonOp, OptimizationDirection, Problem};

/// Volumes that satisfy the paper's equations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volumes {
    pub cost: SwapCost,
    /// Chunks of each task that may leave memory.
    pub chunks: Vec<u64>,
}

impl Volumes {
    /// What all tasks swap together, at most.
    pub fn total_bytes(&self) -> u64 {
        self.chunks.iter().sum::<u64>() * self.cost.chunk_bytes
    }
}

/// The smallest total volume over these chunk sizes, of which the first is taken when several are as good; `None`
/// when Theorem 1 admits the set with none.
pub fn smallest(system: &System, costs: &[SwapCost]) -> Option<Volumes> {
    let found = costs.iter().filter_map(|&cost| {
        let system = System {
            cost,
            ..system.clone()
        };
        smallest_for_chunk(&system).map(|chunks| Volumes { cost, chunks })
    });
    found.min_by_key(Volumes::total_bytes)
}

/// [`smallest`] for the chunk size of `system`, in chunks.
pub fn smallest_for_chunk(system: &System) -> Option<Vec<u64>> {
    let count = system.tasks.len();
    if theorem::admits(system, &vec![0; count]) {
        return Some(vec![0; count]);
    }
    let footprint: u64 = (0..count).map(|i| system.footprint_chunks(i)).sum();
    let overflow = footprint.saturating_sub(system.memory_chunks());
    // Times in units of the shortest period, so that coefficients are near 1.
    let unit = system.tasks.iter().map(recurrence_ns).min()? as f64;
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let blocking = problem.add_var(
        0.0,
        (theorem::two_longest_ns(system) as f64 / unit, f64::INFINITY),
    );
    let swapped: Vec<_> = (0..count)
        .map(|i| {
            let most = system.swappable_chunks(i).min(i32::MAX as u64) as i32;
            problem.add_integer_var(1.0, (0, most))
        })
        .collect();
    let mut load = vec![(blocking, 1.0)];
    let mut free = 1.0;
    for (task, &x) in system.tasks.iter().zip(&swapped) {
        let others = swapped.iter().filter(|&&y| y != x).map(|&y| (y, 1.0));
        problem.add_constraint(others, ComparisonOp::Ge, overflow as f64);
        let (in_ns, out_ns) = (system.cost.in_ns as f64, system.cost.out_ns as f64);
        let wcet = task.wcet_ns as f64 / unit;
        problem.add_constraint(
            [(blocking, 1.0), (x, -in_ns / unit)],
            ComparisonOp::Ge,
            wcet,
        );
        problem.add_constraint(
            [(blocking, 1.0), (x, -out_ns / unit)],
            ComparisonOp::Ge,
            0.0,
        );
        let period = recurrence_ns(task) as f64;
        load.push((x, (in_ns + out_ns) / period));
        free -= task.wcet_ns as f64 / period;
    }
    problem.add_constraint(load.as_slice(), ComparisonOp::Le, free);
    let solution = problem.solve().ok()?.into_solution().ok()?;
    let chunks: Vec<u64> = swapped
        .iter()
        .map(|&x| solution.var_value(x).round().max(0.0) as u64)
        .collect();
    theorem::admits(system, &chunks).then_some(chunks)
}

/// Small chunks are many, and neighbouring bounds as good as each other.
const MOST_TRIED: u64 = 10_000;

/// Volumes that processor demand admits ([`crate::demand`]), where Theorem 1 admits none: of all that give the largest volume of
/// one task the same bound, those that burden the shortest periods least. Found step by step, of many chunks with some passed
/// over, so a set may be refused though other volumes would do; what is returned was tested.
pub fn by_demand(system: &System) -> Option<Vec<u64>> {
    let count = system.tasks.len();
    let footprint: u64 = (0..count).map(|i| system.footprint_chunks(i)).sum();
    let overflow = footprint.saturating_sub(system.memory_chunks());
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(recurrence_ns(&system.tasks[i])));
    let most = (0..count).map(|i| system.swappable_chunks(i)).max()?;
    let mut before = None;
    let step = usize::try_from(most / MOST_TRIED).map_or(usize::MAX, |n| n + 1);
    for largest in (0..=most).step_by(step) {
        // Without the largest the others must make room (1c).
        let mut left = match overflow {
            0 => 0,
            _ => overflow.saturating_add(largest),
        };
        let mut chunks = vec![0; count];
        for &i in &order {
            chunks[i] = system.swappable_chunks(i).min(largest).min(left);
            left -= chunks[i];
        }
        if left > 0 || !system.volumes_fit(&chunks) || before.as_ref() == Some(&chunks) {
            continue;
        }
        if demand::check(&demand::of_swapping(system, &chunks)).is_admitted() {
            return Some(chunks);
        }
        before = Some(chunks);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Task;

    /// Chunks of a byte: a bound for each would take days.
    #[test]
    fn small_chunks_are_not_tried_one_by_one() {
        let task = |period_ns| Task {
            wcet_ns: 1_000_000,
            period_ns,
            deadline_ns: period_ns,
            footprint_bytes: 1 << 41,
            swappable_bytes: 1 << 41,
        };
        let system = |in_ns| System {
            memory_bytes: 3 << 40,
            cost: SwapCost {
                chunk_bytes: 1,
                in_ns,
                out_ns: in_ns,
            },
            tasks: vec![task(1 << 44), task(1 << 43)],
        };
        assert_eq!(system(1).check(), Ok(()));
        assert!(by_demand(&system(1)).is_some());
        assert_eq!(by_demand(&system(1000)), None);
    }
}
