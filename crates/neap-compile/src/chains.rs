//! Chains of layers in row bands: which kernels compute them, and what they take by what their layers take alone.
//!
//! ```text
//!   direct           the heights that the packed model names, chosen for little memory
//!   winograd bands   3x3 layers by F(4,3), their weights transformed once in each run: the lowest bands in which
//!                    the many calls take little, if that needs not much more memory than other steps do
//! ```

use crate::kernels::flops_by;
use crate::target::Target;
use crate::times::StepTimes;
use neap_ir::bands::Bands;
use neap_ir::panel::PanelFormat;
use neap_ir::{Layout, Op, Program};
use neap_ops::{Choice, Kernel, KernelFacts, OperandForm, WeightForm};
use neap_plan::{KernelId, StepSpec, Workload};
use neap_sim::CostProfile;

/// What is added to operations and bytes of layers that run in bands by direct kernels, as a part of those: many
/// small calls, and rows that are moved. Inner tensors stay in caches, but so they mostly do without bands.
const DIRECT_OVERHEAD: u64 = 16;

/// What several threads take to begin and end a call of a direct kernel, beside what one takes (measured in bands of
/// MobileNetV2, on processors that are near each other).
const HANDOVER_NS: u64 = 2_000;

/// Operations in whose time a call of a kernel begins and ends (measured in bands of 2 to 32 rows of VGG-19).
const CALL_FLOPS: u64 = 1_000_000;

/// Bands so low that calls take more than this part of the layers' operations are not worth the memory.
const MOST_OVERHEAD: u64 = 16;

/// What the layers of a chain take, and what is added by bands.
struct LayerCosts {
    layers: Vec<Layer>,
    /// Of all layers, in operations of the direct kernels.
    flops: u64,
    overhead_flops: u64,
    handover_ns: u64,
}

struct Layer {
    kernel: KernelId,
    flops: u64,
}

impl LayerCosts {
    fn all_flops(&self) -> u64 {
        self.flops.saturating_add(self.overhead_flops)
    }
}

/// The step of a chain by direct kernels. `flops` and `touched_bytes` are of its layers one after another.
pub(crate) fn direct(step: StepSpec) -> StepSpec {
    let with_overhead = |cost: u64| cost.saturating_add(cost / DIRECT_OVERHEAD);
    StepSpec {
        flops: with_overhead(step.flops),
        touched_bytes: with_overhead(step.touched_bytes),
        ..step
    }
}

/// Where the times of a chain's layers are known from.
pub(crate) struct Plain<'a> {
    pub program: &'a Program,
    /// With direct kernels.
    pub workload: &'a Workload,
    pub costs: &'a CostProfile,
    pub times: &'a StepTimes,
}

/// A chain with its inputs, on a machine.
pub(crate) struct Chain<'a> {
    pub bands: &'a Bands,
    pub inputs: &'a [OperandForm<'a>],
    pub target: Target,
}

