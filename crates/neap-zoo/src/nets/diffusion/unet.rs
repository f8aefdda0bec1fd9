//! The network that finds the noise.

use super::attention::{Attention, Looking};
use super::blocks::{
    Residuals, as_half, doubled, group_norm, image_output, latent_input, plain, silu, silu_of,
    waves,
};
use super::family::{Level, Sizes, Unet};
use super::{EPSILON, LATENT_CHANNELS, PLACES};
use crate::graph::{Attr, DType, Dim, Graph, Port, Small};
use crate::layers::{Signal, concat, conv};
use crate::nets::transformer::linear;

/// Latents with noise to the noise, as the text wants it.
pub(crate) fn unet(g: &mut Graph, unet: &Unet, text_width: usize) {
    let x = latent_input(g, "sample", LATENT_CHANNELS, ["height", "width"]);
    g.inputs.push(Port {
        name: "timestep".into(),
        dtype: DType::I64,
        dims: vec![Dim::Fixed(1)],
    });
    let text = g.input("encoder_hidden_states", g.float(), &[PLACES, text_width]);
    let mut time = time_embedding(g, unet, &x.value);
    if let Some(sizes) = &unet.sizes {
        let added = added_embedding(g, unet.time_width, sizes);
        time = g.node("", "Add", &[&time, &added], vec![]);
    }
    let residuals = Residuals {
        groups: unet.groups,
        epsilon: EPSILON,
        time: Some((time, unet.time_width)),
    };
    // Nothing is changed where a level does not look.
    let looking = |g: &mut Graph, name: &str, x: Signal, level: &Level, layers: usize| {
        let seen = Attention {
            width: x.channels,
            context: text_width,
            heads: level.heads,
            bias: unet.attention_bias,
        };
        let looking = Looking {
            groups: unet.groups,
            layers,
            linear_ends: unet.linear_ends,
            seen,
        };
        match layers {
            0 => x,
            _ => looking.layers(g, name, &x, &text),
        }
    };
    let mut x = conv(g, "conv_in", &x, plain(unet.levels[0].channels));
    let mut skips = vec![x.clone()];
    for (at, level) in unet.levels.iter().enumerate() {
        let scope = format!("down_blocks.{at}");
        for block in 0..unet.blocks {
            let inner = format!("{scope}.resnets.{block}");
            x = residuals.block(g, &inner, &x, level.channels);
            let inner = format!("{scope}.attentions.{block}");
            x = looking(g, &inner, x, level, level.layers);
            skips.push(x.clone());
        }
        if at + 1 < unet.levels.len() {
            let halved = plain(level.channels).stride(2);
            x = conv(g, &format!("{scope}.downsamplers.0.conv"), &x, halved);
            skips.push(x.clone());
        }
    }
    let last = &unet.levels[unet.levels.len() - 1];
    x = residuals.block(g, "mid_block.resnets.0", &x, last.channels);
    x = looking(g, "mid_block.attentions.0", x, last, unet.middle_layers);
    x = residuals.block(g, "mid_block.resnets.1", &x, last.channels);
    for (at, level) in unet.levels.iter().enumerate().rev() {
        let scope = format!("up_blocks.{}", unet.levels.len() - 1 - at);
        for block in 0..=unet.blocks {
            if let Some(skip) = skips.pop() {
                x = concat(g, &format!("{scope}.{block}"), &[&x, &skip]);
            }
            let inner = format!("{scope}.resnets.{block}");
            x = residuals.block(g, &inner, &x, level.channels);
            let inner = format!("{scope}.attentions.{block}");
            x = looking(g, &inner, x, level, level.layers);
        }
        if at > 0 {
            x = doubled(g, &format!("{scope}.upsamplers.0"), &x, level.channels);
        }
    }
    let x = group_norm(g, "conv_norm_out", &x, unet.groups, EPSILON);
    let x = silu(g, "conv_act", &x);
    let x = conv(g, "conv_out", &x, plain(LATENT_CHANNELS).output_std(1.0));
    image_output(g, &x, "out_sample", ["height", "width"]);
}

/// Of a step's number: waves, and two layers over them.
fn time_embedding(g: &mut Graph, unet: &Unet, sample: &str) -> String {
    let scope = "time_proj";
    let batch = g.batch_of(scope, sample);
    let time = g.node(scope, "Expand", &["timestep", &batch], vec![]);
    let first = unet.levels[0].channels;
    let x = waves(g, scope, &time, first);
    let x = as_half(g, scope, x);
    two_layers(g, "time_embedding", &x, [first, unet.time_width])
}

/// Of the picture's sizes, each as a step's number is, beside what the text means as a whole.
fn added_embedding(g: &mut Graph, width: usize, sizes: &Sizes) -> String {
    let text = g.input("text_embeds", g.float(), &[sizes.text_width]);
    let ids = g.input("time_ids", g.float(), &[sizes.count]);
    let scope = "add_time_proj";
    let flat = g.constant(scope, Small::I64s(vec![-1]));
    let ids = g.node(scope, "Reshape", &[&ids, &flat], vec![]);
    let x = waves(g, scope, &ids, sizes.width);
    let all = sizes.count * sizes.width;
    let together = g.constant(scope, Small::I64s(vec![-1, all as i64]));
    let x = g.node(scope, "Reshape", &[&x, &together], vec![]);
    let x = as_half(g, scope, x);
    let axis = vec![("axis", Attr::Int(-1))];
    let x = g.node("", "Concat", &[&text, &x], axis);
    two_layers(g, "add_embedding", &x, [sizes.text_width + all, width])
}

fn two_layers(g: &mut Graph, scope: &str, x: &str, [from, to]: [usize; 2]) -> String {
    let x = linear(g, &format!("{scope}.linear_1"), x, [from, to], 0.7, 1.0);
    let x = silu_of(g, &format!("{scope}.act"), &x);
    linear(g, &format!("{scope}.linear_2"), &x, [to; 2], 0.6, 1.0)
}
