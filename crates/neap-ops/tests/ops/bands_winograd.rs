//! Chains in row bands with Winograd layers give the bits of their layers one after another by the same kernels.

use crate::blocked::{Tensor, Threads, run_by};
use crate::support::noise;
use neap_ir::bands::{BandLayer, Bands};
use neap_ir::op::{Activation, Op, Pool, Window};
use neap_ir::panel::{ConvForm, Epilogue, PanelConv, PanelFormat};
use neap_ir::{Layout, TensorType, infer};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::Isa;
use neap_ops::*;

fn window(kernel: usize, stride: usize, pad: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![1; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    }
}

fn conv(c_in: usize, c_out: usize, window: Window, form: ConvForm) -> BandLayer {
    BandLayer::Conv(PanelConv {
        form,
        window,
        groups: 1,
        c_in,
        c_out,
        epilogue: Epilogue {
            activation: Activation::Relu,
            residual: false,
            ..Epilogue::default()
        },
        in_bf16: false,
    })
}

/// 3x3, padded as given.
fn square(c_in: usize, c_out: usize, pad: usize) -> BandLayer {
    conv(c_in, c_out, window(3, 1, pad), ConvForm::Blocked)
}

fn max_pool(stride: usize, output: [usize; 2]) -> BandLayer {
    BandLayer::Pool {
        kind: Pool::Max {
            column_major: false,
        },
        window: window(2, stride, 0),
        output_spatial: output.to_vec(),
    }
}

fn with_residual(layer: BandLayer) -> BandLayer {
    match layer {
        BandLayer::Conv(mut conv) => {
            conv.epilogue.residual = true;
            BandLayer::Conv(conv)
        }
        other => other,
    }
}

struct Case {
    x: Tensor,
    layers: Vec<BandLayer>,
    /// Layers that Winograd computes.
    by_winograd: &'static [usize],
}

fn image(shape: [usize; 4], layout: Layout) -> Tensor {
    Tensor::of(&noise(&shape, 3)).reordered(layout)
}

fn cases() -> Vec<Case> {
    vec![
        // The beginning of VGG: heights that halve, whole tiles all along.
        Case {
            x: image([1, 3, 64, 40], Layout::Plain),
            layers: vec![
                conv(3, 32, window(3, 1, 1), ConvForm::FirstLayer),
                square(32, 32, 1),
                max_pool(2, [32, 20]),
                square(32, 48, 1),
                square(48, 40, 1),
                max_pool(2, [16, 10]),
            ],
            by_winograd: &[1, 3, 4],
        },
        // No padding, odd sizes, two images: tiles that bands do not end with, and one cut off at the end.
        Case {
            x: image([2, 32, 45, 23], Layout::Blocked),
            layers: vec![square(32, 32, 0), square(32, 32, 0), square(32, 33, 0)],
            by_winograd: &[0, 1, 2],
        },
        // Tiles that are no multiple of a stride of 3, more padding than the kernel needs, direct layers between.
        Case {
            x: image([1, 32, 60, 19], Layout::Blocked),
            layers: vec![
                square(32, 32, 2),
                conv(32, 64, window(1, 1, 0), ConvForm::Blocked),
                conv(64, 32, window(5, 3, 2), ConvForm::Blocked),
                square(32, 32, 1),
            ],
            by_winograd: &[0, 3],
        },
        // The output where the input and residual lie.
        Case {
            x: image([1, 32, 37, 12], Layout::Blocked),
            layers: vec![
                conv(32, 48, window(1, 1, 0), ConvForm::Blocked),
                square(48, 48, 1),
                with_residual(square(48, 32, 1)),
            ],
            by_winograd: &[1, 2],
        },
        // Rows between are skipped: a pool of 2 rows in every 4.
        Case {
            x: image([1, 32, 60, 20], Layout::Blocked),
            layers: vec![square(32, 32, 1), max_pool(4, [15, 5])],
            by_winograd: &[0],
        },
    ]
}

impl Case {
    fn weights(&self) -> Vec<Option<Tensor>> {
        let layers = self.layers.iter().zip(1..);
        let of = |(layer, seed): (&BandLayer, u64)| {
            let shape = layer.weight_type(PanelFormat::default())?.shape;
            let mut values = noise(&shape, seed);
            let data: &mut [f32] = bytemuck::cast_slice_mut(values.bytes_mut());
            data.iter_mut().for_each(|v| *v /= (shape[1] as f32).sqrt());
            Some(Tensor::of(&values))
        };
        layers.map(of).collect()
    }

    /// The layers one after another.
    fn expected(&self) -> Tensor {
        let mut y = self.x.clone();
        for (index, (layer, weights)) in self.layers.iter().zip(self.weights()).enumerate() {
            let mut inputs = vec![y];
            if layer.has_residual() {
                inputs.push(self.x.clone());
            }
            let types: Vec<_> = inputs.iter().map(|t| Some(t.ty.clone())).collect();
            let ty = infer::output_types(&layer.op(), &types, 1)
                .expect("fits")
                .remove(0);
            let panels = weights.as_ref().map(|w| PanelSlice {
                format: PanelFormat::default(),
                range: 0..w.ty.shape[0],
                bytes: &bytemuck::cast_slice(&w.data)[..w.ty.len_bytes()],
            });
            let kernel = if self.by_winograd.contains(&index) {
                Kernel::Winograd(Tile::F4)
            } else {
                Kernel::Direct
            };
            let out = vec![Tensor::new(&ty, Layout::Blocked)];
            y = run_by(kernel, &layer.op(), &inputs, panels, out, &Serial).remove(0);
        }
        y
    }

