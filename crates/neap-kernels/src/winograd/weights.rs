//! The weights of a call: as they are stored, or at the points; and what of them is brought into cache ahead.

use super::transform::{PanelPart, transform_weights};
use super::{Tile, prepared_panel_floats};
use crate::panel::{Format, Panels};
use crate::parallel::Parallel;
use crate::simd::{Isa, LANES};
use crate::tile::Split;

/// The weights of a call's first panel.
#[derive(Clone, Copy)]
pub(super) enum Source {
    Raw(RawPanels),
    Prepared(*const f32),
}

/// Panels as they are stored.
#[derive(Clone, Copy)]
pub(super) struct RawPanels {
    pub first: *const u8,
    pub format: Format,
}

impl From<Panels<'_>> for RawPanels {
    fn from(panels: Panels<'_>) -> Self {
        RawPanels {
            first: panels.as_ptr(),
            format: panels.format(),
        }
    }
}

impl RawPanels {
    /// Where a panel of `9 * c_in` weights for each lane begins.
    pub fn head(self, panel: usize, c_in: usize) -> *const f32 {
        let bytes = self.format.head_bytes() + 9 * c_in * self.format.step_bytes();
        self.first.wrapping_add(panel * bytes).cast()
    }

    /// The weights of a channel, the first of a block.
    pub fn channel(self, panel: usize, c_in: usize, channel: usize) -> *const u8 {
        let before = self.format.head_bytes() + 9 * channel * self.format.step_bytes();
        self.head(panel, c_in).cast::<u8>().wrapping_add(before)
    }
}

/// Weights at the points: of some panels, from some channel on.
pub(super) struct PartWeights {
    pub first: *const f32,
    pub panel_floats: usize,
    pub point_floats: usize,
    pub ahead: Ahead,
}

/// What is brought into cache during the products of a part.
pub(super) enum Ahead {
    /// Weights are used where they lie: those of the point after, and after the last of other panels.
    NextPoint { last: *const f32 },
    /// Weights are transformed first: the raw ones of the part after.
    NextPart {
        first: *const f32,
        panel_floats: usize,
    },
}

impl PartWeights {
    /// What micro-kernel call number `turn` of the part brings: first vector, from panel to panel, and
    /// vectors for each of its `blocks` channel blocks.
    pub fn ahead(
        &self,
        turn: usize,
        groups: usize,
        points: usize,
        blocks: usize,
    ) -> (*const f32, usize, usize) {
        // Vectors that follow for a channel block, the calls that share them, and which of those this is.
        let (first, panel_floats, vectors, calls, call) = match self.ahead {
            Ahead::NextPoint { last } => {
                let point = turn / groups + 1;
                let first = if point < points {
                    self.first.wrapping_add(point * self.point_floats)
                } else {
                    last
                };
                (first, self.panel_floats, LANES, groups, turn % groups)
            }
            Ahead::NextPart {
                first,
                panel_floats,
            } => (first, panel_floats, 9 * LANES, points * groups, turn),
        };
        let share = vectors.div_ceil(calls);
        let brought = call * share;
        let each = if brought < vectors { share } else { 0 };
        let first = first.wrapping_add(brought * blocks * LANES);
        (first, panel_floats, each)
    }
}

/// Transforms whole panels, bias included.
///
/// # Safety
/// `raw` holds that many panels, and `to` has room for as many of
/// `[bias 16][point][k][16]`.
pub(super) unsafe fn prepare(
    isa: Isa,
    parallel: &dyn Parallel,
    tile: Tile,
    c_in: usize,
    panels: usize,
    raw: RawPanels,
    to: *mut f32,
) {
    struct Pointers(RawPanels, *mut f32);
    // SAFETY: tasks read the raw panels and write disjoint parts of the others.
    unsafe impl Sync for Pointers {}
    let pointers = Pointers(raw, to);
    let channel_blocks = c_in.div_ceil(LANES);
    let tasks = Split {
        total: panels * channel_blocks.max(1),
        parts: (panels * channel_blocks.max(1))
            .min(parallel.workers() * super::drive::TASKS_PER_WORKER)
            .max(1),
    };
    parallel.run(tasks.parts, &|task, _| {
        let Pointers(raw, to) = &pointers;
        for unit in tasks.range(task) {
            let (panel, first) = (
                unit / channel_blocks.max(1),
                unit % channel_blocks.max(1) * LANES,
            );
            // SAFETY: panel and channels are inside what the contract names.
            unsafe {
                let to = to.add(panel * prepared_panel_floats(tile, c_in));
                if first == 0 {
                    std::ptr::copy_nonoverlapping(raw.head(panel, c_in), to, LANES);
                }
                let part = PanelPart {
                    format: raw.format,
                    head: raw.head(panel, c_in),
                    weights: raw.channel(panel, c_in, first),
                    channels: (c_in - first).min(LANES),
                    to: to.add((1 + first) * LANES),
                    point_floats: c_in * LANES,
                };
                transform_weights(isa, tile, part);
            }
        }
    });
}
