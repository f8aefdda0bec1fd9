//! Weights in blocks of 4 and 8 bits stay that, and give the results of their numbers.

use crate::build::Net;
use crate::formats::{packed, sizes, smallest_budget, with_constants_read};
use crate::instruction_sets::{inputs_of, run};
use crate::nets::{difference, evaluate};
use half::f16;
use neap_ir::op::{Activation, Op};
use neap_ir::panel::{PanelElement, PanelScales};
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, DType, FileId, FileRange, Literal, SourceFile, TensorType, ValueId};
use neap_kernels::simd::Isa;
use neaptide::{Budget, Model, OpenOptions, RunOptions, WeightFormats};
use std::path::Path;

/// How integers are stored.
#[derive(Debug, Clone, Copy)]
struct Kind {
    four: bool,
    signed: bool,
    half: bool,
    zeros: bool,
}

/// Of the matrices that are multiplied with, as `f32`.
const WIDENED_BYTES: u64 = 4 * 1024 * (256 + 1008);

/// A network, and the file that its weights are written to.
struct Maker {
    net: Net,
    file: Vec<u8>,
    kind: Kind,
    rounds_other: bool,
}

impl Maker {
    fn stored(&mut self, dtype: DType, stored: DType, shape: &[usize], bytes: &[u8]) -> ValueId {
        let range = FileRange {
            file: FileId(0),
            offset: self.file.len() as u64,
            bytes: bytes.len() as u64,
        };
        self.file.extend_from_slice(bytes);
        let data = Const::Stored {
            range,
            stored_dtype: stored,
        };
        let ty = TensorType::new(dtype, shape);
        self.net.graph.add_const("stored", ty, data)
    }

    /// Random integers, as a value of their shape.
    fn integers(&mut self, shape: &[usize]) -> ValueId {
        let Kind { four, signed, .. } = self.kind;
        let count = shape.iter().product();
        let random = &mut self.net.random;
        let steps: Vec<u8> = (0..count).map(|_| random.below(256) as u8).collect();
        let dtype = if signed { DType::I8 } else { DType::U8 };
        if !four {
            return self.stored(dtype, dtype, shape, &steps);
        }
        let bytes = self.stored(DType::U8, DType::U8, &[count / 2], &steps[..count / 2]);
        let shape = shape.to_vec();
        self.net.op(Op::Nibbles { shape, signed }, &[bytes])
    }

    /// A matrix in blocks along an axis.
    fn matrix(&mut self, shape: [usize; 2], axis: usize, block: usize) -> ValueId {
        let mut many = shape;
        many[axis] /= block;
        let x = self.integers(&shape);
        let count: usize = many.iter().product();
        let each = if self.kind.four { 0.1 } else { 0.005 };
        let scales: Vec<f16> = (0..count)
            .map(|_| f16::from_f32(each * (0.5 + 0.4 * self.net.random.float())))
            .collect();
        let scale = if self.kind.half {
            let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
            self.stored(DType::F32, DType::F16, &many, &bytes)
        } else {
            let wide = scales.iter().map(|s| s.to_f32() / 3.0);
            let bytes: Vec<u8> = wide.flat_map(f32::to_le_bytes).collect();
            self.stored(DType::F32, DType::F32, &many, &bytes)
        };
        let mut inputs = vec![x, scale];
        if self.kind.zeros {
            inputs.push(self.integers(&many));
        }
        let op = Op::DequantizeBlocks {
            axis,
            block,
            rounds_other: self.rounds_other,
        };
        self.net.op(op, &inputs)
    }
}

impl Maker {
    fn finish(mut self, output: ValueId, path: &Path) -> neap_ir::Graph {
        self.net.output(output);
        std::fs::write(path, &self.file).expect("written");
        let mut graph = self.net.graph;
        graph.files = vec![SourceFile::At(path.display().to_string())];
        graph.check().expect("sound");
        graph.check_types().expect("of the right types");
        graph
    }
}

/// Rows of a table, and products with matrices either way round.
fn network(kind: Kind, path: &Path) -> neap_ir::Graph {
    let mut maker = Maker {
        net: Net::seeded(71),
        file: Vec::new(),
        kind,
        rounds_other: false,
    };
    let ty = TensorType::new(DType::I64, &[10]);
    let ids = maker.net.graph.add_value("ids", ty);
    maker.net.graph.inputs.push(ids);
    let table = maker.matrix([9000, 256], 1, 32);
    let x = maker.net.op(Op::Gather { axis: 0 }, &[table, ids]);
    let wide = maker.matrix([256, 1024], 0, 64);
    let y = maker.net.op(Op::MatMul, &[x, wide]);
    let y = maker.net.activation(Activation::Gelu, y);
    let perm = vec![1, 0];
    let turned = maker.matrix([1008, 1024], 1, 128);
    let turned = maker.net.op(Op::Transpose { perm }, &[turned]);
    let y = maker.net.op(Op::MatMul, &[y, turned]);
    maker.finish(y, path)
}

/// Rows times a matrix that allows them to be rounded.
fn rounded_product(kind: Kind, rows: usize, path: &Path) -> neap_ir::Graph {
    let mut maker = Maker {
        net: Net::seeded(72),
        file: Vec::new(),
        kind,
        rounds_other: true,
    };
    let x = maker.net.input(&[rows, 384]);
    let matrix = maker.matrix([4033, 384], 1, ROUNDED_BLOCK);
    let turned = (maker.net).op(Op::Transpose { perm: vec![1, 0] }, &[matrix]);
    let y = maker.net.op(Op::MatMul, &[x, turned]);
    maker.finish(y, path)
}

const ROUNDED_BLOCK: usize = 32;

