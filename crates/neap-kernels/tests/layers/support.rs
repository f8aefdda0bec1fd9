//! What the tables share: seeded numbers, layout conversion, a threaded `Parallel`, comparison.

use std::sync::atomic::{AtomicUsize, Ordering};

use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;
use neap_testing::together;

/// Whether another machine emulates this one (`NEAP_EMULATED` is set), at hundreds of times the cost.
fn is_emulated() -> bool {
    std::env::var_os("NEAP_EMULATED").is_some()
}

/// Every instruction set of this machine. What is portable is tested where nothing is emulated.
pub fn isas() -> Vec<Isa> {
    let all = Isa::available().filter(|isa| !is_emulated() || isa.name() != "portable");
    all.collect()
}

/// Threads that take tasks from a shared counter, so that the order differs from run to run.
pub struct Threads(pub usize);

impl Parallel for Threads {
    fn workers(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        if is_emulated() {
            // A thread costs the emulator more than what it is for.
            return (0..tasks).for_each(|task| body(task, task % self.0));
        }
        let next = AtomicUsize::new(0);
        together(self.0, &|worker| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= tasks {
                    break;
                }
                body(task, worker);
            }
        });
    }
}

/// `n` reproducible numbers between -1 and 1.
pub fn numbers(n: usize, seed: u32) -> Vec<f32> {
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

/// Whether a case with so many products is worth its time: emulated machines take the small ones only, which have all the tails.
pub fn affordable(products: usize) -> bool {
    products <= 150_000 || !is_emulated()
}

/// That many real threads, which take tasks from the last to the first.
pub struct Scrambled(pub usize);

impl Parallel for Scrambled {
    fn workers(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        if self.0 == 1 || is_emulated() {
            return (0..tasks).rev().for_each(|task| body(task, task % self.0));
        }
        together(self.0, &|worker| {
            let mine = (0..tasks).rev().filter(|task| task % self.0 == worker);
            mine.for_each(|task| body(task, worker));
        });
    }
}

/// A small seeded generator (splitmix64); the tables need reproducible, not good, numbers.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in `[low, high)`.
    pub fn uniform(&mut self, low: f32, high: f32) -> f32 {
        low + (high - low) * ((self.bits() >> 40) as f32 / (1u64 << 24) as f32)
    }

    pub fn vec(&mut self, len: usize, low: f32, high: f32) -> Vec<f32> {
        (0..len).map(|_| self.uniform(low, high)).collect()
    }
}

/// Plain `[n][c][hw]` to `[n][ceil(c/16)][hw][16]`, pad lanes filled with `pad`.
pub fn to_blocked(plain: &[f32], n: usize, c: usize, hw: usize, pad: f32) -> Vec<f32> {
    let blocks = c.div_ceil(16);
    let mut out = vec![pad; n * blocks * hw * 16];
    for b in 0..n {
        for ch in 0..c {
            for p in 0..hw {
                out[((b * blocks + ch / 16) * hw + p) * 16 + ch % 16] =
                    plain[(b * c + ch) * hw + p];
            }
        }
    }
    out
}

/// The inverse of [`to_blocked`]; pad lanes are dropped.
pub fn from_blocked(blocked: &[f32], n: usize, c: usize, hw: usize) -> Vec<f32> {
    let blocks = c.div_ceil(16);
    let mut out = vec![0.0; n * c * hw];
    for b in 0..n {
        for ch in 0..c {
            for p in 0..hw {
                out[(b * c + ch) * hw + p] =
                    blocked[((b * blocks + ch / 16) * hw + p) * 16 + ch % 16];
            }
        }
    }
    out
}

/// Fails where `got` differs from `want` by more than `relative * max(|want|, floor)`.
/// What is not finite must be equal: two NaNs are, and two infinities of one sign.
#[track_caller]
pub fn assert_close(got: &[f32], want: &[f64], relative: f64, floor: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        if !g.is_finite() || !w.is_finite() {
            let same = f64::from(g) == w || (g.is_nan() && w.is_nan());
            assert!(same, "{what}: element {i}: got {g}, want {w}");
            continue;
        }
        let error = (f64::from(g) - w).abs();
        assert!(
            error <= relative * w.abs().max(floor),
            "{what}: element {i}: got {g}, want {w}"
        );
    }
}

#[track_caller]
pub fn assert_same_bits(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}: lengths");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert_eq!(x.to_bits(), y.to_bits(), "{what}: element {i}: {x} and {y}");
    }
}
