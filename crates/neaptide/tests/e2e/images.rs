//! Random convolutional networks, 1-D and 2-D.

use crate::build::Net;
use crate::nets::{outputs, scaled, some_binary, some_unary};
use neap_ir::ValueId;
use neap_ir::op::{
    Activation, CoordinateTransform, NearestMode, Op, PadMode, Pool, Reduce, ResizeAttrs,
    ResizeMode, SliceRange, Window,
};

/// Largest number of elements of one value: keeps the naive evaluation quick.
const MAX_ELEMENTS: usize = 12_000;

pub fn build(net: &mut Net) {
    let batch = if net.random.chance(15) { 2 } else { 1 };
    let channels = *net.random.pick(&[1, 3, 4, 16, 20, 32]);
    let mut shape = vec![batch, channels];
    let flat = net.random.chance(15);
    for _ in 0..if flat { 1 } else { 2 } {
        shape.push(5 + net.random.below(9));
    }
    let mut x = net.input(&shape);
    let mut pool = Vec::new();
    let layers = 3 + net.random.below(8);
    for layer in 0..layers {
        // The first layer is a convolution mostly, as in real networks.
        let kind = if layer == 0 && net.random.chance(80) {
            0
        } else {
            net.random.below(22)
        };
        let found = some_layer(net, x, &pool, kind);
        let Some(&next) = found.last() else {
            continue;
        };
        if net.graph.ty(next).elements() > MAX_ELEMENTS {
            continue;
        }
        for v in found {
            pool.push(v);
        }
        x = if net.random.chance(85) {
            next
        } else {
            *net.random.pick(&pool)
        };
    }
    if net.random.chance(50) {
        x = classifier(net, x);
    }
    if !pool.is_empty() {
        x = if net.graph.inputs.contains(&x) {
            pool[pool.len() - 1]
        } else {
            x
        };
    } else if net.graph.inputs.contains(&x) {
        x = some_unary(net, x);
    }
    outputs(net, &pool, x);
}

/// What a layer adds, its result last; empty when it cannot follow `x`.
fn some_layer(net: &mut Net, x: ValueId, pool: &[ValueId], kind: usize) -> Vec<ValueId> {
    let channels = net.shape(x)[1];
    let one = |v: ValueId| vec![v];
    match kind {
        0..=3 => convolution(net, x, 1, 0),
        4 => {
            let divisors: Vec<usize> = (2..=channels)
                .filter(|g| channels.is_multiple_of(*g))
                .collect();
            if divisors.is_empty() {
                return Vec::new();
            }
            let groups = *net.random.pick(&divisors);
            let per_group = if net.random.chance(50) {
                channels / groups
            } else {
                1 + net.random.below(20)
            };
            convolution(net, x, groups, groups * per_group)
        }
        5 => convolution(net, x, channels, channels),
        6 => block(net, x),
        7 | 8 => pooling(net, x),
        9 => one(some_unary(net, x)),
        10 => {
            let mut row = vec![1; net.shape(x).len()];
            row[1] = channels;
            one(some_binary(net, x, pool, &row))
        }
        11 | 12 => {
            let fits = |v: &ValueId| {
                let (a, b) = (net.shape(*v), net.shape(x));
                a.len() == b.len() && a[0] == b[0] && a[2..] == b[2..]
            };
            let joinable: Vec<ValueId> = pool.iter().copied().filter(fits).collect();
            if joinable.is_empty() || channels > 100 {
                return Vec::new();
            }
            let mut parts = vec![x];
            for _ in 0..1 + net.random.below(2) {
                parts.push(*net.random.pick(&joinable));
            }
            one(net.concat(1, &parts))
        }
        13 if channels >= 2 => {
            let mut first = 1 + net.random.below(channels - 1);
            if channels > 16 && net.random.chance(70) {
                first = 16;
            }
            net.split(1, &[first, channels - first], x)
        }
        14 => one(slice(net, x)),
        15 => one(net.batch_norm(x)),
        16 => {
            let pads = (0..net.shape(x).len())
                .map(|axis| match axis {
                    0 | 1 => (0, 0),
                    _ => (net.random.below(3) as isize, net.random.below(2) as isize),
                })
                .collect();
            let modes = [PadMode::Constant, PadMode::Reflect, PadMode::Edge];
            let mode = *net.random.pick(&modes);
            one(net.op(Op::Pad { mode, pads }, &[x]))
        }
        17 => resize(net, x),
        18 => normalisation(net, x),
        19 => excitation(net, x),
        20 => one(largest_of_channels(net, x)),
        _ => transposed(net, x),
    }
}

fn some_activation(net: &mut Net, x: ValueId) -> ValueId {
    let kinds = [
        Activation::None,
        Activation::Relu,
        Activation::Relu,
        Activation::Silu,
        Activation::HardSwish,
        Activation::Clip {
            low: 0.0,
            high: 6.0,
        },
    ];
    match *net.random.pick(&kinds) {
        Activation::None => x,
        activation => net.activation(activation, x),
    }
}

