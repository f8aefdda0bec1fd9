//! Few rows times panels of 8-bit integers against their formula in f64.

use crate::support::{Random, isas};
use neap_kernels::linear::{FewByPanels, few_by_panels};
use neap_kernels::panel::{Affine, Format, Panels, Scales, narrow, pack_rows, panel_floats};
use neap_kernels::simd::Isa;

/// A layer of so many outputs, in the order of rows: weights on steps, with what each output has.
struct Layer {
    weights: Vec<f32>,
    scale: Vec<f32>,
    zero: Vec<f32>,
    bias: Vec<f32>,
    /// The panels, aligned for floats.
    panels: Vec<f32>,
}

fn layer(outputs: usize, k: usize, seed: u64) -> Layer {
    let mut random = Random::new(seed);
    let whole = |x: f32| x.round();
    let weights: Vec<f32> = random.vec(outputs * k, -128.0, 127.0);
    let weights: Vec<f32> = weights.into_iter().map(whole).map(|x| x + 0.0).collect();
    let scale = random.vec(outputs, 0.001, 0.02);
    let zero: Vec<f32> = random
        .vec(outputs, -90.0, 90.0)
        .into_iter()
        .map(whole)
        .collect();
    let bias = random.vec(outputs, -1.0, 1.0);
    let count = outputs / 16;
    let mut wide = vec![0.0; count * panel_floats(k)];
    let affine = Affine {
        scale: None,
        bias: Some(&bias),
    };
    pack_rows(outputs, k, 0..count, &weights, affine, &mut wide).expect("packs");
    let bytes = count * Format::I8.panel_bytes(k).expect("fits");
    let mut packed = vec![0; bytes];
    let scales = Scales {
        scale: Some(&scale),
        zero: Some(&zero),
    };
    narrow(Format::I8, outputs, k, 0..count, &wide, scales, &mut packed).expect("narrows");
    let panels = packed.as_chunks::<4>().0;
    let panels = panels.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Layer {
        weights,
        scale,
        zero,
        bias,
        panels,
    }
}

impl Layer {
    fn panels(&self) -> Panels<'_> {
        // SAFETY: floats are bytes, four each.
        let bytes = unsafe {
            std::slice::from_raw_parts(self.panels.as_ptr().cast(), self.panels.len() * 4)
        };
        Panels::new(Format::I8, bytes).expect("aligned")
    }
}

fn run(isa: Isa, s: &FewByPanels, layer: &Layer, rows: &[f32]) -> Vec<f32> {
    let mut out = vec![7.5; (s.rows - 1) * s.out_stride + s.panels * 16];
    few_by_panels(isa, s, rows, layer.panels(), &mut out).expect("runs");
    out
}

#[test]
fn all_tails_are_right_and_have_the_same_bits_everywhere() {
    for k in [1, 2, 15, 64, 133] {
        for panels in [1, 2, 3, 4, 5, 9] {
            let layer = layer(16 * panels, k, (k * 31 + panels) as u64);
            for rows in [1, 2, 3, 4, 5, 7] {
                let s = FewByPanels {
                    rows,
                    k,
                    panels,
                    row_stride: k + 3,
                    out_stride: 16 * panels + 5,
                };
                let x = Random::new(k as u64).vec(rows * (k + 3), -1.0, 1.0);
                let first = run(Isa::detect(), &s, &layer, &x);
                for isa in isas() {
                    let found = run(isa, &s, &layer, &x);
                    check(&s, &layer, &x, &found);
                    if isa.name() != "portable" {
                        same(&found, &first, isa);
                    }
                    // A row alone has the bits that it has among others.
                    let alone = FewByPanels { rows: 1, ..s };
                    let from = (rows - 1) * s.row_stride;
                    let last = run(isa, &alone, &layer, &x[from..]);
                    same(&last, &found[(rows - 1) * s.out_stride..], isa);
                }
            }
        }
    }
}

fn same(a: &[f32], b: &[f32], isa: Isa) {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(a), bits(b), "{}", isa.name());
}

fn check(s: &FewByPanels, layer: &Layer, x: &[f32], found: &[f32]) {
    for row in 0..s.rows {
        let x = &x[row * s.row_stride..][..s.k];
        for output in 0..s.panels * 16 {
            let terms = x.iter().zip(&layer.weights[output * s.k..]);
            let zero = f64::from(layer.zero[output]);
            let sum: f64 = terms
                .map(|(x, w)| f64::from(*x) * (f64::from(*w) - zero))
                .sum();
            let want = sum * f64::from(layer.scale[output]) + f64::from(layer.bias[output]);
            let got = f64::from(found[row * s.out_stride + output]);
            let near = (got - want).abs() <= 2e-5 * want.abs().max(1.0);
            assert!(near, "{s:?}, row {row}, output {output}: {got}, not {want}");
        }
        for gap in s.panels * 16..s.out_stride {
            let kept = found.get(row * s.out_stride + gap);
            assert!(
                kept.is_none_or(|x| *x == 7.5),
                "between rows nothing is written"
            );
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let layer = layer(32, 8, 1);
    let s = FewByPanels {
        rows: 2,
        k: 8,
        panels: 2,
        row_stride: 8,
        out_stride: 32,
    };
    let x = [0.5; 16];
    let call = |s: &FewByPanels, x: &[f32], out: usize| {
        few_by_panels(isas()[0], s, x, layer.panels(), &mut vec![0.0; out]).is_err()
    };
    assert!(!call(&s, &x, 64));
    assert!(call(&s, &x[1..], 64) && call(&s, &x, 63));
    assert!(call(&FewByPanels { panels: 3, ..s }, &x, 96));
    assert!(call(
        &FewByPanels {
            out_stride: 31,
            ..s
        },
        &x,
        64
    ));
    assert!(call(&FewByPanels { row_stride: 7, ..s }, &x, 64));
    let floats: Panels = layer.panels.as_slice().into();
    assert!(few_by_panels(isas()[0], &s, &x, floats, &mut [0.0; 64]).is_err());
}
