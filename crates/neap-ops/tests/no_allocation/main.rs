//! `execute` leaves the heap alone: a counting allocator watches one call of every kind of operator.

// Lists of operands read better alike.
#![allow(clippy::cloned_ref_to_slice_refs)]

mod counting;
mod gradients;
mod movement;
mod sampling;

use counting::{Counting, allocations};
use neap_ir::bands::{BandLayer, Bands};
use neap_ir::op::*;
use neap_ir::panel::{ConvForm, Epilogue, PanelConv, PanelFormat};
use neap_ir::{DType, Layout, Literal, Op, TensorType, infer};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::{
    Choice, Context, OperandForm, PanelSlice, TensorMut, TensorRef, WeightForm, execute,
    execute_with, kernels, supported, workspace_bytes,
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn tensor(dtype: DType, shape: &[usize]) -> Literal {
    // Small integers are valid data and indices for everything below.
    let mut literal = Literal::zeros(dtype, shape);
    if dtype == DType::F32 {
        let data: Vec<f32> = (0..literal.elements())
            .map(|i| (i % 7) as f32 + 0.5)
            .collect();
        literal = Literal::from_f32(shape, &data);
    }
    literal
}

fn x(shape: &[usize]) -> Literal {
    tensor(DType::F32, shape)
}

fn check(op: Op, inputs: &[Literal], outputs: usize) {
    let types: Vec<Option<TensorType>> = inputs.iter().map(|l| Some(l.ty())).collect();
    let out_types = infer::output_types(&op, &types, outputs).unwrap_or_else(|e| panic!("{e}"));
    let ins: Vec<OperandForm> = types
        .iter()
        .flatten()
        .map(|t| Some((t, Layout::Plain)))
        .collect();
    let outs: Vec<OperandForm> = out_types.iter().map(|t| Some((t, Layout::Plain))).collect();
    supported(&op, &ins, &outs).unwrap_or_else(|e| panic!("{e}"));
    let isa = Isa::detect();
    let mut workspace = vec![0u8; workspace_bytes(&op, &ins, &outs, 1, isa)];
    let mut results: Vec<Literal> = out_types
        .iter()
        .map(|t| Literal::zeros(t.dtype, &t.shape))
        .collect();
    let refs: Vec<Option<TensorRef>> = types
        .iter()
        .flatten()
        .zip(inputs)
        .map(|(t, l)| TensorRef::from_bytes(t, l.bytes()))
        .collect();
    let muts: Vec<Option<TensorMut>> = out_types
        .iter()
        .zip(&mut results)
        .map(|(t, l)| TensorMut::from_bytes(t, l.bytes_mut()))
        .collect();
    let mut ctx = Context {
        par: &Serial,
        isa,
        workspace: &mut workspace,
    };
    let before = allocations();
    let outcome = execute(&op, &refs, None, &muts, &mut ctx);
    let after = allocations();
    outcome.unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(after - before, 0, "{} allocates", op.name());
}

fn window(kernel: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![1; 2],
        dilations: vec![1; 2],
        pads_begin: vec![0; 2],
        pads_end: vec![0; 2],
    }
}

#[test]
fn counting_works() {
    let before = allocations();
    drop(std::hint::black_box(vec![1u8; 100]));
    assert_eq!(allocations() - before, 1);
}

