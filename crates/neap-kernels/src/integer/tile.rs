//! One tile: sums of rows times panels.

use super::beside::Beside;
use super::dot::{Dot, MAX_PANELS, QUAD};
use super::finish::Head;
use super::tiled::Tiled;
use crate::simd::{LANES, prefetch_far};

/// Most rows of a tile, for any instruction set.
pub(super) const MAX_ROWS: usize = 16;

/// Bytes of a line of cache.
const LINE: usize = 64;

/// As many rows or fewer read panels as they are packed: bringing them into order would cost more than computing.
pub(super) const FEW_ROWS: usize = 4;

/// Quads of panels in order are made this many at a time: those behind the last are zeros where they are read.
pub(super) const STEP_QUADS: usize = 16;

/// k of a layer, in the order of its panels.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reduction {
    pub taps: usize,
    pub blocks: usize,
    pub block_len: usize,
    pub last_len: usize,
    /// From block to block in the input, in bytes.
    pub block_step: usize,
    /// Whether a run may be read to the end of its last four k: whatever is there meets weights of zero.
    pub overreads: bool,
}

impl Reduction {
    pub(super) fn k(&self) -> Option<usize> {
        let whole = self.blocks.checked_sub(1)?.checked_mul(self.block_len)?;
        whole.checked_add(self.last_len)?.checked_mul(self.taps)
    }

    pub(super) fn quads(&self) -> Option<usize> {
        let whole = (self.blocks.checked_sub(1)?).checked_mul(self.block_len.div_ceil(QUAD))?;
        whole
            .checked_add(self.last_len.div_ceil(QUAD))?
            .checked_mul(self.taps)
    }
}

/// Rows that lie one after the other, cut into tiles of about equal height.
#[derive(Default)]
pub(super) struct Heights {
    pub left: usize,
    least: usize,
    /// So many tiles have a row more.
    taller: usize,
}

impl Heights {
    pub(super) fn of(rows: usize, most: usize) -> Heights {
        let tiles = rows.div_ceil(most).max(1);
        Heights {
            left: rows,
            least: rows / tiles,
            taller: rows % tiles,
        }
    }

    pub(super) fn take(&mut self) -> usize {
        let rows = self.least + usize::from(self.taller > 0);
        self.taller = self.taller.saturating_sub(1);
        self.left -= rows;
        rows
    }
}

/// Weights that are needed next: each tile brings a part of them to the second-level cache.
pub(super) struct Ahead {
    from: *const u8,
    left: usize,
    each: usize,
}

impl Ahead {
    pub(super) fn new(from: *const u8, bytes: usize, tiles: usize) -> Ahead {
        Ahead {
            from,
            left: bytes,
            each: bytes.div_ceil(tiles.max(1)).next_multiple_of(LINE),
        }
    }

    #[inline(always)]
    pub(super) fn bring(&mut self) {
        let bytes = self.each.min(self.left);
        for at in (0..bytes).step_by(LINE) {
            prefetch_far(self.from.wrapping_add(at).cast());
        }
        self.from = self.from.wrapping_add(bytes);
        self.left -= bytes;
    }
}

/// Where one kernel tap reads, from the corners on.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Tap {
    pub offset: usize,
    /// A bit for each row that reads input; the others are in the padding.
    pub inside: u32,
}

/// Where the rows of a tile read. A panel has k in this order: blocks, in them taps, in them channels.
pub(super) struct Reads<'a> {
    pub corners: [*const u8; MAX_ROWS],
    /// The first row that is added up now.
    pub first: usize,
    pub taps: &'a mut [Tap],
    pub blocks: usize,
    /// From block to block.
    pub block_step: usize,
    /// k of a tap in one block, and in the last.
    pub block_len: usize,
    pub last_len: usize,
    /// As many zero points as a block is long, where a tap may be outside.
    pub outside: *const u8,
    /// As [`Reduction::overreads`].
    pub overreads: bool,
    #[cfg_attr(
        not(target_arch = "x86_64"),
        allow(dead_code, reason = "only kernels of VNNI look at it")
    )]
    pub cursor: Cursor,
}

