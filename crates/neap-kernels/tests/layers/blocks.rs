//! Layers with weights in blocks have the bits of the same layers with the widened weights as `f32`.

use crate::support::{Threads, affordable, isas, numbers};
use neap_kernels::conv::{ConvShape, conv_blocked};
use neap_kernels::epilogue::{Activation, Epilogue, Residual};
use neap_kernels::linear::{LinearShape, linear};
use neap_kernels::panel::{
    Affine, Bits, BlockFormat, BlockSteps, Format, Panels, pack_block_panel, pack_rows,
    panel_count, panel_floats,
};
use neap_kernels::simd::{Isa, LANES};
use neap_kernels::window::Window;
use std::ops::Range;

pub fn formats() -> impl Iterator<Item = BlockFormat> {
    let bits = [Bits::Four, Bits::Eight].into_iter();
    let of_scales = bits.flat_map(|bits| [false, true].map(|half| (bits, half)));
    of_scales.flat_map(|(bits, has_half_scales)| {
        [16, 32, 64, 128, 256].map(|len| BlockFormat {
            bits,
            has_half_scales,
            len,
        })
    })
}

/// Panels of a layer `[n][k]`, what they are made of, and its widened weights.
pub struct Layer {
    pub format: BlockFormat,
    pub k: usize,
    pub blocks: Vec<u8>,
    pub steps: Vec<i8>,
    /// `[n][block]`
    pub zeros: Vec<i8>,
    pub scales: Vec<f32>,
    weights: Vec<f32>,
    pub bias: Vec<f32>,
}

impl Layer {
    fn new(format: BlockFormat, n: usize, k: usize) -> Layer {
        Layer::with_zeros(format, n, k, None)
    }

    /// With this zero point, or some.
    pub fn with_zeros(format: BlockFormat, n: usize, k: usize, zero: Option<i8>) -> Layer {
        let count = k.div_ceil(format.len);
        let (low, high) = match format.bits {
            Bits::Four => (0.0, 15.0),
            Bits::Eight => (-128.0, 127.0),
        };
        let pick = |x: &f32| ((x * 0.5 + 0.5) * (high - low) + low).round() as i8;
        let steps: Vec<i8> = numbers(n * k, 1).iter().map(pick).collect();
        let zeros = numbers(n * count, 2);
        let zeros: Vec<i8> = zeros.iter().map(|x| zero.unwrap_or(pick(x))).collect();
        // Multiples of 1/1024 below 1/8: half floats too.
        let scales = numbers(n * count, 3);
        let scales: Vec<f32> = (scales.iter())
            .map(|x| (x * 120.0).round() / 1024.0)
            .map(|x| if format.has_half_scales { x } else { x / 3.0 })
            .collect();
        let bias = numbers(n, 4);
        let widened = (0..n * k).map(|i| {
            let place = i / k * count + i % k / format.len;
            (f32::from(steps[i]) - f32::from(zeros[place])) * scales[place]
        });
        let weights = widened.collect();
        let panel_bytes = Format::Blocks(format).panel_bytes(k).unwrap();
        let mut blocks = vec![0xff; panel_count(n) * panel_bytes];
        for (panel, out) in blocks.chunks_exact_mut(panel_bytes).enumerate() {
            let at = |lane: usize| (panel * LANES + lane).min(n - 1);
            let lanes = |of: &dyn Fn(usize) -> i8| std::array::from_fn(|lane| of(at(lane)));
            let of_lanes: Vec<[i8; 16]> = (0..k).map(|i| lanes(&|c| steps[c * k + i])).collect();
            let of_blocks: Vec<[i8; 16]> = (0..count)
                .map(|b| lanes(&|c| zeros[c * count + b]))
                .collect();
            let block_scales: Vec<[f32; 16]> = (0..count)
                .map(|b| std::array::from_fn(|lane| scales[at(lane) * count + b]))
                .collect();
            let panel = BlockSteps {
                bias: &std::array::from_fn(|lane| bias[at(lane)]),
                scales: &block_scales,
                zeros: &of_blocks,
                steps: &of_lanes,
            };
            pack_block_panel(format, panel, out).unwrap();
        }
        Layer {
            format,
            k,
            blocks,
            steps,
            zeros,
            scales,
            weights,
            bias,
        }
    }

    pub fn panels(&self, range: &Range<usize>) -> Panels<'_> {
        let format = Format::Blocks(self.format);
        let bytes = format.panel_bytes(self.k).unwrap();
        Panels::new(format, &self.blocks[range.start * bytes..range.end * bytes]).unwrap()
    }

    /// `f32` panels of the widened weights.
    fn wide(&self, n: usize) -> Vec<f32> {
        let mut wide = vec![f32::NAN; panel_count(n) * panel_floats(self.k)];
        let affine = Affine {
            scale: None,
            bias: Some(&self.bias),
        };
        let all = 0..panel_count(n);
        pack_rows(n, self.k, all, &self.weights, affine, &mut wide).unwrap();
        wide
    }
}

