//! The four networks of Stable Diffusion 1 (Rombach et al. 2022, *High-Resolution Image Synthesis with Latent Diffusion Models*), small:
//! the kinds of nodes and the names of inputs and outputs as `optimum` exports them, with few and narrow layers.

use crate::graph::{Attr, DType, Dim, Graph, Port, Small};
use crate::init::{Dist, Init};
use crate::layers::{Conv, Signal, add, concat, conv};
use crate::nets::transformer::{layer_norm, linear, transpose, with_scalar};
use crate::stats::Group;

/// Of the text encoder, and of what the UNet looks at.
const TEXT_WIDTH: usize = 64;
const TEXT_LAYERS: usize = 2;
const HEADS: i64 = 4;
pub(crate) const PLACES: usize = 77;
pub(crate) const LATENT_CHANNELS: usize = 4;
/// Of the UNet, each level with half the height and width of the one before.
pub(crate) const LEVELS: [usize; 2] = [32, 64];
/// Of the VAE: three times halved, so a latent is 8 x 8 pixels.
pub(crate) const VAE_LEVELS: [usize; 4] = [16, 32, 32, 64];
const GROUPS: usize = 8;
const TIME_WIDTH: usize = 64;

const TO_F32: i64 = 1;

/// Token ids to what they mean, each with those before it.
pub(crate) fn text_encoder(g: &mut Graph, vocabulary: usize) {
    g.inputs.push(Port {
        name: "input_ids".into(),
        dtype: DType::I64,
        dims: vec![Dim::Batch, Dim::Fixed(PLACES as i64)],
    });
    let scope = "text_model.embeddings";
    let table = Init::bell(vocabulary * TEXT_WIDTH, 0.0, 1.0);
    let table = g.parameter("token_embedding.weight", &[vocabulary, TEXT_WIDTH], table);
    let places = Init::bell(PLACES * TEXT_WIDTH, 0.0, 0.3);
    let places = g.parameter("position_embedding.weight", &[PLACES, TEXT_WIDTH], places);
    let axis = || vec![("axis", Attr::Int(0))];
    let x = g.node(scope, "Gather", &[&table, "input_ids"], axis());
    let mut x = g.node(scope, "Add", &[&x, &places], vec![]);
    // Added to scores: what comes later counts for nothing.
    let ahead = (0..PLACES * PLACES).map(|at| match at % PLACES > at / PLACES {
        true => f32::MIN,
        false => 0.0,
    });
    let mask = Init::F32(ahead.collect());
    let mask = g.buffer("causal_mask", &[1, 1, PLACES, PLACES], mask);
    for layer in 0..TEXT_LAYERS {
        let scope = format!("text_model.layers.{layer}");
        let normed = layer_norm(g, &format!("{scope}.layer_norm1"), &x, TEXT_WIDTH, 1e-5);
        let seen = Sizes {
            width: TEXT_WIDTH,
            context: TEXT_WIDTH,
        };
        let scope_of = format!("{scope}.self_attn");
        let attended = attention(g, &scope_of, &normed, &normed, seen, Some(&mask));
        x = g.node(&scope, "Add", &[&x, &attended], vec![]);
        let normed = layer_norm(g, &format!("{scope}.layer_norm2"), &x, TEXT_WIDTH, 1e-5);
        let sizes = [TEXT_WIDTH, 4 * TEXT_WIDTH];
        let wide = linear(g, &format!("{scope}.mlp.fc1"), &normed, sizes, 1.0, 1.0);
        // CLIP's GELU: x times sigmoid(1.702 x).
        let gate = with_scalar(g, &scope, "Mul", &wide, 1.702);
        let gate = g.node(&scope, "Sigmoid", &[&gate], vec![]);
        let wide = g.node(&scope, "Mul", &[&wide, &gate], vec![]);
        let sizes = [4 * TEXT_WIDTH, TEXT_WIDTH];
        let narrow = linear(g, &format!("{scope}.mlp.fc2"), &wide, sizes, 0.65, 0.3);
        x = g.node(&scope, "Add", &[&x, &narrow], vec![]);
    }
    let x = layer_norm(g, "text_model.final_layer_norm", &x, TEXT_WIDTH, 1e-5);
    g.output(&x, "last_hidden_state", &[PLACES, TEXT_WIDTH]);
}

