//! How a layer is cut into tasks, and where its scratch lies.

use super::Kernel;
use super::dot::{BlockDot, MAX_PANELS};
use super::rows::Fact;
use super::tile::{Tile, WIDE_PANELS, WIDE_QUAD, add_tile, widen};
use crate::epilogue::{Activation, activate};
use crate::integer::dot::QUAD;
use crate::integer::tile::Heights;
use crate::linear::LinearShape;
use crate::panel::{Bits, BlockFormat};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES, Portable};
use std::ops::Range;

/// As many rows or fewer take weights as they are packed; for more, a task widens them once.
const FEW_ROWS: usize = 6;

/// Rows of a task at least.
const TASK_ROWS: usize = 48;

const LINE: usize = 64;

/// Where scratch is: steps of all rows, their facts, and each worker's widened panels.
#[derive(Clone, Copy)]
pub(super) struct Space {
    row_bytes: usize,
    fact_bytes: usize,
    facts: usize,
    wide: usize,
    worker_bytes: usize,
    pub bytes: usize,
}

impl Space {
    /// `None` for more than there can be.
    pub fn of(shape: &LinearShape, len: usize, workers: usize) -> Option<Space> {
        let row_bytes = shape.k.checked_next_multiple_of(LANES)?;
        let fact_bytes = shape
            .k
            .div_ceil(len.max(1))
            .checked_mul(size_of::<Fact>())?;
        let each = |bytes: usize| shape.m.checked_mul(bytes)?.checked_next_multiple_of(LINE);
        let facts = each(row_bytes)?;
        let wide = facts.checked_add(each(fact_bytes)?)?;
        let worker_bytes = match shape.m > FEW_ROWS {
            true => (shape.k.div_ceil(QUAD)).checked_mul(WIDE_PANELS * WIDE_QUAD)?,
            false => 0,
        };
        Some(Space {
            row_bytes,
            fact_bytes,
            facts,
            wide,
            worker_bytes,
            bytes: wide.checked_add(worker_bytes.checked_mul(workers)?)?,
        })
    }

    pub fn steps_of(&self, row: usize) -> usize {
        row * self.row_bytes
    }

    pub fn facts_of(&self, row: usize) -> usize {
        self.facts + row * self.fact_bytes
    }
}

pub(super) struct Call {
    pub shape: LinearShape,
    /// Of the range.
    pub panels: usize,
    /// Channels of its last panel.
    pub last_lanes: usize,
    pub weights: *const u8,
    pub panel_bytes: usize,
    pub format: BlockFormat,
    pub space: Space,
    pub scratch: *mut u8,
    /// First column of the range.
    pub out: *mut f32,
    /// Null, or as `out`.
    pub residual: *const f32,
    pub activation: Activation,
}

// SAFETY: tasks read shared memory and write disjoint results and scratch.
unsafe impl Sync for Call {}

/// What a task computes.
struct Part {
    panels: Range<usize>,
    rows: Range<usize>,
    worker: usize,
}

impl Call {
    /// # Safety
    /// Rows are rounded in scratch; weights, results and residual are memory that the call may use so.
    pub unsafe fn run(&self, isa: Isa, parallel: &dyn Parallel) {
        let rows = self.shape.m;
        let kernel = Kernel::of(isa);
        let most = match rows {
            1 => kernel.panels(),
            _ => kernel.panels().min(WIDE_PANELS),
        };
        let units = self.panels.div_ceil(most);
        let enough = 4 * parallel.workers();
        let splits = match units >= enough || parallel.workers() == 1 {
            true => 1,
            false => enough.div_ceil(units).min(rows.div_ceil(TASK_ROWS)).max(1),
        };
        let each = rows.div_ceil(splits);
        parallel.run(units * splits, &|task, worker| {
            let (unit, split) = (task / splits, task % splits);
            let part = Part {
                panels: unit * most..((unit + 1) * most).min(self.panels),
                rows: (split * each).min(rows)..((split + 1) * each).min(rows),
                worker,
            };
            // SAFETY: tasks differ in panels or rows, and have their worker's scratch.
            unsafe {
                compute(isa, self, &part);
                self.activate(isa, &part);
            }
        });
    }

    /// What tiles do not apply themselves.
    ///
    /// # Safety
    /// As [`Call::run`]; no one else uses the part's results.
    unsafe fn activate(&self, isa: Isa, part: &Part) {
        if self.activation.is_light() {
            return;
        }
        let stride = self.shape.out_stride;
        let at = part.rows.start * stride + part.panels.start * LANES;
        let lanes = match part.panels.end == self.panels {
            true => (part.panels.len() - 1) * LANES + self.last_lanes,
            false => part.panels.len() * LANES,
        };
        // SAFETY: the caller's promise.
        unsafe {
            let to = self.out.add(at);
            activate(isa, self.activation, to, part.rows.len(), stride, lanes);
        }
    }
}

