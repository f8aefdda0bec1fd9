//! Sums of tiles by AMX: sixteen rows, sixty-four k and sixteen channels in one instruction.
//!
//! ```text
//!   activations   rows x 64 bytes     where they lie, or gathered on the stack a few steps before they are needed
//!   quads         16 x 64 bytes       in order as for VNNI: those of one panel are `panels * 64` bytes apart
//!   sums          rows x 16 integers  a tile for each panel
//! ```
//! Stable Rust has no functions for these instructions, so they are spelled out. Of its own accord the compiler uses no tile: what one
//! holds lasts from one place that is spelled out to the next.

use super::beside::Beside;
use super::dot::{Dot, MAX_PANELS, QUAD};
use super::finish::Head;
use super::tile::{AddUp, MAX_ROWS, Reads, Reduction, STEP_QUADS};
use crate::simd::{Avx512, LANES};
use std::arch::asm;
use std::arch::x86_64::*;

/// Bytes of a row of activations that one instruction takes.
const STEP: usize = STEP_QUADS * QUAD;

/// Steps that are gathered before the one that is multiplied: what has just been written is read late.
const AHEAD: usize = 2;

/// Gathered steps at once.
const RING: usize = 4;

/// Rows of a step side by side, of a few steps.
#[repr(C, align(64))]
struct Ring([[[u8; STEP]; MAX_ROWS]; RING]);

/// Adds up with tiles.
pub(super) struct Tiles {
    panels: usize,
    quads: *const u8,
    steps: usize,
    /// For which the registers are set up; none at first.
    rows: usize,
    ring: Ring,
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: only the owner of `Tiles` uses tiles on this thread. From here on the system need not keep them.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

impl AddUp<Avx512> for Tiles {
    const ROWS: [usize; MAX_PANELS] = [MAX_ROWS; MAX_PANELS];
    const TAKES_FEW: bool = false;

    #[inline(always)]
    unsafe fn new(reduction: &Reduction, panels: usize, quads: *mut u8) -> Self {
        let count = reduction.quads().unwrap_or(0);
        let steps = count.div_ceil(STEP_QUADS);
        let each = panels * Avx512::QUAD_BYTES;
        let behind = (steps * STEP_QUADS - count) * each;
        // SAFETY: the caller has whole steps there.
        unsafe { std::ptr::write_bytes(quads.wrapping_add(count * each), 0, behind) };
        Tiles {
            panels,
            quads,
            steps,
            rows: 0,
            ring: Ring([[[0; STEP]; MAX_ROWS]; RING]),
        }
    }

    #[inline(always)]
    unsafe fn add_up(
        &mut self,
        _: Avx512,
        rows: usize,
        reads: &mut Reads<'_>,
        heads: &[Head; MAX_PANELS],
        sums: *mut i32,
        _: &mut Beside<'_>,
    ) {
        // SAFETY: the caller's promise; an `Isa` with tiles led here.
        unsafe {
            if self.rows != rows {
                set_up(rows);
                self.rows = rows;
            }
            match self.panels {
                1 => self.sum::<1>(reads, heads, sums),
                2 => self.sum::<2>(reads, heads, sums),
                3 => self.sum::<3>(reads, heads, sums),
                _ => self.sum::<4>(reads, heads, sums),
            }
        }
    }
}

impl Tiles {
    /// # Safety
    /// As [`AddUp::add_up`], of `P` panels; registers are set up.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn sum<const P: usize>(
        &mut self,
        reads: &Reads<'_>,
        heads: &[Head; MAX_PANELS],
        sums: *mut i32,
    ) {
        // SAFETY: the caller's promise. Steps in place are whole; gathered ones are followed by what was gathered before, or zeros.
        unsafe {
            begin::<P>(heads);
            let mut quads = self.quads;
            let mut step = 0;
            if let Some((from, apart)) = in_place(reads, self.rows) {
                while step < reads.last_len / STEP {
                    add::<P>(from.wrapping_add(step * STEP), apart, quads);
                    quads = quads.wrapping_add(P * STEP_QUADS * Avx512::QUAD_BYTES);
                    step += 1;
                }
            }
            let mut gathering = Gathering::from(step * STEP);
            let mut gathered = step;
            while step < self.steps {
                while gathered < self.steps && gathered <= step + AHEAD {
                    gathering.gather(reads, self.rows, &mut self.ring.0[gathered % RING]);
                    gathered += 1;
                }
                let rows = &self.ring.0[step % RING];
                add::<P>(rows.as_ptr().cast(), STEP, quads);
                quads = quads.wrapping_add(P * STEP_QUADS * Avx512::QUAD_BYTES);
                step += 1;
            }
            end::<P>(sums);
        }
    }
}

