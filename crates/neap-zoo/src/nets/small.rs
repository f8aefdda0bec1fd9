//! Small networks for ten classes of grey pictures of 28 x 28, such as MNIST's: for training on any machine.

use crate::graph::{DType, Graph};
use crate::layers::{Conv, Rounding, Signal, conv, flatten, linear, max_pool, relu};
use crate::stats::Group;

const SIDE: usize = 28;
const CLASSES: usize = 10;

/// 784 - 128 - 10.
pub(crate) fn mlp(g: &mut Graph) {
    let x = picture(g);
    let x = flatten(g, "", &x);
    hidden_and_scores(g, &x);
}

/// Two convolutions of 3 x 3, each with a maximum over 2 x 2, then 128 - 10.
pub(crate) fn cnn(g: &mut Graph) {
    let mut x = picture(g);
    for (scope, channels) in [("conv1", 32), ("conv2", 64)] {
        x = conv(g, scope, &x, Conv::new(channels, 3).bias());
        x = relu(g, scope, &x);
        x = max_pool(g, scope, &x, 2, 2, 0, Rounding::Floor);
    }
    let x = flatten(g, "", &x);
    hidden_and_scores(g, &x);
}

fn picture(g: &mut Graph) -> Signal {
    Signal {
        value: g.input("input", DType::F32, &[1, SIDE, SIDE]),
        channels: 1,
        height: SIDE,
        width: SIDE,
        groups: vec![Group {
            channels: 1,
            mean: 0.0,
            var: 1.0,
        }],
    }
}

fn hidden_and_scores(g: &mut Graph, x: &Signal) {
    let x = linear(g, "hidden", x, 128, 1.0);
    let x = relu(g, "hidden", &x);
    // Small scores at first, so that no class is likelier than another.
    let x = linear(g, "scores", &x, CLASSES, 0.1);
    g.output(&x.value, "output", &[CLASSES]);
}
