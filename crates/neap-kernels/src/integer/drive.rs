//! How a layer is cut into tiles, and what each task prepares.

use super::Steps;
#[cfg(target_arch = "x86_64")]
use super::amx::Tiles;
use super::beside::Beside;
use super::cut::{Cut, Layer, TASK_ROWS};
use super::dot::{Dot, MAX_PANELS, QUAD};
use super::finish::{Finisher, Head, Summed, Target, begin_few};
use super::tile::{
    AddUp, Ahead, Cursor, FEW_ROWS, Heights, MAX_ROWS, Reads, Reduction, STEP_QUADS, Tap, Vectors,
    few_rows, order,
};
use super::tiled::Tiled;
use crate::error::{KernelError, check_len};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::simd::{Isa, Kind, LANES, Portable};
use std::ops::Range;

/// Most taps of a kernel window.
pub(super) const MAX_TAPS: usize = 128;

/// A row; of a convolution, an output pixel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Place {
    pub image: usize,
    pub y: usize,
    pub x: usize,
}

/// Finds what a tile reads. Tasks go from place to place, because divisions are slow.
pub(super) trait Inputs: Sync {
    fn place(&self, row: usize) -> Place;
    /// Corners and taps of `rows` rows, for panels of group `group`. Goes on to the place behind them: where it is, as copies
    /// of what has just been written in parts take long. Returns where the first row's results begin, in elements of the output.
    fn fill(
        &self,
        group: usize,
        place: &mut Place,
        rows: usize,
        corners: &mut [*const u8; MAX_ROWS],
        taps: &mut [Tap],
    ) -> usize;
    /// Rows that lie one after the other in the output, from this one on.
    fn together(&self, from: Place) -> usize;
}

pub(super) struct Call<'a> {
    pub rows: usize,
    pub reduction: Reduction,
    pub steps: Steps,
    pub weights: Panels<'a>,
    /// Of the layer.
    pub panels: Range<usize>,
    /// Panels of a group.
    pub group_panels: usize,
    /// Channels of the layer's last panel.
    pub last_lanes: usize,
    pub layer_panels: usize,
    /// Rows are those of whole images, and what reads the output likely has rows of its own for each worker, too.
    pub prefers_rows: bool,
    /// `out` and `residual` are at the layer's first panel.
    pub target: Target,
    /// Asked once for a tile. Of any kind, so that what computes is compiled once.
    pub inputs: &'a dyn Inputs,
}

// SAFETY: tasks read shared memory and write disjoint results and scratch.
unsafe impl Sync for Call<'_> {}

/// Where scratch is.
#[derive(Clone, Copy)]
struct Scratch {
    /// Sums of rows, `rows` of them; null where none are needed.
    row_sums: *mut i32,
    /// Each worker's quads.
    quads: *mut u8,
    worker_bytes: usize,
}

// SAFETY: workers write their own.
unsafe impl Sync for Scratch {}

impl Scratch {
    fn quads(&self, worker: usize) -> *mut u8 {
        self.quads.wrapping_add(worker * self.worker_bytes)
    }

    fn row_sums(&self) -> *mut i32 {
        self.row_sums
    }
}

/// Four k of a task's panels, for any instruction set, so that one size serves all.
const UNIT_QUAD_BYTES: usize = 4 * QUAD * LANES;

fn unit_bytes(reduction: &Reduction) -> Option<usize> {
    let quads = reduction.quads()?.checked_next_multiple_of(STEP_QUADS)?;
    quads.checked_mul(UNIT_QUAD_BYTES)
}

/// Bytes of scratch, aligned to 64.
pub(super) fn scratch_bytes(reduction: &Reduction, rows: usize, workers: usize) -> usize {
    let quads = unit_bytes(reduction).and_then(|bytes| bytes.checked_mul(workers));
    row_sum_bytes(rows)
        .zip(quads)
        .and_then(|(a, b)| a.checked_add(b))
        .unwrap_or(usize::MAX)
}

fn row_sum_bytes(rows: usize) -> Option<usize> {
    rows.checked_mul(size_of::<i32>())?
        .checked_next_multiple_of(64)
}

