//! Convolutions of 3x3 by F(2x2, 3x3): fewer multiplications, with scratch for what lies between four dispatches.
//!
//! ```text
//!   for some panels   weights ─► matrices ┐
//!     for some tiles     input ─► values ─┴► products ─► output       all tiles at once where there is room: values once
//! ```
//! How many panels and tiles are worked on at a time follows from the scratch that there is, and changes no bit.

use super::{Call, blocked, layer, residual};
use crate::dispatch::{Dispatch, Panels, Span};
use crate::kernel::Kernel;
use crate::limits::Limits;
use crate::tiles::Way;
use crate::words::{Words, activation};
use neap_ir::op::Activation;
use neap_ir::panel::{ConvForm, PanelConv, PanelElement, PanelFormat, PanelScales};
use neap_ops::{TensorMut, TensorRef};
use std::ops::Range;

/// What a tile has of each plane of its values and of each panel of its products, and a panel's matrices of each channel of input.
const EACH_BYTES: u64 = 16 * 16 * 4;
/// Of a tile.
const POINTS: u32 = 16;
/// Tiles that the lanes of a vector multiply: four in each of eight invocations.
const LANES_TILES: u64 = 32;
/// Panels that an invocation multiplies.
const PAIR: u64 = 2;

/// Nanoseconds, about, on a driver that computes on the processor: to transform a plane of a tile, to multiply a tile by a panel's matrix
/// of one channel, and of a dispatch. What is chosen by them changes no bit.
const VALUE_NS: u64 = 450;
const PRODUCT_NS: u64 = 42;
const DISPATCH_NS: u64 = 30_000;
/// To make a panel's matrices of one channel, and to finish a tile of a panel.
const MATRIX_NS: u64 = 380;
const OUTPUT_NS: u64 = 320;
/// To compute a place of a panel of one channel by the direct kernel.
const DIRECT_NS: u64 = 20;
/// Of the direct kernel's time, in hundredths, what is taken for certain to be less: the figures are estimates.
const WINS_FROM: u64 = 85;

/// Sizes of a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layer {
    c_in: u64,
    planes_in: u64,
    tiles: u64,
    /// Of one image, and images.
    places: u64,
    batch: u64,
}

/// How many panels and tiles are worked on at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pass {
    panels: u64,
    /// A multiple of four.
    room: u64,
}

impl Pass {
    fn bytes(self, layer: &Layer) -> [u64; 3] {
        [
            layer.planes_in * self.room * EACH_BYTES,
            (layer.c_in + 1) * self.panels * EACH_BYTES,
            self.room * self.panels * EACH_BYTES,
        ]
    }

    /// Of a slice of so many panels.
    fn ns(self, layer: &Layer, panels: u64) -> u64 {
        let panel_passes = panels.div_ceil(self.panels);
        let tile_passes = layer.tiles.div_ceil(self.room);
        let inputs = if tile_passes == 1 { 1 } else { panel_passes };
        let vectors = |tiles: u64| tiles.div_ceil(LANES_TILES) * LANES_TILES;
        let last = layer.tiles - (tile_passes - 1) * self.room;
        let multiplied = (tile_passes - 1) * vectors(self.room) + vectors(last);
        let pairs = (panels / self.panels) * self.panels.next_multiple_of(PAIR)
            + (panels % self.panels).next_multiple_of(PAIR);
        inputs * layer.tiles * layer.planes_in * VALUE_NS
            + panels * layer.c_in * MATRIX_NS
            + multiplied * pairs * layer.c_in * PRODUCT_NS
            + layer.tiles * panels * OUTPUT_NS
            + (panel_passes * (1 + 2 * tile_passes) + inputs * tile_passes) * DISPATCH_NS
    }
}

impl Layer {
    fn of(conv: &PanelConv, y: &[usize]) -> Option<Layer> {
        let &[batch, _, height, width] = y else {
            return None;
        };
        Some(Layer {
            c_in: conv.c_in as u64,
            planes_in: conv.c_in.div_ceil(16) as u64,
            tiles: (batch * height.div_ceil(2) * width.div_ceil(2)) as u64,
            places: (height * width) as u64,
            batch: batch as u64,
        })
    }

    /// With so many panels at a time, as many tiles as scratch and bindings hold.
    fn pass(&self, panels: u64, scratch_bytes: u64, limits: &Limits) -> Option<Pass> {
        let most = limits.operand_bytes();
        let matrices = Pass { panels, room: 0 }.bytes(self)[1];
        if matrices > most {
            return None;
        }
        let beside = scratch_bytes.checked_sub(matrices)?;
        let all = self.tiles.next_multiple_of(4);
        let room = (beside / ((self.planes_in + panels) * EACH_BYTES))
            .min(most / (self.planes_in.max(panels) * EACH_BYTES))
            .min(all);
        let room = match room {
            _ if room == all => room,
            LANES_TILES.. => room / LANES_TILES * LANES_TILES,
            _ => room / 4 * 4,
        };
        (room > 0).then_some(Pass { panels, room })
    }