/// Latents with noise to the noise, as the text wants it.
pub(crate) fn unet(g: &mut Graph) {
    let mut x = latent_input(g, "sample", LATENT_CHANNELS, ["height", "width"]);
    g.inputs.push(Port {
        name: "timestep".into(),
        dtype: DType::I64,
        dims: vec![Dim::Fixed(1)],
    });
    let text = g.input("encoder_hidden_states", DType::F32, &[PLACES, TEXT_WIDTH]);
    let time = time_embedding(g, &x.value);
    x = conv(g, "conv_in", &x, plain(LEVELS[0]));
    let mut skips = vec![x.clone()];
    for (level, &channels) in LEVELS.iter().enumerate() {
        let scope = format!("down_blocks.{level}");
        x = residual(g, &format!("{scope}.resnets.0"), &x, channels, Some(&time));
        x = looking(g, &format!("{scope}.attentions.0"), &x, &text);
        skips.push(x.clone());
        if level + 1 < LEVELS.len() {
            let halved = plain(channels).stride(2);
            x = conv(g, &format!("{scope}.downsamplers.0.conv"), &x, halved);
            skips.push(x.clone());
        }
    }
    let last = LEVELS[LEVELS.len() - 1];
    x = residual(g, "mid_block.resnets.0", &x, last, Some(&time));
    x = looking(g, "mid_block.attentions.0", &x, &text);
    x = residual(g, "mid_block.resnets.1", &x, last, Some(&time));
    for (level, &channels) in LEVELS.iter().enumerate().rev() {
        let scope = format!("up_blocks.{}", LEVELS.len() - 1 - level);
        for block in 0..2 {
            if let Some(skip) = skips.pop() {
                x = concat(g, &format!("{scope}.{block}"), &[&x, &skip]);
            }
            let name = format!("{scope}.resnets.{block}");
            x = residual(g, &name, &x, channels, Some(&time));
            x = looking(g, &format!("{scope}.attentions.{block}"), &x, &text);
        }
        if level > 0 {
            x = doubled(g, &format!("{scope}.upsamplers.0"), &x, channels);
        }
    }
    let x = group_norm(g, "conv_norm_out", &x);
    let x = silu(g, "conv_act", &x);
    let x = conv(g, "conv_out", &x, plain(LATENT_CHANNELS).output_std(1.0));
    image_output(g, &x, "out_sample", ["height", "width"]);
}

/// Latents to a picture.
pub(crate) fn vae_decoder(g: &mut Graph) {
    let ends = ["latent_height", "latent_width"];
    let x = latent_input(g, "latent_sample", LATENT_CHANNELS, ends);
    let one = Conv::new(LATENT_CHANNELS, 1).bias().output_std(1.0);
    let x = conv(g, "post_quant_conv", &x, one);
    let widest = VAE_LEVELS[VAE_LEVELS.len() - 1];
    let mut x = conv(g, "decoder.conv_in", &x, plain(widest));
    x = middle(g, "decoder.mid_block", &x, widest);
    for (at, &channels) in VAE_LEVELS.iter().rev().enumerate() {
        let scope = format!("decoder.up_blocks.{at}");
        x = residual(g, &format!("{scope}.resnets.0"), &x, channels, None);
        if at + 1 < VAE_LEVELS.len() {
            x = doubled(g, &format!("{scope}.upsamplers.0"), &x, channels);
        }
    }
    let x = group_norm(g, "decoder.conv_norm_out", &x);
    let x = silu(g, "decoder.conv_act", &x);
    let x = conv(g, "decoder.conv_out", &x, plain(3).output_std(0.4));
    image_output(g, &x, "sample", ["height", "width"]);
}

