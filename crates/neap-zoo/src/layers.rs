//! Convolutional building blocks: each adds its nodes and seeded weights to the graph and
//! carries shape and statistics along.

use crate::graph::{Attr, DType, Graph, Small};
use crate::init::{Dist, Init};
use crate::stats::{Group, pooled, through};

/// An activation in flight: its value's name, its shape without the batch, its statistics.
#[derive(Clone, Debug)]
pub(crate) struct Signal {
    pub value: String,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    pub groups: Vec<Group>,
}

impl Signal {
    /// Spatial and channel sizes as a graph output declares them.
    pub(crate) fn dims(&self) -> [usize; 3] {
        [self.channels, self.height, self.width]
    }

    fn with(&self, value: String, groups: Vec<Group>) -> Signal {
        Signal {
            value,
            groups,
            ..self.clone()
        }
    }

    fn map_groups(&self, f: impl Fn(&Group) -> (f64, f64)) -> Vec<Group> {
        self.groups
            .iter()
            .map(|g| {
                let (mean, var) = f(g);
                Group {
                    channels: g.channels,
                    mean,
                    var,
                }
            })
            .collect()
    }
}

/// How rounding up is done when a pooling window overhangs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounding {
    Floor,
    Ceil,
}

/// A convolution's hyper-parameters; start from [`Conv::new`] and chain.
#[derive(Clone, Copy)]
pub(crate) struct Conv {
    out: usize,
    kernel: [usize; 2],
    stride: usize,
    pad: [usize; 2],
    dilation: usize,
    groups: usize,
    bias: bool,
    /// Standard deviation of the output, when the He rule's is not wanted.
    output_std: Option<f64>,
}

impl Conv {
    /// `kernel × kernel`, stride 1, "same" padding, no bias.
    pub(crate) fn new(out: usize, kernel: usize) -> Conv {
        Conv {
            out,
            kernel: [kernel; 2],
            stride: 1,
            pad: [kernel / 2; 2],
            dilation: 1,
            groups: 1,
            bias: false,
            output_std: None,
        }
    }

    /// A rectangular kernel with "same" padding.
    pub(crate) fn rect(out: usize, height: usize, width: usize) -> Conv {
        Conv {
            kernel: [height, width],
            pad: [height / 2, width / 2],
            ..Conv::new(out, 1)
        }
    }

    pub(crate) fn stride(self, stride: usize) -> Conv {
        Conv { stride, ..self }
    }

    pub(crate) fn pad(self, pad: usize) -> Conv {
        Conv {
            pad: [pad; 2],
            ..self
        }
    }

    /// Dilation with the padding that keeps the size.
    pub(crate) fn dilation(self, dilation: usize) -> Conv {
        Conv {
            dilation,
            pad: self.kernel.map(|k| (k / 2) * dilation),
            ..self
        }
    }

    pub(crate) fn groups(self, groups: usize) -> Conv {
        Conv { groups, ..self }
    }

    pub(crate) fn bias(self) -> Conv {
        Conv { bias: true, ..self }
    }

    pub(crate) fn output_std(self, std: f64) -> Conv {
        Conv {
            output_std: Some(std),
            ..self
        }
    }
}

fn ints(values: &[usize]) -> Attr {
    Attr::Ints(values.iter().map(|&v| v as i64).collect())
}

/// Channel-major square image input of the model.
pub(crate) fn image_input(g: &mut Graph, size: usize) -> Signal {
    image(g, [size; 2])
}

/// Channel-major image input of the model.
pub(crate) fn image(g: &mut Graph, [height, width]: [usize; 2]) -> Signal {
    let free = ["height", "width"];
    let value = g.sized_input("input", DType::F32, &[3, height, width], &free);
    let groups = vec![Group {
        channels: 3,
        mean: 0.0,
        var: 1.0,
    }];
    Signal {
        value,
        channels: 3,
        height,
        width,
        groups,
    }
}

