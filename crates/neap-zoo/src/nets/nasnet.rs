//! NASNet-A large: cells found by search, each reading the two before it.
//!
//! ```text
//!   stem ─ stem 0 ─ stem 1 ─ R normal cells ─ reduce ─ R normal cells ─ reduce ─ R normal cells ─ classifier
//! ```

use crate::graph::{Attr, Graph};
use crate::init::Init;
use crate::layers::{
    Conv, Rounding, Signal, add, batch_norm, classifier, concat, conv, image_input, max_pool,
    mean_pool, relu,
};

const EPSILON: f32 = 1e-3;
const FILTERS: usize = 168;
const STEM: usize = 96;
const KEPT_BY_MEANS: f64 = 0.7;

/// `repeats` is R: normal cells in each of three groups. The published network has 6.
pub(crate) fn nasnet_a(g: &mut Graph, repeats: usize) {
    let input = image_input(g, 331);
    let stem = Conv::new(STEM, 3).stride(2).pad(0);
    let stem = conv(g, "conv0.conv", &input, stem);
    let stem = batch_norm(g, "conv0.bn", &stem, 1.0, EPSILON);
    let mut before = cell_stem_0(g, &stem);
    let mut x = cell_stem_1(g, &stem, &before);
    let mut number = 0;
    for group in 0..3 {
        let out = FILTERS << group;
        for repeat in 0..repeats {
            let scope = format!("cell_{number}");
            // The input before has twice the height and width after a reduction.
            let left = if repeat == 0 {
                halved(g, &scope, &before, out)
            } else {
                unit(g, &format!("{scope}.conv_prev_1x1"), &before, out)
            };
            let right = unit(g, &format!("{scope}.conv_1x1"), &x, out);
            let next = normal(g, &scope, &left, &right);
            before = std::mem::replace(&mut x, next);
            number += 1;
        }
        if group < 2 {
            let scope = format!("reduction_cell_{group}");
            let out = FILTERS << (group + 1);
            let left = unit(g, &format!("{scope}.conv_prev_1x1"), &before, out);
            let right = unit(g, &format!("{scope}.conv_1x1"), &x, out);
            let sizes = [(5, &right), (7, &left), (7, &left), (5, &left)];
            x = reduction(g, &scope, &right, sizes, out);
        }
    }
    let x = relu(g, "relu", &x);
    classifier(g, "last_linear", "avg_pool", &x);
}

/// A 3×3 mean. Neighbours are so much alike that it takes little of the variance.
fn smooth(g: &mut Graph, scope: &str, x: &Signal, stride: usize) -> Signal {
    let mut mean = mean_pool(g, scope, x, 3, stride, 1);
    for (after, before) in mean.groups.iter_mut().zip(&x.groups) {
        after.var = KEPT_BY_MEANS * before.var;
    }
    mean
}

/// ReLU, 1×1 convolution, BatchNorm.
fn unit(g: &mut Graph, scope: &str, x: &Signal, out: usize) -> Signal {
    let x = relu(g, scope, x);
    let x = conv(g, &format!("{scope}.conv"), &x, Conv::new(out, 1));
    batch_norm(g, &format!("{scope}.bn"), &x, 1.0, EPSILON)
}

/// Two separable convolutions, the first with the stride, through `middle` channels.
fn separable(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    middle: usize,
    out: usize,
    kernel: usize,
    stride: usize,
) -> Signal {
    let mut x = x.clone();
    for (part, out, stride) in [(1, middle, stride), (2, out, 1)] {
        x = relu(g, &format!("{scope}.relu_{part}"), &x);
        let depthwise = Conv::new(x.channels, kernel)
            .stride(stride)
            .groups(x.channels);
        let name = format!("{scope}.separable_{part}");
        x = conv(g, &format!("{name}.depthwise_conv2d"), &x, depthwise);
        x = conv(
            g,
            &format!("{name}.pointwise_conv2d"),
            &x,
            Conv::new(out, 1),
        );
        x = batch_norm(g, &format!("{scope}.bn_sep_{part}"), &x, 0.7, EPSILON);
    }
    x
}

