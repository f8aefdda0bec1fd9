//! The sizes of published models.

/// Networks that belong together.
#[derive(Debug)]
pub(crate) enum Model<'a> {
    StableDiffusion(Family<'a>),
    PixArt(PixArt<'a>),
}

/// The sizes of networks that belong together.
#[derive(Debug)]
pub(crate) struct Family<'a> {
    pub text: Text,
    /// What both text encoders give for a token lies side by side. The networks are those of SDXL then.
    pub second_text: Option<Text>,
    pub unet: Unet<'a>,
    pub vae: Vae<'a>,
}

impl Family<'_> {
    /// Numbers of a token that the UNet looks at.
    pub fn text_width(&self) -> usize {
        self.text.width + self.second_text.as_ref().map_or(0, |text| text.width)
    }
}

#[derive(Debug)]
pub(crate) struct Text {
    /// The table of tokens has as many rows, and at least those that the tokenizer knows.
    pub tokens: usize,
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub activation: Activation,
    /// What a prompt means as a whole has so many numbers, made by a layer of its own.
    pub projection: Option<usize>,
    /// What each layer finds is an output, too.
    pub all_layers: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Activation {
    Gelu,
    /// CLIP's: x times sigmoid(1.702 x).
    QuickGelu,
}

#[derive(Debug)]
pub(crate) struct Unet<'a> {
    /// Each with half the height and width of the one before.
    pub levels: &'a [Level],
    /// Residual blocks of a level on the way down; there is one more on the way up.
    pub blocks: usize,
    /// In the middle, which has the channels and heads of the last level.
    pub middle_layers: usize,
    /// Of queries, keys and values.
    pub attention_bias: bool,
    /// A transformer's ends are products over rows, not convolutions.
    pub linear_ends: bool,
    pub time_width: usize,
    pub sizes: Option<Sizes>,
    pub groups: usize,
    /// Height and width of latents that it was made for.
    pub sample_size: usize,
}

#[derive(Debug)]
pub(crate) struct Level {
    pub channels: usize,
    /// Layers that look at the text, after each residual block.
    pub layers: usize,
    pub heads: usize,
}

/// What SDXL's UNet knows beside a step's number.
#[derive(Debug)]
pub(crate) struct Sizes {
    /// Of what the text means as a whole.
    pub text_width: usize,
    /// Heights and widths of a picture.
    pub count: usize,
    /// Waves of each of these.
    pub width: usize,
}

/// A transformer over patches of latents, beside the VAE of Stable Diffusion 1.
#[derive(Debug)]
pub(crate) struct PixArt<'a> {
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    /// Numbers of a token of the text, and tokens of a prompt.
    pub text_width: usize,
    pub text_places: usize,
    /// Height and width of a patch, and of all latents.
    pub patch: usize,
    pub sample_size: usize,
    pub vae: Vae<'a>,
}

#[derive(Debug)]
pub(crate) struct Vae<'a> {
    /// Channels: halved three times, so a latent is 8 x 8 pixels.
    pub levels: &'a [usize],
    pub encoder_blocks: usize,
    pub decoder_blocks: usize,
    pub heads: usize,
    pub groups: usize,
    pub scaling: f64,
}

const fn level(channels: usize, layers: usize, heads: usize) -> Level {
    Level {
        channels,
        layers,
        heads,
    }
}

/// Few and narrow layers.
pub(crate) const SD_TINY: Family = Family {
    text: Text {
        tokens: 0,
        width: 64,
        layers: 2,
        heads: 4,
        activation: Activation::QuickGelu,
        projection: None,
        all_layers: false,
    },
    second_text: None,
    unet: Unet {
        levels: &[level(32, 1, 4), level(64, 1, 4)],
        blocks: 1,
        middle_layers: 1,
        attention_bias: true,
        linear_ends: false,
        time_width: 64,
        sizes: None,
        groups: 8,
        sample_size: 8,
    },
    vae: VAE_TINY,
};

const VAE_TINY: Vae = Vae {
    levels: &[16, 32, 32, 64],
    encoder_blocks: 1,
    decoder_blocks: 1,
    heads: 1,
    groups: 8,
    scaling: 0.18215,
};

/// The same of SDXL.
pub(crate) const SDXL_TINY: Family = Family {
    text: Text {
        all_layers: true,
        ..SD_TINY.text
    },
    second_text: Some(Text {
        tokens: 0,
        width: 96,
        layers: 3,
        heads: 4,
        activation: Activation::Gelu,
        projection: Some(80),
        all_layers: true,
    }),
    unet: Unet {
        levels: &[level(32, 0, 2), level(64, 2, 4)],
        blocks: 1,
        middle_layers: 2,
        attention_bias: false,
        linear_ends: true,
        time_width: 64,
        sizes: Some(Sizes {
            text_width: 80,
            count: 6,
            width: 32,
        }),
        groups: 8,
        sample_size: 8,
    },
    vae: Vae {
        scaling: 0.13025,
        ..VAE_TINY
    },
};

/// The published sizes of Stable Diffusion 1.5.
pub(crate) const SD_15: Family = Family {
    text: Text {
        tokens: 49_408,
        width: 768,
        layers: 12,
        heads: 12,
        activation: Activation::QuickGelu,
        projection: None,
        all_layers: false,
    },
    second_text: None,
    unet: Unet {
        levels: &[
            level(320, 1, 8),
            level(640, 1, 8),
            level(1280, 1, 8),
            level(1280, 0, 8),
        ],
        blocks: 2,
        middle_layers: 1,
        attention_bias: false,
        linear_ends: false,
        time_width: 1280,
        sizes: None,
        groups: 32,
        sample_size: 64,
    },
    vae: VAE,
};

const VAE: Vae = Vae {
    levels: &[128, 256, 512, 512],
    encoder_blocks: 2,
    decoder_blocks: 3,
    heads: 1,
    groups: 32,
    scaling: 0.18215,
};

/// The published sizes of SDXL 1.0.
pub(crate) const SDXL: Family = Family {
    text: Text {
        all_layers: true,
        ..SD_15.text
    },
    second_text: Some(Text {
        tokens: 49_408,
        width: 1280,
        layers: 32,
        heads: 20,
        activation: Activation::Gelu,
        projection: Some(1280),
        all_layers: true,
    }),
    unet: Unet {
        levels: &[level(320, 0, 5), level(640, 2, 10), level(1280, 10, 20)],
        blocks: 2,
        middle_layers: 10,
        attention_bias: false,
        linear_ends: true,
        time_width: 1280,
        sizes: Some(Sizes {
            text_width: 1280,
            count: 6,
            width: 256,
        }),
        groups: 32,
        sample_size: 128,
    },
    vae: Vae {
        scaling: 0.13025,
        ..VAE
    },
};

/// Few and narrow layers.
pub(crate) const PIXART_TINY: PixArt = PixArt {
    layers: 2,
    width: 48,
    heads: 4,
    text_width: 64,
    text_places: 12,
    patch: 2,
    sample_size: 8,
    vae: VAE_TINY,
};

/// The published sizes of PixArt-α for pictures of 512x512.
pub(crate) const PIXART: PixArt = PixArt {
    layers: 28,
    width: 1152,
    heads: 16,
    text_width: 4096,
    text_places: 120,
    patch: 2,
    sample_size: 64,
    vae: VAE,
};
