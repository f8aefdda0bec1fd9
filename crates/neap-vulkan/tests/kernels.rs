//! Every kernel against the processor's, over shapes with tails; with validation, which says nothing.

mod support;

use neap_ir::Layout::{Blocked, Plain};
use neap_ir::op::{Activation, Binary, Pool, Softmax, Unary};
use neap_ir::panel::{
    ConvForm, Epilogue, PanelDepthwise, PanelElement, PanelFormat, PanelLinear, PanelScales,
};
use neap_ir::{DType, Op};
use neap_vulkan::Gpu;
use std::sync::Arc;
use support::gathers::{gather, gathers};
use support::layers::{conv, out_size, window, winograds};
use support::without_weights::{
    attentions, curves, folds, mixed, other_rows, products_of_two, resizes,
    resizes_with_large_tables, strided,
};
use support::{Bench, Case, gpu, gpu_without_lanes, small};

const ACTIVATIONS: [Activation; 11] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip {
        low: 0.0,
        high: 0.5,
    },
    Activation::LeakyRelu { alpha: 0.1 },
    Activation::Sigmoid,
    Activation::Silu,
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::HardSigmoid {
        alpha: 0.2,
        beta: 0.5,
    },
    Activation::HardSwish,
    Activation::Tanh,
];

fn convolutions() -> Vec<Case> {
    let none = Epilogue::default();
    let mut cases = Vec::new();
    for shape in [
        ([16, 16, 1], [8, 8], [1, 1, 1, 0]),
        ([19, 21, 1], [7, 9], [3, 1, 1, 1]),
        ([3, 40, 1], [11, 5], [3, 2, 1, 1]),
        ([33, 16, 1], [13, 13], [5, 1, 1, 2]),
        ([16, 32, 1], [9, 9], [3, 1, 2, 2]),
        ([64, 64, 2], [7, 7], [3, 1, 1, 1]),
        ([48, 48, 3], [6, 5], [1, 2, 1, 0]),
        ([17, 7, 1], [1, 1], [1, 1, 1, 0]),
        ([20, 40, 1], [7, 9], [3, 1, 1, 1]),
        ([4, 16, 1], [6, 5], [3, 2, 1, 1]),
        ([8, 33, 1], [3, 11], [1, 2, 1, 0]),
        ([32, 96, 2], [5, 7], [3, 1, 2, 1]),
    ] {
        let (channels, image, taps) = shape;
        cases.push(conv(ConvForm::Blocked, channels, image, taps, none));
    }
    for (channels, image, taps) in [
        ([3, 20, 1], [19, 17], [7, 2, 1, 3]),
        ([1, 16, 1], [8, 8], [3, 1, 1, 1]),
        ([16, 5, 1], [6, 7], [3, 2, 1, 0]),
    ] {
        cases.push(conv(ConvForm::FirstLayer, channels, image, taps, none));
    }
    for residual in [false, true] {
        let epilogue = Epilogue {
            activation: Activation::Silu,
            residual,
            ..none
        };
        let (channels, image, taps) = ([3, 40, 1], [9, 7], [3, 2, 1, 1]);
        cases.push(conv(ConvForm::FirstLayer, channels, image, taps, epilogue));
    }
    for (channels, image, taps) in [
        ([32, 32, 8], [7, 7], [3, 1, 1, 1]),
        ([24, 24, 12], [9, 4], [3, 2, 1, 1]),
        ([40, 40, 5], [5, 5], [1, 1, 1, 0]),
    ] {
        cases.push(conv(ConvForm::NarrowGroups, channels, image, taps, none));
    }
    for activation in ACTIVATIONS {
        for residual in [false, true] {
            let epilogue = Epilogue {
                activation,
                residual,
                ..Epilogue::default()
            };
            let case = || {
                let (channels, image, taps) = ([20, 24, 1], [5, 6], [3, 1, 1, 1]);
                conv(ConvForm::Blocked, channels, image, taps, epilogue)
            };
            cases.push(case());
            if residual {
                cases.push(case().in_place(1));
            }
        }
    }
    // A slice, whose neighbours stay as they are.
    let case = conv(ConvForm::Blocked, [20, 70, 1], [6, 6], [3, 1, 1, 1], none);
    cases.push(case.panels(180, 2..4));
    let case = conv(ConvForm::Blocked, [20, 70, 1], [5, 6], [3, 1, 1, 1], none);
    cases.push(case.panels(180, 1..4));
    cases
}