impl Call<'_> {
    /// # Safety
    /// Reads of every row, the weights of the range, and the target's results are memory that the call may use so.
    pub(super) unsafe fn run(
        &self,
        isa: Isa,
        parallel: &dyn Parallel,
        scratch: &mut [u8],
    ) -> Result<(), KernelError> {
        let needed = scratch_bytes(&self.reduction, self.rows, parallel.workers());
        check_len("scratch", scratch.len(), Some(needed))?;
        if !scratch.as_ptr().addr().is_multiple_of(64) {
            return Err(KernelError::Invalid("scratch is not aligned"));
        }
        let begin = scratch.as_mut_ptr();
        let all = self.has_zero_points();
        if all && self.group_panels < self.layer_panels {
            return Err(KernelError::Unsupported("zero points of weights in groups"));
        }
        let space = Scratch {
            row_sums: if all {
                begin.cast()
            } else {
                std::ptr::null_mut()
            },
            quads: begin.wrapping_add(row_sum_bytes(self.rows).unwrap_or(0)),
            worker_bytes: unit_bytes(&self.reduction).unwrap_or(0),
        };
        if all {
            let tiles = self.rows.div_ceil(TASK_ROWS);
            parallel.run(tiles, &|task, _| {
                let first = task * TASK_ROWS;
                // SAFETY: tasks differ in rows.
                unsafe { self.sum_rows(first..(first + TASK_ROWS).min(self.rows), space) };
            });
        }
        let most = Kernel::of(isa).panels();
        let layer = Layer {
            rows: self.rows,
            channels: self.panels.len() * LANES,
            taps: self.reduction.taps,
            prefers_rows: self.prefers_rows,
        };
        let cut = Cut::new(layer, self.units(most), parallel.workers());
        parallel.run(cut.tasks(), &|task, worker| {
            let (unit, rows) = cut.task(task);
            let part = Part {
                panels: self.unit(unit, most),
                rows,
                // Workers take tasks that follow each other.
                next: match cut.task(task + 1).0 {
                    next if next != unit && task + 1 < cut.tasks() => self.unit(next, most),
                    _ => 0..0,
                },
                quads: space.quads(worker),
                row_sums: space.row_sums(),
            };
            // SAFETY: tasks differ in panels or rows, and have their worker's scratch.
            unsafe { compute(isa, self, &part) };
        });
        Ok(())
    }

    /// Panels of a group in the range, from the range's first: how many units they make.
    fn units(&self, most: usize) -> usize {
        if self.group_panels >= self.layer_panels {
            return self.panels.len().div_ceil(most);
        }
        let (mut panel, mut units) = (self.panels.start, 0);
        while panel < self.panels.end {
            panel += self.unit_len(panel, most);
            units += 1;
        }
        units
    }

    fn unit_len(&self, panel: usize, most: usize) -> usize {
        let group_ends = (panel / self.group_panels + 1) * self.group_panels;
        most.min(group_ends - panel).min(self.panels.end - panel)
    }

    fn unit(&self, index: usize, most: usize) -> Range<usize> {
        if self.group_panels >= self.layer_panels {
            // Units of about the same width: six panels are three and three, of which tiles have eight rows.
            let (count, units) = (self.panels.len(), self.units(most).max(1));
            let [start, end] = [index, index + 1].map(|i| self.panels.start + i * count / units);
            return start..end;
        }
        let mut panel = self.panels.start;
        for _ in 0..index {
            panel += self.unit_len(panel, most);
        }
        panel..panel + self.unit_len(panel, most)
    }
}

impl Call<'_> {
    fn panel(&self, panel: usize) -> *const u8 {
        let k = self.reduction.k().unwrap_or(0);
        let bytes = Format::I8.panel_bytes(k).unwrap_or(0);
        let index = panel - self.panels.start;
        self.weights.as_ptr().wrapping_add(index * bytes)
    }

    /// The panels, in as many parts as there are tiles.
    fn ahead(&self, panels: &Range<usize>, tiles: usize) -> Ahead {
        let from = self.panel(panels.start.max(self.panels.start));
        let bytes = self.panel(panels.end.max(self.panels.start)).addr() - from.addr();
        Ahead::new(from, bytes, tiles)
    }

    /// The `index`-th vector of a panel's head: bias, scales, zero points.
    ///
    /// # Safety
    /// The panel is in the range.
    unsafe fn head(&self, panel: usize, index: usize) -> [f32; LANES] {
        // SAFETY: panels are checked and aligned, and begin with three vectors.
        unsafe {
            self.panel(panel)
                .cast::<[f32; LANES]>()
                .add(index)
                .read_unaligned()
        }
    }

    fn has_zero_points(&self) -> bool {
        let mut panels = self.panels.clone();
        // SAFETY: panels of the range.
        panels.any(|panel| unsafe { self.head(panel, 2) } != [0.0; LANES])
    }

    fn reads<'t>(&self, taps: &'t mut [Tap], outside: *const u8) -> Reads<'t> {
        let r = &self.reduction;
        Reads {
            corners: [std::ptr::null(); MAX_ROWS],
            first: 0,
            taps,
            blocks: r.blocks,
            block_step: r.block_step,
            block_len: r.block_len,
            last_len: r.last_len,
            outside,
            overreads: r.overreads,
            cursor: Cursor::default(),
        }
    }
}

