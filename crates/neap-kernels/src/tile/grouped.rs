//! The micro-kernel of narrow groups: each output lane sums over the few inputs of its own group,
//! which permutes inside a register bring to it.

use super::micro::{Tile, finish, start};
use crate::panel::format::{F32, Stored};
use crate::simd::Simd;

/// Runs a tile of one panel, of `f32`, times `R` positions; groups are `W` channels wide, and a tap's run is
/// the 16 input channels of the panel.
///
/// # Safety
/// As [`super::micro::micro`] with one panel, except that a tap's run is 16 inputs for `W` k.
#[inline(always)]
pub(super) unsafe fn micro_grouped<S: Simd, const W: usize, const R: usize>(s: S, tile: &Tile) {
    let step_bytes = F32::STEP_BYTES;
    // SAFETY: all pointers stay inside what the contract names.
    unsafe {
        let mut acc = start::<S, 1, R>(s, tile);
        for t in 0..tile.taps_len {
            let tap = &*tile.taps.add(t);
            let weights = tile.weights.add(tap.index * W * step_bytes);
            let runs = tap.runs::<R>(tile, tile.first_block_bytes);
            // Groups of eight in two parts: permutes inside four lanes are the cheap ones.
            let part_len = if W == 8 { 4 } else { W };
            for part in 0..W / part_len {
                let mut x = [s.zero(); R];
                for r in 0..R {
                    x[r] = s.load(runs[r]);
                    if W == 8 {
                        x[r] = s.spread_quarter(x[r], part);
                    }
                }
                for j in 0..part_len {
                    let at = weights.add((part * part_len + j) * step_bytes);
                    let w = F32::load(s, at, tile.head);
                    for r in 0..R {
                        let xv = if W == 1 {
                            x[r]
                        } else {
                            s.group_broadcast(x[r], part_len, j)
                        };
                        acc[r][0] = s.fma(xv, w, acc[r][0]);
                    }
                }
            }
        }
        finish::<S, 1, R>(s, tile, &acc);
    }
}
