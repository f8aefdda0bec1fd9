//! Layers with narrow weights have the bits of the same layers with the widened weights as `f32`.

use crate::support::{Threads, isas, numbers};
use neap_kernels::conv::{
    ConvShape, conv_blocked, conv_first_layer, conv_first_layer_scratch_bytes, conv_narrow_groups,
};
use neap_kernels::depthwise::{Depthwise, depthwise};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::panel::{
    Affine, Format, KOrder, Panels, Scales, narrow, pack_conv, pack_rows, panel_count, panel_floats,
};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::{Isa, f16_to_f32};
use neap_kernels::window::Window;
use neap_kernels::winograd::{self, Tile, WeightForm, Weights};
use std::ops::Range;

/// A weight that the format holds exactly; among them subnormal half floats and both zeros.
fn stored(format: Format, x: f32) -> f32 {
    match format {
        Format::F32 => x,
        Format::Coded { .. } => of_any_exponent(x),
        Format::F16 | Format::F16Scaled => {
            let bits = (x * 32767.0) as i16 as u16;
            // Infinities and NaN are not weights.
            f16_to_f32(if bits & 0x7c00 == 0x7c00 {
                bits & 0x83ff
            } else {
                bits
            })
        }
        Format::Bf16 | Format::Bf16Scaled => f32::from_bits(x.to_bits() & 0xffff_0000),
        Format::I8 => (x * 128.0).floor(),
        Format::Blocks(_) => unreachable!("blocks have tests of their own"),
    }
}

/// Mostly the number; a few far smaller, some of them subnormal, and zeros of both signs.
fn of_any_exponent(x: f32) -> f32 {
    match x.abs() {
        ..0.0002 => x * 0.0,
        ..0.0004 => x * 1e-38,
        ..0.0006 => x * 1e-20,
        _ => x,
    }
}

/// Panels of a layer in a format, and the `f32` panels of the weights that they stand for.
struct Layer {
    format: Format,
    k: usize,
    narrow: Vec<u8>,
    wide: Vec<f32>,
}

type PackRows<'p> = &'p dyn Fn(&[f32], Affine<'_>, &mut [f32]);

impl Layer {
    fn new(format: Format, c_out: usize, k: usize, pack: PackRows<'_>) -> Layer {
        let weights: Vec<f32> = numbers(c_out * k, 1)
            .iter()
            .map(|&x| stored(format, x))
            .collect();
        let bias = numbers(c_out, 2);
        let scale: Vec<f32> = numbers(c_out, 3).iter().map(|x| x * 0.01 + 0.02).collect();
        let zero: Vec<f32> = numbers(c_out, 4)
            .iter()
            .map(|x| (x * 300.0).round())
            .collect();
        let is_scaled = matches!(format, Format::F16Scaled | Format::Bf16Scaled | Format::I8);
        let scales = Scales {
            scale: is_scaled.then_some(&scale[..]),
            zero: (format == Format::I8).then_some(&zero[..]),
        };
        let affine = Affine {
            scale: None,
            bias: Some(&bias),
        };
        let panels = panel_count(c_out);
        let mut unscaled = vec![f32::NAN; panels * panel_floats(k)];
        pack(&weights, affine, &mut unscaled);
        let mut bytes = vec![0xff; panels * format.panel_bytes(k).unwrap()];
        narrow(format, c_out, k, 0..panels, &unscaled, scales, &mut bytes).unwrap();
        let mut widened = weights;
        for (c, row) in widened.chunks_exact_mut(k.max(1)).enumerate() {
            for w in row {
                *w -= scales.zero.map_or(0.0, |zero| zero[c]);
                *w *= scales.scale.map_or(1.0, |scale| scale[c]);
            }
        }
        let mut wide = vec![f32::NAN; panels * panel_floats(k)];
        pack(&widened, affine, &mut wide);
        Layer {
            format,
            k,
            narrow: bytes,
            wide,
        }
    }

    /// Panels of a range, narrow and wide.
    fn panels(&self, range: &Range<usize>) -> [Panels<'_>; 2] {
        let bytes = self.format.panel_bytes(self.k).unwrap();
        let floats = panel_floats(self.k);
        let narrow = &self.narrow[range.start * bytes..range.end * bytes];
        [
            Panels::new(self.format, narrow).unwrap(),
            self.wide[range.start * floats..range.end * floats].into(),
        ]
    }
}

fn narrow_formats() -> impl Iterator<Item = Format> {
    Format::ALL.into_iter().filter(|&f| f != Format::F32)
}

/// The bits of two outputs, of which the first is of narrow weights.
fn assert_same(outputs: &[Vec<f32>], what: &str) {
    let [narrow, wide] = outputs else {
        panic!("two outputs")
    };
    let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(wide.iter().any(|x| *x != 0.0 && x.is_finite()), "{what}");
    assert_eq!(bits(narrow), bits(wide), "{what}");
}

fn epilogue(residual: &[f32]) -> Epilogue<'_> {
    Epilogue {
        activation: Activation::GeluTanh,
        residual: Residual::Separate(residual),
    }
}