/// The first row of a single run, and from row to row, where all are equally far apart.
#[inline(always)]
fn in_place(reads: &Reads<'_>, rows: usize) -> Option<(*const u8, usize)> {
    let [tap] = &*reads.taps else { return None };
    let is_whole = reads.blocks == 1 && reads.last_len >= STEP;
    if !is_whole || (tap.inside.trailing_ones() as usize) < rows {
        return None;
    }
    let first = reads.corners[0];
    let apart = match rows {
        1 => 0,
        _ => reads.corners[1].addr().wrapping_sub(first.addr()),
    };
    let mut all = true;
    for row in 1..rows {
        all &= reads.corners[row] == first.wrapping_add(row.wrapping_mul(apart));
    }
    all.then(|| (first.wrapping_add(tap.offset), apart))
}

/// Where gathering goes on: in a run, that of a tap in a block.
struct Gathering {
    block: usize,
    tap: usize,
    k: usize,
}

impl Gathering {
    /// In the first run.
    fn from(k: usize) -> Gathering {
        Gathering {
            block: 0,
            tap: 0,
            k,
        }
    }

    /// The rows' next bytes; behind the last run, what was there. Each run begins at a quad.
    ///
    /// # Safety
    /// The rows' runs are readable.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn gather(&mut self, reads: &Reads<'_>, rows: usize, to: &mut [[u8; STEP]; MAX_ROWS]) {
        const RUNS: usize = STEP / LANES;
        let whole_blocks = reads.blocks - usize::from(reads.last_len != LANES);
        let runs = self.block * reads.taps.len() + self.tap + RUNS;
        if reads.block_len == LANES && self.k == 0 && runs <= whole_blocks * reads.taps.len() {
            // SAFETY: the caller's promise; these runs are of 16 bytes.
            unsafe { self.gather_four(reads, rows, to) };
            return;
        }
        let mut at = 0;
        while at < STEP && self.block < reads.blocks {
            let len = reads.len(self.block);
            let bytes = (len - self.k).min(STEP - at);
            let mask = ((1u128 << bytes) - 1) as u64;
            let tap = &reads.taps[self.tap];
            let step = self.block * reads.block_step + self.k;
            for (row, to) in to.iter_mut().take(rows).enumerate() {
                let from = reads.run(tap, row, step);
                // SAFETY: the caller's promise; the others are neither read nor written.
                unsafe {
                    let run = _mm512_maskz_loadu_epi8(mask, from.cast());
                    _mm512_mask_storeu_epi8(to.as_mut_ptr().wrapping_add(at).cast(), mask, run);
                }
            }
            at += bytes.next_multiple_of(QUAD);
            self.k += bytes;
            if self.k == len {
                self.k = 0;
                self.next_run(reads);
            }
        }
    }

    #[inline(always)]
    fn next_run(&mut self, reads: &Reads<'_>) {
        self.tap += 1;
        if self.tap == reads.taps.len() {
            self.tap = 0;
            self.block += 1;
        }
    }

    /// # Safety
    /// The rows' next four runs are readable for 16 bytes.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn gather_four(
        &mut self,
        reads: &Reads<'_>,
        rows: usize,
        to: &mut [[u8; STEP]; MAX_ROWS],
    ) {
        let mut taps = [&reads.taps[0]; 4];
        let mut steps = [0; 4];
        let mut inside = u32::MAX;
        for (tap, step) in taps.iter_mut().zip(&mut steps) {
            *tap = &reads.taps[self.tap];
            *step = self.block * reads.block_step;
            inside &= tap.inside;
            self.next_run(reads);
        }
        for (step, tap) in steps.iter_mut().zip(taps) {
            *step = step.wrapping_add(tap.offset);
        }
        if inside.trailing_ones() as usize >= rows {
            for (row, to) in to.iter_mut().take(rows).enumerate() {
                let from = steps.map(|step| reads.corners[row].wrapping_add(step));
                // SAFETY: the caller's promise.
                unsafe { copy_four(from, to) };
            }
        } else {
            let from = choose(reads, steps, taps.map(|tap| tap.inside));
            for (row, to) in to.iter_mut().take(rows).enumerate() {
                let from = [0, 1, 2, 3].map(|i| std::ptr::with_exposed_provenance(from[i][row]));
                // SAFETY: the caller's promise.
                unsafe { copy_four(from, to) };
            }
        }
    }
}

/// Addresses of all rows' runs, so many bytes behind their corners, or outside where they are not inside. Without branches: along
/// borders nobody could foresee them.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn choose(reads: &Reads<'_>, behind: [usize; 4], inside: [u32; 4]) -> [[usize; MAX_ROWS]; 4] {
    // Corners are of one input.
    reads.corners[0].expose_provenance();
    let outside = _mm512_set1_epi64(reads.outside.expose_provenance() as i64);
    let mut from = [[0; MAX_ROWS]; 4];
    for i in 0..4 {
        let behind = _mm512_set1_epi64(behind[i] as i64);
        for first in (0..MAX_ROWS).step_by(8) {
            // SAFETY: both have as many addresses.
            unsafe {
                let corners = _mm512_loadu_si512(reads.corners[first..].as_ptr().cast());
                let at = _mm512_add_epi64(corners, behind);
                let at = _mm512_mask_mov_epi64(outside, (inside[i] >> first) as u8, at);
                _mm512_storeu_si512(from[i][first..].as_mut_ptr().cast(), at);
            }
        }
    }
    from
}

