//! The same bits by every instruction set, with any number of rows, in any slices.

use crate::random::{Random, Scales};
use crate::{bits, is_emulated, results, sizes};
use neap_blocks::{Activations, BlockType, Isa, Output, product, scratch_bytes};

#[test]
fn instruction_sets_agree() {
    let mut random = Random(4);
    let portable = Isa::available().next().expect("the portable one");
    let rows: &[usize] = if is_emulated() {
        &[1, 2, 5, 9]
    } else {
        &[1, 2, 3, 4, 5, 7, 8, 16, 33]
    };
    for &ty in BlockType::ALL {
        for k in sizes(ty) {
            for &rows in rows {
                for columns in [1, 3, 16, 17, 50] {
                    let scales = [Scales::Usual, Scales::Extreme][random.below(2)];
                    let x = random.activations(rows * k);
                    let weights = random.blocks(ty, k, columns, scales);
                    let right = bits(&results(portable, ty, k, &weights, &x));
                    for isa in Isa::available().skip(1) {
                        let y = bits(&results(isa, ty, k, &weights, &x));
                        assert!(
                            y == right,
                            "{} {ty:?} k {k} rows {rows} columns {columns}",
                            isa.name()
                        );
                    }
                }
            }
        }
    }
}

/// The largest bytes and activations: sums are nowhere cut off.
#[test]
fn instruction_sets_agree_at_the_bounds() {
    let portable = Isa::available().next().expect("the portable one");
    let mut random = Random(5);
    for &ty in BlockType::ALL {
        let (k, columns) = (256, 17);
        for (fill, sign) in [
            (0xff, 1.0),
            (0xff, -1.0),
            (0x00, 1.0),
            (0x80, -1.0),
            (0x7f, 1.0),
        ] {
            let mut weights = random.blocks(ty, k, columns, Scales::Usual);
            let floats = matches!(ty, BlockType::F32 | BlockType::F16 | BlockType::Bf16);
            for (i, byte) in weights.iter_mut().enumerate().filter(|_| !floats) {
                // Floats of scales keep an exponent that is finite.
                let at = i % ty.block_bytes();
                let is_scale = match ty {
                    BlockType::Q2K => at >= 80,
                    BlockType::Q3K => at >= 108,
                    BlockType::Q6K => at >= 208,
                    _ => at < 4,
                };
                if !is_scale {
                    *byte = fill;
                }
            }
            for low in [0.0, 63.0, -64.0] {
                let mut x = vec![sign * 16256.0; k];
                x.iter_mut()
                    .skip(1)
                    .for_each(|x| *x = sign * (16192.0 + low));
                x[1] = -x[1];
                let x = x.repeat(3);
                let right = bits(&results(portable, ty, k, &weights, &x));
                for isa in Isa::available().skip(1) {
                    let y = bits(&results(isa, ty, k, &weights, &x));
                    assert!(y == right, "{} {ty:?} {fill:x} {sign} {low}", isa.name());
                }
            }
        }
    }
}

#[test]
fn rows_do_not_depend_on_others() {
    let mut random = Random(6);
    for isa in Isa::available() {
        for &ty in BlockType::ALL {
            let (k, rows, columns) = (512, 21, 19);
            let x = random.activations(rows * k);
            let weights = random.blocks(ty, k, columns, Scales::Usual);
            let whole = bits(&results(isa, ty, k, &weights, &x));
            for size in [1, 2, 4, 6, 11] {
                let parts = x.chunks(size * k);
                let each = parts.flat_map(|x| bits(&results(isa, ty, k, &weights, x)));
                assert!(
                    each.eq(whole.iter().copied()),
                    "{} {ty:?} {size}",
                    isa.name()
                );
            }
        }
    }
}

#[test]
fn threads_fill_slices_of_output_rows() {
    let mut random = Random(7);
    for isa in Isa::available() {
        for &ty in BlockType::ALL {
            for rows in [1, 3, 12] {
                let (k, columns, ld) = (256, 45, 48);
                let x = random.activations(rows * k);
                let weights = random.blocks(ty, k, columns, Scales::Usual);
                let whole = results(isa, ty, k, &weights, &x);
                let mut buffer = vec![0; Activations::bytes(rows, k)];
                let _ = Activations::quantise(&x, rows, k, &mut buffer);
                let mut y = vec![7.0; rows * ld];
                let mut left = Output::new(&mut y, rows, ld, 2..2 + columns);
                std::thread::scope(|scope| {
                    let mut weights = &weights[..];
                    for part in [5, 16, 1, 23] {
                        let (mut mine, others) = left.split_at(part);
                        left = others;
                        let (own, rest) = weights.split_at(part * ty.row_bytes(k));
                        weights = rest;
                        let (x, buffer) = (&x, &buffer);
                        scope.spawn(move || {
                            let x = Activations::view(x, rows, k, buffer);
                            let mut scratch = vec![0xff; scratch_bytes(ty, k, rows)];
                            product(isa, ty, k, own, &x, &mut mine, &mut scratch);
                        });
                    }
                });
                for (y, right) in y.chunks(ld).zip(whole.chunks(columns)) {
                    assert_eq!(y[..2], [7.0; 2]);
                    assert_eq!(y[2 + columns..], [7.0; 1]);
                    assert_eq!(
                        bits(&y[2..2 + columns]),
                        bits(right),
                        "{} {ty:?}",
                        isa.name()
                    );
                }
            }
        }
    }
}
