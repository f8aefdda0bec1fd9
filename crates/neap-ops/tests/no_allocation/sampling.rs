//! Operators that read between elements, and transforms.

use super::{check, tensor, x};
use neap_ir::op::Window;
use neap_ir::sampling::{GridMode, GridPadding, RoiAlign, Sampling};
use neap_ir::spectrum::{Dft, Stft};
use neap_ir::{DType, Op};

#[test]
fn between_elements_and_spectra() {
    let image = x(&[1, 4, 5, 6]);
    for mode in [GridMode::Nearest, GridMode::Linear, GridMode::Cubic] {
        let op = Op::Sampling(Sampling::Grid {
            mode,
            padding: GridPadding::Reflection,
            align_corners: false,
        });
        check(op, &[image.clone(), x(&[1, 3, 3, 2])], 1);
    }
    let boxes = RoiAlign {
        largest: false,
        output: [2, 2],
        samples: 0,
        scale: 1.0,
        half_pixel: true,
    };
    let images = tensor(DType::I64, &[2]);
    let op = Op::Sampling(Sampling::RoiAlign(boxes));
    check(op, &[image.clone(), x(&[2, 4]), images], 1);
    let window = Window {
        kernel: vec![2, 2],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        pads_begin: vec![0, 0],
        pads_end: vec![0, 0],
    };
    let op = Op::Sampling(Sampling::DeformConv {
        window,
        groups: 1,
        offset_groups: 2,
    });
    let operands = [image, x(&[3, 4, 2, 2]), x(&[1, 16, 4, 5])];
    check(op, &operands, 1);
    for length in [8, 37] {
        let dft = Dft {
            axis: 1,
            length,
            inverse: false,
            onesided: true,
        };
        check(Op::Dft(dft), &[x(&[2, 30, 1])], 1);
        let stft = Stft {
            frame: length,
            step: 3,
            onesided: true,
        };
        check(Op::Stft(stft), &[x(&[1, 60, 1]), x(&[length])], 1);
    }
    check(Op::Det, &[x(&[2, 5, 5])], 1);
}
