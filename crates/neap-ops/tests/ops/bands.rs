//! Chains in row bands give the bits of their layers one after another, whatever the bands' heights
//! and the number of workers.

use crate::blocked::{Tensor, Threads, run};
use crate::support::noise;
use neap_ir::bands::{BandLayer, Bands};
use neap_ir::op::{Activation, Op, Pool, Window};
use neap_ir::panel::{ConvForm, Epilogue, PanelConv, PanelDepthwise, PanelElement, PanelFormat};
use neap_ir::{Layout, Literal, TensorType, infer};
use neap_kernels::panel::{Format, Scales, narrow};
use neap_kernels::parallel::{Parallel, Serial};
use neap_kernels::simd::Isa;
use neap_ops::*;

/// Fewer in a build with debug assertions, which is several times slower.
const CHAINS: u64 = if cfg!(debug_assertions) { 60 } else { 240 };

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 20) % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// A chain, its input, its layers' weights, and what they give one after another.
struct Case {
    bands: Bands,
    x: Tensor,
    weights: Vec<Tensor>,
    residual: Option<Tensor>,
    expected: Tensor,
}

fn window(random: &mut Random, kernels: &[usize]) -> Window {
    let mut w = Window {
        kernel: vec![],
        strides: vec![],
        dilations: vec![],
        pads_begin: vec![],
        pads_end: vec![],
    };
    let same = random.below(2) == 0;
    for _ in 0..2 {
        let kernel = random.pick(kernels);
        let dilation = if same { 1 } else { random.pick(&[1, 1, 2]) };
        let reach = (kernel - 1) * dilation + 1;
        w.kernel.push(kernel);
        w.strides
            .push(if same { 1 } else { random.pick(&[1, 1, 2, 3]) });
        w.dilations.push(dilation);
        let pad = if same {
            kernel / 2
        } else {
            random.below(reach)
        };
        w.pads_begin.push(pad);
        w.pads_end
            .push(if same { pad } else { random.below(reach) });
    }
    w
}

fn activation(random: &mut Random) -> Activation {
    let clip = Activation::Clip {
        low: -0.2,
        high: 0.3,
    };
    random.pick(&[Activation::None, Activation::Relu, clip, Activation::Silu])
}

fn layer(random: &mut Random, x: &TensorType, layout: Layout) -> BandLayer {
    let channels = x.shape[1];
    let epilogue = Epilogue {
        activation: activation(random),
        residual: false,
        ..Epilogue::default()
    };
    let conv = |form, groups, c_out, window| {
        BandLayer::Conv(PanelConv {
            form,
            window,
            groups,
            c_in: channels,
            c_out,
            epilogue,
            in_bf16: false,
        })
    };
    let narrow = channels.is_multiple_of(8);
    match random.below(7) {
        _ if layout == Layout::Plain => {
            let window = window(random, &[1, 3, 5, 7]);
            conv(ConvForm::FirstLayer, 1, random.pick(&[5, 16, 40]), window)
        }
        0 => conv(
            ConvForm::Blocked,
            1,
            random.pick(&[7, 16, 24]),
            window(random, &[1]),
        ),
        1 | 2 => {
            let window = window(random, &[1, 2, 3, 5]);
            conv(ConvForm::Blocked, 1, random.pick(&[8, 16, 33]), window)
        }
        3 if narrow => {
            let window = window(random, &[1, 3]);
            conv(ConvForm::NarrowGroups, channels / 8, channels, window)
        }
        3 | 4 => BandLayer::Depthwise(PanelDepthwise {
            window: window(random, &[1, 3, 5]),
            channels,
            epilogue,
        }),
        n => {
            let window = window(random, &[2, 3]);
            let output_spatial = (0..2)
                .map(|i| {
                    let pads = infer::Pads {
                        begin: window.pads_begin[i],
                        end: window.pads_end[i],
                    };
                    let (kernel, stride) = (window.kernel[i], window.strides[i]);
                    let (size, dilation) = (x.shape[i + 2], window.dilations[i]);
                    let ceil = n == 6;
                    infer::pool_output_size(size, kernel, stride, dilation, pads, ceil).unwrap_or(0)
                })
                .collect();
            let count_include_pad = random.below(2) == 0;
            BandLayer::Pool {
                kind: random.pick(&[
                    Pool::Max {
                        column_major: false,
                    },
                    Pool::Average { count_include_pad },
                ]),
                window,
                output_spatial,
            }
        }
    }
}

