//! Every kernel of a convolution computes it, from either form of the weights, in slices or whole.

use crate::support::*;
use neap_ir::op::{Activation, Window};
use neap_ir::panel::{ConvForm, Epilogue, PanelConv, PanelFormat};
use neap_ir::{DType, Layout, Op, TensorType};
use neap_kernels::panel::{Affine, KOrder, pack_conv, panel_floats};
use neap_kernels::parallel::Serial;
use neap_kernels::simd::Isa;
use neap_ops::*;

fn conv(kernel: usize, stride: usize, groups: usize, channels: [usize; 2]) -> PanelConv {
    let pad = kernel / 2;
    PanelConv {
        form: ConvForm::Blocked,
        window: Window {
            kernel: vec![kernel; 2],
            strides: vec![stride; 2],
            dilations: vec![1; 2],
            pads_begin: vec![pad; 2],
            pads_end: vec![pad; 2],
        },
        groups,
        c_in: channels[0],
        c_out: channels[1],
        epilogue: Epilogue {
            activation: Activation::Relu,
            residual: false,
            ..Epilogue::default()
        },
        in_bf16: false,
    }
}

/// A layer in memory; blocked tensors.
struct Layer {
    op: Op,
    x: TensorType,
    y: TensorType,
    input: Vec<f32>,
    weights: Vec<f32>,
    panel_floats: usize,
}

fn layer() -> Layer {
    layer_of(24, [11, 9])
}

/// Of three panels.
fn layer_of(c_in: usize, [height, width]: [usize; 2]) -> Layer {
    let panel = conv(3, 1, 1, [c_in, 40]);
    let (x, y) = (
        TensorType::new(DType::F32, &[2, c_in, height, width]),
        TensorType::new(DType::F32, &[2, 40, height, width]),
    );
    let floats = panel_floats(panel.k());
    let mut weights = vec![0.0; 3 * floats];
    let w = noise(&[40, c_in, 3, 3], 2);
    let bias = noise(&[40], 3);
    let affine = Affine {
        scale: None,
        bias: Some(values(&bias)),
    };
    let order = KOrder::Blocked;
    pack_conv(
        order,
        40,
        c_in,
        [3, 3],
        0..3,
        values(&w),
        affine,
        &mut weights,
    )
    .expect("packs");
    let input = noise(&[x.layout_bytes(Layout::Blocked) / 4], 1);
    Layer {
        op: Op::PanelConv(panel),
        input: values(&input).to_vec(),
        x,
        y,
        weights,
        panel_floats: floats,
    }
}

fn facts(l: &Layer, workers: usize) -> Vec<KernelFacts> {
    let of = |ty| [Some((ty, Layout::Blocked))];
    kernels(&l.op, &of(&l.x), &of(&l.y), workers, Isa::detect())
}

/// Runs the layer in slices of `step` panels with just the workspace that the facts ask for.
fn run(l: &Layer, facts: &KernelFacts, form: WeightForm, step: usize) -> Vec<f32> {
    let isa = Isa::detect();
    let costs = facts.form(form).expect("has the form");
    let mut weights = l.weights.clone();
    let mut floats = l.panel_floats;
    if form == WeightForm::Prepared {
        assert_eq!(
            prepared_panel_bytes(&l.op, facts.kernel),
            Some(costs.panel_bytes)
        );
        floats = costs.panel_bytes / 4;
        weights = vec![f32::NAN; 3 * floats];
        let (raw, to) = (
            bytemuck::cast_slice(&l.weights),
            bytemuck::cast_slice_mut(&mut weights),
        );
        prepare_panels(
            &l.op,
            facts.kernel,
            3,
            PanelFormat::default(),
            raw,
            to,
            &Serial,
            isa,
        )
        .expect("prepares");
    }
    let mut out = vec![f32::NAN; l.y.layout_bytes(Layout::Blocked) / 4];
    // SAFETY: the memory is as large as its type says and is not written during the calls.
    let x = unsafe { TensorRef::new(&l.x, Layout::Blocked, l.input.as_ptr().cast()) };
    // SAFETY: as above, and nothing else uses the output.
    let y = unsafe { TensorMut::new(&l.y, Layout::Blocked, out.as_mut_ptr().cast()) };
    let mut workspace = vec![0xA5u8; costs.slice_workspace_bytes(step)];
    for start in (0..3).step_by(step) {
        let range = start..(start + step).min(3);
        let slice = PanelSlice {
            format: PanelFormat::default(),
            bytes: bytemuck::cast_slice(&weights[range.start * floats..range.end * floats]),
            range,
        };
        let mut ctx = Context {
            par: &Serial,
            isa,
            workspace: &mut workspace,
        };
        let choice = Choice {
            kernel: facts.kernel,
            weights: form,
        };
        execute_with(&l.op, choice, &[Some(x)], Some(slice), &[Some(y)], &mut ctx).expect("runs");
    }
    out
}

#[test]
fn every_kernel_computes_the_same() {
    let l = layer();
    let all = facts(&l, 1);
    let named: Vec<Kernel> = all.iter().map(|facts| facts.kernel).collect();
    let mut expected = vec![Kernel::Direct];
    expected.extend(Tile::ALL.map(Kernel::Winograd));
    assert_eq!(named, expected);
    let direct = run(&l, &all[0], WeightForm::Raw, 3);
    assert!(all[0].prepared.is_none());
    for facts in &all {
        let want = run(&l, facts, WeightForm::Raw, 3);
        for ((pixel, a), b) in want.iter().enumerate().zip(&direct) {
            // Lanes past the last channel hold anything.
            let channel = pixel / (11 * 9 * 16) % 3 * 16 + pixel % 16;
            assert!(
                channel >= 40 || (a - b).abs() < 1e-3,
                "{:?}: {a}, {b}",
                facts.kernel
            );
        }
        for form in [WeightForm::Raw, WeightForm::Prepared] {
            for step in 1..=3 {
                if facts.form(form).is_some() {
                    let got = run(&l, facts, form, step);
                    let same = got
                        .iter()
                        .zip(&want)
                        .all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "{:?} {form:?} {step}", facts.kernel);
                }
            }
        }
    }
}