/// What one tile's adding up keeps in memory.
#[cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only kernels of VNNI look at it")
)]
#[derive(Default)]
pub(super) struct Cursor {
    pub blocks: usize,
    pub len: usize,
    pub step: usize,
    pub offset: usize,
    pub tap: usize,
    pub taps: usize,
    pub taps_end: usize,
    pub sums: usize,
    pub piece: usize,
}

impl Reads<'_> {
    pub(super) fn len(&self, block: usize) -> usize {
        if block + 1 == self.blocks {
            self.last_len
        } else {
            self.block_len
        }
    }

    /// Where the first `R` rows read.
    #[inline(always)]
    fn runs<const R: usize>(&self, tap: &Tap, step: usize) -> [*const u8; R] {
        let mut x = [std::ptr::null(); R];
        let corners = &self.corners[self.first..][..R];
        if (tap.inside >> self.first).trailing_ones() as usize >= R {
            let offset = tap.offset.wrapping_add(step);
            for (x, corner) in x.iter_mut().zip(corners) {
                *x = corner.wrapping_add(offset);
            }
        } else {
            for r in 0..R {
                x[r] = self.run(tap, self.first + r, step);
            }
        }
        x
    }

    #[inline(always)]
    pub(super) fn run(&self, tap: &Tap, row: usize, step: usize) -> *const u8 {
        if tap.inside >> row & 1 != 0 {
            self.corners[row].wrapping_add(tap.offset.wrapping_add(step))
        } else {
            self.outside
        }
    }
}

/// What adds up tiles of rows and panels.
pub(super) trait AddUp<D: Dot> {
    /// Most rows of a tile of one panel, of two, and so on.
    const ROWS: [usize; MAX_PANELS];
    /// Whether [`FEW_ROWS`] and fewer are added up by [`few_rows`].
    const TAKES_FEW: bool;

    /// For panels of which `quads` holds the quads side by side: those of one k, then those of the next.
    ///
    /// # Safety
    /// The quads are in order before any tile is added up, and writable for whole [`STEP_QUADS`].
    unsafe fn new(reduction: &Reduction, panels: usize, quads: *mut u8) -> Self;
    /// Adds up a tile into `sums`, row by row, from what the panels' sums start with.
    ///
    /// # Safety
    /// Every run is readable for its k, and `sums` is writable for 16 integers of each row and panel.
    unsafe fn add_up(
        &mut self,
        d: D,
        rows: usize,
        reads: &mut Reads<'_>,
        heads: &[Head; MAX_PANELS],
        sums: *mut i32,
        beside: &mut Beside<'_>,
    );
}

/// Adds up with [`Dot`], a vector for each row and panel.
pub(super) struct Vectors {
    panels: usize,
    quads: *const u8,
}

/// As [`add_tile`], compiled where the instruction set wants it.
#[inline(always)]
unsafe fn tile<D: Tiled, const P: usize, const R: usize>(
    d: D,
    reads: &mut Reads<'_>,
    quads: *const u8,
    heads: &[Head; MAX_PANELS],
    sums: *mut i32,
    beside: &mut Beside<'_>,
) {
    // SAFETY: the caller's promise.
    unsafe { d.tile::<P, R>(reads, quads, heads, sums, beside) }
}

/// Calls `$add` for as many panels and rows as there are.
macro_rules! by_size {
    ($panels:expr, $rows:expr, $add:ident $arguments:tt,
        $($p:literal: $($r:literal)*;)*) => {
        match ($panels, $rows) {
            // SAFETY: the caller's promise.
            $($(($p, $r) if const { $p <= D::PANELS && $r <= D::ROWS[$p - 1] } => unsafe {
                $add::<D, $p, $r> $arguments
            },)*)*
            _ => unreachable!("no tile is larger than the instruction set's"),
        }
    };
}

