//! The four networks of Stable Diffusion 1 (Rombach et al. 2022, *High-Resolution Image Synthesis with Latent Diffusion Models*):
//! the kinds of nodes and the names of inputs and outputs as `optimum` exports them.

mod family;

use crate::graph::{Attr, DType, Dim, Graph, Port, Small};
use crate::init::{Dist, Init};
use crate::layers::{Conv, Signal, add, concat, conv};
use crate::nets::transformer::{layer_norm, linear, product, transpose, with_scalar};
use crate::stats::Group;
pub(crate) use family::{Family, SD_15, SD_TINY};
use family::{Text, Unet, Vae};
use half::f16;

pub(crate) const PLACES: usize = 77;
pub(crate) const LATENT_CHANNELS: usize = 4;

const TO_F32: i64 = 1;

/// Token ids to what they mean, each with those before it.
pub(crate) fn text_encoder(g: &mut Graph, text: &Text, vocabulary: usize) {
    let width = text.width;
    let tokens = vocabulary.max(text.tokens);
    g.inputs.push(Port {
        name: "input_ids".into(),
        dtype: DType::I64,
        dims: vec![Dim::Batch, Dim::Fixed(PLACES as i64)],
    });
    let scope = "text_model.embeddings";
    let table = Init::bell(tokens * width, 0.0, 1.0);
    let table = g.parameter("token_embedding.weight", &[tokens, width], table);
    let places = Init::bell(PLACES * width, 0.0, 0.3);
    let places = g.parameter("position_embedding.weight", &[PLACES, width], places);
    let axis = || vec![("axis", Attr::Int(0))];
    let x = g.node(scope, "Gather", &[&table, "input_ids"], axis());
    let mut x = g.node(scope, "Add", &[&x, &places], vec![]);
    // Added to scores: what comes later counts for nothing.
    let least = match g.is_half {
        true => f16::MIN.to_f32(),
        false => f32::MIN,
    };
    let ahead = (0..PLACES * PLACES).map(|at| match at % PLACES > at / PLACES {
        true => least,
        false => 0.0,
    });
    let mask = Init::F32(ahead.collect());
    let mask = g.buffer("causal_mask", &[1, 1, PLACES, PLACES], mask);
    for layer in 0..text.layers {
        let scope = format!("text_model.layers.{layer}");
        let normed = layer_norm(g, &format!("{scope}.layer_norm1"), &x, width, 1e-5);
        let seen = Attention {
            width,
            context: width,
            heads: text.heads,
            bias: true,
        };
        let scope_of = format!("{scope}.self_attn");
        let attended = attention(g, &scope_of, &normed, &normed, seen, Some(&mask));
        x = g.node(&scope, "Add", &[&x, &attended], vec![]);
        let normed = layer_norm(g, &format!("{scope}.layer_norm2"), &x, width, 1e-5);
        let sizes = [width, 4 * width];
        let wide = linear(g, &format!("{scope}.mlp.fc1"), &normed, sizes, 1.0, 1.0);
        // CLIP's GELU: x times sigmoid(1.702 x).
        let gate = with_scalar(g, &scope, "Mul", &wide, 1.702);
        let gate = g.node(&scope, "Sigmoid", &[&gate], vec![]);
        let wide = g.node(&scope, "Mul", &[&wide, &gate], vec![]);
        let sizes = [4 * width, width];
        let narrow = linear(g, &format!("{scope}.mlp.fc2"), &wide, sizes, 0.65, 0.3);
        x = g.node(&scope, "Add", &[&x, &narrow], vec![]);
    }
    let x = layer_norm(g, "text_model.final_layer_norm", &x, width, 1e-5);
    g.output(&x, "last_hidden_state", &[PLACES, width]);
}

