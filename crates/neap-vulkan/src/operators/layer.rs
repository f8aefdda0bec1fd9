//! Layers with weights, and pooling.

use super::{Call, blocked, residual};
use crate::dispatch::{Dispatch, Panels, Span, by_panels};
use crate::kernel::Kernel;
use crate::tiles::{Product, Tile, Way};
use crate::words::{Words, activation, is_bounded};
use neap_ir::op::{Pool, Window};
use neap_ir::panel::{
    ConvForm, Epilogue, PanelConv, PanelDepthwise, PanelElement, PanelFormat, PanelLinear,
    PanelScales,
};
use neap_ops::{TensorMut, TensorRef};

/// Where the shape of a window names the first panel, and that of a product.
const WINDOW_FIRST_PANEL: usize = 18;
const LINEAR_FIRST_PANEL: usize = 3;
/// From so many rows on a product is computed four rows at a time.
const MANY_ROWS: usize = 8;

pub(super) fn conv(conv: &PanelConv, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let positions: usize = y.shape().get(2..)?.iter().product();
    let has_fours = (conv.c_in / conv.groups).is_multiple_of(4);
    let (kernel, invocations) = match conv.form {
        ConvForm::Blocked if has_tiles(call) => (Kernel::ConvTiles, positions),
        ConvForm::FirstLayer if has_tiles(call) => (Kernel::FirstTiles, positions),
        ConvForm::Blocked if has_lanes(call) && has_fours => {
            (Kernel::ConvLanes, positions.div_ceil(4))
        }
        ConvForm::Blocked => (Kernel::Conv, positions.div_ceil(4)),
        ConvForm::FirstLayer if has_lanes(call) => (Kernel::FirstLanes, positions.div_ceil(4)),
        ConvForm::FirstLayer => (Kernel::First, positions),
        ConvForm::NarrowGroups => (Kernel::Narrow, positions * 4),
    };
    if blocked(x.layout) == (conv.form == ConvForm::FirstLayer) {
        return None;
    }
    let channels = [conv.c_in, conv.c_out, conv.groups];
    let layer = Windowed {
        kernel,
        invocations,
        fours: 1,
        window: &conv.window,
        channels,
        epilogue: &conv.epilogue,
    };
    layer.dispatch(&x, &y, call, out)
}

pub(super) fn depthwise(
    depthwise: &PanelDepthwise,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    let positions: usize = y.shape().get(2..)?.iter().product();
    if !blocked(x.layout) {
        return None;
    }
    let window = &depthwise.window;
    let strides = plane(&window.strides, 1)?;
    let is_small = plane(&window.kernel, 1)? == [3; 2] && plane(&window.dilations, 1)? == [1; 2];
    let lanes = match strides {
        [1, 1] => Some(Kernel::DepthwiseLanes),
        [2, 2] => Some(Kernel::DepthwiseApart),
        _ => None,
    };
    if let Some(kernel) = lanes.filter(|_| has_lanes(call) && is_small) {
        let [height, width] = plane(&y.shape()[2..], 1)?;
        let layer = Windowed {
            kernel,
            invocations: height.div_ceil(kernel.rows_each()) * width.div_ceil(4),
            fours: 4,
            window,
            channels: [depthwise.channels; 3],
            epilogue: &depthwise.epilogue,
        };
        return layer.dispatch(&x, &y, call, out);
    }
    let layer = Windowed {
        kernel: Kernel::Narrow,
        invocations: positions * 4,
        fours: 1,
        window,
        channels: [depthwise.channels; 3],
        epilogue: &depthwise.epilogue,
    };
    layer.dispatch(&x, &y, call, out)
}

/// A layer whose panels slide over its input.
struct Windowed<'a> {
    kernel: Kernel,
    /// For each panel and image.
    invocations: usize,
    /// In how many parts the grid has the channels of a panel.
    fours: usize,
    window: &'a Window,
    /// In, out, groups.
    channels: [usize; 3],
    epilogue: &'a Epilogue,
}