impl Call<'_> {
    /// Sums of activations, of a layer without groups.
    ///
    /// # Safety
    /// As [`Call::run`], and row sums are there.
    unsafe fn sum_rows(&self, rows: Range<usize>, space: Scratch) {
        let outside = [self.steps.zero; LANES];
        let mut taps = [Tap::default(); MAX_TAPS];
        let taps = &mut taps[..self.reduction.taps];
        let mut reads = self.reads(taps, outside.as_ptr());
        let mut place = self.inputs.place(rows.start);
        for row in rows {
            let (corners, taps) = (&mut reads.corners, &mut *reads.taps);
            self.inputs.fill(0, &mut place, 1, corners, taps);
            let mut sum = 0u32;
            for block in 0..reads.blocks {
                for tap in reads.taps.iter() {
                    let from = reads.run(tap, 0, block * reads.block_step);
                    // SAFETY: the caller's promise.
                    let run = unsafe { std::slice::from_raw_parts(from, reads.len(block)) };
                    sum += run.iter().map(|&x| u32::from(x)).sum::<u32>();
                }
            }
            // SAFETY: as many as there are rows.
            unsafe { *space.row_sums().add(row) = sum as i32 };
        }
    }
}

/// What a task computes, and its scratch.
struct Part {
    panels: Range<usize>,
    rows: Range<usize>,
    /// Panels that its worker likely computes next.
    next: Range<usize>,
    quads: *mut u8,
    row_sums: *const i32,
}

/// What computes on an instruction set: without VNNI, AVX2 does.
pub(super) enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Vnni,
    /// And VNNI for few rows.
    #[cfg(target_arch = "x86_64")]
    Amx,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Kernel {
    pub(super) fn of(isa: Isa) -> Kernel {
        match isa.kind() {
            Kind::Portable => Kernel::Portable,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2Fma => Kernel::Avx2,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if isa.has_tiles() => Kernel::Amx,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => match std::arch::is_x86_feature_detected!("avx512vnni") {
                true => Kernel::Vnni,
                false => Kernel::Avx2,
            },
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => Kernel::Neon,
        }
    }

    pub(super) fn panels(&self) -> usize {
        match self {
            #[cfg(target_arch = "x86_64")]
            Kernel::Vnni | Kernel::Amx => <crate::simd::Avx512 as Dot>::PANELS,
            _ => 1,
        }
    }
}

/// # Safety
/// As [`Call::run`]; no one else writes the part's results and scratch.
unsafe fn compute(isa: Isa, call: &Call<'_>, part: &Part) {
    // SAFETY: the caller's promise; the processor has the instructions.
    unsafe {
        match Kernel::of(isa) {
            Kernel::Portable => compute_with::<_, Vectors>(Portable, call, part),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn run(call: &Call<'_>, part: &Part) {
                    let d = crate::simd::Avx2Fma::new();
                    // SAFETY: as the function around.
                    unsafe { compute_with::<_, Vectors>(d, call, part) }
                }
                run(call, part);
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Amx if !is_few(part) => vnni::<Tiles>(call, part),
            #[cfg(target_arch = "x86_64")]
            Kernel::Vnni | Kernel::Amx => vnni::<Vectors>(call, part),
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => compute_with::<_, Vectors>(crate::simd::Neon::new(), call, part),
        }
    }
}

/// # Safety
/// As [`compute`]; the processor has these instructions, and those of `A`.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
unsafe fn vnni<A: AddUp<crate::simd::Avx512>>(call: &Call<'_>, part: &Part) {
    // SAFETY: the caller's promise.
    unsafe { compute_with::<_, A>(crate::simd::Avx512::new(), call, part) }
}

/// Whether bringing panels into order would cost more than computing.
fn is_few(part: &Part) -> bool {
    part.rows.len() <= FEW_ROWS
}

/// Sums of a tile.
const SUMS: usize = MAX_ROWS * MAX_PANELS * LANES;

/// The sums of a tile, and of the one before.
#[repr(align(64))]
struct Sums([[i32; SUMS]; 2]);

