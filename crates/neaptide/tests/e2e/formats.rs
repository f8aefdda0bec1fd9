//! Weights in fewer bits: the results of the widened weights to the bit, from smaller files in less memory.

use crate::build::{Net, square};
use crate::instruction_sets::{inputs_of, run};
use crate::nets::{difference, evaluate};
use half::{bf16, f16};
use neap_ir::op::{Activation, Op};
use neap_ir::{
    Const, ConstId, DType, FileId, FileRange, Graph, Literal, Node, SourceFile, TensorType, ValueId,
};
use neap_kernels::simd::Isa;
use neaptide::{Budget, Model, OpenOptions, RunOptions, WeightFormats};
use std::path::{Path, PathBuf};

/// Convolutions of all kinds, some with a normalisation that scales their weights.
pub fn images() -> Graph {
    let mut net = Net::seeded(50);
    let x = net.input(&[1, 3, 40, 40]);
    let first = net.conv(x, 64, 5, 2);
    let first = net.relu(first);
    let wide = net.conv(first, 256, 3, 1);
    let wide = net.batch_norm(wide);
    let wide = net.activation(Activation::HardSwish, wide);
    let depthwise = net.grouped_conv(wide, 256, 3, 1, 256);
    let grouped = net.grouped_conv(depthwise, 256, 3, 1, 64);
    let same = net.conv(grouped, 256, 3, 1);
    let same = net.batch_norm(same);
    let sum = net.add(same, wide);
    let narrow = net.conv(sum, 40, 1, 2);
    // More taps than the depthwise kernel takes in fewer bits.
    let weight = net.weight(&[40, 1, 9, 9], 0.3);
    let last = net.op(Op::Conv(square(9, 1), 40), &[narrow, weight]);
    net.output(last);
    net.graph
}

