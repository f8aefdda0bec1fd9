//! Trains a small classifier on Fashion-MNIST and shows its accuracy after every epoch.
//!
//! ```text
//! scripts/fashion_mnist.sh target/fashion-mnist
//! cargo run --release -p neap-autodiff --example fashion_mnist -- target/fashion-mnist [epochs] [mlp|cnn]
//! ```
//! The step is a graph of [`neap_autodiff::training_step`], run by the interpreter: everything in memory, on one thread.

use neap_autodiff::{
    BatchNorm, Decay, Loss, Pass, Schedule, Start, Training, TrainingSpec, parameters,
    training_step,
};
use neap_ir::op::{Activation, Pool, Unary, Window};
use neap_ir::update::Update;
use neap_ir::{Const, DType, Graph, Literal, Node, Op, TensorType, ValueId, infer};
use neap_ops::interpret;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

type Anything<T> = Result<T, Box<dyn Error>>;

const BATCH: usize = 64;
const CLASSES: usize = 10;
const PIXELS: usize = 28 * 28;
/// Of the data set's pixels.
const MEAN: f32 = 0.2860;
const DEVIATION: f32 = 0.3530;

fn main() -> Anything<()> {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments
        .next()
        .ok_or("the folder of the data is missing")?;
    let epochs: u64 = arguments.next().as_deref().unwrap_or("2").parse()?;
    let is_mlp = arguments.next().is_none_or(|kind| kind == "mlp");
    let folder = Path::new(&folder);
    let train = Images::read(folder, "train")?;
    let test = Images::read(folder, "t10k")?;

    let model = if is_mlp { mlp() } else { cnn() }?;
    let spec = TrainingSpec {
        result: 0,
        loss: Loss::CrossEntropy {
            class_axis: 1,
            label_smoothing: 0.0,
            ignore_index: None,
        },
        trained: parameters(&model)
            .into_iter()
            .map(|value| {
                let update = Update::Sgd {
                    momentum: 0.9,
                    nesterov: false,
                    decay: 0.0,
                };
                (value, update)
            })
            .collect(),
        batch_norm: BatchNorm::Given,
        clip: None,
        pass: Pass::Whole,
        report_result: false,
    };
    let step = training_step(model.clone(), &spec)?;
    let mut state = starts(&step)?;
    let batches = train.count() / BATCH;
    let schedule = Schedule {
        rate: if is_mlp { 0.01 } else { 0.05 },
        warm_up: 100,
        decay: Decay::Cosine {
            steps: epochs * batches as u64,
            last: 1e-4,
        },
    };
    println!(
        "{} nodes, {} parameters",
        step.graph.nodes.len(),
        count(&step)
    );
    let mut number = 0;
    for epoch in 1..=epochs {
        let start = Instant::now();
        let order = shuffled(train.count(), epoch);
        let mut sum = 0.0;
        for batch in order.chunks_exact(BATCH) {
            number += 1;
            let (images, classes) = train.batch(batch);
            let mut inputs = vec![images, classes];
            inputs.push(Literal::from_f32(&[], &[schedule.at(number) as f32]));
            inputs.push(Literal::from_i64(&[], &[number as i64]));
            inputs.append(&mut state);
            let mut results = interpret(&step.graph, &inputs, &|_| None)?.into_iter();
            sum += loss_of(results.next())?;
            state = results.collect();
        }
        let accuracy = accuracy(&model, &step, &state, &test)?;
        println!(
            "epoch {epoch}: loss {:.4}, test accuracy {:.2} %, {:.0} s",
            sum / batches as f32,
            100.0 * accuracy,
            start.elapsed().as_secs_f64()
        );
    }
    Ok(())
}

fn loss_of(result: Option<Literal>) -> Anything<f32> {
    let loss = result.ok_or("the step has no loss")?;
    let loss = loss.as_f32().ok_or("the loss is no float32")?[0];
    if loss.is_finite() {
        Ok(loss)
    } else {
        Err(format!("the loss is {loss}").into())
    }
}