impl Windowed<'_> {
    fn dispatch(
        &self,
        x: &TensorRef,
        y: &TensorMut,
        call: &Call,
        out: &mut Vec<Dispatch>,
    ) -> Option<()> {
        if !blocked(y.layout) {
            return None;
        }
        (self.epilogue.integers.is_none()).then_some(())?;
        let (added, residual) = residual(call, self.epilogue.residual, y)?;
        let does = self.epilogue.activation;
        let kernel = match residual == 0 && is_bounded(does) {
            true => self.kernel,
            false => self.kernel.of_more(),
        };
        let (panels, kernel, format) = panels(kernel, call)?;
        let [c_in, c_out, groups] = self.channels;
        let sizes = [x.shape()[0], c_in, c_out, groups];
        let mut words = window_words(sizes, self.window, x.shape(), y.shape(), 0)?;
        activation(does)?;
        words.activation = does;
        words.residual = residual;
        words.format = format;
        // Panels of one group have the same input.
        let each = if groups == 1 { kernel.panels_each() } else { 1 };
        words.shape_mut()[WINDOW_FIRST_PANEL + 2] = each as u32;
        let images = x.shape()[0] * self.fours;
        let (places_each, each) = match call.way {
            Way::Tiles { processors } if kernel.multiplies_tiles() => {
                let product = Product {
                    rows: self.invocations * images,
                    panels: c_out.div_ceil(16),
                    steps: c_in / groups * self.window.kernel.iter().product::<usize>(),
                };
                let parts = product.parts(processors);
                let tile = match groups {
                    1 => Tile::of(parts, self.invocations, panels.range.len()),
                    _ => Tile::of_panel(parts, self.invocations),
                };
                words.shape_mut()[WINDOW_FIRST_PANEL + 4] = tile.word();
                (tile.rows(), tile.panels())
            }
            _ => (64, each),
        };
        let one = Dispatch {
            kernel,
            words,
            groups: [
                self.invocations.div_ceil(places_each) as u32,
                0,
                images as u32,
            ],
            reads: [Some(Span::of(x)), None, added],
            writes: Span::of_mut(y),
            mask: None,
        };
        by_panels(&one, WINDOW_FIRST_PANEL, each, &panels, call.limits, out)
    }
}

/// Whether the layer's kernel is one whose lanes tell each other what they load.
fn has_lanes(call: &Call) -> bool {
    let weights = call.panels.as_ref().map(|panels| panels.format.element);
    call.way == Way::Lanes && weights == Some(PanelElement::F32)
}

/// Whether the layer's kernel is one that computes tiles.
fn has_tiles(call: &Call) -> bool {
    matches!(call.way, Way::Tiles { .. })
}

/// The slice, the kernel that takes its weights, and how that is told of their format.
fn panels(kernel: Kernel, call: &Call) -> Option<(Panels, Kernel, u32)> {
    let panels = call.panels.clone()?;
    let PanelFormat { element, scales } = panels.format;
    if let PanelScales::Blocks { len, half } = scales {
        let bits = match element {
            PanelElement::I4 => 1,
            PanelElement::I8 => 0,
            _ => return None,
        };
        let format = bits + 2 * u32::from(half) + (u32::from(len) << 8);
        return Some((panels, kernel.of_blocks()?, format));
    }
    let element = match element {
        PanelElement::F32 => 0,
        PanelElement::F16 => 1,
        PanelElement::BF16 => 2,
        PanelElement::I8 => 3,
        PanelElement::I4 | PanelElement::Coded { .. } => return None,
    };
    let scales = match scales {
        PanelScales::None => 0,
        PanelScales::PerChannel => 1,
        PanelScales::PerChannelWithZero => 2,
        PanelScales::Blocks { .. } => return None,
    };
    let kernel = match element {
        0 => kernel,
        _ => kernel.of_bits()?,
    };
    Some((panels, kernel, element + 4 * scales))
}

pub(super) fn linear(linear: &PanelLinear, call: &Call, out: &mut Vec<Dispatch>) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    if blocked(x.layout) || blocked(y.layout) {
        return None;
    }
    (linear.epilogue.integers.is_none()).then_some(())?;
    let (added, residual) = residual(call, linear.epilogue.residual, &y)?;
    let rows: usize = x.shape().iter().rev().skip(1).product();
    // The first panel, and how many the slice has.
    let sizes = [rows, linear.k, linear.n].map(|size| size as u32);
    let mut words = Words::new(&[sizes[0], sizes[1], sizes[2], 0, 0, 0]);
    activation(linear.epilogue.activation)?;
    words.activation = linear.epilogue.activation;
    words.residual = residual;
    let (kernel, groups) = match rows {
        MANY_ROWS.. => (Kernel::Linear, rows.div_ceil(4 * 64)),
        _ => (Kernel::LinearRow, rows),
    };
    // Where a tensor begins in its memory follows from the program alone.
    let has_fours = linear.k.is_multiple_of(4) && x.as_ptr().addr().is_multiple_of(16);
    let kernel = match kernel {
        Kernel::Linear if has_lanes(call) && has_fours => Kernel::LinearLanes,
        Kernel::Linear if has_tiles(call) && has_fours => Kernel::LinearTiles,
        Kernel::LinearRow if has_lanes(call) => Kernel::LinearRowLanes,
        kernel => kernel,
    };
    let (panels, kernel, format) = panels(kernel, call)?;
    words.format = format;
    let (groups, each) = match call.way {
        Way::Tiles { processors } if kernel.multiplies_tiles() => {
            let product = Product {
                rows,
                panels: linear.n.div_ceil(16),
                steps: linear.k,
            };
            let tile = Tile::of(product.parts(processors), rows, panels.range.len());
            words.shape_mut()[LINEAR_FIRST_PANEL + 2] = tile.word();
            (rows.div_ceil(tile.rows()), tile.panels())
        }
        _ => (groups, kernel.panels_each()),
    };
    let one = Dispatch {
        kernel,
        words,
        groups: [groups as u32, 0, 1],
        reads: [Some(Span::of(&x)), None, added],
        writes: Span::of_mut(&y),
        mask: None,
    };
    by_panels(&one, LINEAR_FIRST_PANEL, each, &panels, call.limits, out)
}