/// # Safety
/// As [`Call::run`]; no one else writes the part's results and scratch.
unsafe fn compute(isa: Isa, call: &Call, part: &Part) {
    // SAFETY: the caller's promise; the processor has the instructions.
    unsafe {
        match Kernel::of(isa) {
            Kernel::Portable => compute_with(Portable, call, part),
            #[cfg(target_arch = "x86_64")]
            Kernel::Avx2 => {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn run(call: &Call, part: &Part) {
                    let d = crate::simd::Avx2Fma::new();
                    // SAFETY: as the function around.
                    unsafe { compute_with(d, call, part) }
                }
                run(call, part);
            }
            #[cfg(target_arch = "x86_64")]
            Kernel::Vnni | Kernel::Amx => {
                #[target_feature(
                    enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c"
                )]
                unsafe fn run(call: &Call, part: &Part) {
                    let d = crate::simd::Avx512::new();
                    // SAFETY: as the function around.
                    unsafe { compute_with(d, call, part) }
                }
                run(call, part);
            }
            #[cfg(target_arch = "aarch64")]
            Kernel::Neon => compute_with(crate::simd::Neon::new(), call, part),
        }
    }
}

/// # Safety
/// As [`compute`].
#[inline(always)]
unsafe fn compute_with<D: BlockDot>(d: D, call: &Call, part: &Part) {
    let is_wide = call.shape.m > FEW_ROWS;
    // SAFETY: the caller's promise.
    unsafe {
        match (call.format.bits, is_wide) {
            (Bits::Four, false) => tiles::<D, false, false>(d, call, part),
            (Bits::Four, true) => tiles::<D, false, true>(d, call, part),
            (Bits::Eight, false) => tiles::<D, true, false>(d, call, part),
            (Bits::Eight, true) => tiles::<D, true, true>(d, call, part),
        }
    }
}

/// # Safety
/// As [`compute`], and the weights have the bits that `EIGHT` says.
#[inline(always)]
unsafe fn tiles<D: BlockDot, const EIGHT: bool, const WIDE: bool>(d: D, call: &Call, part: &Part) {
    let (space, count) = (&call.space, part.panels.len());
    let mut panels = [std::ptr::null(); MAX_PANELS];
    let wide = call
        .scratch
        .wrapping_add(space.wide + part.worker * space.worker_bytes);
    for (i, panel) in part.panels.clone().enumerate() {
        panels[i] = call.weights.wrapping_add(panel * call.panel_bytes);
        if WIDE {
            let to = wide.wrapping_add(i * WIDE_QUAD);
            let step = count * WIDE_QUAD;
            // SAFETY: a panel of the range; the worker's scratch holds as many panels.
            unsafe { widen::<D, EIGHT>(d, call.format, call.shape.k, panels[i], to, step) };
        }
    }
    let stride = call.shape.out_stride;
    let mut heights = Heights::of(part.rows.len(), D::ROWS[count - 1]);
    let mut row = part.rows.start;
    while row < part.rows.end {
        let rows = heights.take();
        let at = row * stride + part.panels.start * LANES;
        let tile = Tile {
            steps: call.scratch.wrapping_add(space.steps_of(row)).cast(),
            row_bytes: space.row_bytes,
            facts: call.scratch.wrapping_add(space.facts_of(row)).cast(),
            k: call.shape.k,
            blocks: call.shape.k.div_ceil(call.format.len),
            format: call.format,
            panels,
            wide,
            last_lanes: match part.panels.end == call.panels {
                true => call.last_lanes,
                false => LANES,
            },
            out: call.out.wrapping_add(at),
            residual: match call.residual.is_null() {
                true => std::ptr::null(),
                false => call.residual.wrapping_add(at),
            },
            row_floats: stride,
            activation: call.activation,
        };
        // SAFETY: the caller's promise.
        unsafe { by_size::<D, EIGHT, WIDE>(d, count, rows, &tile) };
        row += rows;
    }
}

/// # Safety
/// As [`add_tile`].
#[inline(always)]
unsafe fn by_size<D: BlockDot, const EIGHT: bool, const WIDE: bool>(
    d: D,
    panels: usize,
    rows: usize,
    tile: &Tile,
) {
    macro_rules! sizes {
        ($($p:literal: $($r:literal)*;)*) => {
            match (panels, rows) {
                // SAFETY: the caller's promise.
                $($(($p, $r) if const { $p <= D::PANELS && $r <= D::ROWS[$p - 1] && (!WIDE || $p <= WIDE_PANELS) } => unsafe {
                    add_tile::<D, EIGHT, WIDE, $p, $r>(d, tile)
                },)*)*
                _ => unreachable!("no tile is larger than the instruction set's"),
            }
        };
    }
    sizes!(
        1: 1 2 3 4 5 6;
        2: 1 2 3 4 5 6;
        3: 1;
        4: 1;
    );
}
