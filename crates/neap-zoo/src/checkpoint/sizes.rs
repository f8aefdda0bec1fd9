//! The sizes of networks, by the shapes of a checkpoint's tensors. Settings say what shapes do not.

use super::bad;
use super::found::Found;
use super::names::Part;
use super::settings::Settings;
use crate::ZooError;
use crate::nets::diffusion::{Activation, Family, LATENT_CHANNELS, Level, PLACES, Text, Unet, Vae};

/// Where no settings say it.
const GROUPS: usize = 32;
const SCALING: f64 = 0.18215;
const SAMPLE_SIZE: usize = 64;
const HEADS: usize = 8;
/// Channels of a head where their number follows from the width.
const HEAD: usize = 64;
/// Levels, and blocks of a level. More is no such network.
const MOST: usize = 8;
const MOST_LAYERS: usize = 64;

pub(super) struct Sizes {
    text: Text,
    levels: Vec<Level>,
    blocks: usize,
    middle_layers: usize,
    attention_bias: bool,
    linear_ends: bool,
    time_width: usize,
    groups: usize,
    sample_size: usize,
    vae_levels: Vec<usize>,
    encoder_blocks: usize,
    decoder_blocks: usize,
    vae_groups: usize,
    scaling: f64,
}

impl Sizes {
    pub fn family(&self) -> Family<'_> {
        Family {
            text: Text { ..self.text },
            second_text: None,
            unet: Unet {
                levels: &self.levels,
                blocks: self.blocks,
                middle_layers: self.middle_layers,
                attention_bias: self.attention_bias,
                linear_ends: self.linear_ends,
                time_width: self.time_width,
                sizes: None,
                groups: self.groups,
                sample_size: self.sample_size,
            },
            vae: Vae {
                levels: &self.vae_levels,
                encoder_blocks: self.encoder_blocks,
                decoder_blocks: self.decoder_blocks,
                heads: 1,
                groups: self.vae_groups,
                scaling: self.scaling,
            },
        }
    }
}

/// Looks at shapes for one part of a checkpoint.
struct Shapes<'f> {
    found: &'f Found,
    part: Part,
}

impl Shapes<'_> {
    /// A dimension of a tensor that cannot be missing.
    fn size(&self, name: &str, axis: usize) -> Result<usize, ZooError> {
        let path = self.found.path().display();
        let part = self.part.folder();
        let Some(shape) = self.found.shape(self.part, name) else {
            return Err(bad(format!("{path}: '{name}' of {part} is missing")));
        };
        let wrong = || bad(format!("{path}: '{name}' of {part} has shape {shape:?}"));
        let size = shape.get(axis).copied().ok_or_else(wrong)?;
        match size {
            1..=1_000_000 => Ok(size),
            _ => Err(wrong()),
        }
    }

    fn count(&self, before: &str, after: &str, most: usize) -> Result<usize, ZooError> {
        match self.found.count(self.part, before, after) {
            0 => self.size(&format!("{before}0{after}"), 0),
            count if count <= most => Ok(count),
            _ => Err(self.unusual(before)),
        }
    }

    fn unusual(&self, what: &str) -> ZooError {
        let path = self.found.path().display();
        bad(format!(
            "{path}: '{what}' of {} is not as in Stable Diffusion",
            self.part.folder()
        ))
    }

    fn has(&self, name: &str) -> bool {
        self.found.get(self.part, name).is_some()
    }
}

pub(super) fn of(found: &Found, settings: &Settings) -> Result<Sizes, ZooError> {
    let of = |part| Shapes { found, part };
    let unet = of(Part::Unet);
    check_kind(&unet)?;
    let levels = unet.count("down_blocks.", ".resnets.0.conv1.weight", MOST)?;
    let linear_ends = found.shape(Part::Unet, "mid_block.attentions.0.proj_in.weight");
    let linear_ends = linear_ends.is_some_and(|shape| shape.len() == 2);
    let text = text(&of(Part::Text), settings, linear_ends)?;
    let first = "mid_block.attentions.0.transformer_blocks.0";
    let context = unet.size(&format!("{first}.attn2.to_k.weight"), 1)?;
    if context != text.width {
        return Err(bad(format!(
            "{}: the UNet reads {context} numbers for a token, and the text encoder gives {}",
            found.path().display(),
            text.width
        )));
    }
    let vae = of(Part::Vae);
    let latent = vae.size("decoder.conv_in.weight", 1)?;
    if latent != LATENT_CHANNELS {
        return Err(vae.unusual("decoder.conv_in.weight"));
    }
    let vae_levels = vae.count("encoder.down_blocks.", ".resnets.0.conv1.weight", MOST)?;
    let vae_levels = (0..vae_levels).map(|at| {
        vae.size(
            &format!("encoder.down_blocks.{at}.resnets.0.conv1.weight"),
            0,
        )
    });
    let vae_levels = vae_levels.collect::<Result<Vec<_>, _>>()?;
    let sizes = Sizes {
        text,
        levels: unet_levels(&unet, settings, levels, linear_ends)?,
        blocks: unet.count("down_blocks.0.resnets.", ".conv1.weight", MOST)?,
        middle_layers: unet.count(
            "mid_block.attentions.0.transformer_blocks.",
            ".norm1.weight",
            MOST_LAYERS,
        )?,
        attention_bias: unet.has(&format!("{first}.attn1.to_q.bias")),
        linear_ends,
        time_width: unet.size("time_embedding.linear_1.weight", 0)?,
        groups: settings.unet.count("norm_num_groups")?.unwrap_or(GROUPS),
        sample_size: settings.unet.count("sample_size")?.unwrap_or(SAMPLE_SIZE),
        encoder_blocks: vae.count("encoder.down_blocks.0.resnets.", ".conv1.weight", MOST)?,
        decoder_blocks: vae.count("decoder.up_blocks.0.resnets.", ".conv1.weight", MOST)?,
        vae_groups: settings.vae.count("norm_num_groups")?.unwrap_or(GROUPS),
        scaling: settings.vae.number("scaling_factor")?.unwrap_or(SCALING),
        vae_levels,
    };
    divides(&unet, sizes.levels.iter().map(|l| l.channels), sizes.groups)?;
    divides(&vae, sizes.vae_levels.iter().copied(), sizes.vae_groups)?;
    Ok(sizes)
}