#[test]
fn training() {
    use neap_ir::gradient::{Gradient, Saved};
    use neap_ir::update::Update;
    let (image, c) = (x(&[2, 18, 6, 6]), x(&[18]));
    let seed = Literal::from_i64(&[], &[3]);
    let unary = |unary, saved| Op::Gradient(Gradient::Unary { unary, saved });
    let pair = [image.clone(), image.clone()];
    check(unary(Unary::Tanh, Saved::Result), &pair, 1);
    check(unary(Unary::Erf, Saved::Operand), &pair, 1);
    let (low, high) = (Some(0.0), Some(6.0));
    check(Op::Gradient(Gradient::Clip { low, high }), &pair, 1);
    let softmax = Gradient::Softmax {
        axis: 1,
        log: false,
    };
    check(Op::Gradient(softmax), &pair, 1);
    let epsilon = 1e-5;
    let rows = [image.clone(), x(&[6]), image.clone()];
    let norm = Gradient::LayerNorm { axis: 3, epsilon };
    check(Op::Gradient(norm), &rows, 3);
    let norm = Gradient::RmsNorm { axis: 3, epsilon };
    check(Op::Gradient(norm), &rows, 2);
    let of_channels = [image.clone(), c.clone(), c.clone()];
    check(Op::BatchNormTraining { epsilon }, &of_channels, 3);
    let operands = [&of_channels[..], &[c.clone(), image.clone()]].concat();
    let norm = Gradient::BatchNorm { epsilon };
    check(Op::Gradient(norm), &operands, 3);
    for groups in [1, 18] {
        let window = window(3);
        let op = Op::Gradient(Gradient::ConvWeight { window, groups });
        check(op, &[image.clone(), x(&[2, 36, 4, 4])], 1);
    }
    let pooled = x(&[2, 18, 4, 4]);
    let max = Gradient::MaxPool { window: window(3) };
    check(Op::Gradient(max), &[image.clone(), pooled.clone()], 1);
    let average = Gradient::AveragePool {
        window: window(3),
        count_include_pad: false,
        input_spatial: vec![6, 6],
    };
    check(Op::Gradient(average), &[pooled], 1);
    for generator in [Generator::Counter { stream: 1 }, Generator::Twister] {
        let ratio = 0.5;
        let dropout = Op::Dropout { ratio, generator };
        check(dropout, &[image.clone(), seed.clone()], 2);
    }
    let adam = Update::AdamW {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        decay: 0.01,
    };
    let operands = [c.clone(), c.clone(), x(&[]), seed, c.clone(), c];
    check(Op::Update(adam), &operands, 3);
    let (update, part) = (adam, [&[x(&[30])], &operands[1..]].concat());
    check(Op::UpdatePart { update, start: 7 }, &part, 3);
}

#[test]
fn element_wise_and_products() {
    let image = x(&[1, 18, 6, 6]);
    check(Op::Unary(Unary::Erf), &[image.clone()], 1);
    check(Op::Unary(Unary::Sign), &[image.clone()], 1);
    check(Op::Binary(Binary::Add), &[image.clone(), x(&[18, 1, 1])], 1);
    check(Op::Binary(Binary::Less), &[image.clone(), x(&[6, 1])], 1);
    check(
        Op::Clip {
            low: Some(0.0),
            high: None,
        },
        &[image.clone()],
        1,
    );
    check(
        Op::Where,
        &[tensor(DType::Bool, &[6]), image.clone(), image.clone()],
        1,
    );
    check(Op::Cast { to: DType::F16 }, &[image.clone()], 1);
    check(Op::BitCast { to: DType::I32 }, &[image.clone()], 1);
    check(Op::MatMul, &[x(&[3, 1, 5, 4]), x(&[2, 4, 6])], 1);
    let gemm = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: true,
        trans_b: true,
    };
    check(gemm, &[x(&[4, 5]), x(&[6, 4]), x(&[6])], 1);
    check(
        Op::Einsum {
            equation: "...ij, jk -> ...ik".into(),
        },
        &[x(&[2, 3, 4]), x(&[4, 5])],
        1,
    );
    check(
        Op::Conv(window(3), 2),
        &[image.clone(), x(&[4, 9, 3, 3]), x(&[4])],
        1,
    );
    let op = Op::ConvTranspose {
        window: window(2),
        groups: 1,
        output_spatial: vec![7, 7],
    };
    check(op, &[image, x(&[18, 2, 2, 2])], 1);
}