/// A picture to means of latents and logarithms of their variances.
pub(crate) fn vae_encoder(g: &mut Graph) {
    let x = latent_input(g, "sample", 3, ["height", "width"]);
    let mut x = conv(g, "encoder.conv_in", &x, plain(VAE_LEVELS[0]));
    for (level, &channels) in VAE_LEVELS.iter().enumerate() {
        let scope = format!("encoder.down_blocks.{level}");
        x = residual(g, &format!("{scope}.resnets.0"), &x, channels, None);
        if level + 1 < VAE_LEVELS.len() {
            let halved = plain(channels).stride(2);
            x = conv(g, &format!("{scope}.downsamplers.0.conv"), &x, halved);
        }
    }
    let widest = VAE_LEVELS[VAE_LEVELS.len() - 1];
    x = middle(g, "encoder.mid_block", &x, widest);
    let x = group_norm(g, "encoder.conv_norm_out", &x);
    let x = silu(g, "encoder.conv_act", &x);
    let x = conv(g, "encoder.conv_out", &x, plain(2 * LATENT_CHANNELS));
    let one = Conv::new(2 * LATENT_CHANNELS, 1).bias().output_std(1.0);
    let x = conv(g, "quant_conv", &x, one);
    let ends = ["latent_height", "latent_width"];
    image_output(g, &x, "latent_parameters", ends);
}

fn plain(out: usize) -> Conv {
    Conv::new(out, 3).bias().output_std(1.0)
}

