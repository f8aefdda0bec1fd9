//! What a model is: its sizes, and what its architecture does in a layer. From the metadata of a GGUF file.

use crate::{Error, Result};
use neap_gguf::{Header, Value};

/// One decoder, as far as computing goes.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub architecture: String,
    pub layers: usize,
    pub width: usize,
    pub heads: usize,
    /// Of keys and values; divides `heads`.
    pub kv_heads: usize,
    pub head_width: usize,
    pub inner_width: usize,
    pub vocabulary: usize,
    /// Positions that the model was trained for.
    pub trained_context: usize,
    pub epsilon: f32,
    pub rotary: Rotary,
    pub activation: Activation,
    /// Scores are multiplied by this.
    pub score_scale: f32,
    pub embedding_scale: f32,
    /// What a layer adds is multiplied by this first.
    pub residual_scale: f32,
    pub logit_scale: f32,
    /// Positions that a layer with a window sees, its own included.
    pub window: Option<usize>,
    /// Every so many layers one sees everything, the others a window.
    pub window_period: usize,
}

/// Rotations of queries and keys by position.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotary {
    /// Elements of a head that are rotated.
    pub dims: usize,
    pub base: f32,
    /// Of layers with a window, where it is another.
    pub window_base: f32,
    pub pairs: Pairs,
    /// Positions are divided by this in layers that see everything.
    pub position_divisor: f32,
    /// Every so many layers one is not rotated; 0: all are.
    pub skip_period: usize,
    /// Sines and cosines are multiplied by this.
    pub magnitude: f32,
}

/// Which elements of a head turn together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    /// 0 and 1, 2 and 3, …
    Neighbours,
    /// 0 and half, 1 and half + 1, …
    Halves,
}

/// Of the gated inner layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    Silu,
    GeluTanh,
}

/// Architectures that run.
pub const ARCHITECTURES: [&str; 7] = [
    "llama", "qwen2", "qwen3", "gemma3", "phi3", "smollm3", "granite",
];

impl Config {
    /// # Errors
    /// [`Error::Unsupported`] names the architecture, or what of it is missing here; [`Error::Model`] where sizes contradict each other.
    pub fn of(header: &Header) -> Result<Config> {
        let meta = Meta::of(header)?;
        let architecture = meta.architecture.clone();
        if !ARCHITECTURES.contains(&architecture.as_str()) {
            let known = ARCHITECTURES.join(", ");
            return Err(Error::Unsupported(format!(
                "the architecture is '{architecture}', and these run: {known}"
            )));
        }
        let width = meta.size("embedding_length")?;
        let heads = meta.size("attention.head_count")?;
        let kv_heads = meta.size_or("attention.head_count_kv", heads)?;
        let head_width = meta.size_or("attention.key_length", width / heads)?;
        let config = Config {
            layers: meta.size("block_count")?,
            width,
            heads,
            kv_heads,
            head_width,
            inner_width: meta.size("feed_forward_length")?,
            vocabulary: vocabulary(header)?,
            trained_context: meta.size_or("context_length", 2048)?,
            epsilon: meta
                .float("attention.layer_norm_rms_epsilon")?
                .unwrap_or(1e-5),
            rotary: rotary(&meta, head_width)?,
            activation: match architecture.as_str() {
                "gemma3" => Activation::GeluTanh,
                _ => Activation::Silu,
            },
            score_scale: meta
                .float("attention.scale")?
                .filter(|&scale| scale != 0.0)
                .unwrap_or_else(|| 1.0 / (head_width as f32).sqrt()),
            embedding_scale: match architecture.as_str() {
                "gemma3" => (width as f32).sqrt(),
                _ => meta.float("embedding_scale")?.unwrap_or(1.0),
            },
            residual_scale: meta.float("residual_scale")?.unwrap_or(1.0),
            logit_scale: 1.0 / meta.float("logit_scale")?.unwrap_or(1.0),
            window: meta.maybe_size("attention.sliding_window")?,
            window_period: match architecture.as_str() {
                "gemma3" => 6,
                _ => 0,
            },
            architecture,
        };
        config.check(&meta)?;
        Ok(config)
    }

    fn check(&self, meta: &Meta) -> Result<()> {
        let value_width = meta.size_or("attention.value_length", self.head_width)?;
        if value_width != self.head_width {
            return Err(Error::Unsupported(
                "heads of values have another width than heads of keys".into(),
            ));
        }
        let sizes = [
            self.layers,
            self.width,
            self.heads,
            self.kv_heads,
            self.head_width,
            self.inner_width,
        ];
        let is_whole = self.heads.is_multiple_of(self.kv_heads)
            && [self.width, self.head_width * self.heads, self.inner_width]
                .iter()
                .all(|size| size.is_multiple_of(32))
            && self.head_width.is_multiple_of(16)
            && self.rotary.dims <= self.head_width
            && self.rotary.dims.is_multiple_of(2);
        if !is_whole || sizes.iter().any(|&size| size > 1 << 20) || self.head_width > 512 {
            return Err(Error::Model(format!(
                "its sizes do not go together: {} of {} x {} heads of {}, {} within",
                self.width, self.heads, self.kv_heads, self.head_width, self.inner_width
            )));
        }
        Ok(())
    }

