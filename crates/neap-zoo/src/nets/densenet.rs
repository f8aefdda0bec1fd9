//! DenseNet-121.

use crate::graph::Graph;
use crate::layers::{
    Conv, Rounding, Signal, avg_pool, batch_norm, classifier, concat, conv, image_input, max_pool,
    relu,
};

const EPSILON: f32 = 1e-5;
const GROWTH: usize = 32;
const BOTTLENECK: usize = 4 * GROWTH;
const BLOCKS: [usize; 4] = [6, 12, 24, 16];

pub(crate) fn densenet121(g: &mut Graph) {
    let input = image_input(g, 224);
    let x = conv(g, "features.conv0", &input, Conv::new(64, 7).stride(2));
    let x = norm_relu(g, "features.norm0", "features.relu0", &x);
    let mut x = max_pool(g, "features.pool0", &x, 3, 2, 1, Rounding::Floor);
    for (i, layers) in BLOCKS.into_iter().enumerate() {
        let block = format!("features.denseblock{}", i + 1);
        let mut features = vec![x];
        for layer in 1..=layers {
            let grown = dense_layer(g, &format!("{block}.denselayer{layer}"), &features);
            features.push(grown);
        }
        x = concat(g, &block, &features.iter().collect::<Vec<_>>());
        if i + 1 < BLOCKS.len() {
            let scope = format!("features.transition{}", i + 1);
            let half = x.channels / 2;
            x = norm_relu(g, &format!("{scope}.norm"), &format!("{scope}.relu"), &x);
            x = conv(g, &format!("{scope}.conv"), &x, Conv::new(half, 1));
            x = avg_pool(g, &format!("{scope}.pool"), &x, 2, 2, 0);
        }
    }
    x = norm_relu(g, "features.norm5", "", &x);
    classifier(g, "classifier", "", &x);
}

fn norm_relu(g: &mut Graph, norm: &str, activation: &str, x: &Signal) -> Signal {
    let x = batch_norm(g, norm, x, 1.0, EPSILON);
    relu(g, activation, &x)
}

/// Sees all earlier features of its block, adds `GROWTH` channels.
fn dense_layer(g: &mut Graph, scope: &str, features: &[Signal]) -> Signal {
    // With a single earlier feature PyTorch exports a concatenation all the same.
    let x = concat(g, scope, &features.iter().collect::<Vec<_>>());
    let x = norm_relu(g, &format!("{scope}.norm1"), &format!("{scope}.relu1"), &x);
    let x = conv(g, &format!("{scope}.conv1"), &x, Conv::new(BOTTLENECK, 1));
    let x = norm_relu(g, &format!("{scope}.norm2"), &format!("{scope}.relu2"), &x);
    conv(g, &format!("{scope}.conv2"), &x, Conv::new(GROWTH, 3))
}
