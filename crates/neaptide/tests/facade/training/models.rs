//! Small networks with parameters drawn from a seed, and batches for them.

use neap_ir::op::{Activation, Generator, Pool, Unary, Window};
use neap_ir::{DType, Graph, Literal, Node, Op, TensorType, ValueId, infer};

pub const BATCH: usize = 8;
pub const CLASSES: usize = 5;
pub const SIDE: usize = 24;

/// splitmix64, in -1..1.
pub struct Random(pub u64);

impl Random {
    pub fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.next()).collect()
    }

    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// Images and classes of so many steps, the same for the same seed.
pub fn batches(seed: u64, steps: usize) -> Vec<(Literal, Literal)> {
    let mut random = Random(seed);
    let batch = |_| {
        let shape = [BATCH, 3, SIDE, SIDE];
        let images = random.floats(shape.iter().product());
        let classes: Vec<i64> = (0..BATCH)
            .map(|i| ((images[i] * 1e4) as i64).rem_euclid(CLASSES as i64))
            .collect();
        (
            Literal::from_f32(&shape, &images),
            Literal::from_i64(&[BATCH], &classes),
        )
    };
    (0..steps).map(batch).collect()
}

/// A graph whose last value is the next layer's operand.
pub struct Layers {
    graph: Graph,
    last: ValueId,
    random: Random,
}

impl Layers {
    pub fn new(seed: u64) -> Layers {
        let mut graph = Graph::default();
        let ty = TensorType::new(DType::F32, &[BATCH, 3, SIDE, SIDE]);
        let last = graph.add_value("images", ty);
        graph.inputs = vec![last];
        Layers {
            graph,
            last,
            random: Random(seed),
        }
    }

    pub fn here(&self) -> ValueId {
        self.last
    }

    /// The next layer's operand is this.
    pub fn from(mut self, value: ValueId) -> Layers {
        self.last = value;
        self
    }

    pub fn constant(&mut self, name: &str, shape: &[usize], middle: f32, span: f32) -> ValueId {
        let data = self.random.floats(shape.iter().product());
        let data: Vec<f32> = data.iter().map(|v| middle + span * v).collect();
        self.graph
            .add_literal(name, Literal::from_f32(shape, &data))
    }

    pub fn push(mut self, op: Op, others: &[ValueId]) -> Layers {
        let inputs: Vec<_> = [&[self.last], others]
            .concat()
            .into_iter()
            .map(Some)
            .collect();
        let types: Vec<_> = (inputs.iter())
            .map(|i| i.map(|v| self.graph.ty(v).clone()))
            .collect();
        let ty = infer::output_types(&op, &types, 1).unwrap().remove(0);
        let name = format!("{}.{}", op.name(), self.graph.nodes.len());
        self.last = self.graph.add_value(name.clone(), ty);
        self.graph.nodes.push(Node {
            name,
            op,
            inputs,
            outputs: vec![Some(self.last)],
            panels: None,
        });
        self
    }

    /// Equal parts along an axis; the next layer's operand is the first.
    pub fn split(mut self, axis: usize, parts: usize) -> (Layers, Vec<ValueId>) {
        let mut ty = self.graph.ty(self.last).clone();
        ty.shape[axis] /= parts;
        let sizes = vec![ty.shape[axis]; parts];
        let name = format!("Split.{}", self.graph.nodes.len());
        let outputs: Vec<ValueId> = (0..parts)
            .map(|i| self.graph.add_value(format!("{name}.{i}"), ty.clone()))
            .collect();
        self.graph.nodes.push(Node {
            name,
            op: Op::Split { axis, sizes },
            inputs: vec![Some(self.last)],
            outputs: outputs.iter().copied().map(Some).collect(),
            panels: None,
        });
        self.last = outputs[0];
        (self, outputs)
    }

    pub fn linear(mut self, name: &str, outputs: usize) -> Layers {
        let inputs = self.graph.ty(self.last).shape[1];
        let span = 1.0 / (inputs as f32).sqrt();
        let w = self.constant(&format!("{name}.weight"), &[outputs, inputs], 0.0, span);
        let b = self.constant(&format!("{name}.bias"), &[outputs], 0.0, span);
        let gemm = Op::Gemm {
            alpha: 1.0,
            beta: 1.0,
            trans_a: false,
            trans_b: true,
        };
        self.push(gemm, &[w, b])
    }

