//! What the UNet and both halves of the VAE are made of.

use crate::graph::{Attr, Dim, Graph, Port, Small};
use crate::init::{Dist, Init};
use crate::layers::{Conv, Signal, add, conv};
use crate::nets::transformer::linear;
use crate::stats::Group;

const TO_F32: i64 = 1;

pub(super) fn plain(out: usize) -> Conv {
    Conv::new(out, 3).bias().output_std(1.0)
}

/// A layer of each place on its own.
pub(super) fn plain_1x1(out: usize) -> Conv {
    Conv::new(out, 1).bias().output_std(1.0)
}

pub(super) fn latent_input(
    g: &mut Graph,
    name: &str,
    channels: usize,
    ends: [&'static str; 2],
) -> Signal {
    g.inputs.push(Port {
        name: name.into(),
        dtype: g.float(),
        dims: image_dims(channels, ends),
    });
    Signal {
        value: name.into(),
        channels,
        // Left to whoever opens it.
        height: 0,
        width: 0,
        groups: vec![unit(channels)],
    }
}

pub(super) fn image_output(g: &mut Graph, x: &Signal, name: &str, ends: [&'static str; 2]) {
    g.output(&x.value, name, &[]);
    if let Some(port) = g.outputs.last_mut() {
        port.dims = image_dims(x.channels, ends);
    }
}

fn image_dims(channels: usize, [height, width]: [&'static str; 2]) -> Vec<Dim> {
    let channels = Dim::Fixed(channels as i64);
    vec![Dim::Batch, channels, Dim::Named(height), Dim::Named(width)]
}

pub(super) fn unit(channels: usize) -> Group {
    Group {
        channels,
        mean: 0.0,
        var: 1.0,
    }
}

pub(super) fn with(x: &Signal, value: String) -> Signal {
    Signal {
        value,
        groups: vec![unit(x.channels)],
        ..x.clone()
    }
}

/// As PyTorch exports GroupNorm: groups become channels of an InstanceNormalization.
pub(super) fn group_norm(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    groups: usize,
    epsilon: f32,
) -> Signal {
    let grouped = g.constant(scope, Small::I64s(vec![0, groups as i64, -1]));
    let grouped = g.node(scope, "Reshape", &[&x.value, &grouped], vec![]);
    let ones = g.buffer(
        format!("{scope}.ones"),
        &[groups],
        Init::F32(vec![1.0; groups]),
    );
    let zeros = g.buffer(
        format!("{scope}.zeros"),
        &[groups],
        Init::F32(vec![0.0; groups]),
    );
    let epsilon = vec![("epsilon", Attr::Float(epsilon))];
    let inputs = [grouped.as_str(), &ones, &zeros];
    let normed = g.node(scope, "InstanceNormalization", &inputs, epsilon);
    let shape = g.node(scope, "Shape", &[&x.value], vec![]);
    let normed = g.node(scope, "Reshape", &[&normed, &shape], vec![]);
    let scale = Init::Pieces(vec![(
        x.channels,
        Dist::Ratio {
            center: 1.0,
            spread: 0.2,
        },
    )]);
    let scale = g.parameter(format!("{scope}.weight"), &[x.channels, 1, 1], scale);
    let bias = Init::bell(x.channels, 0.0, 0.05);
    let bias = g.parameter(format!("{scope}.bias"), &[x.channels, 1, 1], bias);
    let value = g.node(scope, "Mul", &[&normed, &scale], vec![]);
    let value = g.node(scope, "Add", &[&value, &bias], vec![]);
    with(x, value)
}

pub(super) fn silu_of(g: &mut Graph, scope: &str, x: &str) -> String {
    let gate = g.node(scope, "Sigmoid", &[x], vec![]);
    g.node(scope, "Mul", &[x, &gate], vec![])
}

pub(super) fn silu(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let value = silu_of(g, scope, &x.value);
    let groups = vec![Group {
        channels: x.channels,
        mean: 0.2,
        var: 0.3,
    }];
    Signal {
        value,
        groups,
        ..x.clone()
    }
}

/// What residual blocks of a network share.
pub(super) struct Residuals {
    pub groups: usize,
    pub epsilon: f32,
    /// A step's embedding and its width.
    pub time: Option<(String, usize)>,
}

impl Residuals {
    /// Two convolutions beside a way that passes them by; a step's embedding is added in between.
    pub fn block(&self, g: &mut Graph, scope: &str, x: &Signal, out: usize) -> Signal {
        let inner = group_norm(g, &format!("{scope}.norm1"), x, self.groups, self.epsilon);
        let inner = silu(g, &format!("{scope}.nonlinearity"), &inner);
        let mut inner = conv(g, &format!("{scope}.conv1"), &inner, plain(out));
        if let Some((time, width)) = &self.time {
            let scope = format!("{scope}.time_emb_proj");
            let active = silu_of(g, &scope, time);
            let shift = linear(g, &scope, &active, [*width, out], 0.6, 0.5);
            let axes = g.constant(&scope, Small::I64s(vec![2, 3]));
            let shift = g.node(&scope, "Unsqueeze", &[&shift, &axes], vec![]);
            let shifted = g.node(&scope, "Add", &[&inner.value, &shift], vec![]);
            inner = with(&inner, shifted);
        }
        let inner = group_norm(
            g,
            &format!("{scope}.norm2"),
            &inner,
            self.groups,
            self.epsilon,
        );
        let inner = silu(g, &format!("{scope}.nonlinearity"), &inner);
        let half = plain(out).output_std(0.5);
        let inner = conv(g, &format!("{scope}.conv2"), &inner, half);
        let beside = match x.channels == out {
            true => x.clone(),
            false => conv(g, &format!("{scope}.conv_shortcut"), x, plain_1x1(out)),
        };
        add(g, scope, &beside, &inner)
    }
}

pub(super) fn doubled(g: &mut Graph, scope: &str, x: &Signal, channels: usize) -> Signal {
    let scales = Init::F32(vec![1.0, 1.0, 2.0, 2.0]);
    let scales = g.single(format!("{scope}.scales"), &[4], scales);
    let attrs = vec![
        ("coordinate_transformation_mode", Attr::Str("asymmetric")),
        ("mode", Attr::Str("nearest")),
        ("nearest_mode", Attr::Str("floor")),
    ];
    let value = g.node(scope, "Resize", &[&x.value, "", &scales], attrs);
    conv(
        g,
        &format!("{scope}.conv"),
        &with(x, value),
        plain(channels),
    )
}

/// Cosines and sines of each number at `width / 2` speeds, in f32.
pub(super) fn waves(g: &mut Graph, scope: &str, numbers: &str, width: usize) -> String {
    let numbers = g.node(scope, "Cast", &[numbers], vec![("to", Attr::Int(TO_F32))]);
    let axes = g.constant(scope, Small::I64s(vec![1]));
    let numbers = g.node(scope, "Unsqueeze", &[&numbers, &axes], vec![]);
    let half = width / 2;
    // 10000 to the power of -i / half, by exactly rounded operations: the square root of the square root of ... .
    let twos = half.trailing_zeros();
    let root = (0..twos).fold(root_of(10_000.0, half >> twos) as f32, |root, _| {
        root.sqrt()
    });
    let waves = std::iter::successors(Some(1.0_f32), |wave| Some(wave / root));
    let waves = Init::F32(waves.take(half).collect());
    let waves = g.single(format!("{scope}.waves"), &[1, half], waves);
    let angles = g.node(scope, "Mul", &[&numbers, &waves], vec![]);
    let sin = g.node(scope, "Sin", &[&angles], vec![]);
    let cos = g.node(scope, "Cos", &[&angles], vec![]);
    let axis = vec![("axis", Attr::Int(-1))];
    g.node(scope, "Concat", &[&cos, &sin], axis)
}

/// Where the network is one of half floats.
pub(super) fn as_half(g: &mut Graph, scope: &str, x: String) -> String {
    if !g.is_half {
        return x;
    }
    let to = Attr::Int(g.float().onnx_code() as i64);
    g.node(scope, "Cast", &[&x], vec![("to", to)])
}

/// The `n`th root, by Newton's method.
fn root_of(value: f64, n: usize) -> f64 {
    (0..100).fold(value, |root, _| {
        let power = (1..n).fold(1.0, |power, _| power * root);
        root - (root * power - value) / (n as f64 * power)
    })
}
