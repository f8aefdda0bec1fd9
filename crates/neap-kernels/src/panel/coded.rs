//! From `f32` panels to panels of `f32` in 28 bits (see [`crate::simd::coded`]).

use super::panel_floats;
use crate::error::{KernelError, check_len};
use crate::simd::LANES;
use crate::simd::coded::{CODES, OTHER, OTHERS, SIGNS, STEP_BYTES, TABLE, place};

/// Weights of a panel that can be among the others: all that 16 bits times 16 count.
const MOST_OTHERS: usize = u16::MAX as usize * LANES;

fn exponent(x: f32) -> u8 {
    (x.to_bits() >> 23) as u8
}

/// The 15 most frequent exponents of a panel's weights, and how many weights have others.
fn table_of(weights: &[f32]) -> ([u8; 15], usize) {
    let mut counts = [0usize; 256];
    for &w in weights {
        counts[usize::from(exponent(w))] += 1;
    }
    let mut order: Vec<u8> = (0..=255).collect();
    order.sort_by_key(|&e| std::cmp::Reverse(counts[usize::from(e)]));
    let mut table = [0; 15];
    table.copy_from_slice(&order[..15]);
    let rare = order[15..].iter().map(|&e| counts[usize::from(e)]).sum();
    (table, rare)
}

/// For how many others panels with `k` inner steps need room, 16 as one; `None` for more than there can be.
#[must_use]
pub fn others_of(k: usize, panels: &[f32]) -> Option<u16> {
    let each = panels.chunks_exact(panel_floats(k));
    let most = each.map(|panel| table_of(&panel[LANES..]).1).max();
    u16::try_from(most.unwrap_or(0).div_ceil(LANES)).ok()
}

