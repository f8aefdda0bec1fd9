//! Winograd convolutions against a plain reference in f64, and the same bits however the work is cut.

use crate::support::{Scrambled, affordable, numbers};
use neap_kernels::conv::ConvShape;
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::panel::{Affine, KOrder, pack_conv, panel_floats};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::planes::Planes;
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use neap_kernels::winograd::{
    Tile, WeightForm, Weights, conv_winograd, conv_winograd_band, prepare_panels,
    prepared_panel_floats, supports, weight_passes, wide_workspace_bytes, workspace_bytes,
};
use std::ops::Range;

/// `(batch, c_in, c_out, input, output, pads_begin)`
pub(super) type Case = (usize, usize, usize, [usize; 2], [usize; 2], [usize; 2]);

#[rustfmt::skip]
pub(super) const CASES: &[Case] = &[
    // whole tiles, tiles that stick out on either side
    (1, 16, 16, [12, 12], [12, 12], [1, 1]),
    (1, 32, 48, [13, 11], [13, 11], [1, 1]),
    (1, 16, 32, [7, 7], [7, 7], [1, 1]),
    // no padding, padding on one side, much padding
    (1, 16, 16, [14, 9], [12, 7], [0, 0]),
    (1, 16, 32, [8, 8], [7, 7], [0, 1]),
    (1, 16, 16, [3, 4], [9, 10], [4, 5]),
    (1, 16, 16, [1, 1], [1, 1], [1, 1]),
    (1, 16, 16, [1, 30], [1, 30], [1, 1]),
    // channel tails
    (1, 1, 1, [6, 6], [6, 6], [1, 1]),
    (2, 20, 33, [10, 9], [10, 9], [1, 1]),
    (1, 47, 70, [5, 6], [5, 6], [1, 1]),
    // several images in a group; own and shared values; several chunks of arriving weights
    (3, 24, 40, [4, 4], [4, 4], [1, 1]),
    (1, 16, 48, [66, 70], [66, 70], [1, 1]),
    (1, 100, 20, [44, 44], [44, 44], [1, 1]),
    (1, 400, 40, [9, 9], [9, 9], [1, 1]),
    (2, 288, 16, [28, 28], [28, 28], [1, 1]),
];

pub(super) fn shape(&(batch, c_in, c_out, input, output, pads_begin): &Case) -> ConvShape {
    ConvShape {
        batch,
        c_in,
        c_out,
        groups: 1,
        window: Window {
            input,
            output,
            kernel: [3, 3],
            strides: [1, 1],
            dilations: [1, 1],
            pads_begin,
            pads_end: [0; 2],
        },
    }
}

/// A layer with its data; plain `[N][C][H][W]` and as the kernel takes it.
pub(super) struct Layer {
    pub shape: ConvShape,
    weights: Vec<f32>,
    bias: Vec<f32>,
    pub input: Vec<f32>,
    residual: Vec<f32>,
    raw: Vec<f32>,
    blocked_input: Vec<f32>,
    blocked_residual: Vec<f32>,
}

fn to_blocked(plain: &[f32], batch: usize, channels: usize, pixels: usize) -> Vec<f32> {
    let blocks = channels.div_ceil(LANES);
    // Pad lanes must never be read as numbers that matter.
    let mut out = vec![f32::NAN; batch * blocks * pixels * LANES];
    for (i, &value) in plain.iter().enumerate() {
        let (n, c, p) = (i / pixels / channels, i / pixels % channels, i % pixels);
        out[((n * blocks + c / LANES) * pixels + p) * LANES + c % LANES] = value;
    }
    out
}

pub(super) fn layer(shape: ConvShape, input: Vec<f32>) -> Layer {
    layer_of(shape, input, numbers(shape.c_out * shape.c_in * 9, 1))
}

