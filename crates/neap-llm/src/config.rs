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
    /// Of the inner layer, or of one expert's.
    pub inner_width: usize,
    /// What a mixture has in place of inner layers.
    pub experts: Option<Experts>,
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
    /// In place of attention, in some layers.
    pub convolution: Option<Convolution>,
}

/// Convolutions of each element over the last positions.
#[derive(Debug, Clone, PartialEq)]
pub struct Convolution {
    /// Positions that are seen, the own one included.
    pub taps: usize,
    /// By layer, whether it has one.
    pub layers: Vec<bool>,
}

impl Convolution {
    /// Elements of a layer's state: what the positions before left.
    #[must_use]
    pub fn state_elements(&self, width: usize) -> usize {
        (self.taps - 1) * width
    }
}

/// Experts of each layer, some of which a token is given to.
#[derive(Debug, Clone, PartialEq)]
pub struct Experts {
    pub count: usize,
    /// That a token is given to.
    pub used: usize,
    /// Whether the weights of those that were chosen are made to add up to one.
    pub are_normed: bool,
    /// Weights are multiplied by this.
    pub scale: f32,
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
    /// Of layers that see everything, then of those with a window.
    pub scaling: [Scaling; 2],
    /// Contexts of more positions take the model's factors for long ones.
    pub short_context: usize,
    /// Every so many layers one is not rotated; 0: all are.
    pub skip_period: usize,
}

/// How more positions are brought within what a model was trained for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scaling {
    /// Angles are divided by this,
    pub divisor: f32,
    /// but not of pairs that turn often (YaRN).
    pub ramp: Option<Ramp>,
    /// Sines and cosines are multiplied by this.
    pub magnitude: f32,
}

/// Angles of pairs up to the first are whole, and from the last on divided; in between they are mixed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ramp {
    pub first: f32,
    pub last: f32,
    /// Of whole angles where none are divided.
    pub share: f32,
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
    /// `gate · sigmoid(1.702 gate) · (up + 1)`, both at most 7 and `up` at least -7.
    ClampedSwiglu,
}