fn some_window(net: &mut Net, spatial: usize) -> Window {
    let mut window = Window {
        kernel: Vec::new(),
        strides: Vec::new(),
        dilations: Vec::new(),
        pads_begin: Vec::new(),
        pads_end: Vec::new(),
    };
    let square = *net.random.pick(&[1, 1, 2, 3, 3, 3, 5]);
    for _ in 0..spatial {
        let kernel = if net.random.chance(85) {
            square
        } else {
            *net.random.pick(&[1, 3])
        };
        window.kernel.push(kernel);
        window
            .strides
            .push(if net.random.chance(75) { 1 } else { 2 });
        let dilated = kernel > 1 && net.random.chance(15);
        window.dilations.push(if dilated { 2 } else { 1 });
        let same = net.random.chance(75);
        let mut pad = || {
            if same {
                kernel / 2
            } else {
                net.random.below(kernel)
            }
        };
        window.pads_begin.push(pad());
        window.pads_end.push(pad());
    }
    window
}

/// `c_out` of 0 means any.
fn convolution(net: &mut Net, x: ValueId, groups: usize, c_out: usize) -> Vec<ValueId> {
    let shape = net.shape(x);
    let (c_in, spatial) = (shape[1] / groups, shape.len() - 2);
    let c_out = match c_out {
        0 => *net.random.pick(&[4, 8, 16, 16, 20, 32, 48, 70, 130]),
        given => given,
    };
    let window = some_window(net, spatial);
    let mut weight_shape = vec![c_out, c_in];
    weight_shape.extend(&window.kernel);
    let fan_in = weight_shape[1..].iter().product();
    let mut inputs = vec![x, scaled(net, &weight_shape, fan_in)];
    if net.random.chance(50) {
        inputs.push(net.weight(&[c_out], 0.5));
    }
    let Ok(found) = net.try_op(Op::Conv(window, groups), &inputs, 1) else {
        return Vec::new();
    };
    let mut y = found[0];
    if net.random.chance(50) {
        y = net.batch_norm(y);
    }
    if net.graph.ty(x) == net.graph.ty(y) && net.random.chance(60) {
        y = if net.random.chance(50) {
            net.add(x, y)
        } else {
            net.add(y, x)
        };
    }
    vec![some_activation(net, y)]
}

/// A residual block of two branches.
fn block(net: &mut Net, x: ValueId) -> Vec<ValueId> {
    if net.shape(x).len() != 4 {
        return Vec::new();
    }
    let c_out = *net.random.pick(&[16, 24, 32]);
    let shortcut_first = net.random.chance(50);
    let mut branches = Vec::new();
    for kernel in if shortcut_first { [1, 3] } else { [3, 1] } {
        let y = net.conv(x, c_out, kernel, 1);
        branches.push(net.batch_norm(y));
    }
    let sum = net.add(branches[0], branches[1]);
    vec![net.relu(sum)]
}

fn pooling(net: &mut Net, x: ValueId) -> Vec<ValueId> {
    let shape = net.shape(x);
    let window = some_window(net, shape.len() - 2);
    let kind = if net.random.chance(50) {
        Pool::Max {
            column_major: false,
        }
    } else {
        Pool::Average {
            count_include_pad: net.random.chance(50),
        }
    };
    let mut output_spatial = Vec::new();
    for (axis, &size) in shape[2..].iter().enumerate() {
        let reach = (window.kernel[axis] - 1) * window.dilations[axis] + 1;
        let padded = size + window.pads_begin[axis] + window.pads_end[axis];
        if padded < reach {
            return Vec::new();
        }
        output_spatial.push((padded - reach) / window.strides[axis] + 1);
    }
    let op = Op::Pool {
        kind,
        window,
        output_spatial,
    };
    net.try_op(op, &[x], 1).unwrap_or_default()
}

fn slice(net: &mut Net, x: ValueId) -> ValueId {
    let shape = net.shape(x);
    let cut = net.random.below(shape.len() - 1) + 1;
    let ranges = shape
        .iter()
        .enumerate()
        .map(|(axis, &d)| {
            let mut range = SliceRange {
                start: 0,
                step: 1,
                len: d,
            };
            if axis == cut && d > 1 {
                range.start = net.random.below(d);
                if axis == 1 && d > 16 && net.random.chance(60) {
                    range.start = 16;
                }
                range.len = 1 + net.random.below(d - range.start);
                if axis > 1 && net.random.chance(40) {
                    range.step = 2;
                    range.len = range.len.div_ceil(2);
                }
            }
            range
        })
        .collect();
    net.op(Op::Slice { ranges }, &[x])
}