#[test]
fn linear_layers_in_blocks() {
    let shapes = [
        (1, 7, 40),
        (1, 300, 33),
        (1, 1300, 150),
        (5, 129, 16),
        (17, 1100, 50),
        (2, 4500, 17),
        (29, 300, 50),
        (61, 1100, 18),
        (30, 70, 40),
    ];
    for (format, (m, k, n)) in formats().flat_map(|f| shapes.map(|s| (f, s))) {
        if !affordable(m * k * n) {
            continue;
        }
        let shape = LinearShape::dense(m, k, n);
        let layer = Layer::new(format, n, k);
        let wide = layer.wide(n);
        let (a, residual) = (numbers(m * k, 5), numbers(m * n, 6));
        let of = |isa: Isa, range: &Range<usize>, weights: Panels<'_>| {
            let mut out = vec![0.0; m * n];
            let epilogue = Epilogue {
                activation: Activation::Relu,
                residual: Residual::Separate(&residual),
            };
            let (threads, range) = (&Threads(2), range.clone());
            linear(isa, threads, &shape, range, weights, &a, &mut out, epilogue).unwrap();
            out
        };
        // By the definition, in f64.
        let naive = |row: usize, column: usize| {
            let products = (0..k)
                .map(|i| f64::from(a[row * k + i]) * f64::from(layer.weights[column * k + i]));
            let sum = products.sum::<f64>() + f64::from(layer.bias[column]);
            (sum + f64::from(residual[row * n + column])).max(0.0)
        };
        for isa in isas() {
            for range in [0..panel_count(n), panel_count(n) - 1..panel_count(n)] {
                let what = format!("{format:?} {isa:?} {m} {k} {n} {range:?}");
                let narrow = of(isa, &range, layer.panels(&range));
                let floats = panel_floats(k);
                let part = &wide[range.start * floats..range.end * floats];
                let wide = of(isa, &range, part.into());
                let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                assert_eq!(bits(&narrow), bits(&wide), "{what}");
                for (i, &x) in narrow.iter().enumerate() {
                    let (row, column) = (i / n, i % n);
                    if column >= range.start * LANES {
                        let want = naive(row, column);
                        let off = (f64::from(x) - want).abs();
                        assert!(off <= 2e-3 * (1.0 + want.abs()), "{what}: {x} {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let format = BlockFormat {
        bits: Bits::Four,
        has_half_scales: true,
        len: 32,
    };
    let (bias, zeros) = ([0.0; 16], [[8; 16]; 2]);
    let (mut scales, mut steps) = ([[0.5; 16]; 2], [[15; 16]; 40]);
    let bytes = Format::Blocks(format).panel_bytes(40).unwrap();
    assert_eq!(bytes, 64 + 2 * (32 + 16) + 40 * 8);
    let pack = |format, scales: &[[f32; 16]], steps: &[[i8; 16]], bytes: usize| {
        let panel = BlockSteps {
            bias: &bias,
            scales,
            zeros: &zeros,
            steps,
        };
        pack_block_panel(format, panel, &mut vec![0; bytes]).is_ok()
    };
    assert!(pack(format, &scales, &steps, bytes));
    assert!(!pack(format, &scales, &steps, bytes - 1));
    assert!(!pack(format, &scales[..1], &steps, bytes));
    assert!(!pack(
        BlockFormat { len: 0, ..format },
        &scales,
        &steps,
        bytes
    ));
    steps[39][15] = 16;
    assert!(!pack(format, &scales, &steps, bytes));
    steps[39][15] = 0;
    scales[1][15] = 0.1;
    assert!(!pack(format, &scales, &steps, bytes));

    // A convolution takes no blocks.
    let window = Window {
        input: [1; 2],
        output: [1; 2],
        kernel: [1; 2],
        strides: [1; 2],
        dilations: [1; 2],
        pads_begin: [0; 2],
        pads_end: [0; 2],
    };
    let shape = ConvShape {
        batch: 1,
        c_in: 16,
        c_out: 16,
        groups: 1,
        window,
    };
    let words = vec![0f32; 1 << 10];
    let bytes: Vec<u8> = words.iter().flat_map(|x| x.to_le_bytes()).collect();
    let weights = Panels::new(Format::Blocks(format), &bytes).unwrap();
    let (input, mut out) = ([0.0; 16], [0.0; 16]);
    let (isa, e) = (Isa::detect(), Epilogue::default());
    assert!(conv_blocked(isa, &Threads(1), &shape, 0..1, weights, &input, &mut out, e).is_err());
}
