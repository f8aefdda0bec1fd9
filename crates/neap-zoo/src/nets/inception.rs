//! Inception v3 without the auxiliary classifier.

use crate::graph::Graph;
use crate::layers::{
    Conv, Rounding, Signal, avg_pool, batch_norm, classifier, concat, conv, image_input, max_pool,
    relu,
};

const EPSILON: f32 = 1e-3;

pub(crate) fn inception_v3(g: &mut Graph) {
    let x = image_input(g, 299);
    let x = unit(g, "Conv2d_1a_3x3", &x, Conv::new(32, 3).stride(2).pad(0));
    let x = unit(g, "Conv2d_2a_3x3", &x, Conv::new(32, 3).pad(0));
    let x = unit(g, "Conv2d_2b_3x3", &x, Conv::new(64, 3));
    let x = max_pool(g, "maxpool1", &x, 3, 2, 0, Rounding::Floor);
    let x = unit(g, "Conv2d_3b_1x1", &x, Conv::new(80, 1));
    let x = unit(g, "Conv2d_4a_3x3", &x, Conv::new(192, 3).pad(0));
    let x = max_pool(g, "maxpool2", &x, 3, 2, 0, Rounding::Floor);
    let x = mixed_35(g, "Mixed_5b", &x, 32);
    let x = mixed_35(g, "Mixed_5c", &x, 64);
    let x = mixed_35(g, "Mixed_5d", &x, 64);
    let x = reduce_to_17(g, "Mixed_6a", &x);
    let x = mixed_17(g, "Mixed_6b", &x, 128);
    let x = mixed_17(g, "Mixed_6c", &x, 160);
    let x = mixed_17(g, "Mixed_6d", &x, 160);
    let x = mixed_17(g, "Mixed_6e", &x, 192);
    let x = reduce_to_8(g, "Mixed_7a", &x);
    let x = mixed_8(g, "Mixed_7b", &x);
    let x = mixed_8(g, "Mixed_7c", &x);
    classifier(g, "fc", "avgpool", &x);
}

/// Convolution, BatchNorm, ReLU.
fn unit(g: &mut Graph, scope: &str, x: &Signal, c: Conv) -> Signal {
    let x = conv(g, &format!("{scope}.conv"), x, c);
    let x = batch_norm(g, &format!("{scope}.bn"), &x, 1.0, EPSILON);
    relu(g, scope, &x)
}

/// A chain of units, each with its name in the block.
fn chain(g: &mut Graph, block: &str, x: &Signal, units: &[(&str, Conv)]) -> Signal {
    units.iter().fold(x.clone(), |x, &(name, c)| {
        unit(g, &format!("{block}.{name}"), &x, c)
    })
}

fn pool_branch(g: &mut Graph, block: &str, x: &Signal, out: usize) -> Signal {
    let x = avg_pool(g, block, x, 3, 1, 1);
    unit(g, &format!("{block}.branch_pool"), &x, Conv::new(out, 1))
}

fn mixed_35(g: &mut Graph, block: &str, x: &Signal, pool_out: usize) -> Signal {
    let a = chain(g, block, x, &[("branch1x1", Conv::new(64, 1))]);
    let b = chain(
        g,
        block,
        x,
        &[
            ("branch5x5_1", Conv::new(48, 1)),
            ("branch5x5_2", Conv::new(64, 5)),
        ],
    );
    let c = chain(
        g,
        block,
        x,
        &[
            ("branch3x3dbl_1", Conv::new(64, 1)),
            ("branch3x3dbl_2", Conv::new(96, 3)),
            ("branch3x3dbl_3", Conv::new(96, 3)),
        ],
    );
    let d = pool_branch(g, block, x, pool_out);
    concat(g, block, &[&a, &b, &c, &d])
}

fn reduce_to_17(g: &mut Graph, block: &str, x: &Signal) -> Signal {
    let a = chain(
        g,
        block,
        x,
        &[("branch3x3", Conv::new(384, 3).stride(2).pad(0))],
    );
    let b = chain(
        g,
        block,
        x,
        &[
            ("branch3x3dbl_1", Conv::new(64, 1)),
            ("branch3x3dbl_2", Conv::new(96, 3)),
            ("branch3x3dbl_3", Conv::new(96, 3).stride(2).pad(0)),
        ],
    );
    let c = max_pool(g, block, x, 3, 2, 0, Rounding::Floor);
    concat(g, block, &[&a, &b, &c])
}

fn mixed_17(g: &mut Graph, block: &str, x: &Signal, width: usize) -> Signal {
    let a = chain(g, block, x, &[("branch1x1", Conv::new(192, 1))]);
    let b = chain(
        g,
        block,
        x,
        &[
            ("branch7x7_1", Conv::new(width, 1)),
            ("branch7x7_2", Conv::rect(width, 1, 7)),
            ("branch7x7_3", Conv::rect(192, 7, 1)),
        ],
    );
    let c = chain(
        g,
        block,
        x,
        &[
            ("branch7x7dbl_1", Conv::new(width, 1)),
            ("branch7x7dbl_2", Conv::rect(width, 7, 1)),
            ("branch7x7dbl_3", Conv::rect(width, 1, 7)),
            ("branch7x7dbl_4", Conv::rect(width, 7, 1)),
            ("branch7x7dbl_5", Conv::rect(192, 1, 7)),
        ],
    );
    let d = pool_branch(g, block, x, 192);
    concat(g, block, &[&a, &b, &c, &d])
}

fn reduce_to_8(g: &mut Graph, block: &str, x: &Signal) -> Signal {
    let a = chain(
        g,
        block,
        x,
        &[
            ("branch3x3_1", Conv::new(192, 1)),
            ("branch3x3_2", Conv::new(320, 3).stride(2).pad(0)),
        ],
    );
    let b = chain(
        g,
        block,
        x,
        &[
            ("branch7x7x3_1", Conv::new(192, 1)),
            ("branch7x7x3_2", Conv::rect(192, 1, 7)),
            ("branch7x7x3_3", Conv::rect(192, 7, 1)),
            ("branch7x7x3_4", Conv::new(192, 3).stride(2).pad(0)),
        ],
    );
    let c = max_pool(g, block, x, 3, 2, 0, Rounding::Floor);
    concat(g, block, &[&a, &b, &c])
}

fn mixed_8(g: &mut Graph, block: &str, x: &Signal) -> Signal {
    let a = chain(g, block, x, &[("branch1x1", Conv::new(320, 1))]);
    let b = chain(g, block, x, &[("branch3x3_1", Conv::new(384, 1))]);
    let b = fork(g, block, "branch3x3_2", &b);
    let c = chain(
        g,
        block,
        x,
        &[
            ("branch3x3dbl_1", Conv::new(448, 1)),
            ("branch3x3dbl_2", Conv::new(384, 3)),
        ],
    );
    let c = fork(g, block, "branch3x3dbl_3", &c);
    let d = pool_branch(g, block, x, 192);
    concat(g, block, &[&a, &b, &c, &d])
}

/// A 1×3 and a 3×1 unit side by side.
fn fork(g: &mut Graph, block: &str, name: &str, x: &Signal) -> Signal {
    let a = unit(g, &format!("{block}.{name}a"), x, Conv::rect(384, 1, 3));
    let b = unit(g, &format!("{block}.{name}b"), x, Conv::rect(384, 3, 1));
    concat(g, block, &[&a, &b])
}
