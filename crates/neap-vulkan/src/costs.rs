//! What dispatches cost: of each kernel with weights or windows, what a group of invocations takes, what each eight invocations
//! of it do, and what each step of their loops adds. Three small dispatches of each are timed when the device is opened.

use crate::dispatch::Dispatch;
use crate::kernel::Kernel;
use crate::known::Known;
use crate::words::Words;

/// Places along each axis of the images that are timed, and their channels.
pub(crate) const SIZE: u32 = 28;
pub(crate) const CHANNELS: u32 = 32;
const PANELS: u32 = CHANNELS / 16;
/// So many small images, a fourth as high and wide.
const IMAGES: u32 = 16;
/// Times that what groups take and what their invocations do are told from each other.
const ROUNDS: usize = 30;
/// Rows of the matrices that are timed.
const ROWS: u32 = 128;

/// How much a dispatch does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Work {
    groups: f64,
    /// Invocations, in eights.
    eights: f64,
    /// Of the loop of each.
    steps: f64,
    /// Of all of it; 0 where it is not by that that rates are told.
    pub flops: f64,
}

/// Of one kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Line {
    group_ns: f64,
    ns: f64,
    step_ns: f64,
}

impl Line {
    /// With what groups take.
    fn of(group_ns: f64, few: (Work, f64), many: (Work, f64)) -> Line {
        let of_eight =
            |(work, ns): (Work, f64)| (ns - group_ns * work.groups).max(0.0) / work.eights;
        let (short, long) = (of_eight(few), of_eight(many));
        let (few, many) = (few.0.steps, many.0.steps);
        // Some kernels have as many steps always.
        let step_ns = match many > few {
            true => ((long - short) / (many - few)).clamp(0.0, long / many),
            false => 0.0,
        };
        Line {
            group_ns,
            ns: long - step_ns * many,
            step_ns,
        }
    }

    fn ns(&self, work: Work) -> f64 {
        self.group_ns * work.groups + work.eights * (self.ns + self.step_ns * work.steps)
    }
}

/// Of all kernels that were timed, and of dispatches that were timed themselves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Costs {
    lines: Vec<(Kernel, Line)>,
    known: Known,
}

impl Costs {
    pub(crate) fn of_known(known: Known) -> Costs {
        Costs {
            known,
            ..Costs::default()
        }
    }

    /// Takes what dispatches of a kernel took, beside what any dispatch takes: with few steps, with many, and with many small
    /// groups.
    pub(crate) fn add(&mut self, kernel: Kernel, timed: [(Work, f64); 3]) {
        // What groups take beside their invocations is found from the others, and they from it.
        let mut group_ns = 0.0;
        let mut line = Line::of(group_ns, timed[0], timed[1]);
        for _ in 0..ROUNDS {
            line = Line::of(group_ns, timed[0], timed[1]);
            let (work, ns) = timed[2];
            let rest = Line {
                group_ns: 0.0,
                ..line
            }
            .ns(work);
            group_ns = ((ns - rest) / work.groups).max(0.0);
        }
        self.lines.push((kernel, Line { group_ns, ..line }));
    }

    /// Beside what any dispatch takes; `None` for what was not timed.
    pub(crate) fn ns(&self, dispatch: &Dispatch) -> Option<f64> {
        if let Some(ns) = self.known.ns(dispatch) {
            return Some(ns);
        }
        let &(_, line) = (self.lines.iter()).find(|(kernel, _)| *kernel == dispatch.kernel)?;
        Some(line.ns(Work::of(dispatch)?))
    }
}

impl Work {
    /// `None` for kernels without weights or windows.
    pub(crate) fn of(dispatch: &Dispatch) -> Option<Work> {
        let shape = dispatch.words.shape();
        let at = |i: usize| f64::from(*shape.get(i).unwrap_or(&0));
        let [_, parts, images] = dispatch.groups.map(f64::from);
        let (positions, taps) = (at(6) * at(7), at(8) * at(9));
        let steps = at(1) / at(3).max(1.0) * taps;
        let fours = (positions / 4.0).ceil();
        // Invocations of each part of an image, steps of each, and results.
        let (invocations, steps, results) = match dispatch.kernel.plain() {
            Kernel::Conv | Kernel::ConvBits => (fours, steps, 64.0),
            Kernel::ConvLanes | Kernel::FirstLanes => (fours, steps, 64.0 * at(19) / parts),
            Kernel::First | Kernel::FirstBits => (positions, steps, 16.0),
            Kernel::Narrow | Kernel::NarrowBits => (positions * 4.0, steps, 0.0),
            Kernel::DepthwiseLanes | Kernel::DepthwiseApart => {
                let rows = (at(6) / dispatch.kernel.rows_each() as f64).ceil();
                (rows * (at(7) / 4.0).ceil(), 9.0, 0.0)
            }
            Kernel::Pool => (positions * 4.0, taps, 0.0),
            Kernel::Linear | Kernel::LinearBits => ((at(0) / 4.0).ceil(), at(1), 64.0),
            Kernel::LinearLanes => ((at(0) / 4.0).ceil(), at(1), 64.0 * at(4) / parts),
            Kernel::LinearRow | Kernel::LinearRowBits | Kernel::LinearRowLanes => {
                (8.0 * at(0), at(1), 16.0)
            }
            // See `winograd.wgsl`.
            Kernel::WinogradWeights => ((at(0) + 1.0) * 4.0, 1.0, 0.0),
            Kernel::WinogradInput | Kernel::WinogradOutput => (at(12) * 4.0, 1.0, 0.0),
            _ => return None,
        };
        let eights = (invocations / 8.0).ceil() * parts * images;
        let all = match dispatch.kernel {
            Kernel::LinearRow | Kernel::LinearRowBits | Kernel::LinearRowLanes => at(0) * parts,
            _ => invocations * parts * images,
        };
        Some(Work {
            groups: dispatch.groups.map(f64::from).iter().product(),
            eights,
            steps,
            flops: 2.0 * all * steps * results,
        })
    }
}