/// # Safety
/// Each of the four is readable for 16 bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn copy_four(from: [*const u8; 4], to: &mut [u8; STEP]) {
    // SAFETY: the caller's promise.
    unsafe {
        let [a, b, c, d] = from.map(|from| _mm_loadu_si128(from.cast()));
        let row = _mm512_inserti32x4::<1>(_mm512_castsi128_si512(a), b);
        let row = _mm512_inserti32x4::<2>(row, c);
        let row = _mm512_inserti32x4::<3>(row, d);
        _mm512_storeu_si512(to.as_mut_ptr().cast(), row);
    }
}

/// How tiles are set up: the first four hold sums, the next a step of rows, the others quads.
///
/// # Safety
/// The processor has tiles, and the system lets them be used.
unsafe fn set_up(rows: usize) {
    /// The form that the processor reads.
    #[repr(C, align(64))]
    struct Setting {
        palette: u8,
        start: u8,
        reserved: [u8; 14],
        row_bytes: [u16; 16],
        rows: [u8; 16],
    }
    const TILES: usize = 8;
    const OF_ROWS: usize = MAX_PANELS + 1;
    let mut setting = Setting {
        palette: 1,
        start: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    setting.row_bytes[..TILES].fill(STEP as u16);
    setting.rows[..OF_ROWS].fill(rows as u8);
    setting.rows[OF_ROWS..TILES].fill(STEP_QUADS as u8);
    // SAFETY: the caller's promise; it reads 64 bytes, and all tiles are lost.
    unsafe {
        asm!(
            "ldtilecfg [{setting}]",
            setting = in(reg) &setting,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, readonly, preserves_flags),
        );
    }
}

/// Sums start: each row with its panel's.
///
/// # Safety
/// As [`set_up`], which was called.
#[inline(always)]
unsafe fn begin<const P: usize>(heads: &[Head; MAX_PANELS]) {
    macro_rules! start {
        ($tile:tt, $panel:literal) => {
            if P > $panel {
                asm!(
                    concat!("tileloadd ", $tile, ", [{start} + {apart} * 1]"),
                    start = in(reg) &heads[$panel].start,
                    apart = in(reg) 0usize,
                    out($tile) _,
                    options(nostack, readonly, preserves_flags),
                );
            }
        };
    }
    // SAFETY: the caller's promise; 64 bytes are read, again and again.
    unsafe {
        start!("tmm0", 0);
        start!("tmm1", 1);
        start!("tmm2", 2);
        start!("tmm3", 3);
    }
}

/// Adds the products of a step.
///
/// # Safety
/// As [`begin`]; 64 bytes of each row and 16 quads of each panel are readable.
#[inline(always)]
unsafe fn add<const P: usize>(rows: *const u8, apart: usize, quads: *const u8) {
    macro_rules! product {
        ($sums:tt, $quads:tt, $at:literal) => {
            asm!(
                concat!("tileloadd ", $quads, ", [{quads} + {apart} * 1 + ", $at, "]"),
                concat!("tdpbusd ", $sums, ", tmm4, ", $quads),
                quads = in(reg) quads,
                apart = in(reg) P * Avx512::QUAD_BYTES,
                out($sums) _,
                out($quads) _,
                options(nostack, readonly, preserves_flags),
            );
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        asm!(
            "tileloadd tmm4, [{rows} + {apart} * 1]",
            rows = in(reg) rows,
            apart = in(reg) apart,
            out("tmm4") _,
            options(nostack, readonly, preserves_flags),
        );
        product!("tmm0", "tmm5", 0);
        if P > 1 {
            product!("tmm1", "tmm6", 64);
        }
        if P > 2 {
            product!("tmm2", "tmm7", 128);
        }
        if P > 3 {
            product!("tmm3", "tmm5", 192);
        }
    }
}

/// Stores sums, row by row.
///
/// # Safety
/// As [`begin`]; `sums` is writable for 16 integers of each row and panel.
#[inline(always)]
unsafe fn end<const P: usize>(sums: *mut i32) {
    macro_rules! store {
        ($tile:tt, $panel:literal) => {
            if P > $panel {
                asm!(
                    concat!("tilestored [{sums} + {apart} * 1], ", $tile),
                    sums = in(reg) sums.wrapping_add($panel * LANES),
                    apart = in(reg) P * LANES * size_of::<i32>(),
                    options(nostack, preserves_flags),
                );
            }
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        store!("tmm0", 0);
        store!("tmm1", 1);
        store!("tmm2", 2);
        store!("tmm3", 3);
    }
}