/// Rows of a table, and products either way round.
pub fn sequence() -> Graph {
    let mut net = Net::seeded(51);
    let ids = net
        .graph
        .add_value("ids", TensorType::new(DType::I64, &[10]));
    net.graph.inputs.push(ids);
    let table = net.weight(&[3000, 256], 1.0);
    let x = net.op(Op::Gather { axis: 0 }, &[table, ids]);
    let wide = net.weight(&[256, 1024], 0.1);
    let turned = net.weight(&[1000, 1024], 0.05);
    let y = net.op(Op::MatMul, &[x, wide]);
    let y = net.activation(Activation::Gelu, y);
    let gemm = Op::Gemm {
        alpha: 0.3,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    let y = net.op(gemm, &[y, turned]);
    net.output(y);
    net.graph
}

/// The graph with its large weights rounded to half floats, and stored in a file as those or as `f32`.
pub fn rounded(mut graph: Graph, half: DType, stored: DType, path: PathBuf) -> Graph {
    let mut file = Vec::new();
    for value in 0..graph.values.len() {
        let Some(ConstId(index)) = graph.values[value].constant else {
            continue;
        };
        let Const::Inline(literal) = &graph.consts[index as usize] else {
            continue;
        };
        let Some(floats) = literal.as_f32().filter(|f| f.len() > 1000) else {
            continue;
        };
        let offset = file.len() as u64;
        for &x in floats {
            let (bytes, widened) = match half {
                DType::F16 => (f16::from_f32(x).to_le_bytes(), f16::from_f32(x).to_f32()),
                _ => (bf16::from_f32(x).to_le_bytes(), bf16::from_f32(x).to_f32()),
            };
            match stored {
                DType::F32 => file.extend_from_slice(&widened.to_le_bytes()),
                _ => file.extend_from_slice(&bytes),
            }
        }
        let bytes = file.len() as u64 - offset;
        graph.consts[index as usize] = Const::Stored {
            range: FileRange {
                file: FileId(0),
                offset,
                bytes,
            },
            stored_dtype: stored,
        };
    }
    std::fs::write(&path, file).expect("written");
    graph.files = vec![SourceFile::At(path.display().to_string())];
    graph
}

/// The graph with its large weights in 8 bits, signed with a scale for each output channel or unsigned with one scale
/// and zero point for all, stored in a file behind a DequantizeLinear.
pub fn quantized(mut graph: Graph, path: PathBuf) -> Graph {
    let mut file = Vec::new();
    for value in (0..graph.values.len() as u32).map(ValueId) {
        let Some(Const::Inline(literal)) = graph.constant(value).cloned() else {
            continue;
        };
        let Some(floats) = literal.as_f32().filter(|f| f.len() > 1000) else {
            continue;
        };
        let reader = graph.nodes.iter().find(|n| n.inputs.contains(&Some(value)));
        let axis = match &reader.expect("weights are read").op {
            Op::MatMul => Some(1),
            Op::Gather { .. } => None,
            // One scale for all, but for depthwise filters.
            Op::Conv(_, groups) if *groups > 1 && literal.shape()[1] > 1 => None,
            _ => Some(0),
        };
        let shape = literal.shape().to_vec();
        let inner: usize = axis.map_or(1, |axis| shape[axis + 1..].iter().product());
        let channels = axis.map_or(1, |axis| shape[axis]);
        let channel = |i: usize| i / inner % channels;
        let mut scales = vec![0f32; channels];
        for (i, x) in floats.iter().enumerate() {
            let scale = &mut scales[channel(i)];
            *scale = scale.max(x.abs() / 127.0);
        }
        let (dtype, zero) = if axis.is_some() {
            (DType::I8, 0)
        } else {
            (DType::U8, 131)
        };
        let offset = file.len() as u64;
        file.extend(floats.iter().enumerate().map(|(i, x)| {
            let step = (x / scales[channel(i)]).round() as i32 + zero;
            if dtype == DType::I8 {
                step as i8 as u8
            } else {
                step.clamp(0, 255) as u8
            }
        }));
        let data = Const::Stored {
            range: FileRange {
                file: FileId(0),
                offset,
                bytes: floats.len() as u64,
            },
            stored_dtype: dtype,
        };
        let steps = graph.add_const("steps", TensorType::new(dtype, &shape), data);
        let scale = graph.add_literal("scale", Literal::from_f32(&[channels], &scales));
        let mut inputs = vec![Some(steps), Some(scale)];
        if dtype == DType::U8 {
            let zero = Literal::from_bytes(dtype, &[1], &[zero as u8]).expect("one byte");
            inputs.push(Some(graph.add_literal("zero", zero)));
        }
        graph.values[value.index()].constant = None;
        let node = Node {
            name: format!("dequantize {}", value.0),
            op: Op::Dequantize {
                axis: axis.unwrap_or(0),
            },
            inputs,
            outputs: vec![Some(value)],
            panels: None,
        };
        graph.nodes.insert(0, node);
    }
    std::fs::write(&path, file).expect("written");
    graph.files = vec![SourceFile::At(path.display().to_string())];
    graph
}

/// The graph with the constants of its files in memory.
pub fn with_constants_read(mut graph: Graph) -> Graph {
    let SourceFile::At(path) = &graph.files[0] else {
        panic!("a file")
    };
    let file = std::fs::read(path).expect("readable");
    for value in (0..graph.values.len() as u32).map(ValueId) {
        let Some(ConstId(index)) = graph.value(value).constant else {
            continue;
        };
        if let Const::Stored {
            range,
            stored_dtype,
        } = &graph.consts[index as usize]
        {
            let mut bytes = file[range.offset as usize..][..range.bytes as usize].to_vec();
            let ty = graph.ty(value);
            if (*stored_dtype, ty.dtype) == (DType::F16, DType::F32) {
                let halves = bytes.as_chunks::<2>().0.iter();
                let wide = halves.flat_map(|&b| f16::from_le_bytes(b).to_f32().to_le_bytes());
                bytes = wide.collect();
            }
            let literal = Literal::from_bytes(ty.dtype, &ty.shape, &bytes).expect("fits");
            graph.consts[index as usize] = Const::Inline(literal);
        }
    }
    graph
}

pub fn packed(graph: &Graph, path: PathBuf, weights: WeightFormats) -> PathBuf {
    let options = OpenOptions {
        weights,
        ..OpenOptions::default()
    };
    neaptide::pack_graph(graph.clone(), &path, &options, &mut |_| {}).expect("packs");
    path
}

#[test]
fn eight_bits_stay_eight_bits_and_give_the_results_of_their_numbers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for graph in [images(), sequence()] {
        let graph = quantized(graph, folder.path().join("steps.bin"));
        graph.check().expect("sound");
        let inputs = match graph.ty(graph.inputs[0]).dtype {
            DType::I64 => vec![Literal::from_i64(
                &[10],
                &[0, 5, -1, 7, 2999, 4, 4, 1, -3000, 2],
            )],
            _ => inputs_of(&graph),
        };
        let want = evaluate(&with_constants_read(graph.clone()), &inputs);
        let at = |name: &str| folder.path().join(name);
        let stored = packed(&graph, at("stored.neap"), WeightFormats::Exact);
        let widened = packed(&graph, at("widened.neap"), WeightFormats::Widened);
        for isa in Isa::available() {
            let options = RunOptions {
                isa,
                exact: true,
                threads: 2,
                ..RunOptions::default()
            };
            let (expected, _) = run(&widened, &options, &inputs);
            let off = difference(&want, &expected);
            assert!(off <= 1e-4, "{isa:?}: off by {off} of the outputs' range");
            let [file, resident, smallest] = sizes(&stored, &options);
            let [wide_file, wide_resident, wide_smallest] = sizes(&widened, &options);
            assert!(file * 5 < wide_file * 3, "{file} of {wide_file}");
            assert!(
                resident * 3 < wide_resident * 2,
                "{resident} {wide_resident}"
            );
            // Where rows of a table need most, both tables have 8 bits.
            assert!(smallest <= wide_smallest, "{smallest} {wide_smallest}");
            let small = RunOptions {
                budget: Budget::Bytes(smallest_budget(&stored, &options) + (1 << 18)),
                ..options.clone()
            };
            let (free, _) = run(&stored, &options, &inputs);
            let (small, streams) = run(&stored, &small, &inputs);
            assert!(streams, "the budget is too large to test anything");
            assert!(free == expected, "{isa:?}: other bits");
            assert!(small == expected, "{isa:?}: other bits in a small budget");
        }
    }
}

