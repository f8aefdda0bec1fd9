//! Inception v4, also widened as in SwapAdvisor's evaluation.

use crate::graph::Graph;
use crate::layers::{
    Conv, Rounding, Signal, classifier, concat, conv, image_input, max_pool, mean_pool, relu,
    shifted_batch_norm,
};

const EPSILON: f32 = 1e-3;
/// Of what goes into each ReLU.
const SHIFT: f64 = 1.0;

/// `wide` multiplies the channels of every convolution.
pub(crate) fn inception_v4(g: &mut Graph, wide: usize) {
    let net = Net { wide };
    let x = image_input(g, 299);
    let x = chain(
        g,
        "features",
        &x,
        &[
            ("0", net.square(32, 3).stride(2).pad(0)),
            ("1", net.square(32, 3).pad(0)),
            ("2", net.square(64, 3)),
        ],
    );
    let mut x = net.stem(g, &x);
    for block in 6..10 {
        x = net.inception_a(g, &format!("features.{block}"), &x);
    }
    x = net.reduction_a(g, "features.10", &x);
    for block in 11..18 {
        x = net.inception_b(g, &format!("features.{block}"), &x);
    }
    x = net.reduction_b(g, "features.18", &x);
    for block in 19..22 {
        x = net.inception_c(g, &format!("features.{block}"), &x);
    }
    classifier(g, "last_linear", "avg_pool", &x);
}

struct Net {
    wide: usize,
}

/// Convolution, BatchNorm, ReLU.
fn unit(g: &mut Graph, scope: &str, x: &Signal, c: Conv) -> Signal {
    let x = conv(g, &format!("{scope}.conv"), x, c);
    let x = shifted_batch_norm(g, &format!("{scope}.bn"), &x, 1.0, SHIFT, EPSILON);
    relu(g, scope, &x)
}

/// A chain of units, each with its name in the block.
fn chain(g: &mut Graph, block: &str, x: &Signal, units: &[(&str, Conv)]) -> Signal {
    units.iter().fold(x.clone(), |x, &(name, c)| {
        unit(g, &format!("{block}.{name}"), &x, c)
    })
}

impl Net {
    fn square(&self, out: usize, kernel: usize) -> Conv {
        Conv::new(out * self.wide, kernel)
    }

    fn rect(&self, out: usize, height: usize, width: usize) -> Conv {
        Conv::rect(out * self.wide, height, width)
    }

    /// Without padding, as where the size shrinks.
    fn valid(&self, out: usize) -> Conv {
        self.square(out, 3).pad(0)
    }

    fn stem(&self, g: &mut Graph, x: &Signal) -> Signal {
        let pool = halved(g, "features.3.maxpool", x);
        let conv = unit(g, "features.3.conv", x, self.valid(96).stride(2));
        let x = concat(g, "features.3", &[&pool, &conv]);
        let block = "features.4";
        let a = chain(
            g,
            &format!("{block}.branch0"),
            &x,
            &[("0", self.square(64, 1)), ("1", self.valid(96))],
        );
        let b = chain(
            g,
            &format!("{block}.branch1"),
            &x,
            &[
                ("0", self.square(64, 1)),
                ("1", self.rect(64, 1, 7)),
                ("2", self.rect(64, 7, 1)),
                ("3", self.valid(96)),
            ],
        );
        let x = concat(g, block, &[&a, &b]);
        let conv = unit(g, "features.5.conv", &x, self.valid(192).stride(2));
        let pool = halved(g, "features.5.maxpool", &x);
        concat(g, "features.5", &[&conv, &pool])
    }

    fn pooled(&self, g: &mut Graph, block: &str, x: &Signal, out: usize) -> Signal {
        let x = mean_pool(g, block, x, 3, 1, 1);
        unit(g, &format!("{block}.branch3.1"), &x, self.square(out, 1))
    }