    pub fn conv(mut self, name: &str, outputs: usize, stride: usize, groups: usize) -> Layers {
        let inputs = self.graph.ty(self.last).shape[1] / groups;
        let span = 1.0 / (inputs as f32 * 9.0).sqrt();
        let shape = [outputs, inputs, 3, 3];
        let w = self.constant(&format!("{name}.weight"), &shape, 0.0, span);
        let window = Window {
            kernel: vec![3; 2],
            strides: vec![stride; 2],
            dilations: vec![1; 2],
            pads_begin: vec![1; 2],
            pads_end: vec![1; 2],
        };
        self.push(Op::Conv(window, groups), &[w])
    }

    pub fn norm(mut self, name: &str) -> Layers {
        let shape = [self.graph.ty(self.last).shape[1]];
        let parts = [
            ("scale", 1.0),
            ("bias", 0.0),
            ("mean", 0.0),
            ("variance", 1.0),
        ];
        let parts = parts
            .map(|(what, middle)| self.constant(&format!("{name}.{what}"), &shape, middle, 0.3));
        self.push(Op::BatchNorm { epsilon: 1e-5 }, &parts)
    }

    pub fn relu(self) -> Layers {
        self.push(Op::Unary(Unary::Activation(Activation::Relu)), &[])
    }

    pub fn dropout(mut self) -> Layers {
        let seed = self.graph.add_literal("seed", Literal::from_i64(&[], &[0]));
        let op = Op::Dropout {
            ratio: 0.3,
            generator: Generator::Counter { stream: 1 },
        };
        self.push(op, &[seed])
    }

    pub fn plus(self, other: ValueId) -> Layers {
        self.push(Op::Binary(neap_ir::op::Binary::Add), &[other])
    }

    pub fn averaged(self) -> Layers {
        let kind = Pool::Average {
            count_include_pad: false,
        };
        self.push(Op::GlobalPool(kind), &[]).flat()
    }

    pub fn flat(self) -> Layers {
        let elements = self.graph.ty(self.last).elements();
        let shape = vec![BATCH, elements / BATCH];
        self.push(Op::Reshape { shape }, &[])
    }

    pub fn done(mut self) -> Graph {
        self.graph.outputs = vec![self.last];
        self.graph
    }
}

pub fn mlp() -> Graph {
    let layers = Layers::new(1).flat().linear("first", 96).relu();
    layers
        .linear("second", 48)
        .relu()
        .linear("scores", CLASSES)
        .done()
}

/// More bytes of states than of anything else.
pub fn deep() -> Graph {
    let mut layers = Layers::new(3).flat().linear("first", 160).relu();
    for i in 0..12 {
        layers = layers.linear(&format!("layer{i}"), 160).relu();
    }
    layers.linear("scores", CLASSES).done()
}

/// Convolutions (one depthwise), batch normalisations, a residual sum, dropout.
pub fn cnn() -> Graph {
    let stem = Layers::new(2).conv("stem", 16, 1, 1).norm("stem.bn").relu();
    let skip = stem.here();
    let block = stem
        .conv("depthwise", 16, 1, 16)
        .norm("depthwise.bn")
        .relu();
    let block = block
        .conv("point", 16, 1, 1)
        .norm("point.bn")
        .plus(skip)
        .relu();
    let end = block
        .conv("last", 32, 2, 1)
        .norm("last.bn")
        .relu()
        .averaged();
    end.dropout().linear("scores", CLASSES).done()
}

/// Tokens, a table of 36 MB that is looked up in (from the end, too) and multiplied with, and classes of what it gives.
pub fn tied() -> Graph {
    const ROWS: usize = 60_000;
    const WIDTH: usize = 150;
    let mut layers = Layers::new(4).flat().linear("first", WIDTH).relu();
    let span = 1.0 / (WIDTH as f32).sqrt();
    let table = layers.constant("table", &[ROWS, WIDTH], 0.0, span);
    let graph = &mut layers.graph;
    let rows: Vec<i64> = (0..BATCH as i64).map(|i| i * 4_999 - 17_000).collect();
    let rows = graph.add_literal("rows", Literal::from_i64(&[BATCH], &rows));
    let images = std::mem::replace(&mut layers.last, table);
    let layers = layers.push(Op::Gather { axis: 0 }, &[rows]).plus(images);
    let hidden = layers.here();
    let mut layers = layers;
    layers.last = table;
    let perm = vec![1, 0];
    let mut layers = layers.push(Op::Transpose { perm }, &[]);
    let turned = std::mem::replace(&mut layers.last, hidden);
    layers
        .push(Op::MatMul, &[turned])
        .linear("scores", CLASSES)
        .done()
}
