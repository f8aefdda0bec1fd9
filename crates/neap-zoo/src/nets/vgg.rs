//! VGG-19 without BatchNorm.

use crate::graph::Graph;
use crate::layers::{Conv, Rounding, avg_pool, conv, flatten, image_input, linear, max_pool, relu};

/// Convolutions per stage and their width.
const STAGES: [(usize, usize); 5] = [(2, 64), (2, 128), (4, 256), (4, 512), (4, 512)];

pub(crate) fn vgg19(g: &mut Graph) {
    let mut x = image_input(g, 224);
    let mut index = 0;
    for (convs, width) in STAGES {
        for _ in 0..convs {
            // Unit variance before each rectifier, whatever pooling did to the input.
            let c = Conv::new(width, 3).bias().output_std(1.0);
            x = conv(g, &format!("features.{index}"), &x, c);
            x = relu(g, &format!("features.{}", index + 1), &x);
            index += 2;
        }
        x = max_pool(
            g,
            &format!("features.{index}"),
            &x,
            2,
            2,
            0,
            Rounding::Floor,
        );
        index += 1;
    }
    // AdaptiveAvgPool2d(7) on a 7 × 7 input: exported as a 1 × 1 window.
    x = avg_pool(g, "avgpool", &x, 1, 1, 0);
    x = flatten(g, "", &x);
    for (layer, activation) in [
        ("classifier.0", "classifier.1"),
        ("classifier.3", "classifier.4"),
    ] {
        x = linear(g, layer, &x, 4096, 1.0);
        x = relu(g, activation, &x);
    }
    x = linear(g, "classifier.6", &x, 1000, 2.0);
    g.output(&x.value, "output", &[1000]);
}