/// Each block of so many numbers on steps of 1/127 of its largest, in f64.
fn rounded_in_blocks(numbers: &[f32]) -> Vec<f32> {
    let blocks = numbers.chunks(ROUNDED_BLOCK).flat_map(|block| {
        let largest = block
            .iter()
            .fold(0f64, |most, &x| most.max(f64::from(x).abs()));
        let scale = largest / 127.0;
        let step = move |&x: &f32| ((f64::from(x) / scale).round_ties_even() * scale) as f32;
        block.iter().map(step)
    });
    blocks.collect()
}

#[test]
fn blocks_stay_blocks_and_give_the_results_of_their_numbers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ids = [0, 5, -1, 7, 8999, 4, 4, 1, -9000, 2];
    let inputs = vec![Literal::from_i64(&[10], &ids)];
    let kinds = [
        (true, true, true, true),
        (true, false, false, false),
        (false, true, false, true),
        (false, false, true, true),
    ];
    for (four, signed, half, zeros) in kinds {
        let kind = Kind {
            four,
            signed,
            half,
            zeros,
        };
        let graph = network(kind, &folder.path().join("steps.bin"));
        let want = evaluate(&with_constants_read(graph.clone()), &inputs);
        let at = |name: &str| folder.path().join(name);
        let stored = packed(&graph, at("stored.neap"), WeightFormats::Exact);
        let widened = packed(&graph, at("widened.neap"), WeightFormats::Widened);
        let element = if four {
            PanelElement::I4
        } else {
            PanelElement::I8
        };
        assert_eq!(
            formats(&stored),
            [(element, 64, half), (element, 128, half)]
        );
        for isa in Isa::available() {
            let options = RunOptions {
                isa,
                exact: true,
                threads: 2,
                ..RunOptions::default()
            };
            let (expected, _) = run(&widened, &options, &inputs);
            let off = difference(&want, &expected);
            assert!(
                off <= 1e-4,
                "{kind:?} {isa:?}: off by {off} of the outputs' range"
            );
            let [file, resident, smallest] = sizes(&stored, &options);
            let [wide_file, wide_resident, wide_smallest] = sizes(&widened, &options);
            assert!(file < wide_file, "{file} of {wide_file}");
            // Both have the same table.
            let saved = wide_resident - resident;
            assert!(
                saved * 10 > 7 * WIDENED_BYTES,
                "{kind:?}: {resident} {wide_resident}"
            );
            assert!(smallest <= wide_smallest, "{smallest} {wide_smallest}");
            let small = RunOptions {
                budget: Budget::Bytes(smallest_budget(&stored, &options) + (1 << 18)),
                ..options.clone()
            };
            let (free, _) = run(&stored, &options, &inputs);
            let (small, streams) = run(&stored, &small, &inputs);
            assert!(streams, "the budget is too large to test anything");
            assert!(free == expected, "{kind:?} {isa:?}: other bits");
            assert!(
                small == expected,
                "{kind:?} {isa:?}: other bits in a small budget"
            );
        }
    }
}

#[test]
fn rows_are_rounded_where_the_model_allows_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for (rows, four, zeros) in [(1, true, false), (5, false, true), (33, true, true)] {
        let kind = Kind {
            four,
            signed: false,
            half: four,
            zeros,
        };
        let graph = rounded_product(kind, rows, &folder.path().join("steps.bin"));
        let inputs = inputs_of(&graph);
        let numbers = inputs[0].as_f32().expect("floats").to_vec();
        let rounded = [Literal::from_f32(
            &[rows, 384],
            &rounded_in_blocks(&numbers),
        )];
        let read = with_constants_read(graph.clone());
        let [wide, want] = [&inputs[..], &rounded].map(|inputs| evaluate(&read, inputs));
        let path = packed(
            &graph,
            folder.path().join(format!("{rows}.neap")),
            WeightFormats::Exact,
        );
        let mut bits = None;
        for (isa, threads) in Isa::available().flat_map(|isa| [(isa, 1), (isa, 2)]) {
            let options = RunOptions {
                isa,
                threads,
                ..RunOptions::default()
            };
            // Of the engine alone: other tests change what the process takes.
            let engine = |bytes: u64| RunOptions {
                budget: Budget::Engine(bytes),
                ..options.clone()
            };
            let small = engine(smallest_budget(&path, &engine(1 << 30)) + (1 << 14));
            let (free, _) = run(&path, &options, &inputs);
            let (streamed, streams) = run(&path, &small, &inputs);
            assert!(streams, "the budget is too large to test anything");
            assert!(free == streamed, "{isa:?}: other bits in a small budget");
            let off = difference(&want, &free);
            assert!(off <= 1e-5, "{kind:?} {isa:?}: off by {off}");
            // Not what it would be without rounding.
            assert!(difference(&wide, &free) > 10.0 * off);
            let first = bits.get_or_insert_with(|| free.clone());
            assert!(*first == free, "{isa:?} {threads}: other bits");
        }
    }
}

/// Element type, length of blocks and whether scales are half floats, of the panels.
fn formats(path: &Path) -> Vec<(PanelElement, u16, bool)> {
    let open = OpenOptions::of_own_process();
    let model = Model::open(path, &open, &mut |_| {}).expect("opens");
    let panels = |packed: &neap_ir::recipe::Packed| match packed.form {
        PackedForm::Panels { format, .. } => match format.scales {
            PanelScales::Blocks { len, half } => Some((format.element, len, half)),
            other => panic!("{other:?}"),
        },
        PackedForm::Raw => None,
    };
    let mut found: Vec<_> = model.program().packed.iter().filter_map(panels).collect();
    found.sort_by_key(|&(_, len, _)| len);
    found
}
