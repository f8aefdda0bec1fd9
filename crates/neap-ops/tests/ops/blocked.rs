//! Operators that take channel-blocked tensors give the same as on plain ones; panel layers give
//! the same as ordinary ones; results do not depend on workers or on how panels are cut.

use crate::support::*;
use neap_ir::op::*;
use neap_ir::panel::*;
use neap_ir::{Layout, Literal, Op, TensorType};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::Isa;
use neap_ops::*;
use neap_testing::together;

/// Threads that take turns: enough to see what depends on them.
pub struct Threads(pub usize);

impl Parallel for Threads {
    fn workers(&self) -> usize {
        self.0
    }

    fn run(&self, tasks: usize, body: &(dyn Fn(usize, usize) + Sync)) {
        together(self.0, &|worker| {
            let mine = (worker..tasks).step_by(self.0);
            mine.for_each(|task| body(task, worker));
        });
    }
}

/// A tensor in memory of its own.
#[derive(Clone)]
pub struct Tensor {
    pub ty: TensorType,
    pub layout: Layout,
    pub data: Vec<u64>,
}

impl Tensor {
    pub fn new(ty: &TensorType, layout: Layout) -> Tensor {
        // Padding holds garbage, which nothing may depend on.
        let words = ty.layout_bytes(layout).div_ceil(8);
        let garbage = u64::from(7.5f32.to_bits());
        Tensor {
            ty: ty.clone(),
            layout,
            data: vec![garbage << 32 | garbage; words],
        }
    }

    pub fn of(literal: &Literal) -> Tensor {
        let mut tensor = Tensor::new(&literal.ty(), Layout::Plain);
        bytemuck::cast_slice_mut(&mut tensor.data)[..literal.len_bytes()]
            .copy_from_slice(literal.bytes());
        tensor
    }

    pub fn literal(&self) -> Literal {
        assert_eq!(self.layout, Layout::Plain);
        let bytes = &bytemuck::cast_slice(&self.data)[..self.ty.len_bytes()];
        Literal::from_bytes(self.ty.dtype, &self.ty.shape, bytes).expect("fits")
    }

    pub fn reordered(&self, layout: Layout) -> Tensor {
        if layout == self.layout {
            return self.clone();
        }
        let y = Tensor::new(&self.ty, layout);
        run(
            &Op::Reorder,
            std::slice::from_ref(self),
            None,
            vec![y],
            &Serial,
        )
        .remove(0)
    }
}

pub fn run(
    op: &Op,
    inputs: &[Tensor],
    panels: Option<PanelSlice>,
    outputs: Vec<Tensor>,
    par: &dyn Parallel,
) -> Vec<Tensor> {
    run_by(Kernel::Direct, op, inputs, panels, outputs, par)
}

/// By a chosen kernel, with weights as packed and the workspace that it asks for.
pub fn run_by(
    kernel: Kernel,
    op: &Op,
    inputs: &[Tensor],
    panels: Option<PanelSlice>,
    mut outputs: Vec<Tensor>,
    par: &dyn Parallel,
) -> Vec<Tensor> {
    let types: Vec<TensorType> = outputs.iter().map(|t| t.ty.clone()).collect();
    let ins: Vec<OperandForm> = inputs.iter().map(|t| Some((&t.ty, t.layout))).collect();
    let outs: Vec<OperandForm> = outputs
        .iter()
        .zip(&types)
        .map(|(t, ty)| Some((ty, t.layout)))
        .collect();
    supported(op, &ins, &outs).unwrap_or_else(|e| panic!("{}: {e}", op.name()));
    let isa = Isa::detect();
    let known = kernels(op, &ins, &outs, par.workers(), isa);
    let facts = known.iter().find(|facts| facts.kernel == kernel);
    let facts = facts.unwrap_or_else(|| panic!("{} has no {kernel:?}", op.name()));
    let count = panels.as_ref().map_or(0, |slice| slice.range.len());
    let mut workspace = vec![0xA5u8; facts.raw.slice_workspace_bytes(count)];
    let refs: Vec<Option<TensorRef>> = inputs
        .iter()
        // SAFETY: the memory is as large as its type says and is not written during the call.
        .map(|t| Some(unsafe { TensorRef::new(&t.ty, t.layout, t.data.as_ptr().cast()) }))
        .collect();
    let muts: Vec<Option<TensorMut>> = outputs
        .iter_mut()
        .zip(&types)
        // SAFETY: as above, and each output is its own.
        .map(|(t, ty)| Some(unsafe { TensorMut::new(ty, t.layout, t.data.as_mut_ptr().cast()) }))
        .collect();
    let mut ctx = Context {
        par,
        isa,
        workspace: &mut workspace,
    };
    let choice = Choice {
        kernel,
        weights: WeightForm::Raw,
    };
    execute_with(op, choice, &refs, panels, &muts, &mut ctx).unwrap_or_else(|e| panic!("{e}"));
    outputs
}