/// Writes a panel of `f32` into one with room for as many others as `to` has beside its `k`.
///
/// # Errors
/// Too little room.
pub(super) fn pack(panel: &[f32], to: &mut [u8]) -> Result<(), KernelError> {
    let (bias, weights) = panel.split_at(LANES);
    let steps = weights.len() / LANES * STEP_BYTES;
    let (table, rare) = table_of(weights);
    let needed = rare
        .checked_mul(4)
        .and_then(|bytes| bytes.checked_add(OTHERS + steps));
    check_len("panel", to.len(), needed.filter(|_| rare <= MOST_OTHERS))?;
    let head_bytes = to.len() - steps;
    let (head, steps) = to.split_at_mut(head_bytes);
    let (start, others) = head.split_at_mut(OTHERS);
    start.fill(0);
    others.fill(0);
    for (to, x) in start.chunks_exact_mut(4).zip(bias) {
        to.copy_from_slice(&x.to_le_bytes());
    }
    start[TABLE..][..15].copy_from_slice(&table);
    let mut codes = [OTHER; 256];
    for (code, &e) in table.iter().enumerate() {
        codes[usize::from(e)] = code as u8;
    }
    let mut count = 0u32;
    let mut others = others.chunks_exact_mut(4);
    for (step, to) in weights
        .chunks_exact(LANES)
        .zip(steps.chunks_exact_mut(STEP_BYTES))
    {
        to.fill(0);
        for (lane, &w) in step.iter().enumerate() {
            let code = codes[usize::from(exponent(w))];
            let mut bits = w.to_bits();
            if code == OTHER {
                // There are as many as were counted.
                if let Some(other) = others.next() {
                    other.copy_from_slice(&bits.to_le_bytes());
                }
                bits = count;
                count += 1;
            }
            let at = place(lane);
            to[2 * at..][..2].copy_from_slice(&(bits as u16).to_le_bytes());
            to[SIGNS + at] = (bits >> 16 & 0x7f | bits >> 24 & 0x80) as u8;
            to[CODES + at % 8] |= code << (at / 8 * 4);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::panel::{Affine, Format, Scales, narrow, pack_rows};
    use crate::simd::{Isa, Simd, simd_kernel};

    #[inline(always)]
    unsafe fn load_generic<S: Simd>(s: S, at: *const u8, head: *const f32, to: &mut [f32; LANES]) {
        // SAFETY: the caller's promise.
        *to = s.to_array(unsafe { s.load_coded(at, head) });
    }

    simd_kernel! {
        /// # Safety
        /// As `load_coded`.
        unsafe fn load(at: *const u8, head: *const f32, to: &mut [f32; LANES]) = load_generic;
    }

    /// The bits of a panel's weights after narrowing and widening.
    fn there_and_back(isa: Isa, panel: &[f32]) -> Vec<u32> {
        let k = panel.len() / LANES - 1;
        let others = others_of(k, panel).unwrap();
        let format = Format::Coded { others };
        let mut bytes = vec![0xffu8; format.panel_bytes(k).unwrap() + 4];
        let skip = bytes.as_ptr().align_offset(4);
        let bytes = &mut bytes[skip..][..format.panel_bytes(k).unwrap()];
        narrow(format, LANES, k, 0..1, panel, Scales::default(), bytes).unwrap();
        let head = bytes.as_ptr().cast::<f32>();
        let mut found = Vec::new();
        for i in 0..k {
            let mut lanes = [0.0; LANES];
            let at = bytes[format.head_bytes() + i * STEP_BYTES..].as_ptr();
            // SAFETY: the k is one of the panel.
            unsafe { load(isa, at, head, &mut lanes) };
            found.extend(lanes.map(f32::to_bits));
        }
        let bias = bytes[..4 * LANES].chunks_exact(4);
        assert!(bias.zip(panel).all(|(b, x)| b == x.to_le_bytes()));
        found
    }

    #[test]
    fn every_float_comes_back_with_its_bits() {
        let mut state = 1u64;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 32) as u32
        };
        // Exponents of each panel: few, some more than codes, and all that there are.
        for spread in [1, 14, 15, 16, 17, 40, 256] {
            for k in [0, 1, 5, 33] {
                let mut panel: Vec<f32> = (0..(1 + k) * LANES)
                    .map(|_| {
                        let exponent = (120 + next() % spread) % 256;
                        f32::from_bits(next() & 0x807f_ffff | exponent << 23)
                    })
                    .collect();
                let special = [0, 0x8000_0000, 1, 0x807f_ffff, 0x7f80_0000, 0xff80_0000];
                let special = special.into_iter().chain([0x7fc0_1234, 0x7f80_0001]);
                for (to, bits) in panel[LANES..].iter_mut().step_by(7).zip(special) {
                    *to = f32::from_bits(bits);
                }
                let want: Vec<u32> = panel[LANES..].iter().map(|x| x.to_bits()).collect();
                for isa in Isa::available() {
                    assert_eq!(there_and_back(isa, &panel), want, "{isa:?} {spread} {k}");
                }
            }
        }
    }

    #[test]
    fn lanes_past_the_last_channel_are_zero_and_too_little_room_is_refused() {
        let (n, k) = (21, 70);
        let rows: Vec<f32> = (0..n * k)
            .map(|i| 1.5f32.powi(i as i32 % 90 - 45))
            .collect();
        let mut panels = vec![f32::NAN; 2 * panel_floats(k)];
        pack_rows(n, k, 0..2, &rows, Affine::default(), &mut panels).unwrap();
        let second = &panels[panel_floats(k)..];
        let found = there_and_back(Isa::detect(), second);
        assert!(
            found
                .iter()
                .enumerate()
                .all(|(i, &x)| (i % LANES < 5) == (x != 0))
        );
        let others = others_of(k, &panels).unwrap();
        assert!(others > 1);
        for (others, fits) in [(others, true), (others - 1, false)] {
            let format = Format::Coded { others };
            let mut bytes = vec![0; 2 * format.panel_bytes(k).unwrap()];
            let done = narrow(format, n, k, 0..2, &panels, Scales::default(), &mut bytes);
            assert_eq!(done.is_ok(), fits);
        }
    }

    #[test]
    fn a_damaged_panel_reads_nothing_outside_it() {
        let format = Format::Coded { others: 0 };
        let mut bytes = vec![0xffu32; format.panel_bytes(1).unwrap() / 4];
        bytes.fill(u32::MAX);
        let head = bytes.as_ptr().cast::<f32>();
        let mut lanes = [0.0; LANES];
        for isa in Isa::available() {
            // SAFETY: the panel's only k.
            unsafe {
                let at = head.cast::<u8>().add(format.head_bytes());
                load(isa, at, head, &mut lanes);
            }
            assert!(lanes.iter().all(|x| x.to_bits() == u32::MAX), "{isa:?}");
        }
    }
}