    fn inception_a(&self, g: &mut Graph, block: &str, x: &Signal) -> Signal {
        let a = unit(g, &format!("{block}.branch0"), x, self.square(96, 1));
        let b = chain(
            g,
            &format!("{block}.branch1"),
            x,
            &[("0", self.square(64, 1)), ("1", self.square(96, 3))],
        );
        let c = chain(
            g,
            &format!("{block}.branch2"),
            x,
            &[
                ("0", self.square(64, 1)),
                ("1", self.square(96, 3)),
                ("2", self.square(96, 3)),
            ],
        );
        let d = self.pooled(g, block, x, 96);
        concat(g, block, &[&a, &b, &c, &d])
    }

    fn reduction_a(&self, g: &mut Graph, block: &str, x: &Signal) -> Signal {
        let conv = self.valid(384).stride(2);
        let a = unit(g, &format!("{block}.branch0"), x, conv);
        let b = chain(
            g,
            &format!("{block}.branch1"),
            x,
            &[
                ("0", self.square(192, 1)),
                ("1", self.square(224, 3)),
                ("2", self.valid(256).stride(2)),
            ],
        );
        let c = halved(g, block, x);
        concat(g, block, &[&a, &b, &c])
    }

    fn inception_b(&self, g: &mut Graph, block: &str, x: &Signal) -> Signal {
        let a = unit(g, &format!("{block}.branch0"), x, self.square(384, 1));
        let b = chain(
            g,
            &format!("{block}.branch1"),
            x,
            &[
                ("0", self.square(192, 1)),
                ("1", self.rect(224, 1, 7)),
                ("2", self.rect(256, 7, 1)),
            ],
        );
        let c = chain(
            g,
            &format!("{block}.branch2"),
            x,
            &[
                ("0", self.square(192, 1)),
                ("1", self.rect(192, 7, 1)),
                ("2", self.rect(224, 1, 7)),
                ("3", self.rect(224, 7, 1)),
                ("4", self.rect(256, 1, 7)),
            ],
        );
        let d = self.pooled(g, block, x, 128);
        concat(g, block, &[&a, &b, &c, &d])
    }

    fn reduction_b(&self, g: &mut Graph, block: &str, x: &Signal) -> Signal {
        let a = chain(
            g,
            &format!("{block}.branch0"),
            x,
            &[("0", self.square(192, 1)), ("1", self.valid(192).stride(2))],
        );
        let b = chain(
            g,
            &format!("{block}.branch1"),
            x,
            &[
                ("0", self.square(256, 1)),
                ("1", self.rect(256, 1, 7)),
                ("2", self.rect(320, 7, 1)),
                ("3", self.valid(320).stride(2)),
            ],
        );
        let c = halved(g, block, x);
        concat(g, block, &[&a, &b, &c])
    }

    fn inception_c(&self, g: &mut Graph, block: &str, x: &Signal) -> Signal {
        let a = unit(g, &format!("{block}.branch0"), x, self.square(256, 1));
        let b = unit(g, &format!("{block}.branch1_0"), x, self.square(384, 1));
        let b = self.fork(g, &format!("{block}.branch1_1"), &b);
        let c = chain(
            g,
            block,
            x,
            &[
                ("branch2_0", self.square(384, 1)),
                ("branch2_1", self.rect(448, 3, 1)),
                ("branch2_2", self.rect(512, 1, 3)),
            ],
        );
        let c = self.fork(g, &format!("{block}.branch2_3"), &c);
        let d = self.pooled(g, block, x, 256);
        concat(g, block, &[&a, &b, &c, &d])
    }

    /// A 1×3 and a 3×1 unit side by side.
    fn fork(&self, g: &mut Graph, scope: &str, x: &Signal) -> Signal {
        let a = unit(g, &format!("{scope}a"), x, self.rect(256, 1, 3));
        let b = unit(g, &format!("{scope}b"), x, self.rect(256, 3, 1));
        concat(g, scope, &[&a, &b])
    }
}

fn halved(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    max_pool(g, scope, x, 3, 2, 0, Rounding::Floor)
}
