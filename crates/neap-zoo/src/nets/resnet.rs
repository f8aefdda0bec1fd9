//! ResNet-50/101/152, ResNeXt-50 32×4d, and FCN on a dilated ResNet-101.

use crate::graph::{Attr, Graph};
use crate::layers::{
    Conv, Rounding, Signal, add, batch_norm, classifier, conv, image_input, max_pool, relu,
};

/// Scale of the last BatchNorm in a residual branch: small, so that depth does not inflate the sum.
const BRANCH_GAMMA: f64 = 0.15;
const EPSILON: f32 = 1e-5;

/// What tells the bottleneck ResNets apart.
struct Shape {
    blocks: [usize; 4],
    groups: usize,
    /// Width of one group in the first stage.
    group_width: usize,
    /// Multiplies the channels of every convolution.
    wide: usize,
    /// Stages whose stride is replaced by dilation.
    dilate: [bool; 4],
}

impl Shape {
    fn plain(blocks: [usize; 4]) -> Shape {
        Shape {
            blocks,
            groups: 1,
            group_width: 64,
            wide: 1,
            dilate: [false; 4],
        }
    }
}

pub(crate) fn resnet50(g: &mut Graph) {
    imagenet(g, &Shape::plain([3, 4, 6, 3]));
}

pub(crate) fn resnet101(g: &mut Graph) {
    imagenet(g, &Shape::plain([3, 4, 23, 3]));
}

pub(crate) fn resnet152(g: &mut Graph) {
    imagenet(g, &Shape::plain([3, 8, 36, 3]));
}

/// Wide ResNet on images of ImageNet's size, as SwapAdvisor trains it: all channels are multiplied.
pub(crate) fn wide_resnet152(g: &mut Graph, wide: usize) {
    imagenet(
        g,
        &Shape {
            wide,
            ..Shape::plain([3, 8, 36, 3])
        },
    );
}

pub(crate) fn resnext50(g: &mut Graph) {
    imagenet(
        g,
        &Shape {
            groups: 32,
            group_width: 4,
            ..Shape::plain([3, 4, 6, 3])
        },
    );
}

/// Semantic segmentation: 21 classes at the input's size.
pub(crate) fn fcn_resnet101(g: &mut Graph, size: usize) {
    const CLASSES: usize = 21;
    let shape = Shape {
        dilate: [false, false, true, true],
        ..Shape::plain([3, 4, 23, 3])
    };
    let input = image_input(g, size);
    let x = backbone(g, "backbone.", &input, &shape);
    let x = conv(g, "classifier.0", &x, Conv::new(512, 3));
    let x = batch_norm(g, "classifier.1", &x, 1.0, EPSILON);
    let x = relu(g, "classifier.2", &x);
    let x = conv(
        g,
        "classifier.4",
        &x,
        Conv::new(CLASSES, 1).bias().output_std(2.0),
    );
    let sizes = g.batch_shape("", &x.value, &[CLASSES as i64, size as i64, size as i64]);
    let attrs = vec![
        ("coordinate_transformation_mode", Attr::Str("half_pixel")),
        ("cubic_coeff_a", Attr::Float(-0.75)),
        ("mode", Attr::Str("linear")),
        ("nearest_mode", Attr::Str("floor")),
    ];
    let value = g.node("", "Resize", &[&x.value, "", "", &sizes], attrs);
    g.output(&value, "output", &[CLASSES, size, size]);
}

fn imagenet(g: &mut Graph, shape: &Shape) {
    let input = image_input(g, 224);
    let x = backbone(g, "", &input, shape);
    classifier(g, "fc", "avgpool", &x);
}

fn backbone(g: &mut Graph, prefix: &str, input: &Signal, shape: &Shape) -> Signal {
    let x = conv(
        g,
        &format!("{prefix}conv1"),
        input,
        Conv::new(64 * shape.wide, 7).stride(2),
    );
    let x = batch_norm(g, &format!("{prefix}bn1"), &x, 1.0, EPSILON);
    let x = relu(g, &format!("{prefix}relu"), &x);
    let mut x = max_pool(g, &format!("{prefix}maxpool"), &x, 3, 2, 1, Rounding::Floor);
    let mut dilation = 1;
    for stage in 0..4 {
        let planes = (64 << stage) * shape.wide;
        let mut stride = if stage == 0 { 1 } else { 2 };
        let first_dilation = dilation;
        if shape.dilate[stage] {
            dilation *= stride;
            stride = 1;
        }
        for block in 0..shape.blocks[stage] {
            let spec = Block {
                scope: format!("{prefix}layer{}.{block}", stage + 1),
                width: planes * shape.group_width / 64 * shape.groups,
                out: planes * 4,
                stride: if block == 0 { stride } else { 1 },
                dilation: if block == 0 { first_dilation } else { dilation },
                groups: shape.groups,
                project: block == 0,
            };
            x = bottleneck(g, &x, &spec);
        }
    }
    x
}

struct Block {
    scope: String,
    width: usize,
    out: usize,
    stride: usize,
    dilation: usize,
    groups: usize,
    /// Whether the shortcut is a 1×1 convolution rather than the identity.
    project: bool,
}

fn bottleneck(g: &mut Graph, input: &Signal, b: &Block) -> Signal {
    let scope = |part: &str| format!("{}.{part}", b.scope);
    let x = conv(g, &scope("conv1"), input, Conv::new(b.width, 1));
    let x = batch_norm(g, &scope("bn1"), &x, 1.0, EPSILON);
    let x = relu(g, &scope("relu"), &x);
    let middle = Conv::new(b.width, 3)
        .stride(b.stride)
        .groups(b.groups)
        .dilation(b.dilation);
    let x = conv(g, &scope("conv2"), &x, middle);
    let x = batch_norm(g, &scope("bn2"), &x, 1.0, EPSILON);
    let x = relu(g, &scope("relu"), &x);
    let x = conv(g, &scope("conv3"), &x, Conv::new(b.out, 1));
    let x = batch_norm(g, &scope("bn3"), &x, BRANCH_GAMMA, EPSILON);
    let shortcut = if b.project {
        let s = conv(
            g,
            &scope("downsample.0"),
            input,
            Conv::new(b.out, 1).stride(b.stride),
        );
        batch_norm(g, &scope("downsample.1"), &s, 1.0, EPSILON)
    } else {
        input.clone()
    };
    let x = add(g, &b.scope, &x, &shortcut);
    relu(g, &scope("relu"), &x)
}