/// Architectures that run.
pub const ARCHITECTURES: [&str; 11] = [
    "llama", "qwen2", "qwen3", "gemma3", "phi3", "smollm3", "granite", "qwen3moe", "olmoe",
    "gpt-oss", "lfm2",
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
        let head_width = meta.size_or("attention.key_length", width / heads)?;
        let layers = meta.size("block_count")?;
        let convolution = convolution(&meta, layers)?;
        let kv_heads = match &convolution {
            // The file has a number for each layer.
            Some(convolution) => kv_heads_of(header, &convolution.layers, head_width)?,
            None => meta.size_or("attention.head_count_kv", heads)?,
        };
        let config = Config {
            layers,
            width,
            heads,
            kv_heads,
            head_width,
            inner_width: match meta.maybe_size("expert_feed_forward_length")? {
                Some(width) => width,
                None => meta.size("feed_forward_length")?,
            },
            experts: experts(&meta)?,
            vocabulary: vocabulary(header)?,
            trained_context: meta.size_or("context_length", 2048)?,
            epsilon: meta
                .float("attention.layer_norm_rms_epsilon")?
                .unwrap_or(1e-5),
            rotary: rotary(&meta, head_width)?,
            activation: match architecture.as_str() {
                "gemma3" => Activation::GeluTanh,
                "gpt-oss" => Activation::ClampedSwiglu,
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
                "gpt-oss" => 2,
                _ => 0,
            },
            convolution,
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

    /// Whether that layer has a convolution in place of attention.
    #[must_use]
    pub fn is_convolution(&self, layer: usize) -> bool {
        self.convolution.as_ref().is_some_and(|c| c.layers[layer])
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

/// `None` of a model whose layers all have attention.
fn convolution(meta: &Meta, layers: usize) -> Result<Option<Convolution>> {
    if meta.architecture != "lfm2" {
        return Ok(None);
    }
    let taps = meta.size("shortconv.l_cache")?;
    if !(2..=MOST_TAPS).contains(&taps) {
        return Err(meta.wrong("shortconv.l_cache"));
    }
    let has = |layer| {
        let name = format!("blk.{layer}.shortconv.conv.weight");
        meta.header.tensor(&name).is_some()
    };
    // A file has a few tensors for each layer.
    if layers > meta.header.tensors.len() {
        return Err(meta.wrong("block_count"));
    }
    Ok(Some(Convolution {
        taps,
        layers: (0..layers).map(has).collect(),
    }))
}

const MOST_TAPS: usize = 64;

/// By the keys of the first layer with attention.
fn kv_heads_of(header: &Header, convolutions: &[bool], head_width: usize) -> Result<usize> {
    let layer = convolutions
        .iter()
        .position(|is_convolution| !is_convolution);
    let keys = layer.and_then(|layer| header.tensor(&format!("blk.{layer}.attn_k.weight")));
    let rows = keys.and_then(|keys| keys.sizes.get(1).copied());
    let heads = rows.map_or(0, |rows| rows as usize / head_width.max(1));
    match heads {
        0 => Err(Error::Model("no layer has a matrix of keys".into())),
        heads => Ok(heads),
    }
}

/// `None` of a model whose tokens all take the same way.
fn experts(meta: &Meta) -> Result<Option<Experts>> {
    let is_mixture = ["qwen3moe", "olmoe", "gpt-oss"].contains(&meta.architecture.as_str());
    let count = match meta.maybe_size("expert_count")? {
        None if is_mixture => return Err(meta.wrong("expert_count")),
        None => return Ok(None),
        Some(_) if !is_mixture && meta.architecture != "llama" => {
            return Err(Error::Unsupported(format!(
                "'{}' with experts",
                meta.architecture
            )));
        }
        Some(count) => count,
    };
    let used = meta.size("expert_used_count")?;
    if used > count || count > MOST_EXPERTS {
        return Err(Error::Model(format!("it uses {used} of {count} experts")));
    }
    let scale = meta.float("expert_weights_scale")?;
    Ok(Some(Experts {
        count,
        used,
        are_normed: meta.architecture != "olmoe",
        scale: scale.filter(|&scale| scale != 0.0).unwrap_or(1.0),
    }))
}

/// More than any model has in a layer.
const MOST_EXPERTS: usize = 4096;

fn rotary(meta: &Meta, head_width: usize) -> Result<Rotary> {
    let base = meta.float("rope.freq_base")?.unwrap_or(10_000.0);
    let is_gemma = meta.architecture == "gemma3";
    let window_base = meta.float("rope.freq_base_swa")?;
    let trained = meta.size_or("context_length", 2048)?;
    let short_context = meta.size_or("rope.scaling.original_context_length", trained)?;
    let dims = meta.size_or("rope.dimension_count", head_width)?;
    let window_base = window_base.unwrap_or(if is_gemma { 10_000.0 } else { base });
    let of = |base| scaling(meta, dims, base, short_context);
    Ok(Rotary {
        dims,
        base,
        window_base,
        pairs: match meta.architecture.as_str() {
            "llama" | "smollm3" | "granite" => Pairs::Neighbours,
            _ => Pairs::Halves,
        },
        scaling: match is_gemma {
            true => [of(base)?, Scaling::NONE],
            false => [of(base)?, of(window_base)?],
        },
        short_context,
        skip_period: if meta.architecture == "smollm3" { 4 } else { 0 },
    })
}

impl Scaling {
    const NONE: Scaling = Scaling {
        divisor: 1.0,
        ramp: None,
        magnitude: 1.0,
    };
}

/// As a file states it, for rotations with that base.
fn scaling(meta: &Meta, dims: usize, base: f32, short_context: usize) -> Result<Scaling> {
    let number = |key: &str, default| Ok::<_, Error>(meta.float(key)?.unwrap_or(default));
    let magnitude = number("rope.scaling.attn_factor", 1.0)?;
    let old = number("rope.scale_linear", 1.0)?;
    let divisor = number("rope.scaling.factor", old)?;
    let divisor = if divisor > 0.0 { divisor } else { 1.0 };
    let kind = meta.text("rope.scaling.type").unwrap_or("linear");
    match kind {
        "none" => Ok(Scaling {
            magnitude,
            ..Scaling::NONE
        }),
        // Factors of long and short contexts are tensors.
        "linear" | "longrope" => Ok(Scaling {
            divisor,
            ramp: None,
            magnitude,
        }),
        "yarn" => {
            // The pair that turns so often over the positions of short contexts.
            let pair = |turns: f32| {
                let positions_of_turn = short_context as f32 / (turns * std::f32::consts::TAU);
                dims as f32 * positions_of_turn.ln() / (2.0 * base.ln())
            };
            let ramp = Ramp {
                first: pair(number("rope.scaling.yarn_beta_fast", 32.0)?)
                    .floor()
                    .max(0.0),
                last: pair(number("rope.scaling.yarn_beta_slow", 1.0)?)
                    .ceil()
                    .min(dims as f32 - 1.0),
                share: number("rope.scaling.yarn_ext_factor", 1.0)?,
            };
            let grown = |by: f32| 1.0 + 0.1 * by * divisor.max(1.0).ln();
            let already = grown(number("rope.scaling.yarn_log_multiplier", 0.0)?);
            Ok(Scaling {
                divisor,
                ramp: Some(ramp),
                magnitude: magnitude * grown(1.0) / already,
            })
        }
        other => Err(Error::Unsupported(format!(
            "positions are scaled by '{other}'; known are none, linear, yarn and longrope"
        ))),
    }
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
