//! The transformer of PixArt-α (Chen et al. 2024, *PixArt-α: Fast Training of Diffusion Transformer for Photorealistic Text-to-Image
//! Synthesis*), which finds the noise in latents of one size.

use super::LATENT_CHANNELS;
use super::attention::{Attention, attention};
use super::blocks::{as_half, silu_of, unit, waves};
use super::family::PixArt;
use crate::graph::{Attr, DType, Dim, Graph, Port, Small};
use crate::init::Init;
use crate::layers::{Conv, Signal, conv};
use crate::nets::transformer::{gelu_tanh, linear, transpose, with_scalar};

/// Waves of a step's number.
const WAVES: usize = 256;
const EPSILON: f32 = 1e-6;

/// Latents with noise to the noise and its variance, as the text wants it.
pub(crate) fn pixart(g: &mut Graph, sizes: &PixArt) {
    let (width, side) = (sizes.width, sizes.sample_size);
    let image = Signal {
        value: g.input("hidden_states", g.float(), &[LATENT_CHANNELS, side, side]),
        channels: LATENT_CHANNELS,
        height: side,
        width: side,
        groups: vec![unit(LATENT_CHANNELS)],
    };
    let text_sizes = [sizes.text_places, sizes.text_width];
    let text = g.input("encoder_hidden_states", g.float(), &text_sizes);
    g.inputs.push(Port {
        name: "timestep".into(),
        dtype: DType::I64,
        dims: vec![Dim::Batch],
    });
    let mask = text_mask(g, sizes.text_places);
    let mut rows = patches(g, &image, sizes);
    let (embedded, time) = time_embedding(g, width);
    let text = caption(g, &text, sizes);
    for layer in 0..sizes.layers {
        let scope = format!("transformer_blocks.{layer}");
        rows = layer_of(g, &scope, rows, [&text, &time, &mask], sizes);
    }
    let one = g.constant("", Small::I64s(vec![1]));
    let embedded = g.node("", "Unsqueeze", &[&embedded, &one], vec![]);
    let [shift, scale] = shifted::<2>(g, "", &embedded, width);
    let x = modulated(g, "norm_out", &rows, width, &shift, &scale);
    // Noise and variance of each pixel of a patch.
    let channels = 2 * LATENT_CHANNELS;
    let patch = sizes.patch;
    let out = channels * patch * patch;
    let x = linear(g, "proj_out", &x, [width, out], 1.0, 1.0);
    let places = side / patch;
    let split = [0, places, places, patch, patch, channels].map(|size| size as i64);
    let split = g.constant("", Small::I64s(split.to_vec()));
    let x = g.node("", "Reshape", &[&x, &split], vec![]);
    let x = transpose(g, "", &x, &[0, 5, 1, 3, 2, 4]);
    let whole = [0, channels, side, side].map(|size| size as i64);
    let whole = g.constant("", Small::I64s(whole.to_vec()));
    let x = g.node("", "Reshape", &[&x, &whole], vec![]);
    g.output(&x, "out_hidden_states", &[channels, side, side]);
}

/// Added to scores: tokens without text count for little.
fn text_mask(g: &mut Graph, places: usize) -> String {
    let mask = g.input("encoder_attention_mask", DType::I64, &[places]);
    let to = Attr::Int(g.float().onnx_code() as i64);
    let mask = g.node("", "Cast", &[&mask], vec![("to", to)]);
    let one = g.constant("", Small::F32Scalar(1.0));
    let absent = g.node("", "Sub", &[&one, &mask], vec![]);
    let added = with_scalar(g, "", "Mul", &absent, -10_000.0);
    let axes = g.constant("", Small::I64s(vec![1, 2]));
    g.node("", "Unsqueeze", &[&added, &axes], vec![])
}

/// Patches of latents as rows, and where each of them is.
fn patches(g: &mut Graph, image: &Signal, sizes: &PixArt) -> String {
    let width = sizes.width;
    let patch = Conv::new(width, sizes.patch)
        .stride(sizes.patch)
        .pad(0)
        .bias()
        .output_std(1.0);
    let x = conv(g, "pos_embed.proj", image, patch).value;
    let flat = g.constant("pos_embed", Small::I64s(vec![0, width as i64, -1]));
    let x = g.node("pos_embed", "Reshape", &[&x, &flat], vec![]);
    let x = transpose(g, "pos_embed", &x, &[0, 2, 1]);
    let places = (sizes.sample_size / sizes.patch).pow(2);
    let at = Init::bell(places * width, 0.0, 0.5);
    let at = g.buffer("pos_embed.pos_embed", &[1, places, width], at);
    g.node("pos_embed", "Add", &[&x, &at], vec![])
}

