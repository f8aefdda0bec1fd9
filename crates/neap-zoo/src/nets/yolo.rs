//! YOLOv3 at 416 × 416: Darknet-53, three raw detection outputs of 255 channels.

use crate::graph::Graph;
use crate::layers::{
    Conv, Signal, add, batch_norm, concat, conv, image_input, leaky_relu, upsample,
};

const EPSILON: f32 = 1e-5;
const BRANCH_GAMMA: f64 = 0.3;
/// Three anchors, each a box, an objectness and 80 classes.
const DETECTION_CHANNELS: usize = 3 * 85;
/// Residual blocks per stage of Darknet-53.
const STAGES: [usize; 5] = [1, 2, 8, 8, 4];

pub(crate) fn yolov3(g: &mut Graph) {
    let input = image_input(g, 416);
    let mut b = Builder { graph: g, index: 0 };
    let mut x = b.unit(&input, Conv::new(32, 3), 1.0);
    let mut skips = Vec::new();
    for (stage, blocks) in STAGES.into_iter().enumerate() {
        let width = 64 << stage;
        x = b.unit(&x, Conv::new(width, 3).stride(2), 1.0);
        for _ in 0..blocks {
            let y = b.unit(&x, Conv::new(width / 2, 1), 1.0);
            let y = b.unit(&y, Conv::new(width, 3), BRANCH_GAMMA);
            x = add(b.graph, &format!("module_list.{}", b.index), &x, &y);
            b.index += 1;
        }
        skips.push(x.clone());
    }
    for (scale, width) in [512, 256, 128].into_iter().enumerate() {
        if scale > 0 {
            let narrowed = b.unit(&x, Conv::new(width, 1), 1.0);
            let upsampled = b.upsample(&narrowed);
            x = concat(
                b.graph,
                &format!("module_list.{}", b.index),
                &[&upsampled, &skips[4 - scale]],
            );
            b.index += 1;
        }
        for layer in 0..5 {
            let c = if layer % 2 == 0 {
                Conv::new(width, 1)
            } else {
                Conv::new(2 * width, 3)
            };
            x = b.unit(&x, c, 1.0);
        }
        b.detect(&x, 2 * width);
    }
}

/// Numbers the layers as Darknet's configuration does.
struct Builder<'a> {
    graph: &'a mut Graph,
    index: usize,
}

impl Builder<'_> {
    /// Convolution, BatchNorm, leaky ReLU.
    fn unit(&mut self, x: &Signal, c: Conv, gamma: f64) -> Signal {
        let scope = format!("module_list.{}", self.index);
        self.index += 1;
        let x = conv(self.graph, &format!("{scope}.conv"), x, c);
        let x = batch_norm(
            self.graph,
            &format!("{scope}.batch_norm"),
            &x,
            gamma,
            EPSILON,
        );
        leaky_relu(self.graph, &format!("{scope}.leaky"), &x, 0.1)
    }

    /// Nearest-neighbour doubling.
    fn upsample(&mut self, x: &Signal) -> Signal {
        let scope = format!("module_list.{}", self.index);
        self.index += 1;
        upsample(self.graph, &scope, x, 2, "nearest")
    }

    /// A detection head; its output is named after its grid for images of 416 × 416 (`output_13` and so on).
    fn detect(&mut self, x: &Signal, width: usize) {
        let x = self.unit(x, Conv::new(width, 3), 1.0);
        let c = Conv::new(DETECTION_CHANNELS, 1).bias().output_std(2.0);
        let x = conv(
            self.graph,
            &format!("module_list.{}.conv", self.index),
            &x,
            c,
        );
        // The detection layer itself is left to the reader of these outputs.
        self.index += 2;
        let free = match x.height {
            13 => ["height_13", "width_13"],
            26 => ["height_26", "width_26"],
            _ => ["height_52", "width_52"],
        };
        let name = format!("output_{}", x.height);
        self.graph.image_output(&x.value, &name, &x.dims(), free);
    }
}
