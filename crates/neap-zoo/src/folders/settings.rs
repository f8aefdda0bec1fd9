//! The small files beside networks, as the published models have them.

use crate::nets::diffusion::{self, Family, Model, PixArt, Text, Vae};

/// Folders with a vocabulary.
pub(super) fn tokenizers(model: &Model) -> &'static [&'static str] {
    match model {
        Model::StableDiffusion(family) if family.second_text.is_some() => {
            &["tokenizer", "tokenizer_2"]
        }
        Model::StableDiffusion(_) => &["tokenizer"],
        Model::PixArt(_) => &[],
    }
}

/// Names in the folder, and what they say.
pub(crate) fn files(model: &Model) -> Vec<(String, String)> {
    let files = match model {
        Model::StableDiffusion(family) => of_stable_diffusion(family),
        Model::PixArt(sizes) => vec![
            ("transformer/config.json", transformer(sizes)),
            ("vae_decoder/config.json", vae(&sizes.vae)),
        ],
    };
    let named = files.into_iter();
    named.map(|(name, text)| (name.into(), text)).collect()
}

fn of_stable_diffusion(family: &Family) -> Vec<(&'static str, String)> {
    let is_xl = family.second_text.is_some();
    let vae = vae(&family.vae);
    let mut files = vec![
        ("text_encoder/config.json", text(&family.text)),
        ("unet/config.json", unet(family)),
        ("vae_decoder/config.json", vae.clone()),
        ("vae_encoder/config.json", vae),
        (
            "tokenizer/tokenizer_config.json",
            tokenizer("<|endoftext|>"),
        ),
        ("scheduler/scheduler_config.json", scheduler(is_xl)),
        ("model_index.json", index(is_xl)),
    ];
    if let Some(second) = &family.second_text {
        files.push(("text_encoder_2/config.json", text(second)));
        files.push(("tokenizer_2/tokenizer_config.json", tokenizer("!")));
    }
    files
}

fn object(entries: &[(&str, String)]) -> String {
    let lines: Vec<String> = (entries.iter())
        .map(|(name, value)| format!("  \"{name}\": {value}"))
        .collect();
    format!("{{\n{}\n}}\n", lines.join(",\n"))
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

fn list(values: impl IntoIterator<Item = usize>) -> String {
    let texts: Vec<String> = values.into_iter().map(|v| v.to_string()).collect();
    format!("[{}]", texts.join(", "))
}

fn text(text: &Text) -> String {
    let class = match text.projection {
        Some(_) => "CLIPTextModelWithProjection",
        None => "CLIPTextModel",
    };
    object(&[
        ("architectures", format!("[\"{class}\"]")),
        ("hidden_size", text.width.to_string()),
        ("max_position_embeddings", diffusion::PLACES.to_string()),
        ("num_attention_heads", text.heads.to_string()),
        ("num_hidden_layers", text.layers.to_string()),
        (
            "projection_dim",
            text.projection.unwrap_or(text.width).to_string(),
        ),
    ])
}

fn unet(family: &Family) -> String {
    let unet = &family.unet;
    let mut entries = vec![
        ("_class_name", quoted("UNet2DConditionModel")),
        (
            "block_out_channels",
            list(unet.levels.iter().map(|level| level.channels)),
        ),
        ("cross_attention_dim", family.text_width().to_string()),
        ("in_channels", diffusion::LATENT_CHANNELS.to_string()),
        ("sample_size", unet.sample_size.to_string()),
    ];
    if let Some(sizes) = &unet.sizes {
        let all = sizes.text_width + sizes.count * sizes.width;
        entries.extend([
            ("addition_embed_type", quoted("text_time")),
            ("addition_time_embed_dim", sizes.width.to_string()),
            ("projection_class_embeddings_input_dim", all.to_string()),
        ]);
    }
    object(&entries)
}

fn transformer(sizes: &PixArt) -> String {
    let head = sizes.width / sizes.heads;
    object(&[
        ("_class_name", quoted("PixArtTransformer2DModel")),
        ("attention_head_dim", head.to_string()),
        ("caption_channels", sizes.text_width.to_string()),
        ("in_channels", diffusion::LATENT_CHANNELS.to_string()),
        ("num_attention_heads", sizes.heads.to_string()),
        ("num_layers", sizes.layers.to_string()),
        ("patch_size", sizes.patch.to_string()),
        ("sample_size", sizes.sample_size.to_string()),
    ])
}

fn vae(vae: &Vae) -> String {
    object(&[
        ("_class_name", quoted("AutoencoderKL")),
        ("block_out_channels", list(vae.levels.iter().copied())),
        ("latent_channels", diffusion::LATENT_CHANNELS.to_string()),
        ("scaling_factor", vae.scaling.to_string()),
    ])
}

fn tokenizer(pad: &str) -> String {
    object(&[
        ("model_max_length", diffusion::PLACES.to_string()),
        ("pad_token", quoted(pad)),
        ("tokenizer_class", quoted("CLIPTokenizer")),
    ])
}

fn scheduler(is_xl: bool) -> String {
    let (class, special) = match is_xl {
        true => (
            "EulerDiscreteScheduler",
            ("timestep_spacing", quoted("leading")),
        ),
        false => ("PNDMScheduler", ("skip_prk_steps", "true".into())),
    };
    object(&[
        ("_class_name", quoted(class)),
        ("beta_end", "0.012".into()),
        ("beta_schedule", quoted("scaled_linear")),
        ("beta_start", "0.00085".into()),
        ("clip_sample", "false".into()),
        ("num_train_timesteps", "1000".into()),
        ("set_alpha_to_one", "false".into()),
        special,
        ("steps_offset", "1".into()),
        ("trained_betas", "null".into()),
    ])
}

fn index(is_xl: bool) -> String {
    let of = |library: &str, class: &str| format!("[\"{library}\", \"{class}\"]");
    let mut entries = match is_xl {
        true => vec![
            ("_class_name", quoted("StableDiffusionXLPipeline")),
            ("force_zeros_for_empty_prompt", "true".into()),
            ("scheduler", of("diffusers", "EulerDiscreteScheduler")),
            ("text_encoder_2", of("optimum", "ORTModelTextEncoder")),
            ("tokenizer_2", of("transformers", "CLIPTokenizer")),
        ],
        false => vec![
            ("_class_name", quoted("StableDiffusionPipeline")),
            ("scheduler", of("diffusers", "PNDMScheduler")),
        ],
    };
    entries.extend([
        ("text_encoder", of("optimum", "ORTModelTextEncoder")),
        ("tokenizer", of("transformers", "CLIPTokenizer")),
        ("unet", of("optimum", "ORTModelUnet")),
        ("vae_decoder", of("optimum", "ORTModelVaeDecoder")),
        ("vae_encoder", of("optimum", "ORTModelVaeEncoder")),
    ]);
    object(&entries)
}