/// Half the height and width by two strided paths, one of them shifted by a pixel.
fn halved(g: &mut Graph, scope: &str, x: &Signal, out: usize) -> Signal {
    let x = relu(g, &format!("{scope}.relu"), x);
    let pads = Init::I64(vec![0, 0, -1, -1, 0, 0, 1, 1]);
    let pads = g.buffer(format!("{scope}.path_2.pads"), &[8], pads);
    let attrs = vec![("mode", Attr::Str("constant"))];
    let value = g.node(&format!("{scope}.path_2"), "Pad", &[&x.value, &pads], attrs);
    let shifted = Signal { value, ..x.clone() };
    let mut path = |number: usize, x: &Signal| {
        let scope = format!("{scope}.path_{number}");
        let x = mean_pool(g, &scope, x, 1, 2, 0);
        conv(g, &format!("{scope}.conv"), &x, Conv::new(out / 2, 1))
    };
    let (a, b) = (path(1, &x), path(2, &shifted));
    let x = concat(g, scope, &[&a, &b]);
    batch_norm(g, &format!("{scope}.final_path_bn"), &x, 1.0, EPSILON)
}

fn normal(g: &mut Graph, scope: &str, left: &Signal, right: &Signal) -> Signal {
    let sep = |g: &mut Graph, part: &str, x: &Signal, kernel| {
        let out = x.channels;
        separable(g, &format!("{scope}.{part}"), x, out, out, kernel, 1)
    };
    let a = sep(g, "comb_iter_0_left", right, 5);
    let b = sep(g, "comb_iter_0_right", left, 3);
    let c0 = add(g, scope, &a, &b);
    let a = sep(g, "comb_iter_1_left", left, 5);
    let b = sep(g, "comb_iter_1_right", left, 3);
    let c1 = add(g, scope, &a, &b);
    let a = smooth(g, scope, right, 1);
    let c2 = add(g, scope, &a, left);
    let a = smooth(g, scope, left, 1);
    let b = smooth(g, scope, left, 1);
    let mut c3 = add(g, scope, &a, &b);
    // Twice the same, not two that know nothing of each other.
    c3.groups.iter_mut().for_each(|group| group.var *= 2.0);
    let a = sep(g, "comb_iter_4_left", right, 3);
    let c4 = add(g, scope, &a, right);
    concat(g, scope, &[left, &c0, &c1, &c2, &c3, &c4])
}

/// `sizes` are kernels and inputs of the four strided separable convolutions; the first is added to the
/// second, the others to poolings of `x`.
fn reduction(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    sizes: [(usize, &Signal); 4],
    out: usize,
) -> Signal {
    let mut strided = sizes.iter().enumerate().map(|(i, (kernel, from))| {
        let name = format!(
            "{scope}.comb_iter_{}",
            ["0_left", "0_right", "1_right", "2_right"][i]
        );
        // In the stem, those that read the image's first layer go to the cell's width at once.
        let middle = if from.channels == out {
            from.channels
        } else {
            out
        };
        separable(g, &name, from, middle, out, *kernel, 2)
    });
    let parts: Vec<Signal> = strided.by_ref().collect();
    let c0 = add(g, scope, &parts[0], &parts[1]);
    let pool = max_pool(g, scope, x, 3, 2, 1, Rounding::Floor);
    let c1 = add(g, scope, &pool, &parts[2]);
    let mean = smooth(g, scope, x, 2);
    let c2 = add(g, scope, &mean, &parts[3]);
    let mean = smooth(g, scope, &c0, 1);
    let c3 = add(g, scope, &mean, &c1);
    let name = format!("{scope}.comb_iter_4_left");
    let a = separable(g, &name, &c0, out, out, 3, 1);
    let pool = max_pool(g, scope, x, 3, 2, 1, Rounding::Floor);
    let c4 = add(g, scope, &a, &pool);
    concat(g, scope, &[&c1, &c2, &c3, &c4])
}

fn cell_stem_0(g: &mut Graph, stem: &Signal) -> Signal {
    let out = FILTERS / 4;
    let x = unit(g, "cell_stem_0.conv_1x1", stem, out);
    let sizes = [(5, &x), (7, stem), (7, stem), (5, stem)];
    reduction(g, "cell_stem_0", &x, sizes, out)
}

fn cell_stem_1(g: &mut Graph, stem: &Signal, before: &Signal) -> Signal {
    let out = FILTERS / 2;
    let left = unit(g, "cell_stem_1.conv_1x1", before, out);
    let right = halved(g, "cell_stem_1", stem, out);
    let sizes = [(5, &left), (7, &right), (7, &right), (5, &right)];
    reduction(g, "cell_stem_1", &left, sizes, out)
}