impl<D: Tiled> AddUp<D> for Vectors {
    const ROWS: [usize; MAX_PANELS] = D::TALL;
    const TAKES_FEW: bool = true;

    #[inline(always)]
    unsafe fn new(_: &Reduction, panels: usize, quads: *mut u8) -> Self {
        Vectors { panels, quads }
    }

    #[inline(always)]
    unsafe fn add_up(
        &mut self,
        d: D,
        rows: usize,
        reads: &mut Reads<'_>,
        heads: &[Head; MAX_PANELS],
        sums: *mut i32,
        beside: &mut Beside<'_>,
    ) {
        // A tall tile in two parts: what comes before and after all its rows is done half as often.
        let parts = match D::BESIDE {
            true => rows.div_ceil(D::ROWS[self.panels - 1]),
            false => 1,
        };
        let mut first = 0;
        for left in (1..=parts).rev() {
            let count = (rows - first).div_ceil(left);
            let sums = sums.wrapping_add(first * self.panels * LANES);
            reads.first = first;
            by_size!(self.panels, count, tile(d, reads, self.quads, heads, sums, beside),
                1: 1 2 3 4 5 6 7 8 9 10 11 12;
                2: 1 2 3 4 5 6 7 8 9 10 11 12;
                3: 1 2 3 4 5 6 7 8;
                4: 1 2 3 4 5 6;
            );
            first += count;
        }
    }
}

/// As [`AddUp::add_up`], of panels as they are packed, each of which begins at its pointer; `columns` gets the sums of
/// their weights, panel by panel. The sums start with nothing.
///
/// # Safety
/// As [`AddUp::add_up`], and `columns` is writable for 16 integers of each panel.
#[inline(always)]
pub(super) unsafe fn few_rows<D: Dot>(
    d: D,
    panels: usize,
    rows: usize,
    reads: &Reads<'_>,
    packed: &[*const u8; MAX_PANELS],
    sums: *mut i32,
    columns: *mut i32,
) {
    by_size!(panels, rows, add_few(d, reads, packed, sums, columns),
        1: 1 2 3 4;
        2: 1 2 3 4;
        3: 1 2 3 4;
        4: 1 2 3 4;
    );
}

