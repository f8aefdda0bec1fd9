//! The paper's workloads (RT-Swap, Table III), and task sets drawn from them.

use neap_realtime::Random;

/// Nanoseconds of a millisecond.
pub const MS: u64 = 1_000_000;
pub const MIB: u64 = 1 << 20;
/// The paper's GPU has 24 GB; one GB is taken as 1024 MiB.
pub const GPU_MIB: u64 = 24 * 1024;

/// One network at one resolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    pub network: usize,
    pub footprint_mib: u64,
    pub swappable_mib: u64,
    pub wcet_ms: u64,
}

/// Tenths of GB: memory, swappable; and ms; at 256, 416, 608.
const TABLE_III: [[(u64, u64, u64); 3]; 4] = [
    [(14, 7, 29), (24, 14, 36), (38, 27, 48)],
    [(23, 11, 48), (36, 26, 51), (62, 52, 63)],
    [(10, 4, 31), (16, 9, 34), (27, 18, 42)],
    [(16, 10, 41), (32, 22, 45), (57, 45, 63)],
];

/// A network at its lowest (0), middle or highest (2) resolution.
pub fn workload(network: usize, resolution: usize) -> Workload {
    let (memory, swappable, wcet_ms) = TABLE_III[network][resolution];
    Workload {
        network,
        footprint_mib: memory * 1024 / 10,
        swappable_mib: swappable * 1024 / 10,
        wcet_ms,
    }
}

/// A task: its workload, and its period, which is its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    pub workload: Workload,
    pub period_ms: u64,
}

fn drawn(random: &mut Random, workload: Workload) -> Task {
    Task {
        workload,
        period_ms: random.between(3000, 5000),
    }
}

pub fn any(random: &mut Random) -> Task {
    let workload = workload(random.index(4), random.index(3));
    drawn(random, workload)
}

/// Four tasks that need 23 to 24 GB together, and as many more as wanted, one after another.
pub fn growing(random: &mut Random, most: usize) -> Vec<Task> {
    loop {
        let mut tasks: Vec<Task> = (0..4).map(|_| any(random)).collect();
        let total: u64 = tasks.iter().map(|t| t.workload.footprint_mib).sum();
        if (23 * 1024..=GPU_MIB).contains(&total) {
            tasks.extend((4..most).map(|_| any(random)));
            return tasks;
        }
    }
}

/// Ten tasks of low resolution, and the order in which they become high.
pub fn rising(random: &mut Random) -> (Vec<Task>, Vec<usize>) {
    let tasks = (0..10).map(|_| {
        let network = random.index(4);
        drawn(random, workload(network, 0))
    });
    let tasks: Vec<Task> = tasks.collect();
    let mut order: Vec<usize> = (0..10).collect();
    random.shuffle(&mut order);
    (tasks, order)
}

/// The first `high` of the order at high resolution.
pub fn raised(tasks: &[Task], order: &[usize], high: usize) -> Vec<Task> {
    let mut tasks = tasks.to_vec();
    for &i in &order[..high] {
        tasks[i].workload = workload(tasks[i].workload.network, 2);
    }
    tasks
}
