//! Convolutions and poolings.

use crate::difference::{check, check_f32, distinct, frozen, noise};
use neap_ir::Op;
use neap_ir::infer::{Pads, conv_output_size, conv_transpose_output_size, pool_output_size};
use neap_ir::op::{Pool, Window};

fn window(kernel: &[usize], strides: &[usize], dilations: &[usize], pads: [usize; 2]) -> Window {
    Window {
        kernel: kernel.to_vec(),
        strides: strides.to_vec(),
        dilations: dilations.to_vec(),
        pads_begin: vec![pads[0]; kernel.len()],
        pads_end: vec![pads[1]; kernel.len()],
    }
}

/// x, output channels, groups, window. Some with few channels, some with enough for matrix products.
fn convolutions() -> Vec<(Vec<usize>, usize, usize, Window)> {
    vec![
        (vec![2, 2, 6], 3, 1, window(&[3], &[1], &[1], [1, 1])),
        (vec![1, 3, 7], 8, 1, window(&[3], &[2], &[2], [2, 1])),
        (
            vec![2, 2, 5, 6],
            3,
            1,
            window(&[3, 3], &[1, 1], &[1, 1], [1, 1]),
        ),
        (
            vec![2, 3, 6, 5],
            5,
            1,
            window(&[3, 2], &[2, 2], &[1, 1], [1, 0]),
        ),
        (
            vec![1, 4, 7, 7],
            6,
            2,
            window(&[3, 3], &[2, 1], &[1, 2], [2, 2]),
        ),
        (
            vec![2, 4, 5, 5],
            4,
            4,
            window(&[3, 3], &[1, 1], &[1, 1], [1, 1]),
        ),
        (
            vec![1, 3, 6, 6],
            6,
            3,
            window(&[3, 3], &[2, 2], &[1, 1], [1, 1]),
        ),
        (
            vec![2, 8, 4, 4],
            8,
            1,
            window(&[1, 1], &[1, 1], &[1, 1], [0, 0]),
        ),
        (
            vec![1, 8, 5, 5],
            4,
            1,
            window(&[1, 1], &[2, 2], &[1, 1], [0, 0]),
        ),
        (
            vec![1, 8, 6, 6],
            8,
            2,
            window(&[3, 3], &[1, 1], &[1, 1], [1, 1]),
        ),
        (
            vec![1, 2, 3, 4, 4],
            4,
            1,
            window(&[2, 2, 2], &[1, 2, 1], &[1, 1, 1], [0, 1]),
        ),
        (
            vec![1, 2, 2, 2],
            2,
            1,
            window(&[3, 3], &[3, 3], &[1, 1], [2, 2]),
        ),
    ]
}

#[test]
fn convolutions_by_all_operands() {
    for (x, c_out, groups, window) in convolutions() {
        let mut w = vec![c_out, x[1] / groups];
        w.extend(&window.kernel);
        let op = Op::Conv(window, groups);
        check(op.clone(), &[noise(&x), noise(&w), noise(&[c_out])]);
        check(op.clone(), &[frozen(&x), noise(&w)]);
        check(op, &[noise(&x), frozen(&w)]);
    }
}

#[test]
fn weights_of_large_convolutions_come_in_pieces() {
    // More positions than a piece has; more than a piece's width of columns.
    let table = [
        (
            vec![2, 3, 70, 70],
            8,
            1,
            window(&[3, 3], &[1, 1], &[1, 1], [1, 1]),
        ),
        (
            vec![1, 96, 18, 17],
            20,
            1,
            window(&[3, 3], &[1, 1], &[1, 1], [1, 1]),
        ),
        (
            vec![3, 32, 9, 9],
            40,
            2,
            window(&[5, 5], &[2, 2], &[1, 1], [2, 2]),
        ),
    ];
    for (x, c_out, groups, window) in table {
        let mut w = vec![c_out, x[1] / groups];
        w.extend(&window.kernel);
        check_f32(
            Op::Conv(window, groups),
            &[noise(&x), noise(&w), noise(&[c_out])],
            1,
        );
    }
}

