//! Convolutions.

use super::Case;
use neap_ir::Layout::{Blocked, Plain};
use neap_ir::Op;
use neap_ir::op::{Activation, Window};
use neap_ir::panel::{ConvForm, Epilogue, PanelConv};

pub fn window(kernel: usize, stride: usize, dilation: usize, pad: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    }
}

pub fn out_size(input: usize, kernel: usize, stride: usize, dilation: usize, pad: usize) -> usize {
    (input + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1
}

/// Form, channels in and out, groups, image, kernel, stride, dilation, padding.
pub fn conv(
    form: ConvForm,
    [c_in, c_out, groups]: [usize; 3],
    [height, width]: [usize; 2],
    [kernel, stride, dilation, pad]: [usize; 4],
    epilogue: Epilogue,
) -> Case {
    let op = Op::PanelConv(PanelConv {
        form,
        window: window(kernel, stride, dilation, pad),
        groups,
        c_in,
        c_out,
        epilogue,
        in_bf16: false,
    });
    let out = |size| out_size(size, kernel, stride, dilation, pad);
    let y = [2, c_out, out(height), out(width)];
    let x = [2, c_in, height, width];
    let layout = match form {
        ConvForm::FirstLayer => Plain,
        _ => Blocked,
    };
    let mut inputs: Vec<(&[usize], _)> = vec![(&x, layout)];
    if epilogue.residual {
        inputs.push((&y, Blocked));
    }
    let k = c_in / groups * kernel * kernel;
    Case::new(op, &inputs, (&y, Blocked)).panels(k, 0..c_out.div_ceil(16))
}

/// Layers of 3x3, one place apart, and the least bytes in which they are computed: matrices of a panel, and values and products of four tiles.
pub fn winograds() -> Vec<(Box<dyn Fn() -> Case>, usize)> {
    let none = Epilogue::default();
    let more = |activation, residual| Epilogue {
        activation,
        residual,
        ..none
    };
    let mut cases: Vec<(Box<dyn Fn() -> Case>, usize)> = Vec::new();
    let mut add = |[c_in, c_out]: [usize; 2], image, pad, epilogue, in_place: bool| {
        let case = move || {
            let taps = [3, 1, 1, pad];
            let case = conv(ConvForm::Blocked, [c_in, c_out, 1], image, taps, epilogue);
            match in_place {
                true => case.in_place(1),
                false => case,
            }
        };
        let bytes = (c_in + 1 + 4 * (c_in.div_ceil(16) + 1)) << 10;
        cases.push((Box::new(case), bytes));
    };
    for (channels, image, pad) in [
        ([16, 16], [4, 4], 1),
        ([16, 16], [6, 4], 0),
        ([20, 40], [7, 9], 1),
        ([4, 33], [3, 3], 0),
        ([12, 7], [1, 1], 1),
        ([24, 50], [5, 2], 1),
        ([16, 80], [13, 21], 1),
        ([28, 16], [9, 12], 0),
        ([16, 16], [5, 6], 2),
    ] {
        add(channels, image, pad, none, false);
    }
    let clip = Activation::Clip {
        low: -0.5,
        high: 0.5,
    };
    for activation in [Activation::Relu, clip, Activation::Silu] {
        add([20, 24], [7, 5], 1, more(activation, false), false);
        for in_place in [false, true] {
            add([20, 40], [5, 6], 1, more(activation, true), in_place);
        }
    }
    cases
}
