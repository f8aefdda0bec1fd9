//! On-demand paging with least recently used replacement: how much each task faults in, found by playing it.
//!
//! Jobs run one after another under EDF; each touches all of its task's memory from the beginning to the end, in blocks. As in
//! the paper, the most that a job of a task was seen to fault in is its volume, and Equation 3 decides.

use super::workloads::{MS, Task};
use neap_realtime::Share;
use std::collections::VecDeque;

const BLOCK_MIB: u64 = 32;
/// Table IV and Figure 8: the slowest job of 5.7 GB takes 2172 ms, 63 of them computing. If all of it was faulted in, a GB
/// takes this long, eviction included.
const MS_PER_GB: f64 = (2172.0 - 63.0) / 5.7;
/// A minute: at least twelve jobs of each task.
const PLAYED_MS: u64 = 60_000;

pub fn admits(tasks: &[Task], memory_mib: u64) -> bool {
    let volumes = faults_mib(tasks, memory_mib);
    let faulting_ns = |mib: u64| (mib as f64 / 1024.0 * MS_PER_GB * MS as f64) as u64;
    let work: Vec<u64> = tasks
        .iter()
        .zip(&volumes)
        .map(|(t, &mib)| t.workload.wcet_ms * MS + faulting_ns(mib))
        .collect();
    let mut wcets: Vec<u64> = tasks.iter().map(|t| t.workload.wcet_ms * MS).collect();
    wcets.sort_unstable_by(|a, b| b.cmp(a));
    let two: u64 = wcets.iter().take(2).sum();
    let blocking = work.iter().copied().fold(two, u64::max);
    let shortest = tasks.iter().map(|t| t.period_ms).min().unwrap_or(1) * MS;
    let used = work
        .iter()
        .zip(tasks)
        .map(|(&w, t)| Share::of(w, t.period_ms * MS));
    Share::of(blocking, shortest) + used.sum() <= Share::ONE
}

/// The most that a job of each task faults in after its first.
fn faults_mib(tasks: &[Task], memory_mib: u64) -> Vec<u64> {
    let blocks: Vec<u64> = (tasks.iter())
        .map(|t| t.workload.footprint_mib.div_ceil(BLOCK_MIB))
        .collect();
    let first: Vec<usize> = (blocks.iter())
        .scan(0, |sum, &b| Some(std::mem::replace(sum, *sum + b as usize)))
        .collect();
    let total: u64 = blocks.iter().sum();
    // When each block was last touched; 0: not in memory. The queue also has older touches, which are passed over.
    let mut touched = vec![0u64; total as usize];
    let mut oldest: VecDeque<(usize, u64)> = VecDeque::new();
    let (mut now, mut resident, mut clock_ms) = (0u64, 0u64, 0u64);
    let mut next = vec![0u64; tasks.len()];
    let mut most = vec![0u64; tasks.len()];
    while let Some(task) = due(tasks, &next, clock_ms).filter(|_| clock_ms < PLAYED_MS) {
        clock_ms = clock_ms.max(next[task]);
        let mut faults = 0;
        for block in first[task]..first[task] + blocks[task] as usize {
            now += 1;
            if touched[block] == 0 {
                faults += 1;
                resident += 1;
            }
            touched[block] = now;
            oldest.push_back((block, now));
            while resident * BLOCK_MIB > memory_mib {
                match oldest.pop_front() {
                    Some((victim, at)) if touched[victim] == at => {
                        touched[victim] = 0;
                        resident -= 1;
                    }
                    Some(_) => {}
                    None => break,
                }
            }
        }
        if next[task] > 0 {
            most[task] = most[task].max(faults * BLOCK_MIB);
        }
        let faulting = faults as f64 * BLOCK_MIB as f64 / 1024.0 * MS_PER_GB;
        clock_ms += tasks[task].workload.wcet_ms + faulting as u64;
        next[task] += tasks[task].period_ms;
    }
    most
}

/// Of the jobs that are released the one with the earliest deadline; the next one to be released when there is none.
fn due(tasks: &[Task], next: &[u64], clock_ms: u64) -> Option<usize> {
    let each = 0..tasks.len();
    let waiting = each.clone().filter(|&i| next[i] <= clock_ms);
    let earliest = waiting.min_by_key(|&i| next[i] + tasks[i].period_ms);
    earliest.or_else(|| each.min_by_key(|&i| next[i]))
}