#[test]
fn transposed_convolutions_by_all_operands() {
    for (x, c_out, groups, window) in convolutions() {
        for output_padding in [0, 1] {
            if window.strides.iter().any(|&s| s <= output_padding) {
                continue;
            }
            let mut w = vec![x[1], c_out / groups];
            w.extend(&window.kernel);
            let output_spatial: Option<Vec<usize>> = (0..window.kernel.len())
                .map(|i| {
                    conv_transpose_output_size(
                        x[i + 2],
                        window.kernel[i],
                        window.strides[i],
                        window.dilations[i],
                        Pads {
                            begin: window.pads_begin[i],
                            end: window.pads_end[i],
                        },
                        output_padding,
                    )
                })
                .collect();
            let Some(output_spatial) = output_spatial.filter(|s| !s.contains(&0)) else {
                continue;
            };
            let op = Op::ConvTranspose {
                window: window.clone(),
                groups,
                output_spatial,
            };
            check(op, &[noise(&x), noise(&w), noise(&[c_out])]);
        }
    }
}

#[test]
fn poolings() {
    let table = [
        (vec![2, 3, 7], window(&[3], &[2], &[1], [1, 1])),
        (vec![2, 2, 6, 6], window(&[2, 2], &[2, 2], &[1, 1], [0, 0])),
        (vec![1, 3, 7, 6], window(&[3, 3], &[2, 2], &[1, 1], [1, 1])),
        (vec![1, 2, 7, 7], window(&[3, 2], &[1, 2], &[2, 1], [1, 0])),
        (
            vec![1, 2, 4, 4, 4],
            window(&[2, 2, 2], &[2, 1, 2], &[1, 1, 1], [0, 1]),
        ),
    ];
    for (x, window) in table {
        for ceil_mode in [false, true] {
            let output_spatial: Vec<usize> = (0..window.kernel.len())
                .map(|i| {
                    let pads = Pads {
                        begin: window.pads_begin[i],
                        end: window.pads_end[i],
                    };
                    let (kernel, stride) = (window.kernel[i], window.strides[i]);
                    pool_output_size(
                        x[i + 2],
                        kernel,
                        stride,
                        window.dilations[i],
                        pads,
                        ceil_mode,
                    )
                    .expect("the window fits")
                })
                .collect();
            let op = |kind: Pool| Op::Pool {
                kind,
                window: window.clone(),
                output_spatial: output_spatial.clone(),
            };
            let max = Pool::Max {
                column_major: false,
            };
            check(op(max), &[distinct(&x)]);
            for count_include_pad in [false, true] {
                check(op(Pool::Average { count_include_pad }), &[noise(&x)]);
            }
            for p in [1, 2, 3] {
                check(op(Pool::Lp { p }), &[noise(&x)]);
            }
        }
    }
    for x in [&[2, 3, 5][..], &[2, 2, 3, 4]] {
        let max = Pool::Max {
            column_major: false,
        };
        check(Op::GlobalPool(max), &[distinct(x)]);
        let average = Pool::Average {
            count_include_pad: false,
        };
        check(Op::GlobalPool(average), &[noise(x)]);
        for p in [1, 2, 3] {
            check(Op::GlobalPool(Pool::Lp { p }), &[noise(x)]);
        }
    }
}

#[test]
fn the_table_has_windows_that_leave_a_remainder() {
    // A window that stops before the input's end leaves elements without a derivative.
    let leaves = convolutions().iter().any(|(x, _, _, w)| {
        (0..w.kernel.len()).any(|i| {
            let pads = Pads {
                begin: w.pads_begin[i],
                end: w.pads_end[i],
            };
            let size = conv_output_size(x[i + 2], w.kernel[i], w.strides[i], w.dilations[i], pads);
            let size = size.expect("the window fits");
            let extent = (w.kernel[i] - 1) * w.dilations[i] + 1;
            (size - 1) * w.strides[i] + extent < x[i + 2] + pads.begin + pads.end
        })
    });
    assert!(leaves);
}