/// Runs the operator blocked and plain, with one and three workers.
fn agree(op: &Op, inputs: &[Literal], outputs: usize) {
    let types: Vec<Option<TensorType>> = inputs.iter().map(|l| Some(l.ty())).collect();
    let out_types = neap_ir::infer::output_types(op, &types, outputs).expect("infers");
    let ins: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
    let outs: Vec<Option<&TensorType>> = out_types.iter().map(Some).collect();
    let layouts = blocked_inputs(op, &ins, &outs).unwrap_or_else(|| panic!("{} blocks", op.name()));
    let refs: Vec<Option<&Literal>> = inputs.iter().map(Some).collect();
    let plain = evaluate_outputs(op, &refs, outputs).expect("runs plain");
    let blocked: Vec<Tensor> = inputs
        .iter()
        .zip(&layouts)
        .map(|(l, &layout)| Tensor::of(l).reordered(layout))
        .collect();
    for workers in [1, 3] {
        let fresh = out_types
            .iter()
            .map(|ty| Tensor::new(ty, Layout::Blocked))
            .collect();
        let found = run(op, &blocked, None, fresh, &Threads(workers));
        for (found, plain) in found.iter().zip(&plain) {
            assert_close(
                &found.reordered(Layout::Plain).literal(),
                values(plain),
                2e-6,
            );
        }
    }
}

fn window(kernel: usize, stride: usize, dilation: usize, pad: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![dilation; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    }
}

#[test]
fn blocked_operators_agree_with_plain_ones() {
    let x = noise(&[2, 24, 5, 6], 1);
    let y = noise(&[2, 24, 5, 6], 2);
    let per_channel = |shape: &[usize]| noise(shape, 3);
    agree(
        &Op::Unary(Unary::Activation(Activation::HardSwish)),
        &[x.clone()],
        1,
    );
    agree(
        &Op::Clip {
            low: Some(-0.5),
            high: None,
        },
        &[x.clone()],
        1,
    );
    for binary in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Max] {
        let op = Op::Binary(binary);
        agree(&op, &[x.clone(), y.clone()], 1);
        agree(&op, &[x.clone(), f32s(&[], &[0.3])], 1);
        agree(&op, &[f32s(&[1], &[0.3]), x.clone()], 1);
        agree(&op, &[x.clone(), per_channel(&[24, 1, 1])], 1);
        agree(&op, &[per_channel(&[2, 24, 1, 1]), x.clone()], 1);
        agree(&op, &[x.clone(), per_channel(&[1, 24, 1, 1])], 1);
    }
    agree(
        &Op::Binary(Binary::PRelu),
        &[x.clone(), per_channel(&[24, 1, 1])],
        1,
    );
    for kind in [
        Pool::Max {
            column_major: false,
        },
        Pool::Average {
            count_include_pad: false,
        },
        Pool::Average {
            count_include_pad: true,
        },
    ] {
        agree(&Op::GlobalPool(kind), &[x.clone()], 1);
        let op = Op::Pool {
            kind,
            window: window(3, 2, 1, 1),
            output_spatial: vec![3, 3],
        };
        agree(&op, &[x.clone()], 1);
    }
    let vector = |seed| noise(&[24], seed);
    let scale_shift = Op::ScaleShift {
        activation: Activation::Relu,
    };
    agree(&scale_shift, &[x.clone(), vector(4), vector(5)], 1);
    let variance = f32s(&[24], &[0.5; 24]);
    agree(
        &Op::BatchNorm { epsilon: 1e-3 },
        &[x.clone(), vector(4), vector(5), vector(6), variance],
        1,
    );
    agree(
        &Op::InstanceNorm { epsilon: 1e-3 },
        &[x.clone(), vector(4), vector(5)],
        1,
    );
    agree(
        &Op::Lrn {
            alpha: 0.1,
            beta: 0.75,
            bias: 1.0,
            size: 5,
        },
        &[x.clone()],
        1,
    );
    let part = |c: usize, seed| noise(&[2, c, 5, 6], seed);
    agree(
        &Op::Concat { axis: 1 },
        &[part(16, 1), part(32, 2), part(7, 3)],
        1,
    );
    agree(
        &Op::Split {
            axis: 1,
            sizes: vec![16, 8],
        },
        &[x.clone()],
        2,
    );
    let all = |len| SliceRange {
        start: 0,
        step: 1,
        len,
    };
    let ranges = vec![
        all(2),
        SliceRange {
            start: 16,
            step: 1,
            len: 5,
        },
        all(5),
        all(6),
    ];
    agree(&Op::Slice { ranges }, &[x.clone()], 1);
    for mode in [ResizeMode::Nearest, ResizeMode::Linear] {
        for coordinates in [
            CoordinateTransform::HalfPixel,
            CoordinateTransform::AlignCorners,
        ] {
            let resize = ResizeAttrs {
                output_shape: vec![2, 24, 10, 9],
                scales: vec![1.0, 1.0, 2.0, 1.5],
                mode,
                coordinates,
                nearest: NearestMode::RoundPreferFloor,
                cubic_a: -0.75,
                exclude_outside: false,
                extrapolation: 0.0,
                antialias: false,
                roi: vec![],
            };
            agree(&Op::Resize(resize), &[x.clone()], 1);
        }
    }
    // 1-D images.
    let line = noise(&[1, 20, 9], 1);
    agree(&Op::Unary(Unary::Tanh), &[line.clone()], 1);
    agree(
        &Op::Binary(Binary::Mul),
        &[line.clone(), noise(&[20, 1], 2)],
        1,
    );
    agree(
        &Op::GlobalPool(Pool::Average {
            count_include_pad: false,
        }),
        &[line],
        1,
    );
}