/// What a packed model takes: its file, and the plan's memory with everything resident and in the smallest budget.
pub fn sizes(path: &Path, options: &RunOptions) -> [u64; 3] {
    let file = std::fs::metadata(path).expect("there").len();
    let open = OpenOptions::of_own_process();
    let model = Model::open(path, &open, &mut |_| {}).expect("opens");
    let resident = model.plan(options).expect("feasible");
    let smallest = model.bounds(options).smallest.arena_bytes;
    [file, resident.execution().memory_bytes(), smallest]
}

pub fn smallest_budget(path: &Path, options: &RunOptions) -> u64 {
    let open = OpenOptions::of_own_process();
    let model = Model::open(path, &open, &mut |_| {}).expect("opens");
    model.bounds(options).smallest_feasible_bytes()
}

#[test]
fn half_floats_keep_their_bits_and_halve_what_they_take() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (half, graph) in [DType::F16, DType::BF16]
        .into_iter()
        .flat_map(|half| [(half, images()), (half, sequence())])
    {
        let ids: Vec<i64> = (0..10).map(|i| i * 299 - 7).collect();
        let inputs = match graph.ty(graph.inputs[0]).dtype {
            DType::I64 => vec![Literal::from_i64(&[10], &ids)],
            _ => inputs_of(&graph),
        };
        let pack = |name: &str, stored: DType, weights: WeightFormats| {
            let constants = folder.path().join(format!("{name}.bin"));
            let graph = rounded(graph.clone(), half, stored, constants);
            let path = folder.path().join(format!("{name}.neap"));
            let options = OpenOptions {
                weights,
                ..OpenOptions::default()
            };
            neaptide::pack_graph(graph, &path, &options, &mut |_| {}).expect("packs");
            path
        };
        let stored = pack("stored", half, WeightFormats::Exact);
        let narrowed = pack("narrowed", DType::F32, WeightFormats::Exact);
        let widened = pack("widened", DType::F32, WeightFormats::Widened);
        for isa in Isa::available() {
            let options = RunOptions {
                isa,
                exact: true,
                threads: 2,
                ..RunOptions::default()
            };
            let (expected, _) = run(&widened, &options, &inputs);
            let [wide_file, wide_resident, wide_smallest] = sizes(&widened, &options);
            for path in [&stored, &narrowed] {
                let [file, resident, smallest] = sizes(path, &options);
                let what = format!("{half} {path:?} {isa:?}");
                // Tables of which rows are read stay as they are stored.
                let falls = smallest < wide_smallest || path == &narrowed;
                let is_less = falls && smallest <= wide_smallest;
                assert!(is_less, "{what}: {smallest} {wide_smallest}");
                assert!(
                    resident * 4 < wide_resident * 3,
                    "{what}: {resident} {wide_resident}"
                );
                if path == &stored {
                    assert!(file * 20 < wide_file * 11, "{what}: {file} of {wide_file}");
                }
                let small = RunOptions {
                    budget: Budget::Bytes(smallest_budget(path, &options) + (1 << 18)),
                    ..options.clone()
                };
                let (free, _) = run(path, &options, &inputs);
                let (small, streams) = run(path, &small, &inputs);
                assert!(streams, "{what}: the budget is too large to test anything");
                assert!(free == expected, "{what}: other bits");
                assert!(small == expected, "{what}: other bits in a small budget");
            }
        }
    }
}

