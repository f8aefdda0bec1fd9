//! What tensors are called: in the original layout, in older files of `diffusers`, in the zoo's graphs. All become the names that
//! `diffusers` and `transformers` have today.

/// A network with names of its own. Both halves of the VAE share them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Part {
    Text,
    Unet,
    Vae,
}

impl Part {
    /// A folder of `diffusers` has it there.
    pub fn folder(self) -> &'static str {
        match self {
            Part::Text => "text_encoder",
            Part::Unet => "unet",
            Part::Vae => "vae",
        }
    }

    /// Of one of the zoo's networks.
    pub fn of(network: &str) -> Option<Part> {
        match network {
            "text_encoder" => Some(Part::Text),
            "unet" => Some(Part::Unet),
            "vae_decoder" | "vae_encoder" => Some(Part::Vae),
            _ => None,
        }
    }
}

/// What a tensor of a file is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Tensor(Part, String),
    /// Tensors on top of each other, in equal parts along the first axis.
    Stack(Part, Vec<String>),
    /// A moving average of the UNet.
    Average,
    /// Of training, or counted again wherever it is needed.
    Unused,
    Unknown,
}

/// The name of a graph's parameter in a checkpoint.
pub(super) fn of_graph(part: Part, name: &str) -> String {
    match part {
        Part::Text => {
            let name = name
                .replace("text_model.layers.", "text_model.encoder.layers.")
                .replace(".to_out.", ".out_proj.");
            let name = ["q", "k", "v"].iter().fold(name, |name, of| {
                name.replace(&format!(".to_{of}."), &format!(".{of}_proj."))
            });
            match name.starts_with("text_model.") {
                true => name,
                false => format!("text_model.embeddings.{name}"),
            }
        }
        Part::Unet | Part::Vae => name.replace(".to_out.", ".to_out.0."),
    }
}

/// In a file of `diffusers` or `transformers`, of any age.
pub(super) fn of_folder(part: Part, name: &str) -> Meaning {
    if is_unused(name) {
        return Meaning::Unused;
    }
    let name = match part {
        Part::Text if !name.starts_with("text_model.") => format!("text_model.{name}"),
        Part::Text | Part::Unet => name.into(),
        Part::Vae => replaced(name, &OLD_ATTENTION),
    };
    Meaning::Tensor(part, name)
}

const OLD_ATTENTION: [(&str, &str); 4] = [
    (".attentions.0.query.", ".attentions.0.to_q."),
    (".attentions.0.key.", ".attentions.0.to_k."),
    (".attentions.0.value.", ".attentions.0.to_v."),
    (".attentions.0.proj_attn.", ".attentions.0.to_out.0."),
];

/// By the first rule that fits.
fn replaced(name: &str, rules: &[(&str, &str)]) -> String {
    match rules.iter().find(|(from, _)| name.contains(from)) {
        Some((from, to)) => name.replacen(from, to, 1),
        None => name.into(),
    }
}

/// The same, at the beginning.
fn begun(name: &str, rules: &[(&str, &str)]) -> Option<String> {
    rules.iter().find_map(|(from, to)| {
        let rest = name.strip_prefix(from)?;
        Some(format!("{to}{rest}"))
    })
}

fn is_unused(name: &str) -> bool {
    const ENDINGS: [&str; 4] = [
        "position_ids",
        "logit_scale",
        "attn_mask",
        "text_projection",
    ];
    const BEGINNINGS: [&str; 3] = ["first_stage_model.loss.", "posterior_", "sqrt_"];
    const NAMES: [&str; 7] = [
        "alphas_cumprod",
        "alphas_cumprod_prev",
        "betas",
        "log_one_minus_alphas_cumprod",
        "logvar",
        "lvlb_weights",
        "global_step",
    ];
    ENDINGS.iter().any(|end| name.ends_with(end))
        || BEGINNINGS.iter().any(|begin| name.starts_with(begin))
        || NAMES.contains(&name)
}

/// The layout of the models' first publication: all networks in one file, levels as a list of blocks.
pub(super) struct Original {
    /// Residual blocks of a level on the way down.
    blocks: usize,
    vae_levels: usize,
    /// OpenCLIP's last layer is not used.
    last_text_layer: Option<usize>,
}

const UNET: &str = "model.diffusion_model.";
const VAE: &str = "first_stage_model.";
const CLIP: &str = "cond_stage_model.transformer.";
const OPEN_CLIP: &str = "cond_stage_model.model.";