#[inline(always)]
unsafe fn compute_with<D: Tiled, A: AddUp<D>>(d: D, call: &Call<'_>, part: &Part) {
    let count = part.panels.len();
    let r = &call.reduction;
    let mut heads = [Head::NONE; MAX_PANELS];
    let mut packed = [std::ptr::null(); MAX_PANELS];
    let few = A::TAKES_FEW && is_few(part);
    for (i, panel) in part.panels.clone().enumerate() {
        packed[i] = call.panel(panel).wrapping_add(Format::I8.head_bytes());
        if !few {
            let to = part.quads.wrapping_add(i * D::QUAD_BYTES);
            // SAFETY: a panel of the range; scratch holds a unit of any instruction set.
            heads[i] = unsafe {
                let columns = order(d, r, packed[i], to, count * D::QUAD_BYTES);
                call.make_head(panel, &columns)
            };
        }
    }
    // SAFETY: the panels are in order there, unless there are few rows, and scratch holds whole steps.
    let mut adder = unsafe { A::new(r, count, part.quads) };
    let group = part.panels.start / call.group_panels;
    let last_lanes = if part.panels.end == call.layer_panels {
        call.last_lanes
    } else {
        LANES
    };
    let outside = [call.steps.zero; LANES];
    let mut taps = [Tap::default(); MAX_TAPS];
    // Filled where they are: what was just written in parts is read late as a whole.
    let mut reads = call.reads(&mut taps[..r.taps], outside.as_ptr());
    let mut sums = Sums([[0; SUMS]; 2]);
    let (sums, mut turn) = (sums.0.as_mut_ptr().cast::<i32>(), 0);
    let panels_begin = part.panels.start * call.target.panel_elements;
    let most_rows = match few {
        true => A::ROWS[count - 1].min(FEW_ROWS),
        false => A::ROWS[count - 1],
    };
    let finisher = Finisher::new(&call.target);
    let mut beside = Beside::new::<D>(&finisher, part.row_sums.is_null(), last_lanes);
    beside.limit(&heads[..count]);
    let mut ahead = call.ahead(&part.next, part.rows.len().div_ceil(most_rows));
    let mut row = part.rows.start;
    let mut place = call.inputs.place(row);
    let mut heights = Heights::default();
    // Once more behind the last tile, whose results are left: what makes them is long, and is compiled here only.
    loop {
        let mut tile = Summed::NONE;
        if row < part.rows.end {
            if heights.left == 0 {
                let together = (part.rows.end - row).min(call.inputs.together(place));
                heights = Heights::of(together, most_rows);
            }
            let rows = heights.take();
            let (corners, taps) = (&mut reads.corners, &mut *reads.taps);
            let begins = (call.inputs).fill(group, &mut place, rows, corners, taps);
            // Results of the other sums may not be made yet.
            turn = 1 - turn;
            tile = Summed {
                sums: sums.wrapping_add(turn * SUMS),
                row_sums: if part.row_sums.is_null() {
                    std::ptr::null()
                } else {
                    part.row_sums.wrapping_add(row)
                },
                rows,
                panels: count,
                first: begins + panels_begin,
            };
            // SAFETY: the caller's promise.
            unsafe {
                if few {
                    let mut columns = [[0; LANES]; MAX_PANELS];
                    let at = columns.as_mut_ptr().cast();
                    few_rows(d, count, rows, &reads, &packed, tile.sums, at);
                    for (i, panel) in part.panels.clone().enumerate() {
                        heads[i] = call.make_head(panel, &columns[i]);
                    }
                    beside.limit(&heads[..count]);
                    let sums = std::slice::from_raw_parts_mut(tile.sums, rows * count * LANES);
                    begin_few(sums, &heads[..count]);
                } else {
                    ahead.bring();
                    adder.add_up(d, rows, &mut reads, &heads, tile.sums, &mut beside);
                }
            }
            row += rows;
        }
        // SAFETY: the caller's promise.
        unsafe { beside.rest(d, &heads) };
        if tile.rows == 0 {
            break;
        }
        beside.put(tile, &heads);
    }
}

impl Call<'_> {
    /// What makes numbers of a panel's sums, by the sums of its weights.
    ///
    /// # Safety
    /// The panel is in the range.
    #[inline(always)]
    unsafe fn make_head(&self, panel: usize, columns: &[i32; LANES]) -> Head {
        // SAFETY: the caller's promise.
        let [bias, mut scale, zeros] = unsafe { [0, 1, 2].map(|i| self.head(panel, i)) };
        let k = self.reduction.k().unwrap_or(0) as i32;
        let own = i32::from(self.steps.zero);
        let mut head = Head {
            bias,
            zero: zeros.map(|zero| zero as i32),
            ..Head::NONE
        };
        for i in 0..LANES {
            let both = head.zero[i].wrapping_mul(own).wrapping_mul(k);
            head.start[i] = both.wrapping_sub(own.wrapping_mul(columns[i]));
            scale[i] *= self.steps.scale;
        }
        head.scale = scale;
        head
    }
}

const fn fits<D: Dot>() -> bool {
    D::PANELS * D::QUAD_BYTES <= UNIT_QUAD_BYTES && D::PANELS <= MAX_PANELS
}

const _: () = {
    assert!(fits::<Portable>());
    #[cfg(target_arch = "x86_64")]
    assert!(fits::<crate::simd::Avx512>() && fits::<crate::simd::Avx2Fma>());
    #[cfg(target_arch = "aarch64")]
    assert!(fits::<crate::simd::Neon>());
};
