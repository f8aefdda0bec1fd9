//! Portable kernels beside exact products of what blocks stand for.

use crate::random::{Random, Scales};
use crate::{results, sizes};
use neap_blocks::{Activations, BlockType, Isa, Output, product, scratch_bytes, widen_row};

fn portable() -> Isa {
    Isa::available().next().expect("the portable one")
}

/// An exact product, the sum of its terms' magnitudes, and how far a result may be.
fn exact(x: &[f32], w: &[f32]) -> (f64, f64, f64) {
    let (mut sum, mut magnitudes, mut bound) = (0.0, 0.0, 0.0);
    let most = w.iter().fold(0.0, |m: f64, w| m.max(f64::from(w.abs())));
    for (x, w) in x.chunks(32).zip(w.chunks(32)) {
        let largest = x.iter().fold(0.0, |m: f64, x| m.max(f64::from(x.abs())));
        for (x, w) in x.iter().zip(w) {
            let (x, w) = (f64::from(*x), f64::from(*w));
            sum += x * w;
            magnitudes += (x * w).abs();
            // Half a unit of the activation; roundings to `f32` of sums that may be larger than what is left of them.
            bound += largest * (w.abs() / 32512.0 * 1.01 + most / f64::from(1 << 20));
        }
    }
    (sum, magnitudes, bound)
}

fn widened(ty: BlockType, k: usize, weights: &[u8]) -> Vec<f32> {
    let mut w = vec![0.0; weights.len() / ty.row_bytes(k) * k];
    widen_row(ty, weights, &mut w);
    w
}

#[test]
fn results_are_within_half_a_unit_of_each_activation() {
    let mut random = Random(1);
    for &ty in BlockType::ALL {
        for k in sizes(ty) {
            for scales in [Scales::Usual, Scales::Extreme] {
                let (rows, columns) = (3, 5);
                let x = random.activations(rows * k);
                let weights = random.blocks(ty, k, columns, scales);
                let w = widened(ty, k, &weights);
                let y = results(portable(), ty, k, &weights, &x);
                for (i, y) in y.into_iter().enumerate() {
                    let (row, column) = (i / columns, i % columns);
                    let (right, magnitudes, bound) =
                        exact(&x[row * k..][..k], &w[column * k..][..k]);
                    let off = (f64::from(y) - right).abs();
                    assert!(off <= bound, "{ty:?} k {k} {scales:?}: {y}, not {right}");
                    let usual = magnitudes / f64::from(1 << 13);
                    assert!(off <= usual, "{ty:?} k {k} {scales:?}: {y}, not {right}");
                }
            }
        }
    }
}

/// Activations that are whole units, so that nothing but the last sums is rounded.
#[test]
fn whole_units_with_small_sums_are_exact() {
    let mut random = Random(2);
    for &ty in BlockType::ALL {
        let k = 256;
        let mut x: Vec<f32> = (0..k).map(|_| random.below(9) as f32 - 4.0).collect();
        x.iter_mut().step_by(32).for_each(|x| *x = 16256.0);
        let mut weights = random.blocks(ty, k, 4, Scales::Usual);
        if matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::Bf16) {
            continue;
        }
        // Scales of one: half-precision floats, or all bytes of an exponent.
        for block in weights.chunks_exact_mut(ty.block_bytes()) {
            match ty {
                BlockType::Mxfp4 => block[0] = 128,
                BlockType::Q4_1 | BlockType::Q5_1 | BlockType::Q4K | BlockType::Q5K => {
                    block[..4].copy_from_slice(&[0, 0x3c, 0, 0xbc]);
                }
                BlockType::Q2K => block[80..].copy_from_slice(&[0, 0x3c, 0, 0xbc]),
                BlockType::Q3K => block[108..].copy_from_slice(&[0, 0x3c]),
                BlockType::Q6K => block[208..].copy_from_slice(&[0, 0x3c]),
                _ => block[..2].copy_from_slice(&[0, 0x3c]),
            }
        }
        let w = widened(ty, k, &weights);
        let y = results(portable(), ty, k, &weights, &x);
        for (y, w) in y.into_iter().zip(w.chunks(k)) {
            let right: f64 = x
                .iter()
                .zip(w)
                .map(|(x, w)| f64::from(*x) * f64::from(*w))
                .sum();
            let off = (f64::from(y) - right).abs();
            assert!(off <= right.abs() * 1e-6 + 1.0, "{ty:?}: {y}, not {right}");
        }
    }
}

/// One activation that is no finite number: so are all results of its row, and no others.
#[test]
fn what_is_no_finite_number_is_never_lost() {
    let mut random = Random(3);
    for isa in Isa::available() {
        for &ty in BlockType::ALL {
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let (k, rows, columns) = (256, 5, 17);
                let mut x = random.activations(rows * k);
                let weights = random.blocks(ty, k, columns, Scales::Usual);
                let right = results(isa, ty, k, &weights, &x);
                let at = random.below(k);
                x[2 * k + at] = bad;
                let y = results(isa, ty, k, &weights, &x);
                for (i, (y, right)) in y.into_iter().zip(right).enumerate() {
                    match i / columns {
                        2 => assert!(!y.is_finite(), "{} {ty:?} {bad}: {y}", isa.name()),
                        _ => assert_eq!(y.to_bits(), right.to_bits()),
                    }
                }
            }
        }
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let x = [0.0; 64];
    let mut buffer = vec![0; Activations::bytes(1, 64)];
    let x = Activations::quantise(&x, 1, 64, &mut buffer);
    let call = |weights: usize, scratch: usize| {
        std::panic::catch_unwind(|| {
            let (weights, mut scratch) = (vec![0; weights], vec![0; scratch]);
            let mut y = [0.0; 3];
            let mut y = Output::new(&mut y, 1, 3, 0..3);
            let ty = BlockType::Q8_0;
            product(Isa::detect(), ty, 64, &weights, &x, &mut y, &mut scratch);
        })
    };
    let scratch = scratch_bytes(BlockType::Q8_0, 64, 1);
    assert!(call(3 * 68, scratch).is_ok());
    assert!(call(3 * 68 - 1, scratch).is_err());
    assert!(call(3 * 68, scratch - 1).is_err());
}

#[test]
fn empty_products_have_no_results() {
    for isa in Isa::available() {
        for &ty in BlockType::ALL {
            let weights = vec![0; 3 * ty.row_bytes(1024)];
            assert_eq!(results(isa, ty, 1024, &weights, &[]), []);
            assert_eq!(results(isa, ty, 1024, &[], &[0.0; 1024]), []);
        }
    }
}

#[test]
fn types_are_found_by_their_numbers() {
    assert_eq!(BlockType::from_gguf(12), Some(BlockType::Q4K));
    assert_eq!(BlockType::from_gguf(39), Some(BlockType::Mxfp4));
    assert_eq!(BlockType::from_gguf(9), None);
    assert_eq!(BlockType::Q6K.row_bytes(512), 420);
}
