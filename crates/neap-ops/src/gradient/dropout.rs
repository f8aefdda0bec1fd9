//! Dropout: what is kept depends on seed, generator and element only, so that a backward pass makes the same choice again
//! and nothing of it is stored.
//!
//! By a counter, random words are Philox4x32-10's (Salmon et al. 2011, *Parallel random numbers: as easy as 1, 2, 3*): the key is
//! the seed, the counter is the element's block of four and the stream. The other generator goes from element to element
//! ([`Twister`]), so it is one task.

use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Bool, Num, with_float};
use crate::twister::Twister;
use crate::{Context, OpError};
use neap_ir::op::Generator;

/// `y = x / (1 - ratio)` where an element is kept, else 0.
pub(crate) fn dropout(
    ratio: f32,
    generator: Generator,
    args: &Args,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    // SAFETY: the seed has one element.
    let seed = unsafe { Ptr::<i64>::of(args.input(1)?.as_ptr()).read(0) } as u64;
    let kept = args.opt_output(1).map(|t| Ptr::<Bool>(t.as_ptr().cast()));
    let count = y.elements();
    with_float!(args.op, x.dtype(), T => {
        let to = Kept {
            x: Ptr::<T>::of(x.as_ptr()),
            y: Ptr::<T>(y.as_ptr().cast()),
            kept,
            scale: 1.0 / (1.0 - f64::from(ratio)),
        };
        match generator {
            Generator::Counter { stream } => by_counter(ratio, stream, seed, count, &to, ctx),
            Generator::Twister => {
                let mut twister = Twister::new(seed as u32);
                for i in 0..count {
                    // SAFETY: the element is inside all tensors.
                    unsafe { to.decide(i, twister.unit() >= f64::from(ratio)) };
                }
            }
        }
        Ok(())
    })
}

fn by_counter<T: Num>(
    ratio: f32,
    stream: u64,
    seed: u64,
    count: usize,
    to: &Kept<T>,
    ctx: &mut Context,
) {
    // Words below this are dropped.
    let limit = (f64::from(ratio) * 4_294_967_296.0).round() as u64;
    split(ctx.par, count.div_ceil(4), GRAIN / 4, &|range, _| {
        for block in range {
            let words = philox(block as u64, stream, seed);
            for i in block * 4..(block * 4 + 4).min(count) {
                // SAFETY: the element is inside all tensors and belongs to one task.
                unsafe { to.decide(i, u64::from(words[i % 4]) >= limit) };
            }
        }
    });
}

/// Where elements lie and go to.
struct Kept<T> {
    x: Ptr<T>,
    y: Ptr<T>,
    kept: Option<Ptr<Bool>>,
    scale: f64,
}

impl<T: Num> Kept<T> {
    /// # Safety
    /// The element is inside all tensors, and nobody else touches it.
    unsafe fn decide(&self, i: usize, keep: bool) {
        // SAFETY: as the caller promises; it is read before it is written.
        unsafe {
            let v = match keep {
                true => T::from_f64(self.x.read(i).to_f64() * self.scale),
                false => T::ZERO,
            };
            self.y.write(i, v);
            if let Some(kept) = &self.kept {
                kept.write(i, Bool::of(keep));
            }
        }
    }
}

/// Four random words for a counter of two words and a key.
fn philox(low: u64, high: u64, key: u64) -> [u32; 4] {
    let split = |v: u64| [v as u32, (v >> 32) as u32];
    let ([c0, c1], [c2, c3], [mut k0, mut k1]) = (split(low), split(high), split(key));
    let mut c = [c0, c1, c2, c3];
    for _ in 0..10 {
        let [l0, h0] = split(u64::from(c[0]) * 0xD251_1F53);
        let [l1, h1] = split(u64::from(c[2]) * 0xCD9E_8D57);
        c = [h1 ^ c[1] ^ k0, l1, h0 ^ c[3] ^ k1, l0];
        k0 = k0.wrapping_add(0x9E37_79B9);
        k1 = k1.wrapping_add(0xBB67_AE85);
    }
    c
}

#[cfg(test)]
mod tests {
    use super::philox;

    /// The known answers of Random123, the paper's own implementation.
    #[test]
    fn words_are_the_generator_s() {
        assert_eq!(
            philox(0, 0, 0),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox(u64::MAX, u64::MAX, u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                0x85a3_08d3_243f_6a88,
                0x0370_7344_1319_8a2e,
                0x299f_31d0_a409_3822
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