#[test]
fn reductions_and_norms() {
    let image = x(&[2, 18, 6, 6]);
    for kind in [Reduce::Mean, Reduce::LogSumExp, Reduce::Max] {
        check(
            Op::Reduce {
                kind,
                axes: vec![0, 2],
                keep_dims: true,
            },
            &[image.clone()],
            1,
        );
    }
    let arg = Op::ArgReduce {
        largest: true,
        axis: 1,
        keep_dims: false,
        select_last: false,
    };
    check(arg, &[image.clone()], 1);
    check(
        Op::TopK {
            axis: 1,
            k: 5,
            largest: true,
            sorted: true,
        },
        &[image.clone()],
        2,
    );
    check(
        Op::CumSum {
            axis: 1,
            exclusive: false,
            reverse: true,
        },
        &[image.clone()],
        1,
    );
    check(
        Op::Softmax {
            axis: 1,
            kind: Softmax::Softmax,
        },
        &[image.clone()],
        1,
    );
    check(
        Op::Softmax {
            axis: 3,
            kind: Softmax::Hardmax,
        },
        &[image.clone()],
        1,
    );
    let c = x(&[18]);
    let four = [image.clone(), c.clone(), c.clone(), c.clone(), c.clone()];
    check(Op::BatchNorm { epsilon: 1e-5 }, &four, 1);
    check(
        Op::LayerNorm {
            axis: 3,
            epsilon: 1e-5,
        },
        &[image.clone(), x(&[6]), x(&[6])],
        3,
    );
    check(
        Op::RmsNorm {
            axis: 3,
            epsilon: 1e-5,
        },
        &[image.clone(), x(&[6])],
        1,
    );
    check(
        Op::InstanceNorm { epsilon: 1e-5 },
        &[image.clone(), c.clone(), c.clone()],
        1,
    );
    let group = Op::GroupNorm {
        groups: 3,
        epsilon: 1e-5,
        per_group: false,
    };
    check(group, &[image.clone(), c.clone(), c], 1);
    check(Op::LpNorm { axis: 1, p: 2 }, &[image.clone()], 1);
    check(
        Op::Lrn {
            alpha: 0.1,
            beta: 0.5,
            bias: 1.0,
            size: 3,
        },
        &[image.clone()],
        1,
    );
    let average = Pool::Average {
        count_include_pad: false,
    };
    let kind = Pool::Max {
        column_major: false,
    };
    check(
        Op::Pool {
            kind,
            window: window(2),
            output_spatial: vec![5, 5],
        },
        &[image.clone()],
        2,
    );
    check(
        Op::Pool {
            kind: average,
            window: window(2),
            output_spatial: vec![5, 5],
        },
        &[image.clone()],
        1,
    );
    check(Op::GlobalPool(average), &[image], 1);
}

#[test]
fn recurrent_and_attention() {
    let recurrent = |activations: &[RecurrentActivation]| Recurrent {
        hidden: 4,
        direction: Direction::Bidirectional,
        activations: activations.to_vec(),
        clip: Some(3.0),
        couple_input_forget: false,
        batch_first: false,
        rounds_state: false,
        in_panels: false,
    };
    let (sigmoid, tanh) = (RecurrentActivation::Sigmoid, RecurrentActivation::Tanh);
    let operands = |gates: usize| {
        [
            x(&[3, 2, 5]),
            x(&[2, gates * 4, 5]),
            x(&[2, gates * 4, 4]),
            x(&[2, gates * 8]),
        ]
    };
    check(
        Op::Lstm(recurrent(&[sigmoid, tanh, tanh, sigmoid, tanh, tanh])),
        &operands(4),
        3,
    );
    let gru = recurrent(&[sigmoid, tanh, sigmoid, tanh]);
    check(
        Op::Gru {
            recurrent: gru,
            linear_before_reset: false,
        },
        &operands(3),
        2,
    );
    check(Op::Rnn(recurrent(&[tanh, tanh])), &operands(1), 2);
    let attrs = AttentionAttrs {
        heads: 2,
        kv_heads: 2,
        scale: 1.0,
        causal: true,
        nan_is_zero: false,
        q: HeadLayout::HeadMajor,
        k: HeadLayout::HeadMajor,
        v: HeadLayout::HeadMajor,
        out: HeadLayout::RowMajor,
    };
    let head = x(&[1, 2, 5, 4]);
    check(Op::Attention(attrs), &[head.clone(), head.clone(), head], 1);
}