fn divides(
    shapes: &Shapes,
    mut all: impl Iterator<Item = usize>,
    groups: usize,
) -> Result<(), ZooError> {
    match all.all(|channels| channels % groups == 0) {
        true => Ok(()),
        false => Err(bad(format!(
            "{}: channels of {} are no whole groups of {groups}: add --settings FOLDER with norm_num_groups in {}/config.json",
            shapes.found.path().display(),
            shapes.part.folder(),
            shapes.part.folder()
        ))),
    }
}

/// Refuses UNets that see more than latents, a step and a text.
fn check_kind(unet: &Shapes) -> Result<(), ZooError> {
    let path = unet.found.path().display();
    let refused = |what: &str| Err(bad(format!("{path}: {what}")));
    match unet.size("conv_in.weight", 1)? {
        LATENT_CHANNELS => {}
        9 => return refused("it is a model for inpainting, which is not supported"),
        8 => return refused("its UNet sees a picture beside the latents, which is not supported"),
        more => return refused(&format!("its UNet takes {more} channels, and not 4")),
    }
    for scope in [
        "add_embedding.",
        "class_embedding.",
        "encoder_hid_proj.",
        "time_embedding.cond_proj.",
    ] {
        if unet.found.has_scope(unet.part, scope) {
            return refused(&format!(
                "its UNet takes more inputs than that of Stable Diffusion ('{scope}')"
            ));
        }
    }
    Ok(())
}

fn unet_levels(
    unet: &Shapes,
    settings: &Settings,
    count: usize,
    linear_ends: bool,
) -> Result<Vec<Level>, ZooError> {
    // What is called so is their number, in all models of this kind.
    let key = match settings.unet.get("num_attention_heads") {
        Some(_) => "num_attention_heads",
        None => "attention_head_dim",
    };
    let heads = settings.unet.each(key, count)?;
    let mut levels = Vec::new();
    for at in 0..count {
        let scope = format!("down_blocks.{at}");
        let channels = unet.size(&format!("{scope}.resnets.0.conv1.weight"), 0)?;
        let inner = format!("{scope}.attentions.0.transformer_blocks.");
        let layers = unet.found.count(unet.part, &inner, ".norm1.weight");
        let usual = if linear_ends { channels / HEAD } else { HEADS };
        let heads = heads.as_ref().map_or(usual, |heads| heads[at]);
        let is_whole = heads > 0 && channels.is_multiple_of(heads) && channels.is_multiple_of(2);
        if !is_whole || layers > MOST_LAYERS {
            return Err(bad(format!(
                "{}: {channels} channels of {scope} are not {heads} heads",
                unet.found.path().display()
            )));
        }
        levels.push(Level {
            channels,
            layers,
            heads,
        });
    }
    Ok(levels)
}

fn text(shapes: &Shapes, settings: &Settings, linear_ends: bool) -> Result<Text, ZooError> {
    let settings = &settings.text;
    let table = "text_model.embeddings.token_embedding.weight";
    let places = "text_model.embeddings.position_embedding.weight";
    if shapes.size(places, 0)? != PLACES {
        return Err(shapes.unusual(places));
    }
    let width = shapes.size(table, 1)?;
    let layers = shapes.count(
        "text_model.encoder.layers.",
        ".layer_norm1.weight",
        MOST_LAYERS,
    )?;
    let heads = settings.count("num_attention_heads")?;
    let heads = heads.unwrap_or(width / HEAD);
    if heads == 0 || !width.is_multiple_of(heads) {
        return Err(bad(format!(
            "{}: the text encoder's width of {width} is not {heads} heads: add --settings FOLDER with text_encoder/config.json",
            shapes.found.path().display()
        )));
    }
    let activation = match settings.get("hidden_act").and_then(|act| act.as_str()) {
        Some("quick_gelu") => Activation::QuickGelu,
        Some("gelu") => Activation::Gelu,
        Some(_) => return Err(settings.wrong("hidden_act")),
        // Stable Diffusion 2 has OpenCLIP's.
        None if shapes.found.has_open_clip || (linear_ends && settings.is_empty()) => {
            Activation::Gelu
        }
        None => Activation::QuickGelu,
    };
    Ok(Text {
        tokens: shapes.size(table, 0)?,
        width,
        layers,
        heads,
        activation,
        projection: None,
        all_layers: false,
    })
}
