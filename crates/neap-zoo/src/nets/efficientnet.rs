//! EfficientNet-B0: inverted residuals whose channels are scaled by what the whole image says.

use crate::graph::Graph;
use crate::layers::{
    Conv, Signal, add, batch_norm, classifier, conv, global_avg_pool, image_input, scaled, sigmoid,
    silu,
};

const EPSILON: f32 = 1e-5;
const BRANCH_GAMMA: f64 = 0.4;
/// Neighbours that are alike add up to so many times what independent ones would in a block. Without a limit as ReLU6 has it, signals would
/// grow from block to block until gates are open or shut.
const GROWTH: f64 = 2.0;

/// Expansion, kernel, first stride, output channels, repeats.
const STAGES: [(usize, usize, usize, usize, usize); 7] = [
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
];

pub(crate) fn efficientnet_b0(g: &mut Graph) {
    let input = image_input(g, 224);
    let mut x = unit(g, "features.0", &input, Conv::new(32, 3).stride(2));
    for (index, stage) in STAGES.into_iter().enumerate() {
        for repeat in 0..stage.4 {
            let stride = if repeat == 0 { stage.2 } else { 1 };
            let scope = format!("features.{}.{repeat}", index + 1);
            x = inverted_residual(g, &scope, &x, stage, stride);
        }
    }
    x = unit(g, "features.8", &x, Conv::new(1280, 1));
    classifier(g, "classifier.1", "avgpool", &x);
}

/// Convolution, BatchNorm, SiLU.
fn unit(g: &mut Graph, scope: &str, x: &Signal, c: Conv) -> Signal {
    let x = conv(g, &format!("{scope}.0"), x, c);
    let x = batch_norm(g, &format!("{scope}.1"), &x, 1.0, EPSILON);
    silu(g, &format!("{scope}.2"), &x)
}

fn inverted_residual(
    g: &mut Graph,
    scope: &str,
    input: &Signal,
    (expansion, kernel, _, out, _): (usize, usize, usize, usize, usize),
    stride: usize,
) -> Signal {
    let hidden = input.channels * expansion;
    let mut x = input.clone();
    let mut part = 0;
    if expansion != 1 {
        x = unit(g, &format!("{scope}.block.0"), &x, Conv::new(hidden, 1));
        part = 1;
    }
    let depthwise = Conv::new(hidden, kernel).stride(stride).groups(hidden);
    x = unit(g, &format!("{scope}.block.{part}"), &x, depthwise);
    x = excited(
        g,
        &format!("{scope}.block.{}", part + 1),
        &x,
        input.channels / 4,
    );
    let last = format!("{scope}.block.{}", part + 2);
    x = conv(g, &format!("{last}.0"), &x, Conv::new(out, 1));
    let residual = stride == 1 && input.channels == out;
    let gamma = if residual { BRANCH_GAMMA } else { 1.0 };
    x = batch_norm(g, &format!("{last}.1"), &x, gamma / GROWTH, EPSILON);
    for group in &mut x.groups {
        group.mean *= GROWTH;
        group.var *= GROWTH * GROWTH;
    }
    if residual {
        add(g, scope, &x, input)
    } else {
        x
    }
}

/// Squeeze and excitation.
fn excited(g: &mut Graph, scope: &str, x: &Signal, squeezed: usize) -> Signal {
    let pooled = global_avg_pool(g, &format!("{scope}.avgpool"), x);
    // Means of channels differ, however large the image: weights that made up for a small variance would leave gates open or shut.
    let pooled = Signal {
        groups: x.groups.clone(),
        ..pooled
    };
    let layer = |out: usize| Conv::new(out, 1).bias().output_std(1.0);
    let few = conv(g, &format!("{scope}.fc1"), &pooled, layer(squeezed));
    let few = silu(g, &format!("{scope}.activation"), &few);
    let scale = conv(g, &format!("{scope}.fc2"), &few, layer(x.channels));
    let scale = sigmoid(g, &format!("{scope}.scale_activation"), &scale);
    scaled(g, scope, x, &scale)
}