/// Operations of layers with weights; 0 for others.
pub(crate) fn flops(dispatch: &Dispatch) -> f64 {
    let shape = dispatch.words.shape();
    let at = |i: usize| f64::from(*shape.get(i).unwrap_or(&0));
    match dispatch.kernel {
        Kernel::ConvTiles | Kernel::ConvTilesBits | Kernel::FirstTiles | Kernel::FirstTilesBits => {
            let steps = at(1) / at(3).max(1.0) * at(8) * at(9);
            2.0 * at(0) * at(6) * at(7) * steps * 16.0 * at(19)
        }
        Kernel::LinearTiles | Kernel::LinearTilesBits | Kernel::LinearTilesBlocks => {
            2.0 * at(0) * at(1) * 16.0 * at(4)
        }
        _ => Work::of(dispatch).map_or(0.0, |work| work.flops),
    }
}

/// What is timed of a kernel, with few steps, with many, and with many small groups: its words and groups.
pub(crate) fn timed(kernel: Kernel) -> Option<[(Words, [u32; 3]); 3]> {
    // Channels in and out, groups, size of the window and stride.
    let windows = match kernel.plain() {
        Kernel::Conv | Kernel::ConvBits | Kernel::ConvLanes => {
            [[16, CHANNELS, 1, 1, 1], [2 * CHANNELS, CHANNELS, 1, 3, 1]]
        }
        Kernel::First | Kernel::FirstBits | Kernel::FirstLanes => {
            [[3, CHANNELS, 1, 1, 1], [3, CHANNELS, 1, 3, 1]]
        }
        Kernel::Narrow | Kernel::NarrowBits => {
            [1, 3].map(|size| [CHANNELS, CHANNELS, CHANNELS, size, 1])
        }
        Kernel::DepthwiseLanes => [[CHANNELS, CHANNELS, CHANNELS, 3, 1]; 2],
        Kernel::DepthwiseApart => [[CHANNELS, CHANNELS, CHANNELS, 3, 2]; 2],
        Kernel::Pool => [1, 3].map(|size| [PANELS, PANELS, 1, size, 1]),
        Kernel::Linear | Kernel::LinearBits | Kernel::LinearLanes => {
            let of = |[rows, k, n]: [u32; 3]| {
                let panels = n / 16;
                let words = told(kernel, Words::new(&[rows, k, n, 0, panels]));
                let parts = panels.div_ceil(kernel.panels_each() as u32);
                (words, [rows.div_ceil(256), parts, 1])
            };
            return Some([[ROWS, 64, CHANNELS], [ROWS, 256, CHANNELS], [8, 64, 512]].map(of));
        }
        Kernel::LinearRow | Kernel::LinearRowBits | Kernel::LinearRowLanes => {
            let of = |[rows, k]: [u32; 2]| {
                let words = told(kernel, Words::new(&[rows, k, CHANNELS, 0]));
                (words, [rows, PANELS, 1])
            };
            return Some([[1, 256], [1, 1024], [7, 256]].map(of));
        }
        Kernel::WinogradWeights => return Some([[47, 2], [47, 2], [3, 24]].map(winograd_weights)),
        Kernel::WinogradInput => {
            let of = |[planes, height, width]: [u32; 3]| {
                let (words, tiles) = winograd([planes * 16, planes, height, width]);
                (words, [(tiles * 4).div_ceil(64), planes, 1])
            };
            return Some([[2, 12, 16], [2, 12, 16], [24, 4, 4]].map(of));
        }
        Kernel::WinogradOutput => {
            let of = |[panels, height, width]: [u32; 3]| {
                let (words, tiles) = winograd([4, panels, height, width]);
                (words, [(tiles * 4).div_ceil(64), panels, 1])
            };
            return Some([[2, 12, 16], [2, 12, 16], [24, 4, 4]].map(of));
        }
        _ => return None,
    };
    let of = |window: [u32; 5], images: u32, size: u32| {
        let out = size / window[4];
        let (invocations, parts) = match kernel.plain() {
            Kernel::DepthwiseLanes | Kernel::DepthwiseApart => {
                (out.div_ceil(kernel.rows_each() as u32) * out.div_ceil(4), 4)
            }
            Kernel::Narrow | Kernel::NarrowBits | Kernel::Pool => (out * out * 4, 1),
            Kernel::First | Kernel::FirstBits => (out * out, 1),
            _ => ((out * out).div_ceil(4), 1),
        };
        let each = kernel.panels_each() as u32;
        let groups = match kernel {
            Kernel::Pool => [invocations.div_ceil(64), PANELS * images, 1],
            _ => [
                invocations.div_ceil(64),
                PANELS.div_ceil(each),
                images * parts,
            ],
        };
        let mut words = words(window, images, size);
        if each > 1 {
            words.shape_mut()[19..21].copy_from_slice(&[PANELS, each]);
        }
        (told(kernel, words), groups)
    };
    let [few, many] = windows;
    Some([
        of(few, 1, SIZE),
        of(many, 1, SIZE),
        of(many, IMAGES, SIZE / 4),
    ])
}