/// Latents with noise to the noise, as the text wants it.
pub(crate) fn unet(g: &mut Graph, unet: &Unet, text_width: usize) {
    let x = latent_input(g, "sample", LATENT_CHANNELS, ["height", "width"]);
    g.inputs.push(Port {
        name: "timestep".into(),
        dtype: DType::I64,
        dims: vec![Dim::Fixed(1)],
    });
    let text = g.input("encoder_hidden_states", g.float(), &[PLACES, text_width]);
    let time = time_embedding(g, unet, &x.value);
    let residuals = Residuals {
        groups: unet.groups,
        time: Some((time, unet.time_width)),
    };
    let looking = |g: &mut Graph, name: &str, x: &Signal| {
        let seen = Attention {
            width: x.channels,
            context: text_width,
            heads: unet.heads,
            bias: unet.attention_bias,
        };
        looking(g, name, x, &text, seen, unet.groups)
    };
    let mut x = conv(g, "conv_in", &x, plain(unet.levels[0]));
    let mut skips = vec![x.clone()];
    for (level, &channels) in unet.levels.iter().enumerate() {
        let scope = format!("down_blocks.{level}");
        for block in 0..unet.blocks {
            x = residuals.block(g, &format!("{scope}.resnets.{block}"), &x, channels);
            if level < unet.looking {
                x = looking(g, &format!("{scope}.attentions.{block}"), &x);
            }
            skips.push(x.clone());
        }
        if level + 1 < unet.levels.len() {
            let halved = plain(channels).stride(2);
            x = conv(g, &format!("{scope}.downsamplers.0.conv"), &x, halved);
            skips.push(x.clone());
        }
    }
    let last = unet.levels[unet.levels.len() - 1];
    x = residuals.block(g, "mid_block.resnets.0", &x, last);
    x = looking(g, "mid_block.attentions.0", &x);
    x = residuals.block(g, "mid_block.resnets.1", &x, last);
    for (level, &channels) in unet.levels.iter().enumerate().rev() {
        let scope = format!("up_blocks.{}", unet.levels.len() - 1 - level);
        for block in 0..=unet.blocks {
            if let Some(skip) = skips.pop() {
                x = concat(g, &format!("{scope}.{block}"), &[&x, &skip]);
            }
            x = residuals.block(g, &format!("{scope}.resnets.{block}"), &x, channels);
            if level < unet.looking {
                x = looking(g, &format!("{scope}.attentions.{block}"), &x);
            }
        }
        if level > 0 {
            x = doubled(g, &format!("{scope}.upsamplers.0"), &x, channels);
        }
    }
    let x = group_norm(g, "conv_norm_out", &x, unet.groups);
    let x = silu(g, "conv_act", &x);
    let x = conv(g, "conv_out", &x, plain(LATENT_CHANNELS).output_std(1.0));
    image_output(g, &x, "out_sample", ["height", "width"]);
}

/// Latents to a picture.
pub(crate) fn vae_decoder(g: &mut Graph, vae: &Vae) {
    let ends = ["latent_height", "latent_width"];
    let x = latent_input(g, "latent_sample", LATENT_CHANNELS, ends);
    let one = Conv::new(LATENT_CHANNELS, 1).bias().output_std(1.0);
    let x = conv(g, "post_quant_conv", &x, one);
    let widest = vae.levels[vae.levels.len() - 1];
    let x = conv(g, "decoder.conv_in", &x, plain(widest));
    let residuals = vae.residuals();
    let mut x = middle(g, "decoder.mid_block", &x, vae);
    for (at, &channels) in vae.levels.iter().rev().enumerate() {
        let scope = format!("decoder.up_blocks.{at}");
        for block in 0..vae.decoder_blocks {
            x = residuals.block(g, &format!("{scope}.resnets.{block}"), &x, channels);
        }
        if at + 1 < vae.levels.len() {
            x = doubled(g, &format!("{scope}.upsamplers.0"), &x, channels);
        }
    }
    let x = group_norm(g, "decoder.conv_norm_out", &x, vae.groups);
    let x = silu(g, "decoder.conv_act", &x);
    let x = conv(g, "decoder.conv_out", &x, plain(3).output_std(0.4));
    image_output(g, &x, "sample", ["height", "width"]);
}