/// Adds up a tile of `R` rows and `P` panels into `sums`, row by row, from what the panels' sums start with. Quads of the panels
/// lie side by side: those of one k, then those of the next.
///
/// # Safety
/// Every run is readable for its k, the panels for all quads, and `sums` is writable for `R * P * 16` integers.
#[inline(always)]
pub(super) unsafe fn add_tile<D: Dot, const P: usize, const R: usize>(
    d: D,
    reads: &Reads<'_>,
    quads: *const u8,
    heads: &[Head; MAX_PANELS],
    sums: *mut i32,
) {
    let mut acc = [[d.no_sums(); P]; R];
    for r in 0..R {
        for p in 0..P {
            // SAFETY: a head has 16 integers.
            acc[r][p] = unsafe { d.load_sums(heads[p].start.as_ptr()) };
        }
    }
    let mut at = quads;
    for block in 0..reads.blocks {
        let len = reads.len(block);
        let step = block * reads.block_step;
        for tap in reads.taps.iter() {
            let x = reads.runs::<R>(tap, step);
            // SAFETY: `len` bytes of each run, as many quads of each panel.
            unsafe {
                let mut k = 0;
                while k + 4 * QUAD <= len {
                    for i in 0..4 {
                        let w = load::<D, P>(d, at.add(i * P * D::QUAD_BYTES));
                        add_quad::<D, P, R>(d, &mut acc, &x, k + i * QUAD, &w);
                    }
                    at = at.add(4 * P * D::QUAD_BYTES);
                    k += 4 * QUAD;
                }
                while k + QUAD <= len {
                    let w = load::<D, P>(d, at);
                    add_quad::<D, P, R>(d, &mut acc, &x, k, &w);
                    at = at.add(P * D::QUAD_BYTES);
                    k += QUAD;
                }
                if k < len {
                    let w = load::<D, P>(d, at);
                    match reads.overreads {
                        true => add_quad::<D, P, R>(d, &mut acc, &x, k, &w),
                        false => add_last::<D, P, R>(d, &mut acc, &x, k, len - k, &w),
                    }
                    at = at.add(P * D::QUAD_BYTES);
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe { store::<D, P, R>(d, sums, &acc) };
}

/// As [`add_tile`], of panels as they are packed: see [`few_rows`].
///
/// # Safety
/// As [`add_tile`], and `columns` is writable for `P * 16` integers.
#[inline(always)]
unsafe fn add_few<D: Dot, const P: usize, const R: usize>(
    d: D,
    reads: &Reads<'_>,
    panels: &[*const u8; MAX_PANELS],
    sums: *mut i32,
    columns: *mut i32,
) {
    const AHEAD: usize = 1024;
    let mut acc = [[d.no_sums(); P]; R];
    let mut column = [[d.no_sums(); P]; 1];
    let ones = 0x0101_0101;
    // From the panels' first k on, in bytes.
    let mut at = 0;
    for block in 0..reads.blocks {
        let len = reads.len(block);
        let step = block * reads.block_step;
        for tap in reads.taps.iter() {
            let x = reads.runs::<R>(tap, step);
            // SAFETY: `len` bytes of each run, as many k of each panel; the last, fewer than four, are copied out.
            unsafe {
                let mut k = 0;
                while k + QUAD <= len {
                    let mut w = [d.in_order(panels[0].add(at)); P];
                    prefetch_far(panels[0].wrapping_add(at + AHEAD).cast());
                    for p in 1..P {
                        w[p] = d.in_order(panels[p].add(at));
                        prefetch_far(panels[p].wrapping_add(at + AHEAD).cast());
                    }
                    add_quad::<D, P, R>(d, &mut acc, &x, k, &w);
                    for p in 0..P {
                        column[0][p] = d.dot(column[0][p], ones, w[p]);
                    }
                    at += QUAD * LANES;
                    k += QUAD;
                }
                if k < len {
                    let mut w = [last_in_order(d, panels[0].add(at), len - k); P];
                    for p in 1..P {
                        w[p] = last_in_order(d, panels[p].add(at), len - k);
                    }
                    add_last::<D, P, R>(d, &mut acc, &x, k, len - k, &w);
                    for p in 0..P {
                        column[0][p] = d.dot(column[0][p], ones, w[p]);
                    }
                    at += (len - k) * LANES;
                }
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        store::<D, P, R>(d, sums, &acc);
        store::<D, P, 1>(d, columns, &column);
    }
}

/// Fewer than four k of a panel, and zeros.
///
/// # Safety
/// `from` is readable for `len` k.
#[inline(always)]
unsafe fn last_in_order<D: Dot>(d: D, from: *const u8, len: usize) -> D::Quad {
    let mut rest = [0; QUAD * LANES];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), len * LANES);
        d.in_order(rest.as_ptr())
    }
}

#[inline(always)]
unsafe fn load<D: Dot, const P: usize>(d: D, at: *const u8) -> [D::Quad; P] {
    // SAFETY: the caller has `P` quads there.
    unsafe {
        let mut w = [d.load_quad(at); P];
        for (p, w) in w.iter_mut().enumerate().skip(1) {
            *w = d.load_quad(at.add(p * D::QUAD_BYTES));
        }
        w
    }
}

#[inline(always)]
unsafe fn add_quad<D: Dot, const P: usize, const R: usize>(
    d: D,
    acc: &mut [[D::Sums; P]; R],
    x: &[*const u8; R],
    k: usize,
    w: &[D::Quad; P],
) {
    for r in 0..R {
        // SAFETY: the caller's runs have four bytes there.
        let four = unsafe { x[r].add(k).cast::<u32>().read_unaligned() }.to_le();
        for p in 0..P {
            acc[r][p] = d.dot(acc[r][p], four, w[p]);
        }
    }
}

#[inline(always)]
unsafe fn add_last<D: Dot, const P: usize, const R: usize>(
    d: D,
    acc: &mut [[D::Sums; P]; R],
    x: &[*const u8; R],
    k: usize,
    len: usize,
    w: &[D::Quad; P],
) {
    for r in 0..R {
        // SAFETY: the caller's runs have as many bytes there.
        let four = unsafe { last(x[r].add(k), len) };
        for p in 0..P {
            acc[r][p] = d.dot(acc[r][p], four, w[p]);
        }
    }
}

#[inline(always)]
unsafe fn store<D: Dot, const P: usize, const R: usize>(
    d: D,
    sums: *mut i32,
    acc: &[[D::Sums; P]; R],
) {
    for r in 0..R {
        for p in 0..P {
            // SAFETY: the caller has so many there.
            unsafe { d.store_sums(sums.add((r * P + p) * LANES), acc[r][p]) };
        }
    }
}

/// Fewer than four bytes, and zeros.
#[inline(always)]
unsafe fn last(x: *const u8, len: usize) -> u32 {
    let mut four = 0;
    for i in 0..len {
        // SAFETY: the caller's run has as many bytes.
        four |= u32::from(unsafe { *x.add(i) }) << (8 * i);
    }
    four
}

/// Brings a panel into order, its quads `step` bytes apart, and adds up the weights of each channel.
///
/// # Safety
/// `from` is readable for the panel's k, and `to` writable for its quads.
#[inline(always)]
pub(super) unsafe fn order<D: Dot>(
    d: D,
    r: &Reduction,
    from: *const u8,
    to: *mut u8,
    step: usize,
) -> [i32; LANES] {
    const AHEAD: usize = 2048;
    /// Quads at once.
    const STEP: usize = 4;
    let (mut from, mut to) = (from, to);
    // Several, so that none waits for the one before.
    let mut sums = [d.no_sums(); STEP];
    let ones = 0x0101_0101;
    for block in 0..r.blocks {
        let len = if block + 1 == r.blocks {
            r.last_len
        } else {
            r.block_len
        };
        for _ in 0..r.taps {
            // SAFETY: the panel's k.
            unsafe {
                let mut k = 0;
                while k + STEP * QUAD <= len {
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let from = from.add(i * QUAD * LANES);
                        prefetch_far(from.wrapping_add(AHEAD).cast());
                        let quad = d.in_order(from);
                        *sums = d.dot(*sums, ones, quad);
                        d.store_quad(to.wrapping_add(i * step), quad);
                    }
                    from = from.add(STEP * QUAD * LANES);
                    to = to.wrapping_add(STEP * step);
                    k += STEP * QUAD;
                }
                while k + QUAD <= len {
                    let quad = d.in_order(from);
                    sums[0] = d.dot(sums[0], ones, quad);
                    d.store_quad(to, quad);
                    from = from.add(QUAD * LANES);
                    to = to.wrapping_add(step);
                    k += QUAD;
                }
                if k < len {
                    let mut rest = [0; QUAD * LANES];
                    let bytes = (len - k) * LANES;
                    std::ptr::copy_nonoverlapping(from, rest.as_mut_ptr(), bytes);
                    d.order(rest.as_ptr(), to);
                    sums[0] = d.dot(sums[0], ones, d.load_quad(to));
                    from = from.add(bytes);
                    to = to.wrapping_add(step);
                }
            }
        }
    }
    let mut columns = [0i32; LANES];
    for sums in sums {
        let mut some = [0; LANES];
        // SAFETY: 16 integers.
        unsafe { d.store_sums(some.as_mut_ptr(), sums) };
        for (sum, some) in columns.iter_mut().zip(some) {
            *sum = sum.wrapping_add(some);
        }
    }
    columns
}