/// `Shape` of `window.wgsl`.
fn words(window: [u32; 5], images: u32, size: u32) -> Words {
    let [c_in, c_out, groups, kernel, stride] = window;
    let (out, pad) = (size / stride, kernel / 2);
    let padded = size + 2 * pad;
    Words::new(&[
        images, c_in, c_out, groups, size, size, out, out, kernel, kernel, stride, stride, 1, 1,
        pad, pad, padded, padded, 0, 0, 1, 0,
    ])
}

/// `Shape` of `winograd.wgsl`, and its tiles: channels of input, panels, height and width of the outputs.
fn winograd([c_in, panels, height, width]: [u32; 4]) -> (Words, u32) {
    let (planes, row_tiles) = (c_in.div_ceil(16), width / 2);
    let tiles = row_tiles * height / 2;
    let words = Words::new(&[
        c_in, planes, panels, height, width, height, width, 1, 1, row_tiles, tiles, 0, tiles,
        tiles, 0, panels,
    ]);
    (words, tiles)
}

fn winograd_weights([c_in, panels]: [u32; 2]) -> (Words, [u32; 3]) {
    let (words, _) = winograd([c_in, panels, 4, 4]);
    (words, [((c_in + 1) * 4).div_ceil(64), panels, 1])
}

/// Half floats, where it is by the bits of weights that kernels differ.
fn told(kernel: Kernel, mut words: Words) -> Words {
    let bits = Kernel::ALL.iter().any(|of| of.of_bits() == Some(kernel));
    words.format = u32::from(bits);
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Span;

    fn dispatch(kernel: Kernel, (words, groups): (Words, [u32; 3])) -> Dispatch {
        let nothing = Span {
            start: std::ptr::null(),
            bytes: 0,
        };
        Dispatch {
            kernel,
            words,
            groups,
            reads: [None; 3],
            writes: nothing,
            mask: None,
        }
    }

    /// Every kernel that is timed is found again as fast as it was said to be.
    #[test]
    fn what_was_timed_is_found_again() {
        let mut seen = 0;
        for kernel in Kernel::ALL {
            let Some(all) = timed(kernel) else {
                continue;
            };
            seen += 1;
            let all = all.map(|one| dispatch(kernel, one));
            let works = [0, 1, 2].map(|i| Work::of(&all[i]).expect("known"));
            assert!(works[0].steps <= works[1].steps, "{kernel:?}");
            let line = Line {
                group_ns: 100.0,
                ns: 30.0,
                step_ns: 2.0,
            };
            let mut costs = Costs::default();
            assert_eq!(costs.ns(&all[0]), None);
            costs.add(kernel, works.map(|work| (work, line.ns(work))));
            for (one, work) in all.iter().zip(works) {
                let found = costs.ns(one).expect("timed");
                assert!(
                    (found / line.ns(work) - 1.0).abs() < 0.02,
                    "{kernel:?}: {found}"
                );
            }
        }
        assert_eq!(seen, 25);
    }

    /// Three by three over 28 x 28 with 64 channels in and 32 out.
    #[test]
    fn operations_of_a_convolution() {
        let [_, many, _] = timed(Kernel::Conv).expect("timed");
        let work = Work::of(&dispatch(Kernel::Conv, many)).expect("known");
        assert_eq!(work.flops, f64::from(2 * 9 * 64 * 32 * 28 * 28));
    }
}