    fn inputs(&self) -> Vec<Tensor> {
        let mut inputs = vec![self.x.clone()];
        inputs.extend(self.weights().into_iter().flatten());
        if self.layers.iter().any(BandLayer::has_residual) {
            inputs.push(self.x.clone());
        }
        inputs
    }

    fn op(&self) -> Op {
        let mut bands = Bands {
            layers: self.layers.clone(),
            formats: vec![PanelFormat::default(); self.weights().iter().flatten().count()],
            first_rows: 1,
            band_rows: 1,
        };
        assert!(choose_heights(&mut bands, &self.x.ty.shape, 1 << 20));
        Op::Bands(bands)
    }
}

fn operands(tensors: &[Tensor]) -> Vec<OperandForm<'_>> {
    tensors.iter().map(|t| Some((&t.ty, t.layout))).collect()
}

fn bits(t: &Tensor) -> Vec<u8> {
    t.reordered(Layout::Plain).literal().bytes().to_vec()
}

/// The output where input and residual lie.
fn run_in_place(case: &Case, op: &Op, facts: &KernelFacts, ty: &TensorType) -> Tensor {
    let inputs = case.inputs();
    let mut y = case.x.clone();
    let memory: *mut u8 = y.data.as_mut_ptr().cast();
    let Op::Bands(bands) = op else {
        panic!("a chain");
    };
    let refs: Vec<Option<TensorRef>> = inputs
        .iter()
        .enumerate()
        .map(|(i, t)| {
            let shared = i == 0 || bands.residual_input() == Some(i);
            let own = t.data.as_ptr().cast();
            let at = if shared { memory.cast_const() } else { own };
            // SAFETY: as large as the type says; only the output may lie there, as allowed.
            Some(unsafe { TensorRef::new(&t.ty, t.layout, at) })
        })
        .collect();
    // SAFETY: as above.
    let muts = [Some(unsafe { TensorMut::new(ty, Layout::Blocked, memory) })];
    let mut workspace = vec![0xA5u8; facts.raw.workspace_bytes];
    let mut ctx = Context {
        par: &Threads(2),
        isa: Isa::detect(),
        workspace: &mut workspace,
    };
    let choice = Choice {
        kernel: facts.kernel,
        weights: WeightForm::Raw,
    };
    execute_with(op, choice, &refs, None, &muts, &mut ctx).unwrap_or_else(|e| panic!("{e}"));
    y.ty = ty.clone();
    y
}

#[test]
fn same_bits_as_the_layers_one_after_another() {
    let (mut heights, mut in_place) = (0, 0);
    for (index, case) in cases().iter().enumerate() {
        let (op, inputs, expected) = (case.op(), case.inputs(), case.expected());
        let y = [Tensor::new(&expected.ty, Layout::Blocked)];
        let (ins, outs) = (operands(&inputs), operands(&y));
        let overwrites = may_overwrite(&op, &ins, &outs).contains(&0);
        for (threads, par) in [(1, &Serial as &dyn Parallel), (3, &Threads(3))] {
            let all = kernels(&op, &ins, &outs, threads, Isa::detect());
            assert!(all.len() > 1, "case {index} has kernels");
            for facts in &all[1..] {
                assert!(facts.flops < all[0].flops, "case {index}: {facts:?}");
                let found = run_by(facts.kernel, &op, &inputs, None, y.to_vec(), par).remove(0);
                let kernel = facts.kernel;
                assert!(bits(&found) == bits(&expected), "case {index}: {kernel:?}");
                heights += 1;
            }
        }
        if overwrites {
            for facts in &kernels(&op, &ins, &outs, 2, Isa::detect())[1..] {
                let found = run_in_place(case, &op, facts, &expected.ty);
                assert!(
                    bits(&found) == bits(&expected),
                    "case {index} in place: {facts:?}"
                );
                in_place += 1;
            }
        }
    }
    assert!(heights >= 30 && in_place >= 3, "{heights} {in_place}");
}

#[test]
fn each_layer_has_the_kernel_that_pays() {
    for case in cases() {
        let Op::Bands(bands) = case.op() else {
            panic!("a chain");
        };
        let x = &case.x.ty.shape;
        let kernel = Kernel::WinogradBands { rows: 2 };
        let (found, calls) = layer_kernels(&bands, x, kernel).expect("it can run so");
        let expected =
            (0..case.layers.len()).map(|index| match case.by_winograd.contains(&index) {
                true => Kernel::Winograd(Tile::F4),
                false => Kernel::Direct,
            });
        assert!(found.iter().copied().eq(expected), "{found:?}");
        assert!(calls > case.layers.len());
        // Not whatever a plan names.
        let rows = u8::MAX;
        assert!(layer_kernels(&bands, x, Kernel::WinogradBands { rows }).is_none());
        assert!(layer_kernels(&bands, x, Kernel::Winograd(Tile::F4)).is_none());
    }
}