impl Chain<'_> {
    /// The step of a chain with Winograd kernels, where that promises to be faster than [`direct`] and `room_bytes`
    /// are enough for weights and workspace.
    pub fn fastest(&self, direct: StepSpec, facts: &[KernelFacts], room_bytes: u64) -> StepSpec {
        let weights_bytes: u64 = direct.extents.iter().map(|e| e.bytes).sum();
        let mut best = direct.clone();
        // Facts come with the lowest bands first.
        for facts in facts {
            let workspace_bytes = facts.raw.workspace_bytes as u64;
            let fits = workspace_bytes.saturating_add(weights_bytes) <= room_bytes;
            if !matches!(facts.kernel, Kernel::WinogradBands { .. }) || !fits {
                continue;
            }
            let Some(costs) = self.costs(facts.kernel) else {
                continue;
            };
            if costs.all_flops() < best.flops {
                let choice = Choice {
                    kernel: facts.kernel,
                    weights: WeightForm::Raw,
                };
                best = StepSpec {
                    workspace_bytes,
                    flops: costs.all_flops(),
                    kernel: choice.into(),
                    ..direct.clone()
                };
                if costs.overhead_flops <= costs.flops / MOST_OVERHEAD {
                    break;
                }
            }
        }
        best
    }

    /// Time of a chain computed by that kernel, by the times of its layers, which are these steps of the
    /// plain program, first to last; `None` where they are others.
    pub fn step_ns(&self, kernel: KernelId, steps: &[usize], plain: &Plain) -> Option<u64> {
        let kernel = Choice::try_from(kernel).ok()?.kernel;
        let costs = self.costs(kernel)?;
        if costs.layers.len() != steps.len() {
            return None;
        }
        let layer_ns = |(layer, &step): (&Layer, &usize)| {
            let spec = plain.workload.steps.get(step)?;
            let direct_ns = plain.costs.step_ns.get(step).copied().unwrap_or(0);
            let measured_ns = plain.times.of(plain.program, step, layer.kernel);
            Some(match measured_ns {
                _ if layer.kernel == KernelId::DIRECT => plain.costs.step_ns(step, spec),
                Some(ns) => ns,
                None if direct_ns > 0 => in_proportion(direct_ns, layer.flops, spec.flops),
                None => {
                    let estimated = StepSpec {
                        flops: layer.flops,
                        ..spec.clone()
                    };
                    plain.costs.step_ns(step, &estimated)
                }
            })
        };
        let mut sum_ns = 0u64;
        for ns in costs.layers.iter().zip(steps).map(layer_ns) {
            sum_ns = sum_ns.saturating_add(ns?);
        }
        let ns = in_proportion(sum_ns, costs.all_flops(), costs.flops);
        Some(ns.saturating_add(costs.handover_ns))
    }

    /// Of the layers as `kernel` computes them; `None` where it cannot.
    fn costs(&self, kernel: Kernel) -> Option<LayerCosts> {
        let types: Vec<_> = self
            .inputs
            .iter()
            .map(|o| o.map(|(ty, _)| ty.clone()))
            .collect();
        let x = types.first()?.as_ref()?;
        let results = self.bands.layer_types(&types).ok()?;
        let (kernels, calls) = neap_ops::layer_kernels(self.bands, &x.shape, kernel)?;
        let mut layers = Vec::with_capacity(kernels.len());
        let before = std::iter::once(x).chain(&results);
        for ((layer, kernel), (x, y)) in self
            .bands
            .layers
            .iter()
            .zip(kernels)
            .zip(before.zip(&results))
        {
            let op = layer.op();
            let (x, y) = ([Some((x, Layout::Blocked))], [Some((y, Layout::Blocked))]);
            let flops = match kernel {
                Kernel::Winograd(tile) => {
                    let facts =
                        neap_ops::kernels(&op, &x, &y, self.target.threads, self.target.isa);
                    let facts = facts.iter().find(|f| f.kernel == kernel)?;
                    // As many are transformed in whatever format they are stored.
                    let widened = layer.weight_type(PanelFormat::default())?;
                    flops_by(facts, tile, widened.len_bytes() as u64) as u64
                }
                _ => neap_ops::flops(&op, &x, &y),
            };
            let choice = Choice {
                kernel,
                weights: WeightForm::Raw,
            };
            layers.push(Layer {
                kernel: choice.into(),
                flops,
            });
        }
        let flops = layers
            .iter()
            .fold(0u64, |sum, layer| sum.saturating_add(layer.flops));
        let (overhead_flops, handover_ns) = match kernel {
            Kernel::WinogradBands { .. } => (CALL_FLOPS.saturating_mul(calls as u64), 0),
            _ if self.target.threads > 1 => (
                flops / DIRECT_OVERHEAD,
                HANDOVER_NS.saturating_mul(calls as u64),
            ),
            _ => (flops / DIRECT_OVERHEAD, 0),
        };
        Some(LayerCosts {
            layers,
            flops,
            overhead_flops,
            handover_ns,
        })
    }
}

fn in_proportion(ns: u64, flops: u64, known_flops: u64) -> u64 {
    (ns as f64 * flops as f64 / known_flops.max(1) as f64) as u64
}