/// A sliding window, or one over everything.
pub(super) fn pool(
    kind: Pool,
    window: Option<&Window>,
    call: &Call,
    out: &mut Vec<Dispatch>,
) -> Option<()> {
    let (x, y) = (call.floats(0)?, call.result()?);
    if !blocked(x.layout) || !blocked(y.layout) {
        return None;
    }
    let kind = match kind {
        Pool::Max { .. } => 0,
        Pool::Average { count_include_pad } => 1 + u32::from(count_include_pad),
        Pool::Lp { .. } => return None,
    };
    let whole = Window {
        kernel: x.shape().get(2..)?.to_vec(),
        strides: vec![1; x.shape().len() - 2],
        dilations: vec![1; x.shape().len() - 2],
        pads_begin: vec![0; x.shape().len() - 2],
        pads_end: vec![0; x.shape().len() - 2],
    };
    let window = window.unwrap_or(&whole);
    let planes = x.shape()[0] * x.shape()[1].div_ceil(16);
    let positions: usize = y.shape()[2..].iter().product();
    let words = window_words([1, planes, planes, 1], window, x.shape(), y.shape(), kind)?;
    let dispatch = Dispatch {
        kernel: Kernel::Pool,
        words,
        groups: [(positions * 4).div_ceil(64) as u32, planes as u32, 1],
        reads: [Some(Span::of(&x)), None, None],
        writes: Span::of_mut(&y),
        mask: None,
    };
    call.push(dispatch, out)
}

/// `Shape` of `window.wgsl`. `sizes` are batch, channels in and out, groups.
fn window_words(
    sizes: [usize; 4],
    window: &Window,
    x: &[usize],
    y: &[usize],
    kind: u32,
) -> Option<Words> {
    let input = plane(x.get(2..)?, 1)?;
    let output = plane(y.get(2..)?, 1)?;
    let kernel = plane(&window.kernel, 1)?;
    let strides = plane(&window.strides, 1)?;
    let dilations = plane(&window.dilations, 1)?;
    let pads = plane(&window.pads_begin, 0)?;
    let after = plane(&window.pads_end, 0)?;
    let padded = [0, 1].map(|i| input[i] + pads[i] + after[i]);
    let mut words = [0; WINDOW_FIRST_PANEL + 5];

    let all = sizes
        .iter()
        .chain(&input)
        .chain(&output)
        .chain(&kernel)
        .chain(&strides)
        .chain(&dilations)
        .chain(&pads)
        .chain(&padded);
    for (word, &size) in words.iter_mut().zip(all) {
        // Coordinates are signed in shaders.
        *word = u32::try_from(size).ok().filter(|&n| n < 1 << 28)?;
    }
    words[WINDOW_FIRST_PANEL + 1] = kind;
    words[WINDOW_FIRST_PANEL + 2] = 1;
    Some(Words::new(&words))
}

/// Rows of channels times a matrix for each image of so many: a convolution of 1x1, whose panels are image by image.
pub(super) fn products(images: u32, c_in: u32, panels: u32, rows: u32) -> Words {
    let mut words = [
        images,
        c_in,
        panels * 16,
        1,
        1,
        rows,
        1,
        rows,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
        0,
        1,
        rows,
        0,
        panels,
        0,
        0,
    ];
    words[WINDOW_FIRST_PANEL + 2] = Kernel::ConvLanes.panels_each() as u32;
    words[WINDOW_FIRST_PANEL + 3] = panels * (c_in + 1) * 4;
    Words::new(&words)
}

/// Two axes; one alone is the width.
fn plane(sizes: &[usize], absent: usize) -> Option<[usize; 2]> {
    match *sizes {
        [w] => Some([absent, w]),
        [h, w] => Some([h, w]),
        _ => None,
    }
}
