//! `Tile`: how much of a product a workgroup computes, where it has memory for that.
//!
//! ```text
//!   parts   1: a tile of 4096 results       16: one of 256, whose steps 16 parts of the invocations share
//!           few steps, many results             few results, many steps: small images, few rows
//! ```
//! What a result is summed of follows from the number of parts, and that from the whole layer and the device: so slices of a layer have the
//! same bits as all of it, whatever their tiles.

/// Invocations of a workgroup, as a power of two, and results of each.
const INVOCATIONS_LOG: u32 = 8;
const EACH_LOG: u32 = 4;
/// Fours of places, and of weights, that a turn puts into memory: two of each invocation.
const TURN_LOG: u32 = 11;
/// Bytes of a workgroup's memory that the largest kernel takes.
const MEMORY_BYTES: u32 = 28 << 10;
/// Steps of a part, at least.
const LEAST_STEPS: usize = 32;
/// So many groups keep a device busy that does not tell how many it computes at once.
const PROCESSORS: u32 = 32;
const MOST_PARTS_LOG: u32 = 4;
/// A place has a row of its own in the window's table, and panels have four fours.
const MOST_ROWS_LOG: u32 = 8;
const MOST_PANELS_LOG: u32 = 2;

/// How a device computes products: which kernels it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Lanes tell each other what they load: for drivers that compute on the processor.
    Lanes,
    /// In the memory of workgroups, so many of which are computed at once.
    Tiles { processors: u32 },
    /// Each invocation by itself.
    Plain,
}

impl Way {
    /// Of a workgroup's invocations and memory.
    pub(crate) fn of_workgroup([invocations, bytes]: [u32; 2], processors: u32) -> Way {
        let processors = match processors {
            0 => PROCESSORS,
            told => told,
        };
        match invocations >= 1 << INVOCATIONS_LOG && bytes >= MEMORY_BYTES {
            true => Way::Tiles { processors },
            false => Way::Plain,
        }
    }
}

/// A whole layer: places or rows, panels of results, and steps of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub rows: usize,
    pub panels: usize,
    pub steps: usize,
}

impl Product {
    /// In how many parts invocations share steps, as a power of two: so many that there are groups enough.
    pub(crate) fn parts(&self, processors: u32) -> u32 {
        let wanted = 2 * processors as usize;
        let has_enough = |parts: &u32| {
            let tile = Tile::of(*parts, self.rows, self.panels);
            let groups = self.rows.div_ceil(tile.rows()) * self.panels.div_ceil(tile.panels());
            groups >= wanted || self.steps < LEAST_STEPS << (parts + 1)
        };
        (0..MOST_PARTS_LOG)
            .find(has_enough)
            .unwrap_or(MOST_PARTS_LOG)
    }
}

/// Each a power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    rows: u32,
    panels: u32,
    parts: u32,
    steps: u32,
}

impl Tile {
    /// For a slice: the one that computes least beside what is wanted, and loads least for that.
    pub(crate) fn of(parts: u32, rows: usize, panels: usize) -> Tile {
        Tile::within(parts, rows, panels, MOST_PANELS_LOG)
    }

    /// The same for panels whose places are not the same.
    pub(crate) fn of_panel(parts: u32, rows: usize) -> Tile {
        Tile::within(parts, rows, 1, 0)
    }

    fn within(parts: u32, rows: usize, panels: usize, most_panels: u32) -> Tile {
        let results = INVOCATIONS_LOG + EACH_LOG - parts;
        let tiles = (0..=most_panels).filter_map(|log| {
            let of_rows = results.checked_sub(log + 4)?;
            let steps = TURN_LOG - of_rows.max(log + 4);
            // Each part has a four of steps in each turn.
            let fits = (2..=MOST_ROWS_LOG).contains(&of_rows) && steps >= parts + 2;
            fits.then_some(Tile {
                rows: of_rows,
                panels: log,
                parts,
                steps,
            })
        });
        let cost = |tile: &Tile| {
            let groups = rows.div_ceil(tile.rows()) * panels.div_ceil(tile.panels());
            groups * (tile.rows() + 16 * tile.panels() + (1 << results) / 16)
        };
        let best = tiles.min_by_key(cost);
        best.unwrap_or(Tile {
            rows: 4,
            panels: 0,
            parts: MOST_PARTS_LOG,
            steps: 7,
        })
    }

    pub(crate) fn rows(&self) -> usize {
        1 << self.rows
    }

    pub(crate) fn panels(&self) -> usize {
        1 << self.panels
    }

    /// As the shaders read it.
    pub(crate) fn word(&self) -> u32 {
        self.rows | self.panels << 4 | self.parts << 8 | self.steps << 12
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row of a turn's places, and its weights, fit where `tiles.wgsl` puts them, and every part has whole fours.
    #[test]
    fn every_tile_fits_its_memory() {
        for parts in 0..=MOST_PARTS_LOG {
            for rows in [1, 7, 49, 196, 197, 784, 12_544] {
                for panels in [1, 2, 3, 4, 48, 256] {
                    let tile = Tile::of(parts, rows, panels);
                    let fours = (1 << tile.steps) / 4;
                    assert_eq!(tile.parts, parts);
                    assert!(tile.rows() * (fours + 1) <= 768, "{tile:?}");
                    assert!(tile.rows() * fours <= 512, "{tile:?}");
                    assert!(tile.panels() * (fours * 16 + 4) <= 528, "{tile:?}");
                    assert!(tile.panels() * fours * 16 <= 512, "{tile:?}");
                    assert!(fours >= 1 << parts, "{tile:?}");
                    let results = tile.rows() * tile.panels() * 16;
                    assert_eq!(results << parts, 4096, "{tile:?}");
                }
            }
        }
    }

    #[test]
    fn small_images_have_more_parts() {
        let parts = |rows, panels, steps| {
            let product = Product {
                rows,
                panels,
                steps,
            };
            product.parts(132)
        };
        assert_eq!(parts(49, 32, 4608), 4);
        assert_eq!(parts(50_176, 4, 576), 0);
        assert!(parts(196, 16, 2304) > parts(3136, 4, 576));
        // No steps to share.
        assert_eq!(parts(49, 4, 32), 0);
    }
}