#[test]
fn linear_layers() {
    for format in narrow_formats() {
        for (m, k, n) in [
            (1, 7, 40),
            (1, 300, 33),
            (5, 129, 16),
            (17, 1100, 50),
            (4, 0, 20),
            (31, 0, 20),
            (29, 300, 50),
            (61, 1100, 18),
        ] {
            let shape = LinearShape::dense(m, k, n);
            let pack: PackRows = &|rows, affine, out| {
                pack_rows(n, k, 0..panel_count(n), rows, affine, out).unwrap();
            };
            let layer = Layer::new(format, n, k, pack);
            let (a, residual) = (numbers(m * k, 5), numbers(m * n, 6));
            for isa in isas() {
                for range in [0..panel_count(n), 1..panel_count(n)] {
                    let outputs = layer.panels(&range).map(|weights| {
                        let mut out = vec![0.0; m * n];
                        let threads = &Threads(2);
                        let e = epilogue(&residual);
                        linear(
                            isa,
                            threads,
                            &shape,
                            range.clone(),
                            weights,
                            &a,
                            &mut out,
                            e,
                        )
                        .unwrap();
                        out
                    });
                    if !range.is_empty() {
                        assert_same(
                            &outputs,
                            &format!("{format:?} {isa:?} {m} {k} {n} {range:?}"),
                        );
                    }
                }
            }
        }
    }
}

fn window(input: [usize; 2], kernel: [usize; 2], stride: usize, pad: usize) -> Window {
    let output = [0, 1].map(|i| (input[i] + 2 * pad - kernel[i]) / stride + 1);
    Window {
        input,
        output,
        kernel,
        strides: [stride; 2],
        dilations: [1; 2],
        pads_begin: [pad; 2],
        pads_end: [pad; 2],
    }
}

fn conv_shape(c_in: usize, c_out: usize, groups: usize, window: Window) -> ConvShape {
    ConvShape {
        batch: 1,
        c_in,
        c_out,
        groups,
        window,
    }
}

fn conv_layer(format: Format, order: KOrder, s: &ConvShape) -> Layer {
    let pack: PackRows = &|rows, affine, out| {
        let (all, c_in) = (0..s.panels(), s.c_in / s.groups);
        pack_conv(
            order,
            s.c_out,
            c_in,
            s.window.kernel,
            all,
            rows,
            affine,
            out,
        )
        .unwrap();
    };
    Layer::new(format, s.c_out, s.k(), pack)
}

fn blocked(channels: usize, [h, w]: [usize; 2]) -> usize {
    channels.div_ceil(16) * h * w * 16
}

#[test]
fn blocked_convolutions() {
    let shapes = [
        conv_shape(35, 40, 1, window([7, 9], [3, 3], 1, 1)),
        conv_shape(16, 33, 1, window([8, 8], [1, 1], 2, 0)),
        conv_shape(64, 32, 2, window([5, 6], [3, 1], 1, 0)),
        conv_shape(64, 64, 2, window([7, 9], [3, 3], 1, 1)),
        conv_shape(35, 40, 1, window([9, 9], [5, 5], 1, 2)),
    ];
    for (format, s) in narrow_formats().flat_map(|f| shapes.map(|s| (f, s))) {
        let layer = conv_layer(format, KOrder::Blocked, &s);
        let input = numbers(blocked(s.c_in, s.window.input), 5);
        let residual = numbers(blocked(s.c_out, s.window.output), 6);
        for isa in isas() {
            for range in [0..s.panels(), 1..2] {
                let outputs = layer.panels(&range).map(|weights| {
                    let mut out = vec![0.0; residual.len()];
                    let (threads, e) = (&Threads(2), epilogue(&residual));
                    conv_blocked(
                        isa,
                        threads,
                        &s,
                        range.clone(),
                        weights,
                        &input,
                        &mut out,
                        e,
                    )
                    .unwrap();
                    out
                });
                assert_same(&outputs, &format!("{format:?} {isa:?} {s:?} {range:?}"));
            }
        }
    }
}

