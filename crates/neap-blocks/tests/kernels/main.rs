//! Every kernel gives the bits of the definition, and these are near the exact products.

mod definition;
mod near;
mod random;
mod same_bits;

use neap_blocks::{Activations, BlockType, Isa, Output, product, scratch_bytes};

/// All results of a product, of `columns` output rows.
fn results(isa: Isa, ty: BlockType, k: usize, weights: &[u8], x: &[f32]) -> Vec<f32> {
    let (rows, columns) = (x.len() / k, weights.len() / ty.row_bytes(k));
    let mut buffer = vec![0; Activations::bytes(rows, k)];
    let x = Activations::quantise(x, rows, k, &mut buffer);
    let mut y = vec![f32::NAN; rows * columns];
    let mut scratch = vec![0; scratch_bytes(ty, k, rows)];
    let mut output = Output::new(&mut y, rows, columns, 0..columns);
    product(isa, ty, k, weights, &x, &mut output, &mut scratch);
    y
}

/// Bits; no number is like any other.
fn bits(y: &[f32]) -> Vec<u32> {
    let bits = |y: &f32| {
        if y.is_nan() {
            f32::NAN.to_bits()
        } else {
            y.to_bits()
        }
    };
    y.iter().map(bits).collect()
}

/// Whole blocks of a type.
fn sizes(ty: BlockType) -> impl Iterator<Item = usize> {
    let most = if is_emulated() { 512 } else { 2048 };
    [32usize, 64, 96, 256, 512, 768, 2048]
        .into_iter()
        .filter(move |k| k.is_multiple_of(ty.block_elements()) && *k <= most)
}

fn is_emulated() -> bool {
    std::env::var_os("NEAP_EMULATED").is_some()
}