#[test]
fn facts_add_up() {
    let l = layer();
    let all = facts(&l, 2);
    assert_eq!(all[0].flops, 2 * (2 * 40 * 11 * 9) * (24 * 9));
    for (facts, (tile, across, down)) in all[1..].iter().zip([(16, 6, 5), (36, 3, 3), (64, 2, 2)]) {
        assert_eq!(facts.flops, 2 * 2 * across * down * tile * 24 * 40);
        assert_eq!(facts.raw.panel_bytes, 4 * l.panel_floats);
        let prepared = facts.prepared.expect("has the form");
        assert_eq!(prepared.panel_bytes, (1 + tile as usize * 24) * 64);
        assert!(facts.raw.weight_passes > prepared.weight_passes);
    }
}

#[test]
fn a_wide_kernel_transforms_less_often_and_gives_the_same_bits() {
    let l = layer_of(400, [40, 44]);
    let all = facts(&l, 1);
    let of = |kernel| all.iter().find(|f| f.kernel == kernel).expect("is offered");
    let [narrow, wide] = [Kernel::Winograd(Tile::F4), Kernel::WideWinograd].map(of);
    assert!(wide.raw.weight_passes < narrow.raw.weight_passes);
    assert!(wide.raw.workspace_bytes > narrow.raw.workspace_bytes);
    assert_eq!(wide.prepared, narrow.prepared);
    for form in [WeightForm::Raw, WeightForm::Prepared] {
        assert_eq!(run(&l, wide, form, 2), run(&l, narrow, form, 2), "{form:?}");
    }
}

#[test]
fn what_no_other_kernel_computes_has_only_direct() {
    let x = TensorType::new(DType::F32, &[1, 32, 9, 9]);
    let operand = [Some((&x, Layout::Blocked))];
    for panel in [
        conv(1, 1, 1, [32, 32]),
        conv(5, 1, 1, [32, 32]),
        conv(3, 2, 1, [32, 32]),
        conv(3, 1, 2, [32, 32]),
    ] {
        let op = Op::PanelConv(panel);
        let all = kernels(&op, &operand, &operand, 1, Isa::detect());
        assert_eq!(all.len(), 1, "{op:?}");
        assert_eq!(all[0].kernel, Kernel::Direct);
    }
    let relu = Op::Unary(neap_ir::op::Unary::Activation(Activation::Relu));
    assert_eq!(
        kernels(&relu, &operand, &operand, 1, Isa::detect()).len(),
        1
    );
    assert_eq!(
        prepared_panel_bytes(&relu, Kernel::Winograd(Tile::F4)),
        None
    );
}

#[test]
fn wrong_choices_are_refused() {
    let l = layer();
    let isa = Isa::detect();
    let mut out = vec![0.0f32; l.y.layout_bytes(Layout::Blocked) / 4];
    // SAFETY: the memory is as large as its type says and is not written during the calls.
    let x = unsafe { TensorRef::new(&l.x, Layout::Blocked, l.input.as_ptr().cast()) };
    // SAFETY: as above, and nothing else uses the output.
    let y = unsafe { TensorMut::new(&l.y, Layout::Blocked, out.as_mut_ptr().cast()) };
    let bytes: &[u8] = bytemuck::cast_slice(&l.weights);
    let mut workspace = vec![0u8; 8 << 20];
    let mut call = |op: &Op, choice: Choice, bytes: &[u8], room: usize| {
        let slice = PanelSlice {
            format: PanelFormat::default(),
            range: 0..3,
            bytes,
        };
        let mut ctx = Context {
            par: &Serial,
            isa,
            workspace: &mut workspace[..room],
        };
        execute_with(op, choice, &[Some(x)], Some(slice), &[Some(y)], &mut ctx)
    };
    let winograd = Choice {
        kernel: Kernel::Winograd(Tile::F4),
        weights: WeightForm::Raw,
    };
    let all = 8 << 20;
    assert!(call(&l.op, winograd, bytes, all).is_ok());
    assert!(call(&l.op, winograd, &bytes[4..], all).is_err());
    assert!(call(&l.op, winograd, bytes, 1000).is_err());
    let prepared = |kernel| Choice {
        kernel,
        weights: WeightForm::Prepared,
    };
    // Raw panels are too short to be prepared ones.
    assert!(call(&l.op, prepared(winograd.kernel), bytes, all).is_err());
    assert!(call(&l.op, prepared(Kernel::Direct), bytes, all).is_err());
    let strided = Op::PanelConv(conv(3, 2, 1, [24, 40]));
    assert!(call(&strided, winograd, bytes, all).is_err());
    let mut to = vec![0u8; 64];
    assert!(
        prepare_panels(
            &l.op,
            winograd.kernel,
            3,
            PanelFormat::default(),
            bytes,
            &mut to,
            &Serial,
            isa
        )
        .is_err()
    );
    assert!(
        prepare_panels(
            &l.op,
            Kernel::Direct,
            3,
            PanelFormat::default(),
            bytes,
            &mut to,
            &Serial,
            isa
        )
        .is_err()
    );
}