impl Original {
    /// What all names together say; `None` where they are not of this layout.
    pub fn of<'n>(names: impl Iterator<Item = &'n str>) -> Option<Original> {
        let (mut first_halved, mut vae_levels, mut last_text_layer) = (None, 0, None);
        for name in names {
            if let Some(rest) = name.strip_prefix("model.diffusion_model.input_blocks.")
                && let Some((number, "0.op.weight")) = numbered(rest)
            {
                first_halved = Some(first_halved.map_or(number, |first: usize| first.min(number)));
            } else if let Some(rest) = name.strip_prefix("first_stage_model.decoder.up.")
                && let Some((number, _)) = numbered(rest)
            {
                vae_levels = vae_levels.max(number.saturating_add(1));
            } else if let Some(rest) =
                name.strip_prefix("cond_stage_model.model.transformer.resblocks.")
                && let Some((number, _)) = numbered(rest)
            {
                last_text_layer = last_text_layer.max(Some(number));
            }
        }
        Some(Original {
            blocks: first_halved?.checked_sub(1).filter(|&blocks| blocks > 0)?,
            vae_levels,
            last_text_layer,
        })
    }

    /// Its text encoder is OpenCLIP's.
    pub fn has_open_clip(&self) -> bool {
        self.last_text_layer.is_some()
    }

    pub fn meaning(&self, name: &str) -> Meaning {
        if is_unused(name) {
            return Meaning::Unused;
        }
        if name.starts_with("model_ema.") {
            return Meaning::Average;
        }
        let found = if let Some(rest) = name.strip_prefix(UNET) {
            self.unet(rest)
                .map(|name| Meaning::Tensor(Part::Unet, name))
        } else if let Some(rest) = name.strip_prefix(VAE) {
            self.vae(rest).map(|name| Meaning::Tensor(Part::Vae, name))
        } else if let Some(rest) = name.strip_prefix(CLIP) {
            Some(of_folder(Part::Text, rest))
        } else if let Some(rest) = name.strip_prefix(OPEN_CLIP) {
            self.open_clip(rest)
        } else {
            None
        };
        found.unwrap_or(Meaning::Unknown)
    }

    fn unet(&self, name: &str) -> Option<String> {
        const ENDS: [(&str, &str); 6] = [
            ("time_embed.0.", "time_embedding.linear_1."),
            ("time_embed.2.", "time_embedding.linear_2."),
            ("label_emb.0.0.", "add_embedding.linear_1."),
            ("label_emb.0.2.", "add_embedding.linear_2."),
            ("out.0.", "conv_norm_out."),
            ("out.2.", "conv_out."),
        ];
        if let Some(name) = begun(name, &ENDS) {
            return Some(name);
        }
        let (list, rest) = name.split_once('.')?;
        let (number, rest) = numbered(rest)?;
        match list {
            "middle_block" => {
                let kind = match number {
                    0 => format!("resnets.0.{}", residual(rest)?),
                    1 => format!("attentions.0.{rest}"),
                    2 => format!("resnets.1.{}", residual(rest)?),
                    _ => return None,
                };
                Some(format!("mid_block.{kind}"))
            }
            "input_blocks" => {
                let (inner, rest) = numbered(rest)?;
                let Some(number) = number.checked_sub(1) else {
                    return (inner == 0).then(|| format!("conv_in.{rest}"));
                };
                let (level, at) = (number / (self.blocks + 1), number % (self.blocks + 1));
                let kind = match (at == self.blocks, inner) {
                    (true, 0) => format!("downsamplers.0.conv.{}", rest.strip_prefix("op.")?),
                    (false, 0) => format!("resnets.{at}.{}", residual(rest)?),
                    (false, 1) => format!("attentions.{at}.{rest}"),
                    _ => return None,
                };
                Some(format!("down_blocks.{level}.{kind}"))
            }
            "output_blocks" => {
                let (inner, rest) = numbered(rest)?;
                let (level, at) = (number / (self.blocks + 1), number % (self.blocks + 1));
                let kind = match (inner, rest.strip_prefix("conv.")) {
                    (0, None) => format!("resnets.{at}.{}", residual(rest)?),
                    (1, None) => format!("attentions.{at}.{rest}"),
                    // Behind a residual block, and behind what looks at the text if there is that.
                    (1 | 2, Some(rest)) => format!("upsamplers.0.conv.{rest}"),
                    _ => return None,
                };
                Some(format!("up_blocks.{level}.{kind}"))
            }
            _ => None,
        }
    }

    fn vae(&self, name: &str) -> Option<String> {
        const INNER: [(&str, &str); 6] = [
            ("mid.block_1.", "mid_block.resnets.0."),
            ("mid.block_2.", "mid_block.resnets.1."),
            ("mid.attn_1.", "mid_block.attentions.0."),
            ("norm_out.", "conv_norm_out."),
            ("conv_in.", "conv_in."),
            ("conv_out.", "conv_out."),
        ];
        const ATTENTION: [(&str, &str); 5] = [
            (".attentions.0.norm.", ".attentions.0.group_norm."),
            (".attentions.0.q.", ".attentions.0.to_q."),
            (".attentions.0.k.", ".attentions.0.to_k."),
            (".attentions.0.v.", ".attentions.0.to_v."),
            (".attentions.0.proj_out.", ".attentions.0.to_out.0."),
        ];
        if name.starts_with("quant_conv.") || name.starts_with("post_quant_conv.") {
            return Some(name.into());
        }
        let (half, rest) = name.split_once('.')?;
        if !matches!(half, "encoder" | "decoder") {
            return None;
        }
        if let Some(inner) = begun(rest, &INNER) {
            let inner = replaced(&inner, &ATTENTION);
            return Some(shortcut(&format!("{half}.{inner}")));
        }
        let (way, rest) = rest.split_once('.')?;
        let (level, rest) = numbered(rest)?;
        let (way, level) = match way {
            "down" => ("down_blocks", level),
            // Counted from the picture there, from the latents here.
            "up" => ("up_blocks", self.vae_levels.checked_sub(level + 1)?),
            _ => return None,
        };
        const KINDS: [(&str, &str); 3] = [
            ("block.", "resnets."),
            ("downsample.conv.", "downsamplers.0.conv."),
            ("upsample.conv.", "upsamplers.0.conv."),
        ];
        let kind = begun(rest, &KINDS)?;
        Some(shortcut(&format!("{half}.{way}.{level}.{kind}")))
    }

    fn open_clip(&self, name: &str) -> Option<Meaning> {
        const ENDS: [(&str, &str); 3] = [
            ("token_embedding.", "text_model.embeddings.token_embedding."),
            ("ln_final.", "text_model.final_layer_norm."),
            (
                "positional_embedding",
                "text_model.embeddings.position_embedding.weight",
            ),
        ];
        const LAYER: [(&str, &str); 5] = [
            ("ln_1.", "layer_norm1."),
            ("ln_2.", "layer_norm2."),
            ("mlp.c_fc.", "mlp.fc1."),
            ("mlp.c_proj.", "mlp.fc2."),
            ("attn.out_proj.", "self_attn.out_proj."),
        ];
        if let Some(name) = begun(name, &ENDS) {
            return Some(Meaning::Tensor(Part::Text, name));
        }
        let (layer, rest) = numbered(name.strip_prefix("transformer.resblocks.")?)?;
        if Some(layer) == self.last_text_layer {
            return Some(Meaning::Unused);
        }
        let scope = format!("text_model.encoder.layers.{layer}");
        if let Some(inner) = begun(rest, &LAYER) {
            return Some(Meaning::Tensor(Part::Text, format!("{scope}.{inner}")));
        }
        let ending = rest.strip_prefix("attn.in_proj_")?;
        let three = ["q", "k", "v"].map(|of| format!("{scope}.self_attn.{of}_proj.{ending}"));
        Some(Meaning::Stack(Part::Text, three.into()))
    }
}

/// Inside a residual block of the UNet.
fn residual(name: &str) -> Option<String> {
    const RULES: [(&str, &str); 6] = [
        ("in_layers.0.", "norm1."),
        ("in_layers.2.", "conv1."),
        ("emb_layers.1.", "time_emb_proj."),
        ("out_layers.0.", "norm2."),
        ("out_layers.3.", "conv2."),
        ("skip_connection.", "conv_shortcut."),
    ];
    begun(name, &RULES)
}

fn shortcut(name: &str) -> String {
    name.replace(".nin_shortcut.", ".conv_shortcut.")
}

/// `12.rest`.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    let number: u16 = number.parse().ok()?;
    Some((number.into(), rest))
}