fn depthwise() -> Vec<Case> {
    let mut cases = Vec::new();
    for (channels, height, width, [kernel, stride, pad]) in [
        (16, 7, 7, [3, 1, 1]),
        (24, 9, 5, [3, 2, 1]),
        (5, 11, 12, [5, 2, 2]),
        (33, 4, 4, [1, 1, 0]),
        (17, 5, 10, [3, 1, 1]),
        (17, 8, 19, [3, 2, 0]),
        (16, 6, 3, [3, 1, 0]),
        (16, 9, 9, [3, 3, 1]),
    ] {
        for (activation, residual) in [
            (Activation::Relu, false),
            (Activation::Relu, true),
            (Activation::Silu, false),
        ] {
            let op = Op::PanelDepthwise(PanelDepthwise {
                window: window(kernel, stride, 1, pad),
                channels,
                epilogue: Epilogue {
                    activation,
                    residual,
                    ..Epilogue::default()
                },
            });
            let out = |size| out_size(size, kernel, stride, 1, pad);
            let (x, y) = (
                [2, channels, height, width],
                [2, channels, out(height), out(width)],
            );
            let mut inputs: Vec<(&[usize], _)> = vec![(&x, Blocked)];
            if residual {
                inputs.push((&y, Blocked));
            }
            let all = 0..channels.div_ceil(16);
            cases.push(Case::new(op, &inputs, (&y, Blocked)).panels(kernel * kernel, all));
        }
    }
    cases
}

fn products() -> Vec<Case> {
    let mut cases = Vec::new();
    for (rows, k, n) in [
        (1, 7, 5),
        (1, 64, 100),
        (3, 33, 16),
        (7, 20, 40),
        (8, 16, 16),
        (9, 19, 33),
        (130, 40, 70),
        (12, 12, 3),
        (33, 8, 50),
        (65, 4, 97),
        (40, 16, 31),
    ] {
        for residual in [false, true] {
            let op = Op::PanelLinear(PanelLinear {
                k,
                n,
                epilogue: Epilogue {
                    activation: Activation::Gelu,
                    residual,
                    ..Epilogue::default()
                },
                rounds: None,
                in_bf16: false,
            });
            let (x, y) = ([rows, k], [rows, n]);
            let mut inputs: Vec<(&[usize], _)> = vec![(&x, Plain)];
            if residual {
                inputs.push((&y, Plain));
            }
            let case = || {
                let all = 0..n.div_ceil(16);
                Case::new(op.clone(), &inputs, (&y, Plain)).panels(k, all)
            };
            cases.push(case());
            if residual {
                cases.push(case().in_place(1));
            } else {
                cases.push(case().elsewhere(&[0]));
            }
        }
    }
    // Bounded at most, and slices whose neighbours stay as they are.
    for (activation, residual) in [
        (Activation::None, false),
        (Activation::Relu, true),
        (Activation::Silu, false),
    ] {
        for (rows, k, slice) in [(1, 20, 1..4), (5, 12, 2..3), (41, 12, 1..4), (9, 7, 2..5)] {
            let op = Op::PanelLinear(PanelLinear {
                k,
                n: 75,
                epilogue: Epilogue {
                    activation,
                    residual,
                    ..Epilogue::default()
                },
                rounds: None,
                in_bf16: false,
            });
            let (x, y) = ([rows, k], [rows, 75]);
            let mut inputs: Vec<(&[usize], _)> = vec![(&x, Plain)];
            if residual {
                inputs.push((&y, Plain));
            }
            cases.push(Case::new(op, &inputs, (&y, Plain)).panels(k, slice));
        }
    }
    cases
}