    /// The fastest pass for a slice of so many panels.
    fn fastest(&self, panels: u64, scratch_bytes: u64, limits: &Limits) -> Option<Pass> {
        let parts = (1..=panels).map(|parts| panels.div_ceil(parts).next_multiple_of(PAIR));
        let counts = parts.chain([1]).map(|count| count.min(panels));
        let passes = counts.filter_map(|count| self.pass(count, scratch_bytes, limits));
        passes.min_by_key(|pass| pass.ns(self, panels))
    }

    /// The most scratch that is of use for so many panels.
    fn most_bytes(&self, panels: u64) -> u64 {
        let room = self.tiles.next_multiple_of(4);
        Pass { panels, room }.bytes(self).iter().sum()
    }

    fn direct_ns(&self, panels: u64) -> u64 {
        let places = self.places.div_ceil(LANES_TILES) * LANES_TILES * self.batch;
        places * panels.next_multiple_of(PAIR) * self.c_in * DIRECT_NS + DISPATCH_NS
    }
}

/// What Winograd is expected to do for a layer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gain {
    pub scratch_bytes: u64,
    /// Of the direct kernel's time.
    pub saved_ns: u64,
}

/// With as many bytes of scratch as there are, or as are of use; `None` where the direct kernel is expected to be as fast.
pub(super) fn gain(conv: &PanelConv, call: &Call, room_bytes: u64) -> Option<Gain> {
    let (x, y) = (call.floats(0)?, call.result()?);
    can_be(conv, call, &x, &y).then_some(())?;
    let layer = Layer::of(conv, y.shape())?;
    let panels = call.panels.as_ref()?.range.len() as u64;
    let bytes = layer.most_bytes(panels).min(room_bytes / 64 * 64);
    let pass = layer.fastest(panels, bytes, call.limits)?;
    let (ns, direct_ns) = (pass.ns(&layer, panels), layer.direct_ns(panels));
    (ns * 100 < direct_ns * WINS_FROM).then(|| Gain {
        scratch_bytes: bytes,
        saved_ns: direct_ns - ns,
    })
}

/// What any convolution of panels takes, about, by its direct kernel.
pub(super) fn direct_ns(conv: &PanelConv, call: &Call) -> u64 {
    let y = call.result().map_or(0, |y| {
        let places: usize = y.shape().iter().skip(2).product();
        (y.shape()[0] * places * y.shape()[1].div_ceil(16)) as u64
    });
    y.saturating_mul(conv.k() as u64) * DIRECT_NS / 9
}

fn can_be(conv: &PanelConv, call: &Call, x: &TensorRef, y: &TensorMut) -> bool {
    let window = &conv.window;
    let is_f32 = |format: PanelFormat| {
        format.element == PanelElement::F32 && format.scales == PanelScales::None
    };
    call.way == Way::Lanes
        && call
            .panels
            .as_ref()
            .is_some_and(|panels| is_f32(panels.format))
        && conv.form == ConvForm::Blocked
        && conv.groups == 1
        && conv.c_in.is_multiple_of(4)
        && conv.epilogue.integers.is_none()
        && window.kernel == [3; 2]
        && window.strides == [1; 2]
        && window.dilations == [1; 2]
        && blocked(x.layout)
        && blocked(y.layout)
}

/// Lists the dispatches that compute a slice in the call's scratch.
pub(super) fn conv(conv: &PanelConv, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let panels = call.panels.clone()?;
    let scratch = call.scratch?;
    can_be(conv, call, &x, &y).then_some(())?;
    let window = &conv.window;
    let layer = Layer::of(conv, y.shape())?;
    let pass = layer.fastest(panels.range.len() as u64, scratch.bytes, call.limits)?;
    let (added, residual) = residual(call, conv.epilogue.residual, &y)?;
    let does = conv.epilogue.activation;
    activation(does)?;
    let is_bounded = matches!(
        does,
        Activation::None | Activation::Relu | Activation::Clip { .. }
    );
    let output = match residual == 0 && is_bounded {
        true => Kernel::WinogradOutput,
        false => Kernel::WinogradOutputMore,
    };
    let [height, width] = [2, 3].map(|axis| y.shape()[axis]);
    let (tile_rows, row_tiles) = (height.div_ceil(2), width.div_ceil(2));
    let sizes = [
        conv.c_in,
        conv.c_in.div_ceil(16),
        conv.c_out.div_ceil(16),
        x.shape()[2],
        x.shape()[3],
        height,
        width,
        window.pads_begin[0],
        window.pads_begin[1],
        row_tiles,
        tile_rows * row_tiles,
    ];
    let mut shape = [0; 16];
    for (word, size) in shape.iter_mut().zip(sizes) {
        // Coordinates are signed in shaders.
        *word = u32::try_from(size).ok().filter(|&n| n < 1 << 28)?;
    }
    u32::try_from(layer.tiles).ok().filter(|&n| n < 1 << 26)?;
    Steps {
        layer,
        pass,
        panels,
        shape,
        scratch,
        input: Span::of(&x),
        output: Span::of_mut(&y),
        added,
        finish: (output, does, residual),
    }
    .list(call, out)
}