pub(crate) fn conv(g: &mut Graph, scope: &str, x: &Signal, c: Conv) -> Signal {
    let row = x.channels / c.groups * c.kernel[0] * c.kernel[1];
    let (mean, var) = pooled(&x.groups);
    // Zero-sum filters cancel the inputs' common mean, but would blind a filter that sees one
    // channel to flat regions, and the first layer to colour.
    let centered = x.channels / c.groups > 3;
    let seen = if centered { var } else { var + mean * mean };
    let std = match c.output_std {
        Some(out) => out / (row as f64 * seen).sqrt(),
        None => (2.0 / row as f64).sqrt(),
    };
    let elements = c.out * row;
    let init = if centered {
        Init::CenteredRows {
            row,
            std: std as f32,
        }
    } else {
        Init::bell(elements, 0.0, std as f32)
    };
    let dims = [c.out, x.channels / c.groups, c.kernel[0], c.kernel[1]];
    let weight = g.parameter(format!("{scope}.weight"), &dims, init);
    let mut inputs = vec![x.value.as_str(), weight.as_str()];
    let bias;
    if c.bias {
        bias = g.parameter(
            format!("{scope}.bias"),
            &[c.out],
            Init::bell(c.out, 0.0, 0.05),
        );
        inputs.push(&bias);
    }
    let attrs = vec![
        ("dilations", ints(&[c.dilation; 2])),
        ("group", Attr::Int(c.groups as i64)),
        ("kernel_shape", ints(&c.kernel)),
        ("pads", ints(&[c.pad[0], c.pad[1], c.pad[0], c.pad[1]])),
        ("strides", ints(&[c.stride; 2])),
    ];
    let value = g.node(scope, "Conv", &inputs, attrs);
    let size = |extent: usize, i: usize| {
        (extent + 2 * c.pad[i]).saturating_sub(c.dilation * (c.kernel[i] - 1) + 1) / c.stride + 1
    };
    Signal {
        value,
        channels: c.out,
        height: size(x.height, 0),
        width: size(x.width, 1),
        groups: vec![Group {
            channels: c.out,
            mean: 0.0,
            var: std * std * row as f64 * seen,
        }],
    }
}

/// BatchNormalization with statistics near the real ones; `gamma` is the scale's mean.
pub(crate) fn batch_norm(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    gamma: f64,
    epsilon: f32,
) -> Signal {
    shifted_batch_norm(g, scope, x, gamma, 0.0, epsilon)
}

/// BatchNormalization whose results have the mean `shift`. Behind a mean above 0, ReLU is closer to linear,
/// and a deep network without shortcuts does not blow up rounding.
pub(crate) fn shifted_batch_norm(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    gamma: f64,
    shift: f64,
    epsilon: f32,
) -> Signal {
    let c = x.channels;
    let pieces = |f: &dyn Fn(&Group) -> Dist| {
        Init::Pieces(
            x.groups
                .iter()
                .map(|group| (group.channels, f(group)))
                .collect(),
        )
    };
    let scale = g.parameter(
        format!("{scope}.weight"),
        &[c],
        Init::Pieces(vec![(
            c,
            Dist::Ratio {
                center: gamma as f32,
                spread: 0.3,
            },
        )]),
    );
    let bias = g.parameter(
        format!("{scope}.bias"),
        &[c],
        Init::bell(c, shift as f32, 0.1 * gamma as f32),
    );
    let mean = pieces(&|s| Dist::Bell {
        mean: s.mean as f32,
        std: 0.1 * s.var.sqrt() as f32,
    });
    let mean = g.buffer(format!("{scope}.running_mean"), &[c], mean);
    let var = pieces(&|s| Dist::Ratio {
        center: s.var as f32,
        spread: 0.4,
    });
    let var = g.buffer(format!("{scope}.running_var"), &[c], var);
    let attrs = vec![
        ("epsilon", Attr::Float(epsilon)),
        ("momentum", Attr::Float(0.9)),
    ];
    let value = g.node(
        scope,
        "BatchNormalization",
        &[&x.value, &scale, &bias, &mean, &var],
        attrs,
    );
    x.with(
        value,
        vec![Group {
            channels: c,
            mean: shift,
            var: gamma * gamma,
        }],
    )
}

pub(crate) fn relu(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let value = g.node(scope, "Relu", &[&x.value], vec![]);
    x.with(
        value,
        x.map_groups(|s| through(s.mean, s.var, |v| v.max(0.0))),
    )
}

/// ReLU6 as PyTorch exports it: `Clip` with constant bounds.
pub(crate) fn relu6(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let low = g.constant(scope, Small::F32Scalar(0.0));
    let high = g.constant(scope, Small::F32Scalar(6.0));
    let value = g.node(scope, "Clip", &[&x.value, &low, &high], vec![]);
    x.with(
        value,
        x.map_groups(|s| through(s.mean, s.var, |v| v.clamp(0.0, 6.0))),
    )
}