fn pools() -> Vec<Case> {
    let mut cases = Vec::new();
    let max = Pool::Max {
        column_major: false,
    };
    let mean = |count_include_pad| Pool::Average { count_include_pad };
    for (channels, size, kernel, stride, pad) in [
        (16, 8, 2, 2, 0),
        (20, 9, 3, 2, 1),
        (3, 7, 3, 1, 1),
        (35, 5, 5, 1, 2),
    ] {
        for kind in [max, mean(false), mean(true)] {
            let out = out_size(size, kernel, stride, 1, pad);
            let op = Op::Pool {
                kind,
                window: window(kernel, stride, 1, pad),
                output_spatial: vec![out; 2],
            };
            let (x, y) = ([2, channels, size, size], [2, channels, out, out]);
            cases.push(Case::new(op, &[(&x, Blocked)], (&y, Blocked)));
        }
    }
    for kind in [max, mean(false)] {
        for (channels, size) in [(16, 7), (45, 3)] {
            let (x, y) = ([2, channels, size, size], [2, channels, 1, 1]);
            cases.push(Case::new(
                Op::GlobalPool(kind),
                &[(&x, Blocked)],
                (&y, Blocked),
            ));
        }
    }
    cases
}

fn elements() -> Vec<Case> {
    let mut cases = Vec::new();
    let all = [2, 21, 5, 3];
    for binary in [
        Binary::Add,
        Binary::Sub,
        Binary::Mul,
        Binary::Min,
        Binary::Max,
    ] {
        let op = Op::Binary(binary);
        for layout in [Plain, Blocked] {
            let full = || {
                Case::new(
                    op.clone(),
                    &[(&all, layout), (&all, layout)],
                    (&all, layout),
                )
            };
            cases.extend([full(), full().in_place(0), full().in_place(1)]);
            let one = [(&all[..], layout), (&[][..], Plain)];
            cases.push(Case::new(op.clone(), &one, (&all, layout)).elsewhere(&[1]));
        }
        for other in [&[2, 21, 1, 1][..], &[1, 21, 1, 1]] {
            let inputs = [(&all[..], Blocked), (other, Blocked)];
            cases.push(Case::new(op.clone(), &inputs, (&all, Blocked)));
        }
        let inputs = [(&[21, 1, 1][..], Plain), (&all[..], Blocked)];
        cases.push(Case::new(op.clone(), &inputs, (&all, Blocked)));
        for other in [&[3][..], &[5, 3], &[21, 1, 1], &[2, 1, 1, 1]] {
            let inputs = [(&all[..], Plain), (other, Plain)];
            cases.push(Case::new(op.clone(), &inputs, (&all, Plain)));
        }
    }
    for activation in ACTIVATIONS {
        let op = Op::Unary(Unary::Activation(activation));
        let case = || Case::new(op.clone(), &[(&all, Blocked)], (&all, Blocked));
        cases.extend([case(), case().in_place(0)]);
        let op = Op::ScaleShift { activation };
        for layout in [Plain, Blocked] {
            let inputs = [(&all[..], layout), (&[21][..], Plain), (&[21][..], Plain)];
            let case = || Case::new(op.clone(), &inputs, (&all, layout));
            cases.extend([case(), case().elsewhere(&[1, 2])]);
        }
    }
    let clip = Op::Clip {
        low: Some(-0.25),
        high: None,
    };
    cases.push(Case::new(clip, &[(&[77], Plain)], (&[77], Plain)));
    cases
}

fn rows() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[3, 5, 7], [1, 2, 64], [2, 3, 197], [1, 3, 33], [1, 1, 1]] {
        let x = (&shape[..], Plain);
        let softmax = Op::Softmax {
            axis: 2,
            kind: Softmax::Softmax,
        };
        let case = || Case::new(softmax.clone(), &[x], x);
        cases.extend([case(), case().in_place(0)]);
        if shape[2] == 1 {
            continue;
        }
        let scale = (&shape[2..], Plain);
        let layer = Op::LayerNorm {
            axis: 2,
            epsilon: 1e-5,
        };
        cases.push(Case::new(layer.clone(), &[x, scale, scale], x));
        cases.push(Case::new(layer, &[x, scale], x).in_place(0));
        let rms = Op::RmsNorm {
            axis: 2,
            epsilon: 1e-5,
        };
        cases.push(Case::new(rms, &[x, scale], x));
    }
    cases
}