#[test]
fn floats_in_28_bits_give_the_same_bits_from_fewer_bytes() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for graph in [images(), sequence()] {
        let inputs = match graph.ty(graph.inputs[0]).dtype {
            DType::I64 => vec![Literal::from_i64(
                &[10],
                &[0, 5, -1, 7, 2999, 4, 4, 1, -3000, 2],
            )],
            _ => inputs_of(&graph),
        };
        let at = |name: &str| folder.path().join(name);
        let whole = packed(&graph, at("whole.neap"), WeightFormats::Exact);
        let coded = packed(&graph, at("coded.neap"), WeightFormats::Lossless);
        for isa in Isa::available() {
            let options = RunOptions {
                isa,
                exact: true,
                threads: 2,
                ..RunOptions::default()
            };
            let (expected, _) = run(&whole, &options, &inputs);
            let [file, resident, smallest] = sizes(&coded, &options);
            let [whole_file, whole_resident, whole_smallest] = sizes(&whole, &options);
            // The table stays as it is.
            assert!(file * 30 < whole_file * 29, "{file} of {whole_file}");
            assert!(resident < whole_resident, "{resident} {whole_resident}");
            assert!(smallest <= whole_smallest, "{smallest} {whole_smallest}");
            let least = smallest_budget(&coded, &options) + (1 << 18);
            let quarter = Budget::Bytes(least + resident / 4);
            for budget in [Budget::Unlimited, quarter, Budget::Bytes(least)] {
                let what = format!("{isa:?} {budget:?}");
                let options = RunOptions {
                    budget,
                    ..options.clone()
                };
                let (found, streams) = run(&coded, &options, &inputs);
                assert_eq!(streams, budget != Budget::Unlimited, "{what}");
                assert!(found == expected, "{what}: other bits");
            }
        }
    }
}