pub(super) fn layer_of(shape: ConvShape, input: Vec<f32>, weights: Vec<f32>) -> Layer {
    let s = shape;
    let bias = numbers(s.c_out, 2);
    let (in_pixels, out_pixels) = (
        s.window.input[0] * s.window.input[1],
        s.window.output[0] * s.window.output[1],
    );
    let residual = numbers(s.batch * s.c_out * out_pixels, 4);
    let mut raw = vec![f32::NAN; s.panels() * panel_floats(s.k())];
    let affine = Affine {
        scale: None,
        bias: Some(&bias),
    };
    let all = 0..s.panels();
    pack_conv(
        KOrder::Blocked,
        s.c_out,
        s.c_in,
        [3, 3],
        all,
        &weights,
        affine,
        &mut raw,
    )
    .unwrap();
    Layer {
        shape,
        weights,
        bias,
        blocked_input: to_blocked(&input, s.batch, s.c_in, in_pixels),
        input,
        blocked_residual: to_blocked(&residual, s.batch, s.c_out, out_pixels),
        residual,
        raw,
    }
}

fn case_layer(case: &Case) -> Layer {
    let s = shape(case);
    let input = numbers(s.batch * s.c_in * s.window.input[0] * s.window.input[1], 3);
    layer(s, input)
}

/// The sums before the activation, in f64, and the sum of their terms' magnitudes.
pub(super) fn reference(l: &Layer, with_residual: bool) -> Vec<(f64, f64)> {
    let s = &l.shape;
    let mut sums = Vec::new();
    for n in 0..s.batch {
        for oc in 0..s.c_out {
            for oy in 0..s.window.output[0] {
                for ox in 0..s.window.output[1] {
                    let mut sum = f64::from(l.bias[oc]);
                    if with_residual {
                        sum += f64::from(l.residual[sums.len()]);
                    }
                    let mut size = sum.abs();
                    for (tap, (ky, kx)) in (0..9).map(|tap| (tap, (tap / 3, tap % 3))) {
                        let y = (oy + ky).wrapping_sub(s.window.pads_begin[0]);
                        let x = (ox + kx).wrapping_sub(s.window.pads_begin[1]);
                        if y >= s.window.input[0] || x >= s.window.input[1] {
                            continue;
                        }
                        for c in 0..s.c_in {
                            let at =
                                ((n * s.c_in + c) * s.window.input[0] + y) * s.window.input[1] + x;
                            let w = l.weights[(oc * s.c_in + c) * 9 + tap];
                            let term = f64::from(l.input[at]) * f64::from(w);
                            sum += term;
                            size += term.abs();
                        }
                    }
                    sums.push((sum, size));
                }
            }
        }
    }
    sums
}

/// How a layer is computed.
#[derive(Clone, Copy)]
pub(super) struct How<'a> {
    pub isa: Isa,
    pub tile: Tile,
    pub form: WeightForm,
    pub parallel: &'a dyn Parallel,
    pub activation: Activation,
    /// 0 none, 1 separate, 2 in place.
    pub residual: u8,
}

pub(super) fn run(l: &Layer, how: How<'_>, ranges: &[Range<usize>]) -> Vec<f32> {
    let s = &l.shape;
    let mut out = match how.residual {
        2 => l.blocked_residual.clone(),
        _ => vec![f32::NAN; l.blocked_residual.len()],
    };
    let (floats, panels) = match how.form {
        WeightForm::Raw => (panel_floats(s.k()), l.raw.clone()),
        WeightForm::Prepared => {
            let floats = prepared_panel_floats(how.tile, s.c_in);
            let mut to = vec![f32::NAN; floats * s.panels()];
            let n = s.panels();
            prepare_panels(how.isa, how.parallel, how.tile, s.c_in, n, &l.raw, &mut to).unwrap();
            (floats, to)
        }
    };
    let most = ranges.iter().map(ExactSizeIterator::len).max().unwrap_or(0);
    let workers = how.parallel.workers();
    let bytes = workspace_bytes(how.isa, how.tile, how.form, s, most, workers);
    let mut workspace = vec![f32::NAN; bytes / 4];
    for range in ranges {
        let given = &panels[range.start * floats..range.end * floats];
        let epilogue = Epilogue {
            activation: how.activation,
            residual: match how.residual {
                0 => Residual::None,
                1 => Residual::Separate(&l.blocked_residual),
                _ => Residual::InPlace,
            },
        };
        conv_winograd(
            how.isa,
            how.parallel,
            how.tile,
            s,
            range.clone(),
            match how.form {
                WeightForm::Raw => Weights::Raw(given.into()),
                WeightForm::Prepared => Weights::Prepared(given),
            },
            &l.blocked_input,
            &mut out,
            epilogue,
            &mut workspace,
        )
        .unwrap();
    }
    out
}