#[test]
fn what_does_not_block_says_so() {
    let ty = |shape: &[usize]| TensorType::new(neap_ir::DType::F32, shape);
    let (x, row, out) = (ty(&[1, 20, 4, 4]), ty(&[4]), ty(&[1, 20, 4, 4]));
    let add = Op::Binary(Binary::Add);
    assert_eq!(
        blocked_inputs(&add, &[Some(&x), Some(&row)], &[Some(&out)]),
        None
    );
    let narrow = ty(&[1, 7, 4, 4]);
    let joined = ty(&[1, 27, 4, 4]);
    let concat = Op::Concat { axis: 1 };
    assert_eq!(
        blocked_inputs(&concat, &[Some(&narrow), Some(&x)], &[Some(&joined)]),
        None
    );
    let softmax = Op::Softmax {
        axis: 1,
        kind: Softmax::Softmax,
    };
    assert_eq!(blocked_inputs(&softmax, &[Some(&x)], &[Some(&out)]), None);
    let blocked: OperandForm = Some((&x, Layout::Blocked));
    assert!(supported(&softmax, &[blocked], &[blocked]).is_err());
}

/// Runs a panel layer whole, and in pieces with more workers, and compares both with `expected`.
fn check_layer(
    op: &Op,
    inputs: &[Tensor],
    weights: &[f32],
    panel_floats: usize,
    y: Tensor,
    expected: &Literal,
) {
    let panels = weights.len() / panel_floats;
    let slice = |range: std::ops::Range<usize>| PanelSlice {
        format: PanelFormat::default(),
        bytes: bytemuck::cast_slice(&weights[range.start * panel_floats..range.end * panel_floats]),
        range,
    };
    let whole = run(op, inputs, Some(slice(0..panels)), vec![y.clone()], &Serial).remove(0);
    let mut pieces = vec![y];
    for p in 0..panels {
        pieces = run(op, inputs, Some(slice(p..p + 1)), pieces, &Threads(3));
    }
    let whole = whole.reordered(Layout::Plain).literal();
    assert_eq!(pieces[0].reordered(Layout::Plain).literal(), whole);
    assert_close(&whole, values(expected), 1e-5);
}

fn epilogue(residual: bool) -> Epilogue {
    Epilogue {
        activation: Activation::Relu,
        residual,
        ..Epilogue::default()
    }
}