#[test]
fn chosen_kernels() {
    let op = Op::PanelConv(PanelConv {
        form: ConvForm::Blocked,
        window: Window {
            pads_begin: vec![1; 2],
            pads_end: vec![1; 2],
            ..window(3)
        },
        groups: 1,
        c_in: 32,
        c_out: 32,
        epilogue: Epilogue {
            activation: Activation::Gelu,
            residual: false,
            ..Epilogue::default()
        },
        in_bf16: false,
    });
    let ty = TensorType::new(DType::F32, &[1, 32, 30, 30]);
    let isa = Isa::detect();
    let operand = [Some((&ty, Layout::Blocked))];
    let input = vec![0.5f32; ty.len_bytes() / 4];
    let mut output = input.clone();
    for facts in kernels(&op, &operand, &operand, 1, isa) {
        for weights in [WeightForm::Raw, WeightForm::Prepared] {
            let Some(form) = facts.form(weights) else {
                continue;
            };
            let panels = vec![0.5f32; 2 * form.panel_bytes / 4];
            let mut workspace = vec![0u8; form.slice_workspace_bytes(2)];
            // SAFETY: the memory is as large as the type says and is not written meanwhile.
            let x = unsafe { TensorRef::new(&ty, Layout::Blocked, input.as_ptr().cast()) };
            // SAFETY: as above, and nothing else uses the output.
            let y = unsafe { TensorMut::new(&ty, Layout::Blocked, output.as_mut_ptr().cast()) };
            let slice = PanelSlice {
                format: PanelFormat::default(),
                range: 0..2,
                bytes: bytemuck::cast_slice(&panels),
            };
            let mut ctx = Context {
                par: &Serial,
                isa,
                workspace: &mut workspace,
            };
            let choice = Choice {
                kernel: facts.kernel,
                weights,
            };
            let before = allocations();
            let outcome = execute_with(&op, choice, &[Some(x)], Some(slice), &[Some(y)], &mut ctx);
            let after = allocations();
            outcome.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(after - before, 0, "{choice:?} allocates");
        }
    }
}

#[test]
fn chains_in_row_bands() {
    let layer = BandLayer::Conv(PanelConv {
        form: ConvForm::Blocked,
        window: Window {
            pads_begin: vec![1; 2],
            pads_end: vec![1; 2],
            ..window(3)
        },
        groups: 1,
        c_in: 32,
        c_out: 32,
        epilogue: Epilogue {
            activation: Activation::Silu,
            residual: false,
            ..Epilogue::default()
        },
        in_bf16: false,
    });
    let weights = layer.weight_type(PanelFormat::default());
    let weights = weights.expect("has weights");
    let op = Op::Bands(Bands {
        layers: vec![layer; 3],
        formats: vec![PanelFormat::default(); 3],
        first_rows: 2,
        band_rows: 4,
    });
    let ty = TensorType::new(DType::F32, &[1, 32, 30, 30]);
    let isa = Isa::detect();
    let image = Some((&ty, Layout::Blocked));
    let panels = Some((&weights, Layout::Plain));
    let operands = [image, panels, panels, panels];
    supported(&op, &operands, &[image]).expect("is supported");
    let known = kernels(&op, &operands, &[image], 1, isa);
    assert!(known.len() > 2, "direct, and in bands of several heights");
    let data = vec![0.5f32; weights.len_bytes().max(ty.len_bytes()) / 4];
    let mut output = vec![0f32; ty.len_bytes() / 4];
    let refs = operands.map(|operand| {
        operand.map(|(ty, layout)| {
            // SAFETY: the memory is as large as the largest type and is not written meanwhile.
            unsafe { TensorRef::new(ty, layout, data.as_ptr().cast()) }
        })
    });
    for facts in known {
        let mut workspace = vec![0u8; facts.raw.workspace_bytes];
        // SAFETY: as large as the type says, and nothing else uses it.
        let y = unsafe { TensorMut::new(&ty, Layout::Blocked, output.as_mut_ptr().cast()) };
        let mut ctx = Context {
            par: &Serial,
            isa,
            workspace: &mut workspace,
        };
        let choice = Choice {
            kernel: facts.kernel,
            weights: WeightForm::Raw,
        };
        let before = allocations();
        execute_with(&op, choice, &refs, None, &[Some(y)], &mut ctx).expect("runs");
        assert_eq!(allocations(), before, "{choice:?} allocates");
    }
}