fn resize(net: &mut Net, x: ValueId) -> Vec<ValueId> {
    let shape = net.shape(x);
    if shape.len() != 4 {
        return Vec::new();
    }
    let mode = *net.random.pick(&[ResizeMode::Nearest, ResizeMode::Linear]);
    let attrs = ResizeAttrs {
        output_shape: vec![shape[0], shape[1], shape[2] * 2, shape[3] * 2],
        scales: vec![1.0, 1.0, 2.0, 2.0],
        mode,
        coordinates: if mode == ResizeMode::Nearest {
            CoordinateTransform::Asymmetric
        } else {
            CoordinateTransform::HalfPixel
        },
        nearest: NearestMode::Floor,
        cubic_a: -0.75,
        exclude_outside: false,
        extrapolation: 0.0,
        antialias: false,
        roi: Vec::new(),
    };
    net.try_op(Op::Resize(attrs), &[x], 1).unwrap_or_default()
}

fn normalisation(net: &mut Net, x: ValueId) -> Vec<ValueId> {
    let channels = net.shape(x)[1];
    let scale = net.weight(&[channels], 1.0);
    let bias = net.weight(&[channels], 1.0);
    let epsilon = 1e-2;
    let op = match net.random.below(3) {
        0 => Op::InstanceNorm { epsilon },
        1 if channels.is_multiple_of(2) => Op::GroupNorm {
            groups: 2,
            epsilon,
            per_group: false,
        },
        _ => {
            let lrn = Op::Lrn {
                alpha: 0.1,
                beta: 0.75,
                bias: 1.0,
                size: 3,
            };
            return net.try_op(lrn, &[x], 1).unwrap_or_default();
        }
    };
    net.try_op(op, &[x, scale, bias], 1).unwrap_or_default()
}

fn transposed(net: &mut Net, x: ValueId) -> Vec<ValueId> {
    let shape = net.shape(x);
    if shape.len() != 4 || shape[1] > 32 {
        return Vec::new();
    }
    let (kernel, stride): (usize, usize) =
        *net.random
            .pick(&[(2, 2), (4, 2), (3, 2), (3, 1), (1, 2), (5, 3)]);
    let pad = net.random.below(kernel.div_ceil(2));
    // Rows that the output's padding adds.
    let more = net.random.below(stride);
    let groups = if net.random.chance(20) { shape[1] } else { 1 };
    let weight = scaled(
        net,
        &[shape[1], 6 / groups.min(6), kernel, kernel],
        shape[1],
    );
    let size = |rows: usize| ((rows - 1) * stride + kernel + more).checked_sub(2 * pad);
    let (Some(height), Some(width)) = (size(shape[2]), size(shape[3])) else {
        return Vec::new();
    };
    if height * width == 0 {
        return Vec::new();
    }
    let op = Op::ConvTranspose {
        window: Window {
            kernel: vec![kernel; 2],
            strides: vec![stride; 2],
            dilations: vec![1, 1],
            pads_begin: vec![pad; 2],
            pads_end: vec![pad; 2],
        },
        groups,
        output_spatial: vec![height, width],
    };
    net.try_op(op, &[x, weight], 1).unwrap_or_default()
}

/// Channels are scaled by what is made of all places of an image.
fn excitation(net: &mut Net, x: ValueId) -> Vec<ValueId> {
    let shape = net.shape(x);
    let channels = shape[1];
    let kind = match net.random.below(3) {
        0 => Op::Reduce {
            kind: *net.random.pick(&[Reduce::Mean, Reduce::Max]),
            axes: (2..shape.len()).collect(),
            keep_dims: true,
        },
        1 => Op::GlobalPool(Pool::Max {
            column_major: false,
        }),
        _ => Op::GlobalPool(Pool::Average {
            count_include_pad: false,
        }),
    };
    let pooled = net.op(kind, &[x]);
    let squeezed = match shape.len() {
        4 => net.conv(pooled, channels, 1, 1),
        _ => pooled,
    };
    let scale = net.activation(Activation::Sigmoid, squeezed);
    let y = net.mul(x, scale);
    match net.random.chance(30) {
        true => vec![pooled, y],
        false => vec![y],
    }
}

/// At each place.
fn largest_of_channels(net: &mut Net, x: ValueId) -> ValueId {
    let keep_dims = net.shape(x).len() == 3 || net.random.chance(50);
    let op = Op::Reduce {
        kind: Reduce::Max,
        axes: vec![1],
        keep_dims,
    };
    net.op(op, &[x])
}

fn classifier(net: &mut Net, x: ValueId) -> ValueId {
    let shape = net.shape(x);
    let pool = Pool::Average {
        count_include_pad: false,
    };
    let y = net.op(Op::GlobalPool(pool), &[x]);
    let y = net.reshape(y, &[shape[0], shape[1]]);
    let classes = 10 + net.random.below(30);
    let weight = scaled(net, &[classes, shape[1]], shape[1]);
    let bias = net.weight(&[classes], 0.3);
    let gemm = Op::Gemm {
        alpha: 1.0,
        beta: 1.0,
        trans_a: false,
        trans_b: true,
    };
    net.op(gemm, &[y, weight, bias])
}