/// The layer by itself.
fn alone(
    layer: &BandLayer,
    x: &Tensor,
    weights: Option<&Tensor>,
    r: Option<&Tensor>,
) -> Option<Tensor> {
    let inputs: Vec<Tensor> = [Some(x), r].into_iter().flatten().cloned().collect();
    let types: Vec<_> = inputs.iter().map(|t| Some(t.ty.clone())).collect();
    let ty = infer::output_types(&layer.op(), &types, 1).ok()?.remove(0);
    if ty.shape.contains(&0) {
        return None;
    }
    let panels = weights.map(|w| PanelSlice {
        format: PanelFormat::default(),
        range: 0..w.ty.shape[0],
        bytes: &bytemuck::cast_slice(&w.data)[..w.ty.len_bytes()],
    });
    let ins: Vec<OperandForm> = inputs.iter().map(|t| Some((&t.ty, t.layout))).collect();
    supported(&layer.op(), &ins, &[Some((&ty, Layout::Blocked))]).ok()?;
    let y = Tensor::new(&ty, Layout::Blocked);
    Some(run(&layer.op(), &inputs, panels, vec![y], &Serial).remove(0))
}

/// A block of odd kernels that keep the size, 1x1 at its end, with its own input as residual.
fn residual_block(random: &mut Random) -> Option<Case> {
    let mut case = start(random, false);
    let channels = case.x.ty.shape[1];
    for index in 0..3 {
        let kernel = random.pick(&[1, 3, 5]);
        let is_last = index == 2;
        let window = Window {
            kernel: vec![kernel; 2],
            strides: vec![1; 2],
            dilations: vec![1; 2],
            pads_begin: vec![kernel / 2; 2],
            pads_end: vec![kernel / 2; 2],
        };
        let epilogue = Epilogue {
            activation: activation(random),
            residual: is_last,
            ..Epilogue::default()
        };
        let c_in = case.expected.ty.shape[1];
        let layer = if index == 1 {
            BandLayer::Depthwise(PanelDepthwise {
                window,
                channels: c_in,
                epilogue,
            })
        } else {
            BandLayer::Conv(PanelConv {
                form: ConvForm::Blocked,
                window,
                groups: 1,
                c_in,
                c_out: if is_last { channels } else { 40 },
                epilogue,
                in_bf16: false,
            })
        };
        case.residual = is_last.then(|| case.x.clone());
        case.push(random, layer)?;
    }
    Some(case)
}

fn start(random: &mut Random, plain: bool) -> Case {
    let channels = if plain {
        1 + random.below(4)
    } else {
        random.pick(&[5, 16, 24, 32])
    };
    let shape = [
        1 + random.below(2),
        channels,
        3 + random.below(20),
        3 + random.below(18),
    ];
    let layout = if plain {
        Layout::Plain
    } else {
        Layout::Blocked
    };
    let x = Tensor::of(&noise(&shape, random.below(1000) as u64)).reordered(layout);
    Case {
        bands: Bands {
            layers: vec![],
            formats: vec![],
            first_rows: 1,
            band_rows: 1,
        },
        expected: x.clone(),
        x,
        weights: vec![],
        residual: None,
    }
}

