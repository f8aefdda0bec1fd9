//! Whether the deadlines of programs hold beside each other, by the theory of `neap-realtime`.

use crate::program::{Program, Promise};
use neap_realtime::{LONGEST_NS, SwapCost, System, Task, demand, volumes};

/// What a chunk takes to move, and what programs without a promise may do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Bytes a second, each way, if nothing was measured yet.
    pub in_ns_per_mib: u64,
    pub out_ns_per_mib: u64,
    /// The longest that programs without a promise go on after they were told to yield.
    pub hold_ns: u64,
}

/// A program's job and memory, as they are promised for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    pub wcet_ns: u64,
    pub period_ns: u64,
    pub deadline_ns: u64,
    pub footprint_bytes: u64,
    pub swappable_bytes: u64,
    pub chunk_bytes: u64,
}

impl Claim {
    /// What was promised to a program; for one with nothing promised, with this longest execution.
    pub fn of(program: &Program, wcet_ns: u64) -> Claim {
        let wcet_ns = match program.promise {
            Promise::Kept { wcet_ns, .. } => wcet_ns,
            _ => wcet_ns,
        };
        // Memory that it may still take is claimed with what it has.
        let footprint_bytes = program.footprint_bytes().max(program.quota_bytes);
        Claim {
            wcet_ns,
            period_ns: program.period_ns,
            deadline_ns: program.deadline_ns,
            footprint_bytes,
            swappable_bytes: footprint_bytes - program.fixed_bytes - program.stays_bytes,
            chunk_bytes: program.chunk_bytes,
        }
    }
}

/// The bytes of each that may leave the card, when all deadlines hold in this memory; otherwise why they do not.
/// Programs without a promise are there as well, the largest of which needs `rest_bytes` when it is its turn.
///
/// # Errors
/// A sentence.
pub fn admit(
    claims: &[Claim],
    rest_bytes: u64,
    memory_bytes: u64,
    costs: &Costs,
) -> Result<Vec<u64>, String> {
    let chunk_bytes = claims.iter().map(|c| c.chunk_bytes).max().unwrap_or(1);
    let per_chunk = |ns_per_mib: u64| chunk_bytes.div_ceil(1 << 20) * ns_per_mib;
    let task = |c: &Claim| Task {
        wcet_ns: c.wcet_ns,
        period_ns: c.period_ns,
        deadline_ns: c.deadline_ns,
        footprint_bytes: c.footprint_bytes,
        swappable_bytes: c.swappable_bytes.min(c.footprint_bytes),
    };
    let mut system = System {
        memory_bytes,
        cost: SwapCost {
            chunk_bytes,
            in_ns: per_chunk(costs.in_ns_per_mib),
            out_ns: per_chunk(costs.out_ns_per_mib),
        },
        tasks: claims.iter().map(task).collect(),
    };
    if rest_bytes > 0 {
        // For memory it is one more task, whose jobs are never due.
        system.tasks.push(Task {
            wcet_ns: 1,
            period_ns: LONGEST_NS,
            deadline_ns: LONGEST_NS,
            footprint_bytes: rest_bytes,
            swappable_bytes: rest_bytes,
        });
    }
    system.check().map_err(|error| error.to_string())?;
    // Its memory may be on the way when a job is released, and then it is told to yield.
    let rest_chunks = rest_bytes.div_ceil(chunk_bytes);
    let comes_ns = system.in_ns(rest_chunks).saturating_add(costs.hold_ns);
    let hold_ns = comes_ns.max(system.out_ns(rest_chunks));
    let holds = |chunks: &[u64]| {
        let work = demand::of_swapping(&system, chunks);
        demand::check_beside(&work[..claims.len()], hold_ns).is_admitted()
    };
    let found = volumes::smallest_for_chunk(&system).filter(|chunks| holds(chunks));
    let found = found.or_else(|| volumes::by_demand(&system).filter(|chunks| holds(chunks)));
    let Some(chunks) = found else {
        return Err("a deadline could be missed beside the programs that are there".into());
    };
    Ok(chunks[..claims.len()]
        .iter()
        .map(|c| c * chunk_bytes)
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const MS: u64 = 1_000_000;

    fn claim(wcet_ms: u64, period_ms: u64, mib: u64) -> Claim {
        Claim {
            wcet_ns: wcet_ms * MS,
            period_ns: period_ms * MS,
            deadline_ns: period_ms * MS,
            footprint_bytes: mib * MIB,
            swappable_bytes: mib * MIB,
            chunk_bytes: 32 * MIB,
        }
    }

    const COSTS: Costs = Costs {
        in_ns_per_mib: 25_000,
        out_ns_per_mib: 25_000,
        hold_ns: 5 * MS,
    };

    #[test]
    fn tasks_that_fit_swap_nothing() {
        let claims = [claim(10, 100, 512), claim(20, 200, 512)];
        assert_eq!(admit(&claims, 0, 1024 * MIB, &COSTS), Ok(vec![0, 0]));
    }

    #[test]
    fn tasks_that_do_not_fit_swap_enough() {
        let claims = [
            claim(10, 200, 512),
            claim(20, 400, 512),
            claim(10, 400, 512),
        ];
        let volumes = admit(&claims, 0, 1024 * MIB, &COSTS).unwrap();
        let total: u64 = volumes.iter().sum();
        for (i, own) in volumes.iter().enumerate() {
            assert!(
                1536 * MIB - (total - own) <= 1024 * MIB,
                "task {i}: {volumes:?}"
            );
        }
    }

    #[test]
    fn programs_without_a_promise_keep_their_room() {
        let claims = [claim(10, 400, 512), claim(10, 400, 512)];
        let volumes = admit(&claims, 512 * MIB, 1024 * MIB, &COSTS).unwrap();
        assert!(volumes.iter().sum::<u64>() >= 512 * MIB, "{volumes:?}");
        // Its memory takes longer to come than a period lasts.
        let short = [claim(1, 15, 512), claim(1, 15, 512)];
        assert!(admit(&short, 512 * MIB, 1024 * MIB, &COSTS).is_err());
        assert!(admit(&short, 0, 1024 * MIB, &COSTS).is_ok());
    }

    #[test]
    fn too_much_is_refused() {
        let claims = [claim(60, 100, 512), claim(60, 100, 512)];
        assert!(admit(&claims, 0, 1024 * MIB, &COSTS).is_err());
        // A program without a promise that goes on for as long as a period leaves no time.
        let costs = Costs {
            hold_ns: 95 * MS,
            ..COSTS
        };
        assert!(admit(&[claim(10, 100, 512)], 0, 1024 * MIB, &costs).is_err());
        assert!(admit(&[claim(10, 100, 512)], 0, 1024 * MIB, &COSTS).is_ok());
    }
}
