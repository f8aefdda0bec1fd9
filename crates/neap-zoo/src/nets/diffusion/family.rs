//! The sizes of published models.

/// The sizes of four networks that belong together.
#[derive(Debug)]
pub(crate) struct Family {
    pub text: Text,
    pub unet: Unet,
    pub vae: Vae,
}

#[derive(Debug)]
pub(crate) struct Text {
    /// The table of tokens has as many rows, and at least those that the tokenizer knows.
    pub tokens: usize,
    /// Of the text encoder, and of what the UNet looks at.
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
}

#[derive(Debug)]
pub(crate) struct Unet {
    /// Channels, each level with half the height and width of the one before.
    pub levels: &'static [usize],
    /// Residual blocks of a level on the way down; there is one more on the way up.
    pub blocks: usize,
    /// So many levels, from the first, look at the text.
    pub looking: usize,
    pub heads: usize,
    /// Of queries, keys and values.
    pub attention_bias: bool,
    pub time_width: usize,
    pub groups: usize,
    /// Height and width of latents that it was made for.
    pub sample_size: usize,
}

#[derive(Debug)]
pub(crate) struct Vae {
    /// Channels: halved three times, so a latent is 8 x 8 pixels.
    pub levels: &'static [usize],
    pub encoder_blocks: usize,
    pub decoder_blocks: usize,
    pub heads: usize,
    pub groups: usize,
    pub scaling: f64,
}

/// Few and narrow layers.
pub(crate) const SD_TINY: Family = Family {
    text: Text {
        tokens: 0,
        width: 64,
        layers: 2,
        heads: 4,
    },
    unet: Unet {
        levels: &[32, 64],
        blocks: 1,
        looking: 2,
        heads: 4,
        attention_bias: true,
        time_width: 64,
        groups: 8,
        sample_size: 8,
    },
    vae: Vae {
        levels: &[16, 32, 32, 64],
        encoder_blocks: 1,
        decoder_blocks: 1,
        heads: 4,
        groups: 8,
        scaling: 0.18215,
    },
};

/// The published sizes of Stable Diffusion 1.5.
pub(crate) const SD_15: Family = Family {
    text: Text {
        tokens: 49_408,
        width: 768,
        layers: 12,
        heads: 12,
    },
    unet: Unet {
        levels: &[320, 640, 1280, 1280],
        blocks: 2,
        looking: 3,
        heads: 8,
        attention_bias: false,
        time_width: 1280,
        groups: 32,
        sample_size: 64,
    },
    vae: Vae {
        levels: &[128, 256, 512, 512],
        encoder_blocks: 2,
        decoder_blocks: 3,
        heads: 1,
        groups: 32,
        scaling: 0.18215,
    },
};
