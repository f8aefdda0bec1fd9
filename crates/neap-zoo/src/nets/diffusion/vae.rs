//! Between pictures and latents.

use super::attention::{Attention, as_image, as_rows, attention};
use super::blocks::{
    Residuals, doubled, group_norm, image_output, latent_input, plain, plain_1x1, silu, with,
};
use super::family::Vae;
use super::{LATENT_CHANNELS, SMALL_EPSILON};
use crate::graph::{Attr, Graph, Small};
use crate::layers::{Signal, conv};

/// Latents to a picture.
pub(crate) fn vae_decoder(g: &mut Graph, vae: &Vae) {
    let ends = ["latent_height", "latent_width"];
    let x = latent_input(g, "latent_sample", LATENT_CHANNELS, ends);
    let x = conv(g, "post_quant_conv", &x, plain_1x1(LATENT_CHANNELS));
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
    let x = group_norm(g, "decoder.conv_norm_out", &x, vae.groups, SMALL_EPSILON);
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
            x = halved(g, &format!("{scope}.downsamplers.0"), &x);
        }
    }
    let x = middle(g, "encoder.mid_block", &x, vae);
    let x = group_norm(g, "encoder.conv_norm_out", &x, vae.groups, SMALL_EPSILON);
    let x = silu(g, "encoder.conv_act", &x);
    let x = conv(g, "encoder.conv_out", &x, plain(2 * LATENT_CHANNELS));
    let x = conv(g, "quant_conv", &x, plain_1x1(2 * LATENT_CHANNELS));
    let ends = ["latent_height", "latent_width"];
    image_output(g, &x, "latent_parameters", ends);
}

impl Vae<'_> {
    fn residuals(&self) -> Residuals {
        Residuals {
            groups: self.groups,
            epsilon: SMALL_EPSILON,
            time: None,
        }
    }
}

/// The middle of the VAE: each place looks at all others.
fn middle(g: &mut Graph, scope: &str, x: &Signal, vae: &Vae) -> Signal {
    let (residuals, width) = (vae.residuals(), x.channels);
    let x = residuals.block(g, &format!("{scope}.resnets.0"), x, width);
    let inner = format!("{scope}.attentions.0");
    let normed = group_norm(
        g,
        &format!("{inner}.group_norm"),
        &x,
        vae.groups,
        SMALL_EPSILON,
    );
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

/// A row and a column more at the end, then every second place, so that a place of the result lies over four of the picture.
fn halved(g: &mut Graph, scope: &str, x: &Signal) -> Signal {
    let pads = g.constant(scope, Small::I64s(vec![0, 0, 0, 0, 0, 0, 1, 1]));
    let zero = g.constant(scope, Small::F32Scalar(0.0));
    let mode = vec![("mode", Attr::Str("constant"))];
    let padded = g.node(scope, "Pad", &[&x.value, &pads, &zero], mode);
    let every_second = plain(x.channels).stride(2).pad(0);
    conv(g, &format!("{scope}.conv"), &with(x, padded), every_second)
}
