//! The paper's task model (RT-Swap, Section V-A): periodic inference tasks that share a processor and its memory.

use thiserror::Error;

/// One inference task: a job every period, each of which must be done within its deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Longest execution when everything it needs is in memory (C).
    pub wcet_ns: u64,
    /// Shortest time between the releases of two jobs (T).
    pub period_ns: u64,
    /// From release to completion (D); it may be shorter or longer than the period.
    pub deadline_ns: u64,
    /// Memory while it executes (m).
    pub footprint_bytes: u64,
    /// The part of the footprint that may leave memory between jobs (mˢ).
    pub swappable_bytes: u64,
}

/// What it takes to move one chunk, the unit of swapping (δ).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapCost {
    pub chunk_bytes: u64,
    pub in_ns: u64,
    /// 0 where nothing is written back because what leaves is never changed, such as weights.
    pub out_ns: u64,
}

/// Tasks that share one processor and one memory, and how memory is swapped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct System {
    /// Memory of all tasks (mᴰ).
    pub memory_bytes: u64,
    pub cost: SwapCost,
    pub tasks: Vec<Task>,
}

/// A number outside its range.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TaskError {
    #[error("there are no tasks")]
    None,
    #[error("task {task}: {what} is 0")]
    Zero { task: usize, what: &'static str },
    #[error("task {task}: {what} is longer than a hundred days")]
    TooLong { task: usize, what: &'static str },
    #[error("task {task}: more is swappable than it has")]
    Swappable { task: usize },
    #[error("the chunk size is 0")]
    Chunk,
    #[error("tasks take more memory together than can be counted")]
    TooMuch,
}

/// Sums of many times of this length do not overflow: a hundred days.
pub const LONGEST_NS: u64 = 100 * 86_400 * 1_000_000_000;

impl System {
    /// Whether all numbers are in their ranges. Everything else in this crate relies on it.
    ///
    /// # Errors
    /// The first number that is not.
    pub fn check(&self) -> Result<(), TaskError> {
        if self.tasks.is_empty() {
            return Err(TaskError::None);
        }
        if self.cost.chunk_bytes == 0 {
            return Err(TaskError::Chunk);
        }
        for (task, t) in self.tasks.iter().enumerate() {
            for (what, ns) in [
                ("the execution time", t.wcet_ns),
                ("the period", t.period_ns),
                ("the deadline", t.deadline_ns),
            ] {
                if ns == 0 {
                    return Err(TaskError::Zero { task, what });
                }
                if ns > LONGEST_NS {
                    return Err(TaskError::TooLong { task, what });
                }
            }
            if t.swappable_bytes > t.footprint_bytes {
                return Err(TaskError::Swappable { task });
            }
        }
        let chunk_bytes = self.cost.chunk_bytes;
        let sum = (0..self.tasks.len()).try_fold(0u64, |sum, task| {
            let own_bytes = self.footprint_chunks(task).checked_mul(chunk_bytes)?;
            sum.checked_add(own_bytes)
        });
        sum.map(drop).ok_or(TaskError::TooMuch)
    }

    /// Footprints in chunks, rounded up: what a task loses inside its last chunk is charged to it.
    pub fn footprint_chunks(&self, task: usize) -> u64 {
        self.tasks[task]
            .footprint_bytes
            .div_ceil(self.cost.chunk_bytes)
    }

    /// As many whole chunks as may leave memory (Equation 1b).
    pub fn swappable_chunks(&self, task: usize) -> u64 {
        self.tasks[task].swappable_bytes / self.cost.chunk_bytes
    }

    pub fn memory_chunks(&self) -> u64 {
        self.memory_bytes / self.cost.chunk_bytes
    }

    /// Oᴵⁿ of so many chunks.
    pub fn in_ns(&self, chunks: u64) -> u64 {
        chunks.saturating_mul(self.cost.in_ns)
    }

    /// Oᴼᵘᵗ of so many chunks.
    pub fn out_ns(&self, chunks: u64) -> u64 {
        chunks.saturating_mul(self.cost.out_ns)
    }

    /// The longest that a job keeps the system busy: Oᴼᵘᵗ + Oᴵⁿ + C.
    pub fn occupation_ns(&self, task: usize, chunks: u64) -> u64 {
        (self.out_ns(chunks))
            .saturating_add(self.in_ns(chunks))
            .saturating_add(self.tasks[task].wcet_ns)
    }

    /// Whether each task can be in memory as a whole when all others have given up their volumes
    /// (Equations 1b and 1c).
    pub fn volumes_fit(&self, volumes: &[u64]) -> bool {
        let count = self.tasks.len();
        let footprint: u64 = (0..count).map(|i| self.footprint_chunks(i)).sum();
        let volume: u64 = volumes.iter().sum();
        volumes.len() == count
            && (0..count).all(|i| {
                let others = volume - volumes[i];
                volumes[i] <= self.swappable_chunks(i)
                    && footprint - others.min(footprint) <= self.memory_chunks()
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_memory_that_overflow_are_refused() {
        let system = |chunk_bytes, footprint_bytes| System {
            memory_bytes: u64::MAX,
            cost: SwapCost {
                chunk_bytes,
                in_ns: 1,
                out_ns: 1,
            },
            tasks: vec![
                Task {
                    wcet_ns: 1,
                    period_ns: 100,
                    deadline_ns: 100,
                    footprint_bytes,
                    swappable_bytes: 0,
                };
                2
            ],
        };
        let half = 1 << 63;
        assert_eq!(system(1, half - 1).check(), Ok(()));
        assert_eq!(system(1, half).check(), Err(TaskError::TooMuch));
        // Chunks are counted whole.
        assert_eq!(system(half, 1).check(), Err(TaskError::TooMuch));
    }
}
