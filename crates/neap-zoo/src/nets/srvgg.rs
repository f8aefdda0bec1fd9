//! Real-ESRGAN's compact network (`realesr-general-x4v3`): one convolution after another, and four times the size at the end.

use crate::graph::{Attr, Graph};
use crate::layers::{Conv, Signal, add, conv, image, prelu, upsample};

const CHANNELS: usize = 64;
const LAYERS: usize = 32;
const SCALE: usize = 4;

/// From 480 × 270 to 1920 × 1080.
pub(crate) fn srvgg(g: &mut Graph) {
    let input = image(g, [270, 480]);
    let mut x = input.clone();
    for layer in 0..=LAYERS {
        let c = Conv::new(CHANNELS, 3).bias().output_std(1.0);
        x = conv(g, &format!("body.{}", 2 * layer), &x, c);
        x = prelu(g, &format!("body.{}", 2 * layer + 1), &x, 0.2);
    }
    let c = Conv::new(3 * SCALE * SCALE, 3).bias().output_std(0.3);
    x = conv(g, &format!("body.{}", 2 * LAYERS + 2), &x, c);
    let x = shuffled(g, "upsampler", &x);
    let base = upsample(g, "", &input, SCALE, "nearest");
    let x = add(g, "", &x, &base);
    let free = ["out_height", "out_width"];
    g.image_output(&x.value, "output", &x.dims(), free);
}

/// Channels become places.
fn shuffled(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let attrs = vec![
        ("blocksize", Attr::Int(SCALE as i64)),
        ("mode", Attr::Str("CRD")),
    ];
    let value = g.node(scope, "DepthToSpace", &[&x.value], attrs);
    let mut groups = x.groups.clone();
    groups.iter_mut().for_each(|g| g.channels /= SCALE * SCALE);
    Signal {
        value,
        channels: x.channels / (SCALE * SCALE),
        height: x.height * SCALE,
        width: x.width * SCALE,
        groups,
    }
}