/// What a step's number is, and six vectors of it that each layer shifts and scales by.
fn time_embedding(g: &mut Graph, width: usize) -> (String, String) {
    let scope = "adaln_single.emb.timestep_embedder";
    let x = waves(g, "adaln_single.emb.time_proj", "timestep", WAVES);
    let x = as_half(g, scope, x);
    let x = linear(
        g,
        &format!("{scope}.linear_1"),
        &x,
        [WAVES, width],
        0.7,
        1.0,
    );
    let x = silu_of(g, scope, &x);
    let embedded = linear(g, &format!("{scope}.linear_2"), &x, [width; 2], 0.6, 0.3);
    let x = silu_of(g, "adaln_single.silu", &embedded);
    let six = linear(g, "adaln_single.linear", &x, [width, 6 * width], 0.2, 0.3);
    let split = g.constant("adaln_single", Small::I64s(vec![0, 6, width as i64]));
    let six = g.node("adaln_single", "Reshape", &[&six, &split], vec![]);
    (embedded, six)
}

fn caption(g: &mut Graph, text: &str, sizes: &PixArt) -> String {
    let (scope, width) = ("caption_projection", sizes.width);
    let first = [sizes.text_width, width];
    let x = linear(g, &format!("{scope}.linear_1"), text, first, 1.0, 1.0);
    let x = gelu_tanh(g, scope, &x);
    linear(g, &format!("{scope}.linear_2"), &x, [width; 2], 0.65, 1.0)
}

/// A table's vectors and those of a step.
fn shifted<const N: usize>(g: &mut Graph, scope: &str, time: &str, width: usize) -> [String; N] {
    let name = format!("{scope}.scale_shift_table");
    let table = Init::bell(N * width, 0.0, 0.2);
    let table = g.parameter(name.trim_start_matches('.'), &[N, width], table);
    let all = g.node(scope, "Add", &[&table, time], vec![]);
    let ones = g.constant(scope, Small::I64s(vec![1; N]));
    let axis = vec![("axis", Attr::Int(1))];
    let mut parts = g
        .node_multi(scope, "Split", &[&all, &ones], axis, N)
        .into_iter();
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

/// A norm without weights of its own, scaled and shifted.
fn modulated(
    g: &mut Graph,
    scope: &str,
    x: &str,
    width: usize,
    shift: &str,
    scale: &str,
) -> String {
    let mut filled = |name: &str, value: f32| {
        let values = Init::F32(vec![value; width]);
        g.buffer(format!("{scope}.{name}"), &[width], values)
    };
    let (ones, zeros) = (filled("ones", 1.0), filled("zeros", 0.0));
    let attrs = vec![("axis", Attr::Int(-1)), ("epsilon", Attr::Float(EPSILON))];
    let normed = g.node(scope, "LayerNormalization", &[x, &ones, &zeros], attrs);
    let scale = with_scalar(g, scope, "Add", scale, 1.0);
    let scaled = g.node(scope, "Mul", &[&normed, &scale], vec![]);
    g.node(scope, "Add", &[&scaled, shift], vec![])
}

fn layer_of(
    g: &mut Graph,
    scope: &str,
    rows: String,
    [text, time, mask]: [&str; 3],
    sizes: &PixArt,
) -> String {
    let width = sizes.width;
    let [shift, scale, gate, shift_after, scale_after, gate_after] =
        shifted::<6>(g, scope, time, width);
    let seen = Attention {
        width,
        context: width,
        heads: sizes.heads,
        bias: true,
    };
    let norm = format!("{scope}.norm1");
    let normed = modulated(g, &norm, &rows, width, &shift, &scale);
    let x = attention(g, &format!("{scope}.attn1"), &normed, &normed, seen, None);
    let x = g.node(scope, "Mul", &[&gate, &x], vec![]);
    let rows = g.node(scope, "Add", &[&x, &rows], vec![]);
    let x = attention(g, &format!("{scope}.attn2"), &rows, text, seen, Some(mask));
    let rows = g.node(scope, "Add", &[&x, &rows], vec![]);
    let norm = format!("{scope}.norm2");
    let normed = modulated(g, &norm, &rows, width, &shift_after, &scale_after);
    let inner = format!("{scope}.ff.net.0");
    let wide = [width, 4 * width];
    let x = linear(g, &format!("{inner}.proj"), &normed, wide, 1.0, 1.0);
    let x = gelu_tanh(g, &inner, &x);
    let narrow = [4 * width, width];
    let x = linear(g, &format!("{scope}.ff.net.2"), &x, narrow, 0.65, 1.0);
    let x = g.node(scope, "Mul", &[&gate_after, &x], vec![]);
    g.node(scope, "Add", &[&x, &rows], vec![])
}