fn count(step: &Training) -> usize {
    let parameters = step
        .state
        .iter()
        .filter(|s| s.role == neap_autodiff::Role::Parameter);
    parameters.map(|s| step.graph.ty(s.input).elements()).sum()
}

fn starts(step: &Training) -> Anything<Vec<Literal>> {
    let start = |state: &neap_autodiff::State| {
        // Every state changes in every step, so results take its place in order.
        if state.output.is_none() {
            return Err(format!("'{}' is never updated", state.name).into());
        }
        let ty = step.graph.ty(state.input);
        match &state.start {
            Start::Constant(Const::Inline(literal)) => Ok(literal.clone()),
            Start::Constant(_) => Err("weights are made here, and in memory".into()),
            Start::Zeros => Ok(Literal::zeros(ty.dtype, &ty.shape)),
        }
    };
    step.state.iter().map(start).collect()
}

/// Of the model with the parameters as they are now.
fn accuracy(model: &Graph, step: &Training, state: &[Literal], test: &Images) -> Anything<f64> {
    let mut model = model.clone();
    for (kept, now) in step.state.iter().zip(state) {
        if let Some(id) = model
            .values
            .get(kept.input.index())
            .and_then(|v| v.constant)
        {
            model.consts[id.index()] = Const::Inline(now.clone());
        }
    }
    let mut right = 0;
    let all: Vec<usize> = (0..test.count() / BATCH * BATCH).collect();
    for batch in all.chunks_exact(BATCH) {
        let (images, _) = test.batch(batch);
        let results = interpret(&model, &[images], &|_| None)?;
        let scores = results[0].as_f32().ok_or("scores are no float32")?;
        for (scores, &image) in scores.chunks(CLASSES).zip(batch) {
            let best = (0..CLASSES).max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            right += usize::from(best == Some(usize::from(test.classes[image])));
        }
    }
    Ok(right as f64 / all.len() as f64)
}

/// Images and their classes, as the files hold them.
struct Images {
    pixels: Vec<u8>,
    classes: Vec<u8>,
}

impl Images {
    /// Two IDX files, unpacked: a big-endian header of 16 (images) or 8 bytes (classes), then bytes.
    fn read(folder: &Path, which: &str) -> Anything<Images> {
        let read = |kind: &str, magic: u32, header: usize| -> Anything<Vec<u8>> {
            let path = folder.join(format!("{which}-{kind}-ubyte"));
            let bytes = std::fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let first = bytes.first_chunk().map(|b| u32::from_be_bytes(*b));
            if first != Some(magic) || bytes.len() < header {
                return Err(format!("{} is no IDX file of this kind", path.display()).into());
            }
            Ok(bytes[header..].to_vec())
        };
        let pixels = read("images-idx3", 0x803, 16)?;
        let classes = read("labels-idx1", 0x801, 8)?;
        let fits = pixels.len() == classes.len() * PIXELS;
        if !fits || classes.iter().any(|&c| usize::from(c) >= CLASSES) {
            return Err(format!("{which}: images and classes do not fit").into());
        }
        Ok(Images { pixels, classes })
    }

    fn count(&self) -> usize {
        self.classes.len()
    }

    fn batch(&self, which: &[usize]) -> (Literal, Literal) {
        let mut data = Vec::with_capacity(which.len() * PIXELS);
        for &image in which {
            let pixels = &self.pixels[image * PIXELS..][..PIXELS];
            data.extend(
                pixels
                    .iter()
                    .map(|&p| (f32::from(p) / 255.0 - MEAN) / DEVIATION),
            );
        }
        let classes: Vec<i64> = which.iter().map(|&i| self.classes[i].into()).collect();
        (
            Literal::from_f32(&[which.len(), 1, 28, 28], &data),
            Literal::from_i64(&[which.len()], &classes),
        )
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 24) as f32
    }
}

fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut random = Random(seed);
    for i in (1..count).rev() {
        order.swap(i, (random.next() % (i as u64 + 1)) as usize);
    }
    order
}

/// A graph whose last value is the next layer's operand.
struct Layers {
    graph: Graph,
    last: ValueId,
    random: Random,
}

