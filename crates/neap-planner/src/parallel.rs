//! Jobs that a search hands out: the caller decides on how many threads they run.

use std::sync::Mutex;

/// Does jobs, on as many threads as it likes.
pub trait Parallel: Sync {
    /// Calls `job` once with each number below `count`, in any order, and returns when all are done.
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync));
}

/// One job after another.
pub struct Serial;

impl Parallel for Serial {
    fn for_each(&self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        (0..count).for_each(job);
    }
}

/// Makes `jobs` lists and joins them in order.
pub fn batch<T: Send>(
    parallel: &dyn Parallel,
    jobs: usize,
    make: &(dyn Fn(usize) -> Vec<T> + Sync),
) -> Vec<T> {
    let slots: Vec<Mutex<Vec<T>>> = (0..jobs).map(|_| Mutex::new(Vec::new())).collect();
    parallel.for_each(jobs, &|i| {
        let made = make(i);
        *slots[i].lock().unwrap_or_else(|e| e.into_inner()) = made;
    });
    let lists = slots.into_iter();
    lists
        .flat_map(|slot| slot.into_inner().unwrap_or_else(|e| e.into_inner()))
        .collect()
}