/// A picture to means of latents and logarithms of their variances.
pub(crate) fn vae_encoder(g: &mut Graph, vae: &Vae) {
    let x = latent_input(g, "sample", 3, ["height", "width"]);
    let mut x = conv(g, "encoder.conv_in", &x, plain(vae.levels[0]));
    let residuals = vae.residuals();
    for (level, &channels) in vae.levels.iter().enumerate() {
        let scope = format!("encoder.down_blocks.{level}");
        for block in 0..vae.encoder_blocks {
            x = residuals.block(g, &format!("{scope}.resnets.{block}"), &x, channels);
        }
        if level + 1 < vae.levels.len() {
            let halved = plain(channels).stride(2);
            x = conv(g, &format!("{scope}.downsamplers.0.conv"), &x, halved);
        }
    }
    let x = middle(g, "encoder.mid_block", &x, vae);
    let x = group_norm(g, "encoder.conv_norm_out", &x, vae.groups);
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
fn time_embedding(g: &mut Graph, unet: &Unet, sample: &str) -> String {
    let scope = "time_proj";
    let batch = g.batch_of(scope, sample);
    let time = g.node(scope, "Expand", &["timestep", &batch], vec![]);
    let time = g.node(scope, "Cast", &[&time], vec![("to", Attr::Int(TO_F32))]);
    let axes = g.constant(scope, Small::I64s(vec![1]));
    let time = g.node(scope, "Unsqueeze", &[&time, &axes], vec![]);
    let half = unet.levels[0] / 2;
    // 10000 to the power of -i / half, by exactly rounded operations: the square root of the square root of ... .
    let twos = half.trailing_zeros();
    let root = (0..twos).fold(root_of(10_000.0, half >> twos) as f32, |root, _| {
        root.sqrt()
    });
    let waves = std::iter::successors(Some(1.0_f32), |wave| Some(wave / root));
    let waves = Init::F32(waves.take(half).collect());
    let waves = g.single("time_proj.waves", &[1, half], waves);
    let angles = g.node(scope, "Mul", &[&time, &waves], vec![]);
    let sin = g.node(scope, "Sin", &[&angles], vec![]);
    let cos = g.node(scope, "Cos", &[&angles], vec![]);
    let axis = vec![("axis", Attr::Int(-1))];
    let mut x = g.node(scope, "Concat", &[&cos, &sin], axis);
    if g.is_half {
        let to = Attr::Int(g.float().onnx_code() as i64);
        x = g.node(scope, "Cast", &[&x], vec![("to", to)]);
    }
    let sizes = [unet.levels[0], unet.time_width];
    let x = linear(g, "time_embedding.linear_1", &x, sizes, 0.7, 1.0);
    let x = silu_of(g, "time_embedding.act", &x);
    let sizes = [unet.time_width; 2];
    linear(g, "time_embedding.linear_2", &x, sizes, 0.6, 1.0)
}

/// The `n`th root, by Newton's method.
fn root_of(value: f64, n: usize) -> f64 {
    (0..100).fold(value, |root, _| {
        let power = (1..n).fold(1.0, |power, _| power * root);
        root - (root * power - value) / (n as f64 * power)
    })
}

/// As PyTorch exports GroupNorm: groups become channels of an InstanceNormalization.
fn group_norm(g: &mut Graph, scope: &str, x: &Signal, groups: usize) -> Signal {
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

/// What residual blocks of a network share.
struct Residuals {
    groups: usize,
    /// A step's embedding and its width.
    time: Option<(String, usize)>,
}

impl Residuals {
    /// Two convolutions beside a way that passes them by; a step's embedding is added in between.
    fn block(&self, g: &mut Graph, scope: &str, x: &Signal, out: usize) -> Signal {
        let inner = group_norm(g, &format!("{scope}.norm1"), x, self.groups);
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
        let inner = group_norm(g, &format!("{scope}.norm2"), &inner, self.groups);
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
}

impl Vae {
    fn residuals(&self) -> Residuals {
        Residuals {
            groups: self.groups,
            time: None,
        }
    }
}

fn doubled(g: &mut Graph, scope: &str, x: &Signal, channels: usize) -> Signal {
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

/// The middle of the VAE: each place looks at all others.
fn middle(g: &mut Graph, scope: &str, x: &Signal, vae: &Vae) -> Signal {
    let (residuals, width) = (vae.residuals(), x.channels);
    let x = residuals.block(g, &format!("{scope}.resnets.0"), x, width);
    let inner = format!("{scope}.attentions.0");
    let normed = group_norm(g, &format!("{inner}.group_norm"), &x, vae.groups);
    let (rows, shape) = as_rows(g, &inner, &normed);
    let seen = Attention {
        width,
        context: width,
        heads: vae.heads,
        bias: true,
    };
    let rows = attention(g, &inner, &rows, &rows, seen, None);
    let value = as_image(g, &inner, &rows, &shape);
    let value = g.node(&inner, "Add", &[&x.value, &value], vec![]);
    let x = with(&x, value);
    residuals.block(g, &format!("{scope}.resnets.1"), &x, width)
}

/// Each place looks at all others and at the text; then a layer on its own.
fn looking(
    g: &mut Graph,
    scope: &str,
    x: &Signal,
    text: &str,
    seen: Attention,
    groups: usize,
) -> Signal {
    let width = x.channels;
    let normed = group_norm(g, &format!("{scope}.norm"), x, groups);
    let one = Conv::new(width, 1).bias().output_std(1.0);
    let inner = conv(g, &format!("{scope}.proj_in"), &normed, one);
    let (mut rows, shape) = as_rows(g, scope, &inner);
    let block = format!("{scope}.transformer_blocks.0");
    for (number, context) in [(1, None), (2, Some(text))] {
        let normed = layer_norm(g, &format!("{block}.norm{number}"), &rows, width, 1e-5);
        let seen = Attention {
            context: context.map_or(width, |_| seen.context),
            ..seen
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
struct Attention {
    width: usize,
    context: usize,
    heads: usize,
    /// Of queries, keys and values.
    bias: bool,
}

/// Heads, scores and sums as products, as PyTorch exports them.
fn attention(
    g: &mut Graph,
    scope: &str,
    x: &str,
    context: &str,
    sizes: Attention,
    mask: Option<&str>,
) -> String {
    let Attention {
        width, context: of, ..
    } = sizes;
    let head = (width / sizes.heads) as i64;
    let heads = |g: &mut Graph, name: &str, from: &str, inputs: usize, perm: &[i64]| {
        let scope = format!("{scope}.{name}");
        let project = if sizes.bias { linear } else { product };
        let x = project(g, &scope, from, [inputs, width], 1.0, 1.0);
        let shape = [0, -1, sizes.heads as i64, head];
        let shape = g.constant(&scope, Small::I64s(shape.to_vec()));
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