impl Layers {
    fn new() -> Layers {
        let mut graph = Graph::default();
        let last = graph.add_value("images", TensorType::new(DType::F32, &[BATCH, 1, 28, 28]));
        graph.inputs = vec![last];
        Layers {
            graph,
            last,
            random: Random(1),
        }
    }

    fn push(mut self, op: Op, parameters: &[ValueId]) -> Anything<Layers> {
        let inputs: Vec<_> = [&[self.last], parameters]
            .concat()
            .into_iter()
            .map(Some)
            .collect();
        let types: Vec<_> = inputs
            .iter()
            .map(|i| i.map(|v| self.graph.ty(v).clone()))
            .collect();
        let ty = infer::output_types(&op, &types, 1)?.remove(0);
        let name = format!("{}.{}", op.name(), self.graph.nodes.len());
        self.last = self.graph.add_value(name.clone(), ty);
        self.graph.nodes.push(Node {
            name,
            op,
            inputs,
            outputs: vec![Some(self.last)],
            panels: None,
        });
        Ok(self)
    }

    /// A weight and a bias, uniform within `1 / sqrt(inputs)`.
    fn parameters(&mut self, name: &str, weight: &[usize]) -> [ValueId; 2] {
        let inputs: usize = weight[1..].iter().product();
        let bound = 1.0 / (inputs as f32).sqrt();
        let mut constant = |what: &str, shape: &[usize]| {
            let count = shape.iter().product();
            let data: Vec<f32> = (0..count)
                .map(|_| bound * (2.0 * self.random.unit() - 1.0))
                .collect();
            let literal = Literal::from_f32(shape, &data);
            self.graph.add_literal(format!("{name}.{what}"), literal)
        };
        [constant("weight", weight), constant("bias", &weight[..1])]
    }

    fn linear(mut self, name: &str, inputs: usize, outputs: usize) -> Anything<Layers> {
        let parameters = self.parameters(name, &[outputs, inputs]);
        let gemm = Op::Gemm {
            alpha: 1.0,
            beta: 1.0,
            trans_a: false,
            trans_b: true,
        };
        self.push(gemm, &parameters)
    }

    fn conv(mut self, name: &str, inputs: usize, outputs: usize) -> Anything<Layers> {
        let parameters = self.parameters(name, &[outputs, inputs, 3, 3]);
        self.push(Op::Conv(window(3, 1, 1), 1), &parameters)?.relu()
    }

    fn relu(self) -> Anything<Layers> {
        self.push(Op::Unary(Unary::Activation(Activation::Relu)), &[])
    }

    fn halved(self, size: usize) -> Anything<Layers> {
        let op = Op::Pool {
            kind: Pool::Max {
                column_major: false,
            },
            window: window(2, 2, 0),
            output_spatial: vec![size / 2; 2],
        };
        self.push(op, &[])
    }

    fn flat(self) -> Anything<Layers> {
        let elements = self.graph.ty(self.last).elements();
        let shape = vec![BATCH, elements / BATCH];
        self.push(Op::Reshape { shape }, &[])
    }

    fn done(mut self) -> Graph {
        self.graph.outputs = vec![self.last];
        self.graph
    }
}

fn window(kernel: usize, stride: usize, pad: usize) -> Window {
    Window {
        kernel: vec![kernel; 2],
        strides: vec![stride; 2],
        dilations: vec![1; 2],
        pads_begin: vec![pad; 2],
        pads_end: vec![pad; 2],
    }
}

/// 784 - 128 - 10.
fn mlp() -> Anything<Graph> {
    let layers = Layers::new().flat()?;
    let layers = layers.linear("hidden", PIXELS, 128)?.relu()?;
    Ok(layers.linear("scores", 128, CLASSES)?.done())
}

/// Two convolutions with max pooling, then 128 - 10: 421,642 parameters.
fn cnn() -> Anything<Graph> {
    let layers = Layers::new().conv("conv1", 1, 32)?.halved(28)?;
    let layers = layers.conv("conv2", 32, 64)?.halved(14)?.flat()?;
    let layers = layers.linear("hidden", 64 * 7 * 7, 128)?.relu()?;
    Ok(layers.linear("scores", 128, CLASSES)?.done())
}