pub(crate) fn leaky_relu(g: &mut Graph, scope: &str, x: &Signal, slope: f32) -> Signal {
    let value = g.node(
        scope,
        "LeakyRelu",
        &[&x.value],
        vec![("alpha", Attr::Float(slope))],
    );
    let slope = f64::from(slope);
    x.with(
        value,
        x.map_groups(|s| through(s.mean, s.var, |v| if v < 0.0 { v * slope } else { v })),
    )
}

/// As [`leaky_relu`], with a trained slope for each channel.
pub(crate) fn prelu(g: &mut Graph, scope: &str, x: &Signal, slope: f64) -> Signal {
    let init = Init::bell(x.channels, slope as f32, 0.05);
    let slopes = g.parameter(format!("{scope}.weight"), &[x.channels, 1, 1], init);
    let value = g.node(scope, "PRelu", &[&x.value, &slopes], vec![]);
    x.with(
        value,
        x.map_groups(|s| through(s.mean, s.var, |v| if v < 0.0 { v * slope } else { v })),
    )
}

/// About the logistic function, without an `exp`.
fn logistic(v: f64) -> f64 {
    0.5 + 0.5 * v / (2.0 + v.abs())
}

pub(crate) fn sigmoid(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let value = g.node(scope, "Sigmoid", &[&x.value], vec![]);
    x.with(value, x.map_groups(|s| through(s.mean, s.var, logistic)))
}

/// SiLU as PyTorch exports it.
pub(crate) fn silu(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let gate = g.node(scope, "Sigmoid", &[&x.value], vec![]);
    let value = g.node(scope, "Mul", &[&x.value, &gate], vec![]);
    let of = |v: f64| v * logistic(v);
    x.with(value, x.map_groups(|s| through(s.mean, s.var, of)))
}

/// Every channel times a number of its own, about one half.
pub(crate) fn scaled(g: &mut Graph, scope: &str, x: &Signal, scale: &Signal) -> Signal {
    let value = g.node(scope, "Mul", &[&scale.value, &x.value], vec![]);
    let (mean, var) = pooled(&scale.groups);
    let square = mean * mean + var;
    x.with(
        value,
        x.map_groups(|s| {
            let second = square * (s.mean * s.mean + s.var);
            (mean * s.mean, second - mean * mean * s.mean * s.mean)
        }),
    )
}

/// An image so many times as high and as wide.
pub(crate) fn upsample(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    times: usize,
    mode: &'static str,
) -> Signal {
    let scales = Init::F32(vec![1.0, 1.0, times as f32, times as f32]);
    let name = format!("{}.upsampled.scales", x.value);
    let scales = g.buffer(name, &[4], scales);
    let coordinates = match mode {
        "linear" => "pytorch_half_pixel",
        _ => "asymmetric",
    };
    let attrs = vec![
        ("coordinate_transformation_mode", Attr::Str(coordinates)),
        ("cubic_coeff_a", Attr::Float(-0.75)),
        ("mode", Attr::Str(mode)),
        ("nearest_mode", Attr::Str("floor")),
    ];
    let value = g.node(scope, "Resize", &[&x.value, "", &scales], attrs);
    Signal {
        value,
        height: times * x.height,
        width: times * x.width,
        ..x.clone()
    }
}

/// Element-wise sum of two signals of one shape.
pub(crate) fn add(g: &mut Graph, scope: &str, a: &Signal, b: &Signal) -> Signal {
    let value = g.node(scope, "Add", &[&a.value, &b.value], vec![]);
    let ((mean_a, var_a), (mean_b, var_b)) = (pooled(&a.groups), pooled(&b.groups));
    a.with(
        value,
        vec![Group {
            channels: a.channels,
            mean: mean_a + mean_b,
            var: var_a + var_b,
        }],
    )
}

/// Concatenation along channels.
pub(crate) fn concat(g: &mut Graph, scope: &str, parts: &[&Signal]) -> Signal {
    let inputs: Vec<&str> = parts.iter().map(|p| p.value.as_str()).collect();
    let value = g.node(scope, "Concat", &inputs, vec![("axis", Attr::Int(1))]);
    Signal {
        value,
        channels: parts.iter().map(|p| p.channels).sum(),
        groups: parts
            .iter()
            .flat_map(|p| p.groups.iter().copied())
            .collect(),
        ..parts[0].clone()
    }
}