/// The chain of a node, if it is one.
pub(crate) fn of(op: &Op) -> Option<&Bands> {
    match op {
        Op::Bands(chain) => Some(chain),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neap_ir::bands::BandLayer;
    use neap_ir::op::{Activation, Window};
    use neap_ir::panel::{ConvForm, Epilogue, PanelConv};
    use neap_ir::{DType, TensorType};
    use neap_kernels::simd::Isa;
    use neap_plan::Extent;

    const THREADS: usize = 2;

    /// Two 3x3 layers of so many channels; the chain, and the types of its inputs.
    fn chain(channels: usize) -> (Bands, [TensorType; 3]) {
        let layer = BandLayer::Conv(PanelConv {
            form: ConvForm::Blocked,
            window: Window {
                kernel: vec![3; 2],
                strides: vec![1; 2],
                dilations: vec![1; 2],
                pads_begin: vec![1; 2],
                pads_end: vec![1; 2],
            },
            groups: 1,
            c_in: channels,
            c_out: channels,
            epilogue: Epilogue {
                activation: Activation::Relu,
                residual: false,
                ..Epilogue::default()
            },
            in_bf16: false,
        });
        let weights = layer.weight_type(PanelFormat::default());
        let weights = weights.expect("has weights");
        let image = TensorType::new(DType::F32, &[1, channels, 112, 112]);
        let chain = Bands {
            layers: vec![layer; 2],
            formats: vec![PanelFormat::default(); 2],
            first_rows: 2,
            band_rows: 4,
        };
        (chain, [image, weights.clone(), weights])
    }

    fn picked(chain: &Bands, types: &[TensorType], room_bytes: u64) -> (StepSpec, StepSpec) {
        let [image, weights @ ..] = types else {
            panic!("an image and weights");
        };
        let mut inputs = vec![Some((image, Layout::Blocked))];
        inputs.extend(weights.iter().map(|w| Some((w, Layout::Plain))));
        let outputs = [Some((image, Layout::Blocked))];
        let (op, isa) = (Op::Bands(chain.clone()), Isa::detect());
        let facts = neap_ops::kernels(&op, &inputs, &outputs, THREADS, isa);
        let extent = |w: &TensorType| Extent {
            file_offset: 0,
            bytes: w.len_bytes() as u64,
        };
        let plain = StepSpec {
            flops: facts[0].flops,
            workspace_bytes: facts[0].raw.workspace_bytes as u64,
            extents: weights.iter().map(extent).collect(),
            ..StepSpec::default()
        };
        let direct = direct(plain);
        let chain = Chain {
            bands: chain,
            inputs: &inputs,
            target: Target {
                threads: THREADS,
                isa,
            },
        };
        let found = chain.fastest(direct.clone(), &facts, room_bytes);
        (direct, found)
    }

    #[test]
    fn winograd_is_picked_where_it_is_faster_and_fits() {
        let (chain, types) = chain(64);
        let (direct, found) = picked(&chain, &types, u64::MAX);
        assert!(found.flops < direct.flops * 2 / 3);
        let choice = Choice::try_from(found.kernel).expect("a kernel");
        assert!(matches!(choice.kernel, Kernel::WinogradBands { .. }));
        // Weights count too.
        let weights: u64 = found.extents.iter().map(|e| e.bytes).sum();
        let room = found.workspace_bytes + weights;
        assert_eq!(picked(&chain, &types, room).1, found);
        let (direct, tight) = picked(&chain, &types, 0);
        assert_eq!(tight, direct);
        // Few channels are mostly transforms.
        let (chain, types) = self::chain(16);
        let (direct, found) = picked(&chain, &types, u64::MAX);
        assert_eq!(found, direct);
    }

    /// Two layers of 112 rows, in bands of 2 and of 4.
    #[test]
    fn several_threads_take_part_in_each_call() {
        let (bands, [image, first, second]) = chain(16);
        let weights = [first, second];
        let mut inputs = vec![Some((&image, Layout::Blocked))];
        inputs.extend(weights.iter().map(|w| Some((w, Layout::Plain))));
        let handover_ns = |threads| {
            let chain = Chain {
                bands: &bands,
                inputs: &inputs,
                target: Target {
                    threads,
                    isa: Isa::detect(),
                },
            };
            let costs = chain.costs(Kernel::Direct).expect("runs in bands");
            costs.handover_ns
        };
        assert_eq!(handover_ns(1), 0);
        assert_eq!(handover_ns(2), 2 * 29 * HANDOVER_NS);
    }
}