#[test]
fn first_layers_and_narrow_groups() {
    let first = conv_shape(3, 40, 1, window([12, 11], [5, 5], 2, 2));
    let groups =
        [1, 2, 4, 8].map(|width| conv_shape(32, 32, 32 / width, window([6, 5], [3, 3], 1, 1)));
    for format in narrow_formats() {
        for s in groups.iter().chain([&first]) {
            let layer = conv_layer(format, KOrder::Taps, s);
            let is_first = s.groups == 1;
            let [h, w] = s.window.input;
            let len = if is_first {
                3 * h * w
            } else {
                blocked(32, [h, w])
            };
            let input = numbers(len, 5);
            let residual = numbers(blocked(s.c_out, s.window.output), 6);
            for isa in isas() {
                let threads = &Threads(2);
                let outputs = layer.panels(&(0..s.panels())).map(|weights| {
                    let mut out = vec![0.0; residual.len()];
                    let e = epilogue(&residual);
                    let all = 0..s.panels();
                    if is_first {
                        let bytes = conv_first_layer_scratch_bytes(s, threads.workers());
                        let mut scratch = vec![0.0; bytes / 4];
                        let scratch = &mut scratch;
                        conv_first_layer(
                            isa, threads, s, all, weights, &input, &mut out, e, scratch,
                        )
                    } else {
                        conv_narrow_groups(isa, threads, s, all, weights, &input, &mut out, e)
                    }
                    .unwrap();
                    out
                });
                assert_same(&outputs, &format!("{format:?} {isa:?} {s:?}"));
            }
        }
    }
}

#[test]
fn depthwise_convolutions() {
    for format in narrow_formats() {
        for (kernel, stride) in [([3, 3], 1), ([5, 5], 2), ([8, 8], 1)] {
            let s = Depthwise {
                batch: 1,
                channels: 37,
                window: window([13, 17], kernel, stride, kernel[0] / 2),
            };
            let pack: PackRows = &|rows, affine, out| {
                let all = 0..panel_count(s.channels);
                neap_kernels::panel::pack_depthwise(s.channels, kernel, all, rows, affine, out)
                    .unwrap();
            };
            let layer = Layer::new(format, s.channels, s.window.taps(), pack);
            let input = numbers(blocked(s.channels, s.window.input), 5);
            let residual = numbers(blocked(s.channels, s.window.output), 6);
            for isa in isas() {
                for range in [0..3, 1..2] {
                    let outputs = layer.panels(&range).map(|weights| {
                        let mut out = vec![0.0; residual.len()];
                        let (threads, e) = (&Threads(2), epilogue(&residual));
                        depthwise(
                            isa,
                            threads,
                            &s,
                            range.clone(),
                            weights,
                            &input,
                            &mut out,
                            e,
                        )
                        .unwrap();
                        out
                    });
                    assert_same(
                        &outputs,
                        &format!("{format:?} {isa:?} {kernel:?} {range:?}"),
                    );
                }
            }
        }
    }
    // A panel that is widened first must fit the stack.
    let s = Depthwise {
        batch: 1,
        channels: 16,
        window: window([9, 9], [9, 9], 1, 4),
    };
    let bytes = vec![0u8; Format::F16.panel_bytes(81).unwrap()];
    let weights = Panels::new(Format::F16, &bytes).unwrap();
    let (mut out, e) = (vec![0.0; 9 * 9 * 16], Epilogue::default());
    let input = vec![0.0; 9 * 9 * 16];
    let isa = Isa::detect();
    assert!(depthwise(isa, &Threads(1), &s, 0..1, weights, &input, &mut out, e).is_err());
}

