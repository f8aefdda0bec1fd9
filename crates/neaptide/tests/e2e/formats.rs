//! Weights in fewer bits: the results of the widened weights to the bit, from smaller files in less memory.

use crate::build::{Net, square};
use crate::instruction_sets::{inputs_of, run};
use half::{bf16, f16};
use neap_ir::op::{Activation, Op};
use neap_ir::{ByteRange, Const, ConstId, DType, FileId, Graph, Literal, SourceFile, TensorType};
use neap_kernels::simd::Isa;
use neaptide::{Budget, Model, OpenOptions, RunOptions, WeightFormats};
use std::path::{Path, PathBuf};

/// Convolutions of all kinds, some with a normalisation that scales their weights.
fn images() -> Graph {
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
fn sequence() -> Graph {
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
fn rounded(mut graph: Graph, half: DType, stored: DType, path: PathBuf) -> Graph {
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
            range: ByteRange {
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

/// What a packed model takes: its file, and the plan's memory with everything resident and in the smallest budget.
fn sizes(path: &Path, options: &RunOptions) -> [u64; 3] {
    let file = std::fs::metadata(path).expect("there").len();
    let open = OpenOptions::of_own_process();
    let model = Model::open(path, &open, &mut |_| {}).expect("opens");
    let resident = model.plan(options).expect("feasible").execution;
    let smallest = model.bounds(options).smallest.arena_bytes;
    [file, resident.memory_bytes(), smallest]
}

fn smallest_budget(path: &Path, options: &RunOptions) -> u64 {
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