pub(crate) fn max_pool(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    kernel: usize,
    stride: usize,
    pad: usize,
    rounding: Rounding,
) -> Signal {
    let attrs = vec![
        ("ceil_mode", Attr::Int((rounding == Rounding::Ceil).into())),
        ("kernel_shape", ints(&[kernel; 2])),
        ("pads", ints(&[pad; 4])),
        ("strides", ints(&[stride; 2])),
    ];
    let value = g.node(scope, "MaxPool", &[&x.value], attrs);
    let size = |extent: usize| {
        let span = extent + 2 * pad - kernel;
        match rounding {
            Rounding::Floor => span / stride + 1,
            Rounding::Ceil => span.div_ceil(stride) + 1,
        }
    };
    let (height, width) = (size(x.height), size(x.width));
    // The maximum of a few correlated values: about one deviation up, somewhat narrower.
    let groups = x.map_groups(|s| (s.mean + s.var.sqrt(), 0.8 * s.var));
    Signal {
        height,
        width,
        groups,
        ..x.with(value, Vec::new())
    }
}

/// Average pooling that counts the padding, as PyTorch's default does.
pub(crate) fn avg_pool(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    kernel: usize,
    stride: usize,
    pad: usize,
) -> Signal {
    averaged(g, scope, x, kernel, stride, pad, true)
}

/// Average pooling of what the window has of the input.
pub(crate) fn mean_pool(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    kernel: usize,
    stride: usize,
    pad: usize,
) -> Signal {
    averaged(g, scope, x, kernel, stride, pad, false)
}

fn averaged(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    kernel: usize,
    stride: usize,
    pad: usize,
    counts_padding: bool,
) -> Signal {
    let attrs = vec![
        ("ceil_mode", Attr::Int(0)),
        ("count_include_pad", Attr::Int(counts_padding.into())),
        ("kernel_shape", ints(&[kernel; 2])),
        ("pads", ints(&[pad; 4])),
        ("strides", ints(&[stride; 2])),
    ];
    let value = g.node(scope, "AveragePool", &[&x.value], attrs);
    let size = |extent: usize| (extent + 2 * pad - kernel) / stride + 1;
    let (height, width) = (size(x.height), size(x.width));
    // Neighbours are partly correlated: averaging k² of them leaves about 1/k of the variance.
    let groups = x.map_groups(|s| (s.mean, s.var / kernel as f64));
    Signal {
        height,
        width,
        groups,
        ..x.with(value, Vec::new())
    }
}

/// Mean over all positions.
pub(crate) fn global_avg_pool(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let value = g.node(scope, "GlobalAveragePool", &[&x.value], vec![]);
    let kernel = ((x.height * x.width) as f64).sqrt();
    let groups = x.map_groups(|s| (s.mean, s.var / kernel));
    Signal {
        height: 1,
        width: 1,
        groups,
        ..x.with(value, Vec::new())
    }
}

/// `[N, C, H, W]` → `[N, C·H·W]`.
pub(crate) fn flatten(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let value = g.node(scope, "Flatten", &[&x.value], vec![("axis", Attr::Int(1))]);
    let (mean, var) = pooled(&x.groups);
    let channels = x.channels * x.height * x.width;
    Signal {
        value,
        channels,
        height: 1,
        width: 1,
        groups: vec![Group {
            channels,
            mean,
            var,
        }],
    }
}

/// A fully connected layer as PyTorch exports it (`Gemm` with a transposed weight), scaled so
/// that its output has standard deviation `output_std`.
pub(crate) fn linear(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    out: usize,
    output_std: f64,
) -> Signal {
    let (_, var) = pooled(&x.groups);
    let std = output_std / (x.channels as f64 * var).sqrt();
    let weight = Init::CenteredRows {
        row: x.channels,
        std: std as f32,
    };
    let weight = g.parameter(format!("{scope}.weight"), &[out, x.channels], weight);
    let bias = g.parameter(format!("{scope}.bias"), &[out], Init::bell(out, 0.0, 0.05));
    let attrs = vec![
        ("alpha", Attr::Float(1.0)),
        ("beta", Attr::Float(1.0)),
        ("transB", Attr::Int(1)),
    ];
    let value = g.node(scope, "Gemm", &[&x.value, &weight, &bias], attrs);
    let groups = vec![Group {
        channels: out,
        mean: 0.0,
        var: output_std * output_std,
    }];
    Signal {
        value,
        channels: out,
        height: 1,
        width: 1,
        groups,
    }
}

/// The usual end of a classifier: pooled features, flattened, then 1000 logits named `output`.
pub(crate) fn classifier(g: &mut Graph, scope: &str, pool_scope: &str, x: &Signal) {
    let x = global_avg_pool(g, pool_scope, x);
    let x = flatten(g, "", &x);
    let x = linear(g, scope, &x, 1000, 2.0);
    g.output(&x.value, "output", &[1000]);
}