    /// Whether that layer sees a window only.
    #[must_use]
    pub fn is_windowed(&self, layer: usize) -> bool {
        self.window.is_some()
            && match self.window_period {
                0 => self.architecture == "phi3",
                period => !(layer + 1).is_multiple_of(period),
            }
    }

    /// Whether that layer's queries and keys are rotated.
    #[must_use]
    pub fn is_rotated(&self, layer: usize) -> bool {
        match self.rotary.skip_period {
            0 => true,
            period => !(layer + 1).is_multiple_of(period),
        }
    }

    /// Elements of all heads' queries.
    #[must_use]
    pub fn query_width(&self) -> usize {
        self.heads * self.head_width
    }

    /// Elements of all heads' keys; of values as many.
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.kv_heads * self.head_width
    }
}

fn rotary(meta: &Meta, head_width: usize) -> Result<Rotary> {
    let base = meta.float("rope.freq_base")?.unwrap_or(10_000.0);
    let is_gemma = meta.architecture == "gemma3";
    let mut rotary = Rotary {
        dims: meta.size_or("rope.dimension_count", head_width)?,
        base,
        window_base: if is_gemma { 10_000.0 } else { base },
        pairs: match meta.architecture.as_str() {
            "llama" | "smollm3" | "granite" => Pairs::Neighbours,
            _ => Pairs::Halves,
        },
        position_divisor: 1.0,
        skip_period: if meta.architecture == "smollm3" { 4 } else { 0 },
        magnitude: 1.0,
    };
    match meta.text("rope.scaling.type") {
        None | Some("none") => {}
        Some("linear") => {
            let divisor = meta.float("rope.scaling.factor")?;
            rotary.position_divisor = divisor.filter(|&d| d > 0.0).unwrap_or(1.0);
        }
        // Its factors are a tensor.
        Some("longrope") if meta.architecture == "phi3" => {
            rotary.magnitude = meta.float("rope.scaling.attn_factor")?.unwrap_or(1.0);
        }
        Some(other) => {
            return Err(Error::Unsupported(format!(
                "positions are scaled by '{other}'; known are none and linear"
            )));
        }
    }
    Ok(rotary)
}

fn vocabulary(header: &Header) -> Result<usize> {
    let embedding = header.tensor("token_embd.weight");
    let rows = embedding.and_then(|tensor| tensor.sizes.get(1).copied());
    rows.and_then(|rows| u32::try_from(rows).ok())
        .filter(|&rows| rows > 0)
        .map(|rows| rows as usize)
        .ok_or_else(|| Error::Model("it has no matrix 'token_embd.weight'".into()))
}

/// The architecture's own keys.
struct Meta<'a> {
    header: &'a Header,
    architecture: String,
}

impl<'a> Meta<'a> {
    fn of(header: &'a Header) -> Result<Meta<'a>> {
        let architecture = header.get("general.architecture").and_then(Value::as_text);
        let architecture = architecture
            .ok_or_else(|| Error::Model("it names no architecture".into()))?
            .to_owned();
        Ok(Meta {
            header,
            architecture,
        })
    }

    fn value(&self, key: &str) -> Option<&'a Value> {
        self.header.get(&format!("{}.{key}", self.architecture))
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.value(key).and_then(Value::as_text)
    }

    fn wrong(&self, key: &str) -> Error {
        Error::Model(format!(
            "'{}.{key}' is missing or no such number",
            self.architecture
        ))
    }

    fn maybe_size(&self, key: &str) -> Result<Option<usize>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let size = value.as_u64().and_then(|n| u32::try_from(n).ok());
        match size {
            Some(0) => Ok(None),
            Some(size) => Ok(Some(size as usize)),
            None => Err(self.wrong(key)),
        }
    }

    fn size_or(&self, key: &str, default: usize) -> Result<usize> {
        Ok(self.maybe_size(key)?.unwrap_or(default))
    }

    fn size(&self, key: &str) -> Result<usize> {
        self.maybe_size(key)?.ok_or_else(|| self.wrong(key))
    }

    fn float(&self, key: &str) -> Result<Option<f32>> {
        let Some(value) = self.value(key) else {
            return Ok(None);
        };
        let number = match value {
            Value::Float(x) => Some(*x),
            other => other.as_u64().map(|n| n as f64),
        };
        number
            .filter(|x| x.is_finite())
            .map(|x| Some(x as f32))
            .ok_or_else(|| self.wrong(key))
    }
}
