//! What kernel tests share: reproducible numbers, and workers in a contrary order.

use crate::parallel::Parallel;

/// `n` reproducible numbers between -1 and 1.
pub(crate) fn numbers(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..n)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Whether a case with so many products is worth its time: emulated machines (`NEAP_EMULATED` is set)
/// take the small ones only, which have all the tails.
pub(crate) fn affordable(products: usize) -> bool {
    products <= 150_000 || std::env::var_os("NEAP_EMULATED").is_none()
}

/// That many real threads, which take tasks from the last to the first.
pub(crate) struct Scrambled(pub usize);

impl Parallel for Scrambled {
    fn workers(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        if self.0 == 1 {
            (0..tasks).rev().for_each(|task| body(task, 0));
            return;
        }
        std::thread::scope(|scope| {
            for worker in 0..self.0 {
                scope.spawn(move || {
                    let mine = (0..tasks).rev().filter(|task| task % self.0 == worker);
                    mine.for_each(|task| body(task, worker));
                });
            }
        });
    }
}
