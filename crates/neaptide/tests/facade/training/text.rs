//! A model of text: words to vectors, an LSTM in both directions, a GRU, classes.

use super::budgets::smallest;
use super::models::{BATCH, CLASSES, Random};
use super::reference::{ADAMW, continued_on, interpreted_on, options, trainer};
use neap_ir::op::{Direction, Recurrent, RecurrentActivation as A};
use neap_ir::{DType, Graph, Literal, Node, Op, TensorType, ValueId, infer};
use neaptide::{Budget, TrainOptions};

const WORDS: usize = 600;
const LENGTH: usize = 12;
const WIDTH: usize = 64;
const HIDDEN: usize = 96;

struct Text {
    graph: Graph,
    random: Random,
}

impl Text {
    fn parameter(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let data = self.random.floats(shape.iter().product());
        let data: Vec<f32> = data.iter().map(|v| 0.1 * v).collect();
        self.graph
            .add_literal(name, Literal::from_f32(shape, &data))
    }

    fn push(&mut self, op: Op, inputs: &[ValueId], outputs: &[bool]) -> Vec<ValueId> {
        let inputs: Vec<_> = inputs.iter().map(|&v| Some(v)).collect();
        let types: Vec<_> = (inputs.iter())
            .map(|i| i.map(|v| self.graph.ty(v).clone()))
            .collect();
        let types = infer::output_types(&op, &types, outputs.len()).unwrap();
        let name = format!("{}.{}", op.name(), self.graph.nodes.len());
        let outputs: Vec<Option<ValueId>> = (types.into_iter().zip(outputs).enumerate())
            .map(|(i, (ty, wanted))| {
                wanted.then(|| self.graph.add_value(format!("{name}.{i}"), ty))
            })
            .collect();
        let made = outputs.iter().flatten().copied().collect();
        self.graph.nodes.push(Node {
            name,
            op,
            inputs,
            outputs,
            panels: None,
        });
        made
    }

    fn recurrent(
        &mut self,
        name: &str,
        gates: usize,
        directions: usize,
        input: usize,
    ) -> [ValueId; 3] {
        let rows = gates * HIDDEN;
        [
            self.parameter(&format!("{name}.w"), &[directions, rows, input]),
            self.parameter(&format!("{name}.r"), &[directions, rows, HIDDEN]),
            self.parameter(&format!("{name}.bias"), &[directions, 2 * rows]),
        ]
    }
}

fn model() -> Graph {
    let mut text = Text {
        graph: Graph::default(),
        random: Random(4),
    };
    let ty = TensorType::new(DType::I64, &[BATCH, LENGTH]);
    let words = text.graph.add_value("words", ty);
    text.graph.inputs = vec![words];
    let table = text.parameter("embedding", &[WORDS, WIDTH]);
    let x = text.push(Op::Gather { axis: 0 }, &[table, words], &[true])[0];
    let recurrent = |direction, activations: &[A]| Recurrent {
        hidden: HIDDEN,
        direction,
        activations: activations.to_vec(),
        clip: None,
        couple_input_forget: false,
        batch_first: true,
        rounds_state: false,
        in_panels: false,
    };
    let lstm = [A::Sigmoid, A::Tanh, A::Tanh].repeat(2);
    let lstm = Op::Lstm(recurrent(Direction::Bidirectional, &lstm));
    let [w, r, bias] = text.recurrent("lstm", 4, 2, WIDTH);
    let x = text.push(lstm, &[x, w, r, bias], &[true])[0];
    let shape = vec![BATCH, LENGTH, 2 * HIDDEN];
    let x = text.push(Op::Reshape { shape }, &[x], &[true])[0];
    let gru = Op::Gru {
        recurrent: recurrent(Direction::Forward, &[A::Sigmoid, A::Tanh]),
        linear_before_reset: true,
    };
    let [w, r, bias] = text.recurrent("gru", 3, 1, 2 * HIDDEN);
    // The last state alone.
    let x = text.push(gru, &[x, w, r, bias], &[false, true])[0];
    let shape = vec![BATCH, HIDDEN];
    let x = text.push(Op::Reshape { shape }, &[x], &[true])[0];
    let w = text.parameter("scores.weight", &[CLASSES, HIDDEN]);
    let bias = text.parameter("scores.bias", &[CLASSES]);
    let gemm = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    let scores = text.push(gemm, &[x, w, bias], &[true]);
    text.graph.outputs = scores;
    text.graph
}

/// Words, and the first of them as class.
fn sentences(steps: usize) -> Vec<(Literal, Literal)> {
    let mut random = Random(9);
    let batch = |_| {
        let drawn = random.floats(BATCH * LENGTH);
        let words: Vec<i64> = (drawn.iter())
            .map(|v| ((v + 1.0) / 2.0 * WORDS as f32) as i64)
            .map(|word| word.min(WORDS as i64 - 1))
            .collect();
        let classes: Vec<i64> = (words.iter().step_by(LENGTH))
            .map(|word| word % CLASSES as i64)
            .collect();
        (
            Literal::from_i64(&[BATCH, LENGTH], &words),
            Literal::from_i64(&[BATCH], &classes),
        )
    };
    (0..steps).map(batch).collect()
}

#[test]
fn every_budget_gives_the_bits_of_the_interpreter() {
    let (model, steps) = (model(), sentences(3));
    let with = |bytes| TrainOptions {
        budget: Budget::Engine(bytes),
        ..options(2)
    };
    let expected = interpreted_on(&model, &options(2), ADAMW, &[], steps.clone());
    let moves = |pair: &[f64]| pair[0] != pair[1];
    assert!(expected.losses.windows(2).all(moves));
    let whole = trainer(&model, &with(1 << 40), ADAMW, &[]).unwrap();
    assert_eq!(whole.traffic_bytes(), (0, 0));
    let whole_bytes = whole.high_water_bytes();
    let smallest_bytes = smallest(&model, &options(2));
    assert!(smallest_bytes < whole_bytes);
    for share in 0..=4 {
        let bytes = smallest_bytes + (whole_bytes - smallest_bytes) * share / 4;
        let mut trainer = trainer(&model, &with(bytes), ADAMW, &[]).unwrap();
        assert!(trainer.high_water_bytes() <= bytes);
        let (stored, loaded) = trainer.traffic_bytes();
        assert_eq!((stored > 0, loaded > 0), (share < 4, share < 4), "{bytes}");
        let found = continued_on(&mut trainer, &steps);
        assert_eq!(found.losses, expected.losses, "{bytes} bytes");
        assert!(found == expected, "{bytes} bytes");
    }
}

/// On the same sentences again and again the loss falls.
#[test]
fn a_text_model_learns() {
    let batch = sentences(1).remove(0);
    let steps = vec![batch; 12];
    let mut trainer = trainer(&model(), &options(1), ADAMW, &[]).unwrap();
    let losses = continued_on(&mut trainer, &steps).losses;
    // Labels are smoothed, so there is a loss that no scores go below.
    assert!(losses[11] < 0.8 * losses[0], "{losses:?}");
}
