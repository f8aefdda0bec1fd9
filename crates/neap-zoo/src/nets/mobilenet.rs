//! MobileNetV2, width 1.0.

use crate::graph::Graph;
use crate::layers::{Conv, Signal, add, batch_norm, classifier, conv, image_input, relu6};

const EPSILON: f32 = 1e-5;
const BRANCH_GAMMA: f64 = 0.4;

/// Expansion, output channels, repeats, first stride.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

pub(crate) fn mobilenet_v2(g: &mut Graph) {
    let input = image_input(g, 224);
    let mut x = conv_bn_relu6(g, "features.0", &input, Conv::new(32, 3).stride(2));
    let mut index = 1;
    for (expansion, out, repeats, first_stride) in STAGES {
        for repeat in 0..repeats {
            let stride = if repeat == 0 { first_stride } else { 1 };
            x = inverted_residual(g, &format!("features.{index}"), &x, expansion, out, stride);
            index += 1;
        }
    }
    x = conv_bn_relu6(g, &format!("features.{index}"), &x, Conv::new(1280, 1));
    classifier(g, "classifier.1", "", &x);
}

fn conv_bn_relu6(g: &mut Graph, scope: &str, x: &Signal, c: Conv) -> Signal {
    let x = conv(g, &format!("{scope}.0"), x, c);
    let x = batch_norm(g, &format!("{scope}.1"), &x, 1.0, EPSILON);
    relu6(g, &format!("{scope}.2"), &x)
}

fn inverted_residual(
    g: &mut Graph,
    scope: &str,
    input: &Signal,
    expansion: usize,
    out: usize,
    stride: usize,
) -> Signal {
    let hidden = input.channels * expansion;
    let mut x = input.clone();
    let mut part = 0;
    if expansion != 1 {
        x = conv_bn_relu6(g, &format!("{scope}.conv.0"), &x, Conv::new(hidden, 1));
        part = 1;
    }
    let depthwise = Conv::new(hidden, 3).stride(stride).groups(hidden);
    x = conv_bn_relu6(g, &format!("{scope}.conv.{part}"), &x, depthwise);
    x = conv(
        g,
        &format!("{scope}.conv.{}", part + 1),
        &x,
        Conv::new(out, 1),
    );
    let residual = stride == 1 && input.channels == out;
    let gamma = if residual { BRANCH_GAMMA } else { 1.0 };
    x = batch_norm(g, &format!("{scope}.conv.{}", part + 2), &x, gamma, EPSILON);
    if residual {
        add(g, scope, input, &x)
    } else {
        x
    }
}