fn movement() -> Vec<Case> {
    let mut cases = Vec::new();
    for shape in [[2, 21, 5, 3], [1, 16, 4, 4], [3, 1, 1, 7]] {
        for (from, to) in [(Plain, Blocked), (Blocked, Plain)] {
            cases.push(Case::new(Op::Reorder, &[(&shape, from)], (&shape, to)));
        }
    }
    for (layout, parts, axis) in [
        (Blocked, [16, 32, 5], 1),
        (Plain, [3, 1, 7], 1),
        (Plain, [3, 1, 7], 0),
        (Plain, [2, 2, 3], 3),
    ] {
        let mut whole = [2, 4, 3, 5];
        whole[axis] = parts.iter().sum();
        let shapes = parts.map(|part| {
            let mut shape = whole;
            shape[axis] = part;
            shape
        });
        let inputs: Vec<(&[usize], _)> = shapes.iter().map(|s| (&s[..], layout)).collect();
        cases.push(Case::new(Op::Concat { axis }, &inputs, (&whole, layout)));
    }
    cases
}

/// Layers whose weights have fewer bits.
fn fewer_bits() -> Vec<Case> {
    let format = |element, scales| PanelFormat { element, scales };
    let formats = [
        format(PanelElement::F16, PanelScales::None),
        format(PanelElement::BF16, PanelScales::None),
        format(PanelElement::F16, PanelScales::PerChannel),
        format(PanelElement::BF16, PanelScales::PerChannel),
        format(PanelElement::I8, PanelScales::PerChannelWithZero),
    ];
    let mut cases = Vec::new();
    for format in formats {
        let layers = convolutions().into_iter().take(14);
        let layers = layers.chain(depthwise()).chain(products());
        cases.extend(layers.map(|case| case.format(format)));
    }
    for (element, len, half) in [
        (PanelElement::I4, 16, true),
        (PanelElement::I4, 32, false),
        (PanelElement::I8, 16, false),
        (PanelElement::I8, 32, true),
    ] {
        let format = format(element, PanelScales::Blocks { len, half });
        cases.extend(products().into_iter().map(|case| case.format(format)));
    }
    cases
}

/// As the device is: every case is computed there.
fn on_device(cases: &[Case]) {
    if let Some(gpu) = gpu(None) {
        agree_on(&gpu, cases);
    }
}

fn agree_on(gpu: &Arc<Gpu>, cases: &[Case]) {
    let mut bench = Bench::new(gpu);
    for case in cases {
        assert!(
            bench.check(case),
            "{} is left to the processor",
            case.op.name()
        );
    }
    assert_eq!(bench.gpu.messages(), Vec::<String>::new());
}

#[test]
fn convolutions_agree_with_the_processor() {
    on_device(&convolutions());
    on_device(&depthwise());
}

/// Where there is little scratch, in many passes over few panels and tiles.
#[test]
fn layers_by_winograd_agree_with_the_processor_in_any_scratch() {
    let (Some(large), Some(small)) = (gpu(None), gpu(Some(small()))) else {
        return;
    };
    if !large.has_winograd() {
        return neap_testing::absent(format!("{} has direct kernels alone", large.name()));
    }
    let mut bench = Bench::new(&large);
    let mut on_small = 0;
    for (case, bytes) in winograds() {
        assert!(bench.check(&case().scratch(bytes)), "too little scratch");
        let expected = bench.bits(&case().scratch(1 << 20));
        let mut small = Bench::new(&small);
        let fits = case().largest_operand() <= 30 << 10;
        on_small += usize::from(fits);
        for bytes in [bytes, 2 * bytes, 3 * bytes + 64] {
            let case = case().scratch(bytes);
            assert!(bench.bits(&case) == expected, "other bits in {bytes} bytes");
            let is_same = !fits || small.bits(&case) == expected;
            assert!(is_same, "other bits of a small device");
        }
    }
    assert!(on_small >= 12, "{on_small}");
    for gpu in [large, small] {
        assert_eq!(gpu.messages(), Vec::<String>::new());
    }
}

#[test]
fn kernels_for_gpus_agree_with_the_processor() {
    if let Some(gpu) = gpu_without_lanes() {
        agree_on(&gpu, &convolutions());
        agree_on(&gpu, &depthwise());
        agree_on(&gpu, &products());
        agree_on(&gpu, &attentions());
        agree_on(&gpu, &rows());
        agree_on(&gpu, &other_rows());
        agree_on(&gpu, &fewer_bits());
    }
}

#[test]
fn products_agree_with_the_processor() {
    on_device(&products());
}

#[test]
fn weights_of_fewer_bits_agree_with_the_processor() {
    on_device(&fewer_bits());
}

#[test]
fn pools_agree_with_the_processor() {
    on_device(&pools());
}

#[test]
fn elements_agree_with_the_processor() {
    on_device(&elements());
}

