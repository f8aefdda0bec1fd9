//! What stands out in an image, as a mask: U²-Net, and IS-Net, which begins at half the size.

use crate::graph::Graph;
use crate::layers::{
    Conv, Rounding, Signal, add, batch_norm, concat, conv, image_input, max_pool, relu, sigmoid,
    upsample,
};

const EPSILON: f32 = 1e-5;
/// Of the last layer of a block, whose result is added to the block's first: all layers at full strength, one after another, would make
/// rounding as large as what they compute.
const BRANCH_GAMMA: f64 = 0.1;

/// What a block is made of.
#[derive(Clone, Copy)]
enum Form {
    /// So many layers on the way down, each after a pooling but for the first and the last.
    Deep(usize),
    /// Four layers, dilated instead of pooled.
    Flat,
}

/// Form, inner and outer channels of each stage on the way down.
const DOWN: [(Form, usize, usize); 6] = [
    (Form::Deep(7), 32, 64),
    (Form::Deep(6), 32, 128),
    (Form::Deep(5), 64, 256),
    (Form::Deep(4), 128, 512),
    (Form::Flat, 256, 512),
    (Form::Flat, 256, 512),
];

/// The same on the way up.
const UP: [(Form, usize, usize); 5] = [
    (Form::Flat, 256, 512),
    (Form::Deep(4), 128, 256),
    (Form::Deep(5), 64, 128),
    (Form::Deep(6), 32, 64),
    (Form::Deep(7), 16, 64),
];

/// Masks of all stages, and of them together; at 320 × 320.
pub(crate) fn u2net(g: &mut Graph) {
    let x = image_input(g, 320);
    let made = stages(g, &x);
    let masks: Vec<Signal> = (0..made.len()).map(|at| mask(g, at, &made[at])).collect();
    let together = concat(g, "", &masks.iter().collect::<Vec<_>>());
    let c = Conv::new(1, 1).bias().output_std(2.0);
    let together = conv(g, "outconv", &together, c);
    for (index, mask) in [together].iter().chain(&masks).enumerate() {
        give(g, mask, index);
    }
}

/// Its first mask, as it is mostly exported; at 1024 × 1024.
pub(crate) fn isnet(g: &mut Graph) {
    let x = image_input(g, 1024);
    let c = Conv::new(64, 3).stride(2).bias().output_std(1.0);
    let x = conv(g, "conv_in", &x, c);
    let made = stages(g, &x);
    let mask = mask(g, 0, &made[0]);
    let mask = upsample(g, "", &mask, 2, "linear");
    give(g, &mask, 0);
}

/// Of the stage with this index, in the size of the first.
fn mask(g: &mut Graph, index: usize, x: &Signal) -> Signal {
    let c = Conv::new(1, 3).bias().output_std(2.0);
    let mask = conv(g, &format!("side{}", index + 1), x, c);
    match index {
        0 => mask,
        _ => upsample(g, "", &mask, 1 << index, "linear"),
    }
}

fn give(g: &mut Graph, mask: &Signal, index: usize) {
    const NAMES: [&str; 7] = ["d0", "d1", "d2", "d3", "d4", "d5", "d6"];
    let mask = sigmoid(g, "", mask);
    g.image_output(&mask.value, NAMES[index], &mask.dims(), ["height", "width"]);
}

/// The nested network: what its stages give, from the last on, which has the size of `x`.
fn stages(g: &mut Graph, x: &Signal) -> Vec<Signal> {
    let mut x = x.clone();
    let mut skips: Vec<Signal> = Vec::new();
    for (index, (form, inner, outer)) in DOWN.into_iter().enumerate() {
        if let Some(skip) = skips.last() {
            x = max_pool(
                g,
                &format!("pool{index}{}", index + 1),
                skip,
                2,
                2,
                0,
                Rounding::Ceil,
            );
        }
        let scope = format!("stage{}", index + 1);
        skips.push(block(g, &scope, &x, form, inner, outer));
    }
    let mut made = vec![skips[DOWN.len() - 1].clone()];
    for (index, (form, inner, outer)) in UP.into_iter().enumerate() {
        let stage = UP.len() - index;
        let up = upsample(g, "", &made[index], 2, "linear");
        let joined = concat(g, "", &[&up, &skips[stage - 1]]);
        made.push(block(
            g,
            &format!("stage{stage}d"),
            &joined,
            form,
            inner,
            outer,
        ));
    }
    made.reverse();
    made
}

/// Convolution, BatchNorm, ReLU.
fn unit(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    (out, dilation): (usize, usize),
    gamma: f64,
) -> Signal {
    let c = Conv::new(out, 3).dilation(dilation).bias();
    let x = conv(g, &format!("{scope}.conv_s1"), x, c);
    let x = batch_norm(g, &format!("{scope}.bn_s1"), &x, gamma, EPSILON);
    relu(g, &format!("{scope}.relu_s1"), &x)
}

/// A small network of its own, on a shortcut.
fn block(g: &mut Graph, scope: &str, x: &Signal, form: Form, inner: usize, outer: usize) -> Signal {
    let entry = unit(g, &format!("{scope}.rebnconvin"), x, (outer, 1), 1.0);
    let depth = match form {
        Form::Deep(depth) => depth,
        Form::Flat => 4,
    };
    let dilation = |layer: usize| match form {
        Form::Flat => 1 << (layer - 1),
        Form::Deep(_) => 1 + usize::from(layer == depth),
    };
    let mut layers: Vec<Signal> = Vec::new();
    for layer in 1..=depth {
        let is_pooled = matches!(form, Form::Deep(_)) && (2..depth).contains(&layer);
        let before = layers.last().unwrap_or(&entry).clone();
        let before = match is_pooled {
            true => {
                let scope = format!("{scope}.pool{}", layer - 1);
                max_pool(g, &scope, &before, 2, 2, 0, Rounding::Ceil)
            }
            false => before,
        };
        let scope = format!("{scope}.rebnconv{layer}");
        layers.push(unit(g, &scope, &before, (inner, dilation(layer)), 1.0));
    }
    let mut x = layers[depth - 1].clone();
    for layer in (1..depth).rev() {
        if x.height != layers[layer - 1].height {
            x = upsample(g, scope, &x, 2, "linear");
        }
        let joined = concat(g, scope, &[&x, &layers[layer - 1]]);
        let (out, gamma) = match layer {
            1 => (outer, BRANCH_GAMMA),
            _ => (inner, 1.0),
        };
        let dilation = match form {
            Form::Flat => dilation(layer),
            Form::Deep(_) => 1,
        };
        x = unit(
            g,
            &format!("{scope}.rebnconv{layer}d"),
            &joined,
            (out, dilation),
            gamma,
        );
    }
    add(g, scope, &x, &entry)
}