/// The first panels, in one call.
pub(super) fn whole(panels: usize) -> Vec<Range<usize>> {
    std::iter::once(0..panels).collect()
}

/// Element `i` of the plain output.
pub(super) fn element(blocked: &[f32], s: &ConvShape, i: usize) -> f32 {
    let pixels = s.window.output[0] * s.window.output[1];
    let (n, c, p) = (i / pixels / s.c_out, i / pixels % s.c_out, i % pixels);
    blocked[((n * s.panels() + c / LANES) * pixels + p) * LANES + c % LANES]
}

/// Rounding of a tile size against that of a plain sum.
pub(super) fn amplification(tile: Tile) -> f64 {
    match tile {
        Tile::F2 => 4.0,
        Tile::F4 => 16.0,
    }
}

pub(super) fn plain(isa: Isa, tile: Tile, form: WeightForm) -> How<'static> {
    How {
        isa,
        tile,
        form,
        parallel: &Serial,
        activation: Activation::None,
        residual: 0,
    }
}

#[test]
fn every_shape_is_right_on_every_instruction_set() {
    for case in CASES {
        let l = case_layer(case);
        let s = &l.shape;
        assert!(supports(s), "{case:?}");
        if !affordable(s.multiply_adds()) {
            continue;
        }
        for (residual, activation) in [(0, Activation::None), (1, Activation::Relu)] {
            let want = reference(&l, residual != 0);
            // An error is one of the tile, not of the element.
            let size = want.iter().fold(0.0f64, |most, &(_, size)| most.max(size));
            for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
                let how = How {
                    activation,
                    residual,
                    ..plain(isa, tile, WeightForm::Prepared)
                };
                let got = run(&l, how, &whole(s.panels()));
                for (i, &(sum, _)) in want.iter().enumerate() {
                    let want = if residual == 0 { sum } else { sum.max(0.0) };
                    let got = element(&got, s, i);
                    let bound = 1.2e-7 * amplification(tile) * size;
                    assert!(
                        (f64::from(got) - want).abs() <= bound,
                        "{} {tile:?} {case:?} [{i}]: {got}, want {want}",
                        isa.name()
                    );
                }
            }
        }
    }
}

#[test]
fn the_same_bits_however_the_work_is_cut() {
    for case in CASES {
        let l = case_layer(case);
        let panels = l.shape.panels();
        if !affordable(24 * l.shape.multiply_adds()) {
            continue;
        }
        let all = whole(panels);
        let single: Vec<_> = (0..panels).map(|p| p..p + 1).collect();
        let uneven = vec![0..panels / 3, panels / 3..panels];
        for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
            let how = How {
                activation: Activation::Silu,
                residual: 1,
                ..plain(isa, tile, WeightForm::Prepared)
            };
            let want = run(&l, how, &all);
            for form in [WeightForm::Prepared, WeightForm::Raw] {
                for (workers, ranges, residual) in [
                    (1, &all, 2),
                    (1, &single, 1),
                    (3, &uneven, 2),
                    (3, &all, 1),
                    (2, &single, 2),
                ] {
                    let how = How {
                        form,
                        residual,
                        parallel: &Scrambled(workers),
                        ..how
                    };
                    let got = run(&l, how, ranges);
                    let same = got
                        .iter()
                        .zip(&want)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    let name = isa.name();
                    assert!(
                        same,
                        "{name} {tile:?} {form:?} {case:?} {workers} {ranges:?}"
                    );
                }
            }
        }
    }
}