#[test]
fn rows_and_movement_agree_with_the_processor() {
    on_device(&rows());
    on_device(&movement());
    on_device(&gathers());
}

#[test]
fn other_rows_and_folds_agree_with_the_processor() {
    on_device(&other_rows());
    on_device(&curves());
    on_device(&folds());
}

#[test]
fn products_of_activations_agree_with_the_processor() {
    on_device(&products_of_two());
    on_device(&attentions());
}

#[test]
fn strided_copies_and_resizes_agree_with_the_processor() {
    on_device(&strided());
    on_device(&resizes());
}

#[test]
fn numbers_and_masks_agree_with_the_processor() {
    on_device(&mixed());
}

/// As the processor tells it, and of no other job, whatever was in flight.
#[test]
fn indices_out_of_range_are_told() {
    let Some(gpu) = gpu(None) else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    let case = |dtype, index| gather(&[6, 3], 0, &[4], &[0, 5, index, -6], [DType::F32, dtype]);
    let good = case(DType::I64, -1);
    for (dtype, index) in [
        (DType::I64, 6),
        (DType::I64, -7),
        (DType::I64, 1 << 32),
        (DType::I64, -1 << 32),
        (DType::I64, (1 << 32) + 2),
        (DType::I64, i64::MAX),
        (DType::I64, i64::MIN),
        (DType::I32, 6),
        (DType::I32, -7),
        (DType::I32, i32::MAX.into()),
        (DType::I32, i32::MIN.into()),
    ] {
        let bad = case(dtype, index);
        let [expected, found] = bench.endings(&[&good, &bad, &good, &good, &bad]);
        assert_eq!(found, expected);
        assert_eq!(found[0], "Ok(())");
        assert!(found[1].contains("Gather") && found[1].contains("out of range"));
        assert_ne!(found[4], found[3]);
    }
    // More of them than are told of at once.
    for _ in 0..20 {
        assert!(bench.check(&good));
    }
    assert_eq!(bench.gpu.messages(), Vec::<String>::new());
}

/// A resize's table is in memory that the next job's table comes to.
#[test]
fn resizes_in_flight_keep_their_tables() {
    let Some(gpu) = gpu(None) else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    let mut cases = resizes_with_large_tables();
    for _ in 0..4 {
        bench.check_at_once(&cases.iter().collect::<Vec<_>>());
        cases.rotate_left(3);
    }
    assert_eq!(bench.gpu.messages(), Vec::<String>::new());
}

#[test]
fn a_small_device_agrees_with_the_processor() {
    let Some(gpu) = gpu(Some(small())) else {
        return;
    };
    let mut bench = Bench::new(&gpu);
    let all = [
        convolutions(),
        depthwise(),
        products(),
        pools(),
        elements(),
        rows(),
        movement(),
        gathers(),
        other_rows(),
        curves(),
        folds(),
        products_of_two(),
        attentions(),
        strided(),
        resizes(),
        mixed(),
    ];
    let mut here = 0;
    for case in all.iter().flatten() {
        here += usize::from(bench.check(case));
    }
    // Most are small enough, also where their operands lie across imports.
    assert!(here > 250, "{here}");
    assert_eq!(bench.gpu.messages(), Vec::<String>::new());
}

#[test]
fn slices_and_small_bindings_change_no_bits() {
    let (Some(large), Some(small)) = (gpu(None), gpu(Some(small()))) else {
        return;
    };
    // 41 panels of 4 KiB, of which a small binding holds seven.
    for (rows, k) in [(1, 63), (11, 63), (3, 60), (19, 60)] {
        let op = Op::PanelLinear(PanelLinear {
            k,
            n: 650,
            epilogue: Epilogue::default(),
            rounds: None,
            in_bf16: false,
        });
        let (x, y) = ([rows, k], [rows, 650]);
        let case = Case::new(op, &[(&x, Plain)], (&y, Plain)).panels(k, 0..41);
        let expected = Bench::new(&large).bits(&case);
        let mut bench = Bench::new(&small);
        // Of many rows the result is too large for a small binding.
        let fits = rows * 650 * 4 <= 32 << 10;
        assert_eq!(bench.check(&case), fits);
        if fits {
            assert_eq!(bench.bits(&case), expected);
        }
    }
    assert_eq!(small.messages(), Vec::<String>::new());
}
