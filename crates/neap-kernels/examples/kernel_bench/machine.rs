//! What one core gives at best: multiply-adds without memory, and bytes read from memory without arithmetic.

use neap_kernels::simd::{Isa, LANES, Simd, prefetch_far};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// More than the caches hold.
const MEMORY_BYTES: usize = 256 << 20;

/// Best and median seconds of repeated calls, for at least `least` of wall time.
pub fn measure(least: Duration, mut body: impl FnMut()) -> (f64, f64) {
    body();
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < least || times.len() < 5 {
        let start = Instant::now();
        body();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Enough independent chains of multiply-adds to fill the pipes.
#[inline(always)]
fn chains<S: Simd, const N: usize>(s: S, rounds: usize) -> f32 {
    let (a, b) = (s.splat(black_box(0.999)), s.splat(black_box(1e-3)));
    let mut acc = [s.zero(); N];
    for _ in 0..rounds {
        for v in &mut acc {
            *v = s.fma(*v, a, b);
        }
    }
    acc.into_iter().map(|v| s.reduce_sum(v)).sum()
}

/// Adds up memory, eight vectors at a time, and asks for the next pages early: hardware follows a stream to the
/// end of its page only.
#[inline(always)]
fn total<S: Simd>(s: S, floats: &[f32]) -> f32 {
    const AHEAD: usize = 2048;
    let mut acc = [s.zero(); 8];
    for part in floats.chunks_exact(8 * LANES) {
        for (i, v) in acc.iter_mut().enumerate() {
            // SAFETY: the part is eight vectors long.
            let line = unsafe { part.as_ptr().add(i * LANES) };
            prefetch_far(line.wrapping_add(AHEAD));
            // SAFETY: as above.
            *v = s.add(*v, unsafe { s.load(line) });
        }
    }
    acc.into_iter().map(|v| s.reduce_sum(v)).sum()
}

#[cfg(target_arch = "x86_64")]
mod compiled {
    use neap_kernels::simd::{Avx2Fma, Avx512};

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub fn chains_avx512(rounds: usize) -> f32 {
        super::chains::<_, 24>(Avx512::new(), rounds)
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
    pub fn total_avx512(floats: &[f32]) -> f32 {
        super::total(Avx512::new(), floats)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn chains_avx2(rounds: usize) -> f32 {
        super::chains::<_, 6>(Avx2Fma::new(), rounds)
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    pub fn total_avx2(floats: &[f32]) -> f32 {
        super::total(Avx2Fma::new(), floats)
    }
}

/// Floating-point operations a second of one core, in units of 1e9; a multiply-add is two.
pub fn peak_gflops(isa: Isa) -> f64 {
    const ROUNDS: usize = 200_000;
    let (chains, run): (usize, fn(usize) -> f32) = match isa.name() {
        // SAFETY: the processor has the instruction set, as the value shows.
        #[cfg(target_arch = "x86_64")]
        "avx512" | "amx" => (24, |n| unsafe { compiled::chains_avx512(n) }),
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        "avx2" => (6, |n| unsafe { compiled::chains_avx2(n) }),
        #[cfg(target_arch = "aarch64")]
        "neon" => (6, |n| chains::<_, 6>(neap_kernels::simd::Neon::new(), n)),
        _ => (2, |n| chains::<_, 2>(neap_kernels::simd::Portable, n)),
    };
    let (best, _) = measure(Duration::from_millis(60), || {
        black_box(run(ROUNDS));
    });
    (chains * LANES * 2 * ROUNDS) as f64 / best / 1e9
}

/// Bytes a second that one core reads from memory, in units of 1e9.
pub fn bandwidth_gb(isa: Isa) -> f64 {
    let floats = vec![0.5f32; MEMORY_BYTES / 4];
    let run: fn(&[f32]) -> f32 = match isa.name() {
        // SAFETY: the processor has the instruction set, as the value shows.
        #[cfg(target_arch = "x86_64")]
        "avx512" | "amx" => |f| unsafe { compiled::total_avx512(f) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        "avx2" => |f| unsafe { compiled::total_avx2(f) },
        #[cfg(target_arch = "aarch64")]
        "neon" => |f| total(neap_kernels::simd::Neon::new(), f),
        _ => |f| total(neap_kernels::simd::Portable, f),
    };
    let (best, _) = measure(Duration::from_millis(400), || {
        black_box(run(&floats));
    });
    MEMORY_BYTES as f64 / best / 1e9
}