/// The layer in bands of so many tile rows; what a band does not need is not a number.
pub(super) fn run_in_bands(l: &Layer, how: How<'_>, tile_rows: usize) -> Vec<f32> {
    let s = &l.shape;
    let (in_row, out_row) = (s.window.input[1] * LANES, s.window.output[1] * LANES);
    let planes = Planes {
        input: s.window.input[0] * in_row,
        output: s.window.output[0] * out_row,
    };
    let mut out = l.blocked_residual.clone();
    let mut first = 0;
    while first < s.window.output[0] {
        let rows = first..(first + tile_rows * how.tile.outputs()).min(s.window.output[0]);
        let top = rows
            .start
            .saturating_sub(s.window.pads_begin[0])
            .min(s.window.input[0]);
        let bottom = (rows.end + 2).saturating_sub(s.window.pads_begin[0]);
        let bottom = bottom.clamp(top, s.window.input[0]);
        let mut input = vec![f32::NAN; l.blocked_input.len()];
        for plane in (0..input.len()).step_by(planes.input) {
            let band = plane + top * in_row..plane + bottom * in_row;
            input[band.clone()].copy_from_slice(&l.blocked_input[band]);
        }
        let band = ConvShape {
            window: Window {
                input: [bottom - top, s.window.input[1]],
                output: [rows.len(), s.window.output[1]],
                pads_begin: [
                    s.window.pads_begin[0].saturating_sub(rows.start),
                    s.window.pads_begin[1],
                ],
                ..s.window
            },
            ..*s
        };
        let (panels, workers) = (s.panels(), how.parallel.workers());
        let bytes = workspace_bytes(how.isa, how.tile, how.form, &band, panels, workers);
        conv_winograd_band(
            how.isa,
            how.parallel,
            how.tile,
            &band,
            planes,
            0..panels,
            Weights::Raw((&l.raw).into()),
            &input[top * in_row..],
            &mut out[rows.start * out_row..],
            Epilogue {
                activation: how.activation,
                residual: Residual::InPlace,
            },
            &mut vec![f32::NAN; bytes / 4],
        )
        .unwrap();
        first = rows.end;
    }
    out
}

#[test]
fn bands_of_whole_tiles_have_the_bits_of_the_whole() {
    for case in CASES {
        let l = case_layer(case);
        if !affordable(8 * l.shape.multiply_adds()) {
            continue;
        }
        for (isa, tile) in Isa::available().flat_map(|isa| Tile::ALL.map(|tile| (isa, tile))) {
            let how = How {
                activation: Activation::Relu,
                residual: 2,
                parallel: &Scrambled(2),
                ..plain(isa, tile, WeightForm::Raw)
            };
            let want = run(&l, how, &whole(l.shape.panels()));
            let want: Vec<u32> = want.into_iter().map(f32::to_bits).collect();
            for tile_rows in [1, 2, 3] {
                let got = run_in_bands(&l, how, tile_rows);
                let got: Vec<u32> = got.into_iter().map(f32::to_bits).collect();
                let name = isa.name();
                assert!(got == want, "{name} {tile:?} {case:?} by {tile_rows}");
            }
        }
    }
}

/// Worst error as a share of the output's range, for a layer as networks have them: inputs that went
/// through a ReLU, weights that keep the variance.
#[test]
fn errors_of_deep_layers_are_bounded() {
    for (c_in, size) in [(64, 24), (512, 12)] {
        let s = shape(&(1, c_in, 16, [size; 2], [size; 2], [1; 2]));
        if !affordable(s.multiply_adds()) {
            continue;
        }
        // Sums of uniform numbers are as good as normally distributed.
        let normal: Vec<f32> = numbers(12 * c_in * size * size, 9)
            .chunks_exact(12)
            .map(|twelve| twelve.iter().sum::<f32>().max(0.0))
            .collect();
        let l = layer(s, normal);
        let want = reference(&l, false);
        let range = want
            .iter()
            .fold(0.0f64, |most, (sum, _)| most.max(sum.abs()));
        for isa in Isa::available() {
            for (tile, bound) in [(Tile::F2, 5e-6), (Tile::F4, 1e-5)] {
                let got = run(&l, plain(isa, tile, WeightForm::Raw), &whole(1));
                let errors = want
                    .iter()
                    .enumerate()
                    .map(|(i, (sum, _))| (f64::from(element(&got, &s, i)) - sum).abs());
                let worst = errors.fold(0.0, f64::max) / range;
                assert!(worst <= bound, "{} {tile:?} {c_in}: {worst:e}", isa.name());
            }
        }
    }
}

#[test]
fn workspace_does_not_shrink_with_more_panels() {
    for case in CASES {
        let s = shape(case);
        for (tile, form) in Tile::ALL.map(|t| (t, WeightForm::Raw)) {
            let mut before = 0;
            for panels in 0..=s.panels() {
                let bytes = workspace_bytes(Isa::detect(), tile, form, &s, panels, 2);
                assert!(bytes >= before, "{tile:?} {case:?} {panels}");
                before = bytes;
            }
        }
    }
}