fn latent_input(g: &mut Graph, name: &str, channels: usize, ends: [&'static str; 2]) -> Signal {
    g.inputs.push(Port {
        name: name.into(),
        dtype: DType::F32,
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

fn image_output(g: &mut Graph, x: &Signal, name: &str, ends: [&'static str; 2]) {
    g.output(&x.value, name, &[]);
    if let Some(port) = g.outputs.last_mut() {
        port.dims = image_dims(x.channels, ends);
    }
}

fn image_dims(channels: usize, [height, width]: [&'static str; 2]) -> Vec<Dim> {
    let channels = Dim::Fixed(channels as i64);
    vec![Dim::Batch, channels, Dim::Named(height), Dim::Named(width)]
}

fn unit(channels: usize) -> Group {
    Group {
        channels,
        mean: 0.0,
        var: 1.0,
    }
}

fn with(x: &Signal, value: String) -> Signal {
    Signal {
        value,
        groups: vec![unit(x.channels)],
        ..x.clone()
    }
}

/// Waves of a step's number, and two layers over them.
fn time_embedding(g: &mut Graph, sample: &str) -> String {
    let scope = "time_proj";
    let batch = g.batch_of(scope, sample);
    let time = g.node(scope, "Expand", &["timestep", &batch], vec![]);
    let time = g.node(scope, "Cast", &[&time], vec![("to", Attr::Int(TO_F32))]);
    let axes = g.constant(scope, Small::I64s(vec![1]));
    let time = g.node(scope, "Unsqueeze", &[&time, &axes], vec![]);
    let half = LEVELS[0] / 2;
    // 10000 to the power of -i / half, by exactly rounded operations: the square root of the square root of ... .
    let root = (0..half.ilog2()).fold(10_000_f32, |root, _| root.sqrt());
    let waves = std::iter::successors(Some(1.0_f32), |wave| Some(wave / root));
    let waves = Init::F32(waves.take(half).collect());
    let waves = g.buffer("time_proj.waves", &[1, half], waves);
    let angles = g.node(scope, "Mul", &[&time, &waves], vec![]);
    let sin = g.node(scope, "Sin", &[&angles], vec![]);
    let cos = g.node(scope, "Cos", &[&angles], vec![]);
    let axis = vec![("axis", Attr::Int(-1))];
    let x = g.node(scope, "Concat", &[&cos, &sin], axis);
    let sizes = [LEVELS[0], TIME_WIDTH];
    let x = linear(g, "time_embedding.linear_1", &x, sizes, 0.7, 1.0);
    let x = silu_of(g, "time_embedding.act", &x);
    let sizes = [TIME_WIDTH, TIME_WIDTH];
    linear(g, "time_embedding.linear_2", &x, sizes, 0.6, 1.0)
}

/// As PyTorch exports GroupNorm: groups become channels of an InstanceNormalization.
fn group_norm(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let grouped = g.constant(scope, Small::I64s(vec![0, GROUPS as i64, -1]));
    let grouped = g.node(scope, "Reshape", &[&x.value, &grouped], vec![]);
    let ones = g.buffer(
        format!("{scope}.ones"),
        &[GROUPS],
        Init::F32(vec![1.0; GROUPS]),
    );
    let zeros = g.buffer(
        format!("{scope}.zeros"),
        &[GROUPS],
        Init::F32(vec![0.0; GROUPS]),
    );
    let epsilon = vec![("epsilon", Attr::Float(1e-5))];
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

fn silu_of(g: &mut Graph, scope: &str, x: &str) -> String {
    let gate = g.node(scope, "Sigmoid", &[x], vec![]);
    g.node(scope, "Mul", &[x, &gate], vec![])
}

fn silu(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
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

/// Two convolutions beside a way that passes them by; a step's embedding is added in between.
fn residual(g: &mut Graph, scope: &str, x: &Signal, out: usize, time: Option<&str>) -> Signal {
    let inner = group_norm(g, &format!("{scope}.norm1"), x);
    let inner = silu(g, &format!("{scope}.nonlinearity"), &inner);
    let mut inner = conv(g, &format!("{scope}.conv1"), &inner, plain(out));
    if let Some(time) = time {
        let scope = format!("{scope}.time_emb_proj");
        let active = silu_of(g, &scope, time);
        let shift = linear(g, &scope, &active, [TIME_WIDTH, out], 0.6, 0.5);
        let axes = g.constant(&scope, Small::I64s(vec![2, 3]));
        let shift = g.node(&scope, "Unsqueeze", &[&shift, &axes], vec![]);
        let shifted = g.node(&scope, "Add", &[&inner.value, &shift], vec![]);
        inner = with(&inner, shifted);
    }
    let inner = group_norm(g, &format!("{scope}.norm2"), &inner);
    let inner = silu(g, &format!("{scope}.nonlinearity"), &inner);
    let half = plain(out).output_std(0.5);
    let inner = conv(g, &format!("{scope}.conv2"), &inner, half);
    let beside = match x.channels == out {
        true => x.clone(),
        false => {
            let one = Conv::new(out, 1).bias().output_std(1.0);
            conv(g, &format!("{scope}.conv_shortcut"), x, one)
        }
    };
    add(g, scope, &beside, &inner)
}

fn doubled(g: &mut Graph, scope: &str, x: &Signal, channels: usize) -> Signal {
    let scales = Init::F32(vec![1.0, 1.0, 2.0, 2.0]);
    let scales = g.buffer(format!("{scope}.scales"), &[4], scales);
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

/// The middle of the VAE: each place looks at all others.
fn middle(g: &mut Graph, scope: &str, x: &Signal, channels: usize) -> Signal {
    let x = residual(g, &format!("{scope}.resnets.0"), x, channels, None);
    let inner = format!("{scope}.attentions.0");
    let normed = group_norm(g, &format!("{inner}.group_norm"), &x);
    let (rows, shape) = as_rows(g, &inner, &normed);
    let seen = Sizes {
        width: channels,
        context: channels,
    };
    let rows = attention(g, &inner, &rows, &rows, seen, None);
    let value = as_image(g, &inner, &rows, &shape);
    let value = g.node(&inner, "Add", &[&x.value, &value], vec![]);
    let x = with(&x, value);
    residual(g, &format!("{scope}.resnets.1"), &x, channels, None)
}

/// Each place looks at all others and at the text; then a layer on its own.
fn looking(g: &mut Graph, scope: &str, x: &Signal, text: &str) -> Signal {
    let width = x.channels;
    let normed = group_norm(g, &format!("{scope}.norm"), x);
    let one = Conv::new(width, 1).bias().output_std(1.0);
    let inner = conv(g, &format!("{scope}.proj_in"), &normed, one);
    let (mut rows, shape) = as_rows(g, scope, &inner);
    let block = format!("{scope}.transformer_blocks.0");
    for (number, context) in [(1, None), (2, Some(text))] {
        let normed = layer_norm(g, &format!("{block}.norm{number}"), &rows, width, 1e-5);
        let seen = Sizes {
            width,
            context: context.map_or(width, |_| TEXT_WIDTH),
        };
        let name = format!("{block}.attn{number}");
        let context = context.unwrap_or(&normed);
        let looked = attention(g, &name, &normed, context, seen, None);
        rows = g.node(&block, "Add", &[&looked, &rows], vec![]);
    }
    let normed = layer_norm(g, &format!("{block}.norm3"), &rows, width, 1e-5);
    let gated = gated_gelu(g, &format!("{block}.ff.net.0"), &normed, width);
    let sizes = [4 * width, width];
    let narrow = linear(g, &format!("{block}.ff.net.2"), &gated, sizes, 0.65, 0.5);
    rows = g.node(&block, "Add", &[&narrow, &rows], vec![]);
    let image = as_image(g, scope, &rows, &shape);
    let image = with(x, image);
    let half = Conv::new(width, 1).bias().output_std(0.5);
    let image = conv(g, &format!("{scope}.proj_out"), &image, half);
    let value = g.node(scope, "Add", &[&image.value, &x.value], vec![]);
    with(x, value)
}

/// Shazeer 2020, *GLU Variants Improve Transformer*: one half, times the other's GELU.
fn gated_gelu(g: &mut Graph, scope: &str, x: &str, width: usize) -> String {
    let both = linear(g, &format!("{scope}.proj"), x, [width, 8 * width], 1.0, 1.0);
    let sizes = g.constant(scope, Small::I64s(vec![4 * width as i64; 2]));
    let axis = vec![("axis", Attr::Int(-1))];
    let parts = g.node_multi(scope, "Split", &[&both, &sizes], axis, 2);
    let scaled = with_scalar(g, scope, "Div", &parts[1], std::f32::consts::SQRT_2);
    let erf = g.node(scope, "Erf", &[&scaled], vec![]);
    let shifted = with_scalar(g, scope, "Add", &erf, 1.0);
    let twice = g.node(scope, "Mul", &[&parts[1], &shifted], vec![]);
    let gate = with_scalar(g, scope, "Mul", &twice, 0.5);
    g.node(scope, "Mul", &[&parts[0], &gate], vec![])
}

/// NxCxHxW as Nx(HW)xC, and the shape that leads back.
fn as_rows(g: &mut Graph, scope: &str, x: &Signal) -> (String, String) {
    let last = transpose(g, scope, &x.value, &[0, 2, 3, 1]);
    let shape = g.node(scope, "Shape", &[&last], vec![]);
    let rows = g.constant(scope, Small::I64s(vec![0, -1, x.channels as i64]));
    let rows = g.node(scope, "Reshape", &[&last, &rows], vec![]);
    (rows, shape)
}

fn as_image(g: &mut Graph, scope: &str, rows: &str, shape: &str) -> String {
    let last = g.node(scope, "Reshape", &[rows, shape], vec![]);
    transpose(g, scope, &last, &[0, 3, 1, 2])
}

/// Widths of rows and of what they look at.
#[derive(Clone, Copy)]
struct Sizes {
    width: usize,
    context: usize,
}

/// Heads, scores and sums as products, as PyTorch exports them.
fn attention(
    g: &mut Graph,
    scope: &str,
    x: &str,
    context: &str,
    sizes: Sizes,
    mask: Option<&str>,
) -> String {
    let Sizes { width, context: of } = sizes;
    let head = width as i64 / HEADS;
    let heads = |g: &mut Graph, name: &str, from: &str, inputs: usize, perm: &[i64]| {
        let scope = format!("{scope}.{name}");
        let x = linear(g, &scope, from, [inputs, width], 1.0, 1.0);
        let shape = g.constant(&scope, Small::I64s(vec![0, -1, HEADS, head]));
        let x = g.node(&scope, "Reshape", &[&x, &shape], vec![]);
        transpose(g, &scope, &x, perm)
    };
    let q = heads(g, "to_q", x, width, &[0, 2, 1, 3]);
    let k = heads(g, "to_k", context, of, &[0, 2, 3, 1]);
    let v = heads(g, "to_v", context, of, &[0, 2, 1, 3]);
    let scores = g.node(scope, "MatMul", &[&q, &k], vec![]);
    let scores = with_scalar(g, scope, "Div", &scores, (head as f32).sqrt());
    let scores = match mask {
        Some(mask) => g.node(scope, "Add", &[&scores, mask], vec![]),
        None => scores,
    };
    let shares = g.node(scope, "Softmax", &[&scores], vec![("axis", Attr::Int(-1))]);
    let x = g.node(scope, "MatMul", &[&shares, &v], vec![]);
    let x = transpose(g, scope, &x, &[0, 2, 1, 3]);
    let shape = g.constant(scope, Small::I64s(vec![0, -1, width as i64]));
    let x = g.node(scope, "Reshape", &[&x, &shape], vec![]);
    linear(g, &format!("{scope}.to_out"), &x, [width, width], 0.5, 0.5)
}