/// A slice, on its way to dispatches.
struct Steps {
    layer: Layer,
    pass: Pass,
    panels: Panels,
    /// Of `winograd.wgsl`, without what changes from pass to pass.
    shape: [u32; 16],
    scratch: Span,
    input: Span,
    output: Span,
    added: Option<Span>,
    finish: (Kernel, Activation, u32),
}

impl Steps {
    fn list(&self, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
        let [values, matrices, products] = self.places();
        let is_once = self.pass.room >= self.layer.tiles;
        let stored_bytes = self.panels.all.bytes / self.panels.range.len().max(1) as u64;
        let planes = self.layer.planes_in as u32;
        let range = self.panels.range.clone();
        let (finish, activation, residual) = self.finish;
        let mut first = range.start;
        while first < range.end {
            let count = (range.end - first).min(self.pass.panels as usize);
            let panels = first as u32..(first + count) as u32;
            let weights = Span {
                start: (self.panels.all.start)
                    .wrapping_add((first - range.start) * stored_bytes as usize),
                bytes: stored_bytes * count as u64,
            };
            let one = |kernel, tiles: &Range<u32>, groups, reads, writes| Dispatch {
                kernel,
                words: self.words(tiles, &panels),
                groups,
                reads,
                writes,
                mask: None,
            };
            let c_in = self.layer.c_in as u32;
            let of_channels = ((c_in + 1) * 4).div_ceil(64);
            let (w, count) = (Some(weights), count as u32);
            let groups = [of_channels, count, 1];
            let reads = [None, w, None];
            call.push(
                one(Kernel::WinogradWeights, &(0..0), groups, reads, matrices),
                out,
            )?;
            let mut from = 0;
            let all = self.layer.tiles as u32;
            while from < all {
                let tiles = from..all.min(from + self.pass.room as u32);
                let of_tiles = (tiles.len() as u32 * 4).div_ceil(64);
                if !is_once || first == range.start {
                    let groups = [of_tiles, planes, 1];
                    let reads = [Some(self.input), None, None];
                    call.push(
                        one(Kernel::WinogradInput, &tiles, groups, reads, values),
                        out,
                    )?;
                }
                let room = self.room(&tiles);
                let groups = [room.div_ceil(256), count.div_ceil(PAIR as u32), POINTS];
                let reads = [Some(values), Some(matrices), None];
                let mut multiply = one(Kernel::ConvLanes, &tiles, groups, reads, products);
                multiply.words = layer::products(POINTS, c_in, count, room);
                call.push(multiply, out)?;
                let groups = [of_tiles, count, 1];
                let reads = [Some(products), w, self.added];
                let mut last = one(finish, &tiles, groups, reads, self.output);
                last.words.activation = activation;
                last.words.residual = residual;
                call.push(last, out)?;
                from = tiles.end;
            }
            first += count as usize;
        }
        Some(())
    }

    /// Of values, matrices and products, one behind the other.
    fn places(&self) -> [Span; 3] {
        let mut start = self.scratch.start;
        self.pass.bytes(&self.layer).map(|bytes| {
            let span = Span { start, bytes };
            start = start.wrapping_add(bytes as usize);
            span
        })
    }

    /// For how many tiles a pass has room.
    fn room(&self, tiles: &Range<u32>) -> u32 {
        (tiles.len() as u32).next_multiple_of(4)
    }

    fn words(&self, tiles: &Range<u32>, panels: &Range<u32>) -> Words {
        let mut shape = self.shape;
        shape[11] = tiles.start;
        shape[12] = tiles.len() as u32;
        shape[13] = self.room(tiles);
        shape[14] = panels.start;
        shape[15] = panels.len() as u32;
        Words::new(&shape)
    }
}