fn chain(random: &mut Random) -> Option<Case> {
    let plain = random.below(3) == 0;
    let mut case = start(random, plain);
    let count = 1 + random.below(5);
    for index in 0..count {
        let mut layer = layer(random, &case.expected.ty, case.expected.layout);
        if index + 1 == count && random.below(2) == 0 {
            let types = [Some(case.expected.ty.clone())];
            let ty = infer::output_types(&layer.op(), &types, 1).ok()?.remove(0);
            let epilogue = match &mut layer {
                BandLayer::Conv(conv) => Some(&mut conv.epilogue),
                BandLayer::Depthwise(depthwise) => Some(&mut depthwise.epilogue),
                BandLayer::Pool { .. } => None,
            };
            if let Some(epilogue) = epilogue {
                epilogue.residual = true;
                let r = Tensor::of(&noise(&ty.shape, 7)).reordered(Layout::Blocked);
                case.residual = Some(r);
            }
        }
        case.push(random, layer)?;
    }
    Some(case)
}

/// Panels as bfloat16, which they are.
fn narrowed(ty: &TensorType, weights: &Tensor) -> Tensor {
    let (panels, k) = (ty.shape[0], weights.ty.shape[1] - 1);
    let floats = bytemuck::cast_slice(&weights.data);
    let mut bytes = vec![0; ty.len_bytes()];
    let (format, all, scales) = (Format::Bf16, 0..panels, Scales::default());
    narrow(format, 16 * panels, k, all, floats, scales, &mut bytes).expect("exact");
    Tensor::of(&Literal::from_bytes(ty.dtype, &ty.shape, &bytes).expect("fits"))
}

impl Case {
    /// Adds a layer and computes it.
    fn push(&mut self, random: &mut Random, layer: BandLayer) -> Option<()> {
        let formats = [PanelElement::F32, PanelElement::BF16].map(|element| PanelFormat {
            element,
            ..PanelFormat::default()
        });
        let format = formats[random.below(2)];
        let weights = layer.weight_type(PanelFormat::default()).map(|ty| {
            let mut values = noise(&ty.shape, random.below(1000) as u64);
            let data: &mut [f32] = bytemuck::cast_slice_mut(values.bytes_mut());
            data.iter_mut().for_each(|v| {
                *v /= (ty.shape[1] as f32).sqrt();
                if format.element == PanelElement::BF16 {
                    *v = f32::from_bits(v.to_bits() & 0xffff_0000);
                }
            });
            Tensor::of(&values)
        });
        let residual = self.residual.as_ref();
        self.expected = alone(&layer, &self.expected, weights.as_ref(), residual)?;
        if let Some(weights) = weights {
            self.bands.formats.push(format);
            let stored = match format.element {
                PanelElement::F32 => weights,
                _ => narrowed(&layer.weight_type(format)?, &weights),
            };
            self.weights.push(stored);
        }
        self.bands.layers.push(layer);
        Some(())
    }

    fn inputs(&self) -> Vec<Tensor> {
        let mut inputs = vec![self.x.clone()];
        inputs.extend(self.weights.iter().cloned());
        inputs.extend(self.residual.clone());
        inputs
    }

    fn is_supported(&self) -> bool {
        let inputs = self.inputs();
        let types: Vec<_> = inputs.iter().map(|t| Some(t.ty.clone())).collect();
        let op = Op::Bands(self.bands.clone());
        let found = infer::output_types(&op, &types, 1).expect("the layers fit each other");
        assert_eq!(found[0], self.expected.ty);
        let ins: Vec<OperandForm> = inputs.iter().map(|t| Some((&t.ty, t.layout))).collect();
        supported(&op, &ins, &[Some((&self.expected.ty, Layout::Blocked))]).is_ok()
    }

    fn overwrites_input(&self) -> bool {
        let inputs = self.inputs();
        let ins: Vec<OperandForm> = inputs.iter().map(|t| Some((&t.ty, t.layout))).collect();
        let outs = [Some((&self.expected.ty, Layout::Blocked))];
        may_overwrite(&Op::Bands(self.bands.clone()), &ins, &outs).contains(&0)
    }

