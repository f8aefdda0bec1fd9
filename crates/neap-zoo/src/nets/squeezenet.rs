//! SqueezeNet 1.1.

use crate::graph::Graph;
use crate::layers::{
    Conv, Rounding, Signal, concat, conv, flatten, global_avg_pool, image_input, max_pool, relu,
};

/// Squeeze and (each half's) expand widths; a pooling precedes fires 0, 2 and 4.
const FIRES: [(usize, usize); 8] = [
    (16, 64),
    (16, 64),
    (32, 128),
    (32, 128),
    (48, 192),
    (48, 192),
    (64, 256),
    (64, 256),
];

pub(crate) fn squeezenet1_1(g: &mut Graph) {
    let input = image_input(g, 224);
    let stem = Conv::new(64, 3).stride(2).pad(0).bias().output_std(1.0);
    let mut x = conv(g, "features.0", &input, stem);
    x = relu(g, "features.1", &x);
    let mut index = 2;
    for (i, (squeeze, expand)) in FIRES.into_iter().enumerate() {
        if matches!(i, 0 | 2 | 4) {
            x = max_pool(g, &format!("features.{index}"), &x, 3, 2, 0, Rounding::Ceil);
            index += 1;
        }
        x = fire(g, &format!("features.{index}"), &x, squeeze, expand);
        index += 1;
    }
    x = conv(
        g,
        "classifier.1",
        &x,
        Conv::new(1000, 1).bias().output_std(2.0),
    );
    x = relu(g, "classifier.2", &x);
    x = global_avg_pool(g, "classifier.3", &x);
    x = flatten(g, "", &x);
    g.output(&x.value, "output", &[1000]);
}

fn fire(g: &mut Graph, scope: &str, x: &Signal, squeeze: usize, expand: usize) -> Signal {
    let mut layer = |x: &Signal, part: &str, activation: &str, c: Conv| {
        let x = conv(g, &format!("{scope}.{part}"), x, c.bias().output_std(1.0));
        relu(g, &format!("{scope}.{activation}"), &x)
    };
    let x = layer(x, "squeeze", "squeeze_activation", Conv::new(squeeze, 1));
    let a = layer(
        &x,
        "expand1x1",
        "expand1x1_activation",
        Conv::new(expand, 1),
    );
    let b = layer(
        &x,
        "expand3x3",
        "expand3x3_activation",
        Conv::new(expand, 3),
    );
    concat(g, scope, &[&a, &b])
}
