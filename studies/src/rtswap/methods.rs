//! Ways to run tasks that need more memory than there is, and whether each is schedulable.
//!
//! Costs of transfers are fitted to the paper's Figure 4: 300 MB take 35.3, 26.2 and 41.6 ms to swap out in chunks of 2, 64 and 256 MB
//! (least squares over 150, 5 and 2 chunks of 300, 320 and 512 MB), and 28.3 ms to swap in where they take 26.2 to swap out.
//! Through pageable memory they take 192.6 and 93.9 ms in chunks of 64 MB.

use super::paging;
use super::workloads::{MIB, MS, Task};
use neap_realtime::budgets::{Point, Streaming, nearly_least_memory};
use neap_realtime::{Effort, SwapCost, System, Task as Model, volumes};

const OUT_MS_PER_MIB: f64 = 0.0809;
const MS_PER_CHUNK: f64 = 0.0735;
const IN_OVER_OUT: f64 = 28.3 / 26.2;
/// 5 chunks of 64 MB, less their handling.
const PAGEABLE_OUT_MS_PER_MIB: f64 = (192.6 - 5.0 * MS_PER_CHUNK) / 320.0;
const PAGEABLE_IN_MS_PER_MIB: f64 = (93.9 - 5.0 * MS_PER_CHUNK) / 320.0;

const CHUNKS_MIB: [u64; 8] = [2, 4, 8, 16, 32, 64, 128, 256];

/// What the smallest physical chunk of 2 MB costs each network where every object has chunks of its own, in tenths
/// of GB (Table II, at 416; the number of small objects does not depend on the resolution).
const FRAGMENTED: [u64; 4] = [21, 9, 31, 20];
/// Objects above 2 MB of those networks take 5 to 10 MB on average in chunks of their own (Table II).
const OBJECT_MIB: u64 = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    RtSwap,
    Min,
    MoVmm,
    Pageable,
    Base,
    /// The paper's swapping under processor demand.
    Demand,
    /// Weights stream beside computing, written back as the paper does.
    Streamed,
    /// The same, nothing written back.
    ReadOnly,
}

pub const METHODS: [Method; 8] = [
    Method::RtSwap,
    Method::Min,
    Method::MoVmm,
    Method::Pageable,
    Method::Base,
    Method::Demand,
    Method::Streamed,
    Method::ReadOnly,
];

impl Method {
    pub fn name(self) -> &'static str {
        match self {
            Method::RtSwap => "RT-Swap",
            Method::Min => "MIN",
            Method::MoVmm => "MO-VMM",
            Method::Pageable => "Pageable",
            Method::Base => "Base",
            Method::Demand => "ours: demand",
            Method::Streamed => "ours: streamed",
            Method::ReadOnly => "ours: read only",
        }
    }

    /// Whether its test admits the set.
    pub fn admits(self, tasks: &[Task], memory_mib: u64) -> bool {
        match self {
            Method::RtSwap => swapped(tasks, memory_mib, &costs(&CHUNKS_MIB)),
            Method::Min => swapped(tasks, memory_mib, &costs(&[2])),
            Method::Pageable => {
                let costs = CHUNKS_MIB
                    .map(|mib| cost(mib, PAGEABLE_IN_MS_PER_MIB, PAGEABLE_OUT_MS_PER_MIB));
                swapped(tasks, memory_mib, &costs)
            }
            Method::MoVmm => {
                let mut tasks = tasks.to_vec();
                for task in &mut tasks {
                    let more = FRAGMENTED[task.workload.network] * 1024 / 10;
                    task.workload.footprint_mib += more;
                    task.workload.swappable_mib += more;
                }
                swapped(&tasks, memory_mib, &costs(&[OBJECT_MIB]))
            }
            Method::Base => paging::admits(tasks, memory_mib),
            Method::Demand => {
                swapped(tasks, memory_mib, &costs(&CHUNKS_MIB))
                    || costs(&CHUNKS_MIB)
                        .iter()
                        .any(|&cost| volumes::by_demand(&system(tasks, memory_mib, cost)).is_some())
            }
            Method::Streamed => streamed(tasks, memory_mib, true),
            Method::ReadOnly => streamed(tasks, memory_mib, false),
        }
    }
}

fn cost(chunk_mib: u64, in_ms: f64, out_ms: f64) -> SwapCost {
    let ns = |ms_per_mib: f64, handling: f64| {
        ((ms_per_mib * chunk_mib as f64 + handling) * MS as f64).ceil() as u64
    };
    SwapCost {
        chunk_bytes: chunk_mib * MIB,
        in_ns: ns(in_ms, MS_PER_CHUNK * IN_OVER_OUT),
        out_ns: ns(out_ms, MS_PER_CHUNK),
    }
}

fn costs(chunks_mib: &[u64]) -> Vec<SwapCost> {
    let each = chunks_mib.iter();
    each.map(|&mib| cost(mib, OUT_MS_PER_MIB * IN_OVER_OUT, OUT_MS_PER_MIB))
        .collect()
}

fn system(tasks: &[Task], memory_mib: u64, cost: SwapCost) -> System {
    let models = tasks.iter().map(|t| Model {
        wcet_ns: t.workload.wcet_ms * MS,
        period_ns: t.period_ms * MS,
        deadline_ns: t.period_ms * MS,
        footprint_bytes: t.workload.footprint_mib * MIB,
        swappable_bytes: t.workload.swappable_mib * MIB,
    });
    System {
        memory_bytes: memory_mib * MIB,
        cost,
        tasks: models.collect(),
    }
}

fn swapped(tasks: &[Task], memory_mib: u64, costs: &[SwapCost]) -> bool {
    costs
        .iter()
        .any(|&cost| volumes::smallest_for_chunk(&system(tasks, memory_mib, cost)).is_some())
}

/// Chunks that are in flight while others are computed with, two of them.
const WINDOW_MIB: u64 = 64;
/// How much more memory than the least may be found; a set that fits only without it counts as refused.
const GAP: f64 = 0.01;
/// Points of each curve.
const STEPS: u64 = 16;

/// Each task has a budget of its own. What it lacks is fetched (and written back) in every job, in chunks beside computing: a
/// job takes the longer of both, and the first chunk before.
fn streamed(tasks: &[Task], memory_mib: u64, writes_back: bool) -> bool {
    let cost = cost(WINDOW_MIB, OUT_MS_PER_MIB * IN_OVER_OUT, OUT_MS_PER_MIB);
    let curves: Vec<Streaming> = tasks
        .iter()
        .map(|task| {
            let work = task.workload;
            let whole = Point {
                budget_bytes: work.footprint_mib * MIB,
                work_ns: work.wcet_ms * MS,
                hold_ns: work.wcet_ms * MS,
            };
            let points = (1..=STEPS).filter_map(|step| {
                let chunks = (work.swappable_mib * step / STEPS) / WINDOW_MIB;
                let kept = work.footprint_mib - chunks * WINDOW_MIB + 2 * WINDOW_MIB;
                let each = cost.in_ns + if writes_back { cost.out_ns } else { 0 };
                let work_ns = (chunks * each).max(work.wcet_ms * MS) + cost.in_ns;
                (chunks > 2).then_some(Point {
                    budget_bytes: kept * MIB,
                    work_ns,
                    hold_ns: work_ns,
                })
            });
            Streaming {
                period_ns: task.period_ms * MS,
                deadline_ns: task.period_ms * MS,
                points: std::iter::once(whole).chain(points).collect(),
            }
        })
        .collect();
    nearly_least_memory(&curves, GAP, &Effort::endless())
        .is_some_and(|c| c.total_bytes <= memory_mib * MIB)
}