/// `relu(layer + residual)`
fn finish(layer: &Literal, residual: Option<&Literal>) -> Literal {
    let sum = match residual {
        Some(r) => one(&Op::Binary(Binary::Add), &[layer, r]),
        None => layer.clone(),
    };
    one(&Op::Unary(Unary::Activation(Activation::Relu)), &[&sum])
}

#[test]
fn panel_convolutions_agree_with_ordinary_ones() {
    use neap_kernels::panel::*;
    // (form, order, c_in, c_out, groups)
    let table = [
        (ConvForm::Blocked, KOrder::Blocked, 24, 40, 1),
        (ConvForm::FirstLayer, KOrder::Taps, 3, 20, 1),
        (ConvForm::NarrowGroups, KOrder::Taps, 32, 32, 8),
    ];
    for (form, order, c_in, c_out, groups) in table {
        for residual in [false, true] {
            let x = noise(&[2, c_in, 7, 6], 1);
            let w = noise(&[c_out, c_in / groups, 3, 3], 2);
            let bias = noise(&[c_out], 3);
            let plain = one(&Op::Conv(window(3, 1, 1, 1), groups), &[&x, &w, &bias]);
            let r = noise(plain.shape(), 4);
            let layer = PanelConv {
                form,
                window: window(3, 1, 1, 1),
                groups,
                c_in,
                c_out,
                epilogue: epilogue(residual),
                in_bf16: false,
            };
            let mut weights = vec![0.0; c_out.div_ceil(16) * panel_floats(layer.k())];
            let affine = Affine {
                scale: None,
                bias: Some(values(&bias)),
            };
            pack_conv(
                order,
                c_out,
                c_in / groups,
                [3, 3],
                0..c_out.div_ceil(16),
                values(&w),
                affine,
                &mut weights,
            )
            .expect("packs");
            let layout = if form == ConvForm::FirstLayer {
                Layout::Plain
            } else {
                Layout::Blocked
            };
            let mut inputs = vec![Tensor::of(&x).reordered(layout)];
            if residual {
                inputs.push(Tensor::of(&r).reordered(Layout::Blocked));
            }
            let k = layer.k();
            let y = Tensor::new(&plain.ty(), Layout::Blocked);
            let expected = finish(&plain, residual.then_some(&r));
            check_layer(
                &Op::PanelConv(layer),
                &inputs,
                &weights,
                panel_floats(k),
                y,
                &expected,
            );
        }
    }
}

#[test]
fn panel_depthwise_and_linear_agree_with_ordinary_ones() {
    use neap_kernels::panel::*;
    let (x, w) = (noise(&[2, 20, 7, 6], 1), noise(&[20, 1, 3, 3], 2));
    let plain = one(&Op::Conv(window(3, 2, 1, 1), 20), &[&x, &w]);
    let r = noise(plain.shape(), 4);
    let layer = PanelDepthwise {
        window: window(3, 2, 1, 1),
        channels: 20,
        epilogue: epilogue(true),
    };
    let mut weights = vec![0.0; 2 * panel_floats(9)];
    pack_depthwise(
        20,
        [3, 3],
        0..2,
        values(&w),
        Affine::default(),
        &mut weights,
    )
    .expect("packs");
    let inputs = [&x, &r].map(|t| Tensor::of(t).reordered(Layout::Blocked));
    let y = Tensor::new(&plain.ty(), Layout::Blocked);
    check_layer(
        &Op::PanelDepthwise(layer),
        &inputs,
        &weights,
        panel_floats(9),
        y,
        &finish(&plain, Some(&r)),
    );

    let (x, w) = (noise(&[2, 3, 13], 1), noise(&[37, 13], 2));
    let transposed = one(&Op::Transpose { perm: vec![1, 0] }, &[&w]);
    let plain = one(&Op::MatMul, &[&x, &transposed]);
    let r = noise(plain.shape(), 4);
    let layer = PanelLinear {
        k: 13,
        n: 37,
        epilogue: epilogue(true),
        rounds: None,
        in_bf16: false,
    };
    let mut weights = vec![0.0; 3 * panel_floats(13)];
    pack_rows(37, 13, 0..3, values(&w), Affine::default(), &mut weights).expect("packs");
    let y = Tensor::new(&plain.ty(), Layout::Plain);
    let inputs = [&x, &r].map(Tensor::of);
    check_layer(
        &Op::PanelLinear(layer),
        &inputs,
        &weights,
        panel_floats(13),
        y,
        &finish(&plain, Some(&r)),
    );
}