#[test]
fn a_wide_workspace_changes_no_bit() {
    let (isa, mut differing) = (Isa::detect(), 0);
    let deep: Case = (1, 400, 40, [36, 40], [36, 40], [1, 1]);
    for case in CASES.iter().chain([&deep]) {
        let l = case_layer(case);
        let (s, tile, panels) = (l.shape, Tile::F4, l.shape.panels());
        let [narrow, wide] = [
            workspace_bytes(isa, tile, WeightForm::Raw, &s, panels, 1),
            wide_workspace_bytes(isa, tile, &s, panels, 1),
        ];
        assert!(wide >= narrow, "{case:?}");
        let passes = |is_wide| weight_passes(isa, tile, is_wide, &s, 1);
        assert!(passes(true) <= passes(false), "{case:?}");
        differing += usize::from(passes(true) < passes(false));
        let results = [narrow, wide].map(|bytes| {
            let mut out = vec![0.0; l.blocked_residual.len()];
            conv_winograd(
                isa,
                &Serial,
                tile,
                &s,
                0..panels,
                Weights::Raw((&l.raw[..]).into()),
                &l.blocked_input,
                &mut out,
                Epilogue::default(),
                &mut vec![f32::NAN; bytes / 4],
            )
            .expect("is computed");
            out
        });
        assert_eq!(results[0], results[1], "{case:?}");
    }
    assert!(differing > 0);
}

#[test]
fn bad_calls_are_refused() {
    let l = case_layer(&CASES[1]);
    let (isa, tile, s) = (Isa::detect(), Tile::F4, l.shape);
    let n = s.panels();
    let bytes = workspace_bytes(isa, tile, WeightForm::Raw, &s, n, 1);
    let mut out = vec![0.0; l.blocked_residual.len()];
    let mut call = |s: ConvShape, range: Range<usize>, cuts: [usize; 4]| {
        let mut workspace = vec![0.0; bytes / 4 - cuts[3]];
        let len = out.len() - cuts[2];
        conv_winograd(
            isa,
            &Serial,
            tile,
            &s,
            range,
            Weights::Raw((&l.raw[cuts[0]..]).into()),
            &l.blocked_input[cuts[1]..],
            &mut out[..len],
            Epilogue::default(),
            &mut workspace,
        )
    };
    assert_eq!(call(s, 0..n, [0; 4]), Ok(()));
    assert_eq!(call(s, 1..1, [0; 4]), Ok(()));
    assert!(call(s, 0..n + 1, [0; 4]).is_err());
    for short in 0..4 {
        let mut cuts = [0; 4];
        cuts[short] = 1;
        assert!(call(s, 0..n, cuts).is_err(), "buffer {short}");
    }
    for other in [
        ConvShape {
            window: Window {
                kernel: [3, 1],
                ..s.window
            },
            ..s
        },
        ConvShape {
            window: Window {
                strides: [2, 1],
                ..s.window
            },
            ..s
        },
        ConvShape {
            window: Window {
                dilations: [1, 2],
                ..s.window
            },
            ..s
        },
        ConvShape { groups: 2, ..s },
        ConvShape {
            window: Window {
                input: [usize::MAX, 1],
                ..s.window
            },
            ..s
        },
        ConvShape {
            window: Window {
                output: [1 << 40, 1 << 40],
                ..s.window
            },
            ..s
        },
        ConvShape {
            batch: usize::MAX,
            ..s
        },
        ConvShape {
            c_in: usize::MAX,
            ..s
        },
        ConvShape {
            window: Window {
                pads_begin: [usize::MAX, 0],
                ..s.window
            },
            ..s
        },
    ] {
        assert!(call(other, 0..1, [0; 4]).is_err(), "{other:?}");
    }
    let mut to = vec![0.0; prepared_panel_floats(tile, s.c_in) * n];
    let mut prepare =
        |panels: usize| prepare_panels(isa, &Serial, tile, s.c_in, panels, &l.raw, &mut to);
    assert_eq!(prepare(n), Ok(()));
    assert!(prepare(n + 1).is_err());
    assert!(prepare(usize::MAX).is_err());
}