#[test]
fn winograd_with_stored_and_prepared_weights() {
    let s = conv_shape(19, 40, 1, window([9, 10], [3, 3], 1, 1));
    for (format, tile) in narrow_formats().flat_map(|f| Tile::ALL.map(|t| (f, t))) {
        let layer = conv_layer(format, KOrder::Blocked, &s);
        let input = numbers(blocked(s.c_in, s.window.input), 5);
        let residual = numbers(blocked(s.c_out, s.window.output), 6);
        let (all, threads) = (0..s.panels(), &Threads(2));
        for isa in isas() {
            for form in [WeightForm::Raw, WeightForm::Prepared] {
                let bytes = winograd::workspace_bytes(isa, tile, form, &s, s.panels(), 2);
                let outputs = layer.panels(&all).map(|stored| {
                    let floats = winograd::prepared_panel_floats(tile, s.c_in) * s.panels();
                    let mut prepared = vec![0.0; floats];
                    let weights = if form == WeightForm::Raw {
                        Weights::Raw(stored)
                    } else {
                        let n = s.panels();
                        let to = &mut prepared;
                        winograd::prepare_panels(isa, threads, tile, s.c_in, n, stored, to)
                            .unwrap();
                        Weights::Prepared(&prepared)
                    };
                    let mut out = vec![0.0; residual.len()];
                    let mut workspace = vec![0.0; bytes / 4];
                    winograd::conv_winograd(
                        isa,
                        threads,
                        tile,
                        &s,
                        all.clone(),
                        weights,
                        &input,
                        &mut out,
                        epilogue(&residual),
                        &mut workspace,
                    )
                    .unwrap();
                    out
                });
                assert_same(&outputs, &format!("{format:?} {isa:?} {tile:?} {form:?}"));
            }
        }
    }
}

#[test]
fn panels_that_do_not_fit_are_refused() {
    let shape = LinearShape::dense(1, 4, 16);
    let bytes = vec![0u32; 64];
    let bytes: &[u8] = &bytes
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect::<Vec<_>>();
    let (a, mut out) = ([0.0; 4], [0.0; 16]);
    let aligned = bytes.as_ptr().align_offset(4);
    assert!(Panels::new(Format::I8, &bytes[aligned + 1..]).is_err());
    let needed = Format::I8.panel_bytes(4).unwrap();
    for (len, fits) in [(needed, true), (needed - 4, false)] {
        let weights = Panels::new(Format::I8, &bytes[aligned..][..len]).unwrap();
        let e = Epilogue::default();
        let done = linear(
            Isa::detect(),
            &Threads(1),
            &shape,
            0..1,
            weights,
            &a,
            &mut out,
            e,
        );
        assert_eq!(done.is_ok(), fits);
    }
}

#[test]
fn steps_of_numbers_and_back() {
    use neap_kernels::elementwise::quantize::{
        dequantize_i8, dequantize_u8, quantize_i8, quantize_u8,
    };
    use neap_kernels::elementwise::{Unary, unary};
    let (scale, ends) = (0.037f32, [1e9, -1e9, 0.0, 0.0185, 0.0555, -0.0185]);
    for len in [1, 15, 16, 17, 100] {
        let x: Vec<f32> = numbers(len, 7)
            .iter()
            .map(|x| x * 8.0)
            .chain(ends)
            .collect();
        for isa in isas() {
            let step = |x: f32, zero: f32| (x / scale).round_ties_even() + zero;
            let (mut unsigned, mut signed) = (vec![0u8; x.len()], vec![0i8; x.len()]);
            quantize_u8(isa, &x, scale, 131.0, &mut unsigned);
            quantize_i8(isa, &x, scale, -5.0, &mut signed);
            let (mut from_u8, mut from_i8) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            dequantize_u8(isa, &unsigned, scale, 131.0, &mut from_u8);
            dequantize_i8(isa, &signed, scale, -5.0, &mut from_i8);
            for (i, &x) in x.iter().enumerate() {
                let want = step(x, 131.0).clamp(0.0, 255.0);
                assert_eq!(f32::from(unsigned[i]), want, "{isa:?} {x}");
                assert_eq!(from_u8[i].to_bits(), ((want - 131.0) * scale).to_bits());
                let want = step(x, -5.0).clamp(-128.0, 127.0);
                assert_eq!(f32::from(signed[i]), want, "{isa:?} {x}");
                assert_eq!(from_i8[i].to_bits(), ((want + 5.0) * scale).to_bits());
            }
            let mut through = vec![0.0; x.len()];
            let rounding = Unary::Requantize {
                scale,
                zero: 131.0,
                low: 0.0,
                high: 255.0,
                nan: 0.0,
            };
            unary(isa, &Threads(2), rounding, &x, &mut through).unwrap();
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&through), bits(&from_u8), "{isa:?}");
        }
    }
}
