//! Long short-term memories unrolled over time, in one direction or both, as SwapAdvisor trains them:
//! cells of primitive operators, parameters shared by all cells of a layer.

use crate::graph::{Attr, DType, Graph, Small};
use crate::init::Init;

/// Layers, width of the state, time steps.
pub(crate) struct Recurrent {
    pub layers: usize,
    pub width: usize,
    pub steps: usize,
    pub both_ways: bool,
}

/// What the cells of one layer and direction share.
struct Layer {
    scope: String,
    from_input: [String; 2],
    from_state: [String; 2],
}

pub(crate) fn recurrent(g: &mut Graph, r: &Recurrent) {
    let input = g.input("input", DType::F32, &[r.steps, r.width]);
    let mut sequence: Vec<String> = (0..r.steps)
        .map(|t| {
            let t = g.constant("steps", Small::I64Scalar(t as i64));
            g.node(
                "steps",
                "Gather",
                &[&input, &t],
                vec![("axis", Attr::Int(1))],
            )
        })
        .collect();
    let mut input_width = r.width;
    for layer in 0..r.layers {
        let forward = Layer::new(g, &format!("l{layer}"), input_width, r.width);
        let states = forward.run(g, sequence.iter());
        if !r.both_ways {
            sequence = states;
            continue;
        }
        let backward = Layer::new(g, &format!("l{layer}_reverse"), input_width, r.width);
        let mut reversed = backward.run(g, sequence.iter().rev());
        reversed.reverse();
        let pairs = states.iter().zip(&reversed);
        sequence = pairs
            .map(|(a, b)| {
                let attrs = vec![("axis", Attr::Int(1))];
                g.node(&format!("l{layer}"), "Concat", &[a, b], attrs)
            })
            .collect();
        input_width = 2 * r.width;
    }
    let last = sequence.last().expect("there is a step").clone();
    g.output(&last, "output", &[input_width]);
}

impl Layer {
    fn new(g: &mut Graph, scope: &str, input: usize, width: usize) -> Layer {
        let mut pair = |part: &str, from: usize| {
            // Sums over `from` inputs of unit size stay below one.
            let weights = Init::CenteredRows {
                row: from,
                std: (0.5 / from as f64).sqrt() as f32,
            };
            let weights = g.parameter(
                format!("{scope}.{part}.weight"),
                &[4 * width, from],
                weights,
            );
            let bias = Init::bell(4 * width, 0.0, 0.05);
            let bias = g.parameter(format!("{scope}.{part}.bias"), &[4 * width], bias);
            [weights, bias]
        };
        Layer {
            from_input: pair("i2h", input),
            from_state: pair("h2h", width),
            scope: scope.to_owned(),
        }
    }

    /// The states of all steps.
    fn run<'s>(&self, g: &mut Graph, inputs: impl Iterator<Item = &'s String>) -> Vec<String> {
        let scope = &self.scope;
        let mut state: Option<[String; 2]> = None;
        inputs
            .map(|x| {
                let affine = |g: &mut Graph, x: &str, p: &[String; 2]| {
                    let attrs = vec![("transB", Attr::Int(1))];
                    g.node(scope, "Gemm", &[x, &p[0], &p[1]], attrs)
                };
                let mut gates = affine(g, x, &self.from_input);
                if let Some([h, _]) = &state {
                    let recurrent = affine(g, h, &self.from_state);
                    gates = g.node(scope, "Add", &[&gates, &recurrent], vec![]);
                }
                let parts =
                    g.node_multi(scope, "Split", &[&gates], vec![("axis", Attr::Int(1))], 4);
                let sigmoid = |g: &mut Graph, x: &str| g.node(scope, "Sigmoid", &[x], vec![]);
                let (i, f, o) = (
                    sigmoid(g, &parts[0]),
                    sigmoid(g, &parts[1]),
                    sigmoid(g, &parts[3]),
                );
                let candidate = g.node(scope, "Tanh", &[&parts[2]], vec![]);
                let mut c = g.node(scope, "Mul", &[&i, &candidate], vec![]);
                // A cell starts from nothing, and forgets nothing of it.
                if let Some([_, old]) = &state {
                    let kept = g.node(scope, "Mul", &[&f, old], vec![]);
                    c = g.node(scope, "Add", &[&c, &kept], vec![]);
                }
                let shown = g.node(scope, "Tanh", &[&c], vec![]);
                let h = g.node(scope, "Mul", &[&o, &shown], vec![]);
                state = Some([h.clone(), c]);
                h
            })
            .collect()
    }
}