    fn check(&self, first_rows: usize, band_rows: usize, par: &dyn Parallel) {
        let bands = Bands {
            layers: self.bands.layers.clone(),
            formats: self.bands.formats.clone(),
            first_rows,
            band_rows,
        };
        let op = Op::Bands(bands);
        let y = Tensor::new(&self.expected.ty, Layout::Blocked);
        let found = run(&op, &self.inputs(), None, vec![y], par).remove(0);
        self.compare(&found, &op);
        if self.overwrites_input() {
            self.compare(&self.run_in_place(&op, par), &op);
        }
    }

    fn compare(&self, found: &Tensor, op: &Op) {
        let bits = |t: &Tensor| t.reordered(Layout::Plain).literal().bytes().to_vec();
        assert!(bits(found) == bits(&self.expected), "other bits: {op:?}");
    }

    /// The output in the input's memory, where the residual may lie as well.
    fn run_in_place(&self, op: &Op, par: &dyn Parallel) -> Tensor {
        let mut inputs = self.inputs();
        let mut y = inputs[0].clone();
        if self
            .residual
            .as_ref()
            .is_some_and(|r| r.data == self.x.data)
        {
            inputs.pop();
        }
        let layouts: Vec<(TensorType, Layout)> =
            inputs.iter().map(|t| (t.ty.clone(), t.layout)).collect();
        let ins: Vec<OperandForm> = layouts.iter().map(|(ty, l)| Some((ty, *l))).collect();
        let out = [Some((&self.expected.ty, Layout::Blocked))];
        let isa = Isa::detect();
        let mut workspace = vec![0xA5u8; workspace_bytes(op, &ins, &out, par.workers(), isa)];
        let memory: *mut u8 = y.data.as_mut_ptr().cast();
        let mut refs: Vec<Option<TensorRef>> = inputs
            .iter()
            .enumerate()
            .map(|(i, t)| {
                let at = if i == 0 {
                    memory.cast_const()
                } else {
                    t.data.as_ptr().cast()
                };
                // SAFETY: as large as the type says; only the output may lie there, as allowed.
                Some(unsafe { TensorRef::new(&t.ty, t.layout, at) })
            })
            .collect();
        if refs.len() == self.weights.len() + 1 && self.residual.is_some() {
            refs.push(refs[0]);
        }
        // SAFETY: as above.
        let muts = [Some(unsafe {
            TensorMut::new(&self.expected.ty, Layout::Blocked, memory)
        })];
        let mut ctx = Context {
            par,
            isa,
            workspace: &mut workspace,
        };
        execute(op, &refs, None, &muts, &mut ctx).unwrap_or_else(|e| panic!("{e}"));
        y.ty = self.expected.ty.clone();
        y
    }
}

#[test]
fn same_bits_in_bands_of_any_height() {
    let (mut ran, mut refused, mut in_place, mut deep) = (0, 0, 0, 0);
    for seed in 1..=CHAINS {
        let mut random = Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let made = if seed % 4 == 0 {
            residual_block(&mut random)
        } else {
            chain(&mut random)
        };
        let Some(case) = made else {
            continue;
        };
        if !case.is_supported() {
            refused += 1;
            continue;
        }
        ran += 1;
        in_place += u64::from(case.overwrites_input());
        deep += u64::from(case.bands.layers.len() > 2);
        let rows = case.expected.ty.shape[2];
        let mut heights = vec![(1, 1), (rows, rows), (1, rows)];
        for _ in 0..3 {
            let band = 1 + random.below(rows);
            heights.push((1 + random.below(band), band));
        }
        for (first, band) in heights {
            eprintln!("seed {seed}, bands of {first} and {band} rows");
            case.check(first, band, &Serial);
            case.check(first, band, &Threads(3));
        }
    }
    assert!(
        ran > 5 * CHAINS / 8 && in_place > CHAINS / 6 && deep > CHAINS / 3,
        "{ran} {in_place} {deep}"
    );
    assert!(refused < ran, "{refused} refused");
}
