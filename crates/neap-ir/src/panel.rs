//! Operators whose weights are streamed as panels of 16 output channels.
//!
//! ```text
//! a layer's weights in the packed file        one panel
//! +---------+---------+---- ... --+           +----------+--------------------------+
//! | panel 0 | panel 1 |           |           | bias[16] | w[k=0][16] w[k=1][16] ...|
//! +---------+---------+---- ... --+           +----------+--------------------------+
//! ```
//! All panels of a layer have the same size; output channels past the last are zero. A slice is a
//! range of panels, and its results go to output channels `16 * panels.start .. 16 * panels.end`.

use crate::DType;
use crate::attributes::{Activation, Window};
use crate::tensor::LANES;
use serde::{Deserialize, Serialize};

/// What is done to a result before it is stored: `activation(acc + residual)`.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Epilogue {
    pub activation: Activation,
    /// The node's second input is added before the activation.
    pub residual: bool,
    /// For a layer that is computed in integers.
    pub integers: Option<Integers>,
}

/// Of a [`PanelConv`] without narrow groups, a [`PanelDepthwise`] or a [`PanelLinear`] whose input is unsigned bytes and whose panels
/// are `I8`.
///
/// Its third and fourth inputs are the scale (`F32`) and the zero point (`U8`) of the input's steps, one element each. The second
/// is the residual, if there is one. In a chain that runs in row bands, scale and zero point are known, and are here.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Integers {
    /// Nothing, or a rounding that comes before the residual is added.
    pub before_residual: Activation,
    /// The residual is unsigned bytes, steps of this size.
    pub residual_steps: Option<StepSize>,
    /// The output is the unsigned bytes that the activation rounds to.
    pub gives_steps: bool,
    /// Steps of the input: only of a layer in a chain, which has no inputs for them.
    pub input_steps: Option<StepSize>,
}

/// A step stands for `(step - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepSize {
    pub scale: f32,
    pub zero: u8,
}

impl Epilogue {
    /// Type of a layer's input.
    pub fn input_type(&self) -> DType {
        match self.integers {
            Some(_) => DType::U8,
            None => DType::F32,
        }
    }

    /// Type of its residual.
    pub fn residual_type(&self) -> DType {
        match self.integers.and_then(|integers| integers.residual_steps) {
            Some(_) => DType::U8,
            None => DType::F32,
        }
    }

    /// Type of its output.
    pub fn output_type(&self) -> DType {
        match self.integers {
            Some(integers) if integers.gives_steps => DType::U8,
            _ => DType::F32,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConvForm {
    /// Blocked input; panel k order `[channel block][kh][kw][channel in block]`.
    Blocked,
    /// Plain input with few channels; panel k order `[kh][kw][c]`.
    FirstLayer,
    /// Blocked input, group width below 16 that divides 16; panel k order `[kh][kw][channel in group]`.
    NarrowGroups,
}

/// 2-D convolution (1-D is height 1). Output is blocked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelConv {
    pub form: ConvForm,
    pub window: Window,
    pub groups: usize,
    pub c_in: usize,
    pub c_out: usize,
    pub epilogue: Epilogue,
    /// The model has input, weights and result in bfloat16: a kernel may round the input to it.
    pub in_bf16: bool,
}

/// One filter per channel, blocked input and output; panel k order `[kh][kw]`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelDepthwise {
    pub window: Window,
    pub channels: usize,
    pub epilogue: Epilogue,
}

/// `x [..., k] * w [k, n] + bias`; plain in and out, leading axes are rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PanelLinear {
    pub k: usize,
    pub n: usize,
    pub epilogue: Epilogue,
    /// Where the panels are in blocks of so many k, rows are rounded to signed steps of 8 bits in the same blocks, each with the
    /// scale of its largest number, and products are computed in integers.
    pub rounds: Option<usize>,
    /// As of a [`PanelConv`].
    pub in_bf16: bool,
}

impl PanelConv {
    pub fn k(&self) -> usize {
        self.c_in / self.groups * self.window.kernel.iter().product::<usize>()
    }
}

impl PanelDepthwise {
    pub fn k(&self) -> usize {
        self.window.kernel.iter().product()
    }
}

/// Number of panels for that many output channels.
pub fn panel_count(c_out: usize) -> usize {
    c_out.div_ceil(LANES)
}

/// Bytes of one panel of `f32` weights with `k` inner steps, bias included.
pub fn panel_bytes(k: usize) -> usize {
    (1 + k) * LANES * 4
}

/// How a panel holds its weights. Its bias, scales and zero points are `f32` where nothing else is said.
///
/// | element | scales | a panel | a weight |
/// |---|---|---|---|
/// | `F32` | `None` | `[bias 16][k][16]` | as stored |
/// | `Coded` | `None` | `[bias 16][table 64 bytes][others][k][56 bytes]` | an `F32`, its exponent looked up |
/// | `F16`, `BF16` | `None` | `[bias 16][k][16]` | as stored |
/// | `F16`, `BF16` | `PerChannel` | `[bias 16][scale 16][k][16]` | stored × scale |
/// | `I8` | `PerChannelWithZero` | `[bias 16][scale 16][zero 16][k][16]` | (stored − zero) × scale |
/// | `I4`, `I8` | `Blocks` | `[bias 16]`, for each block `[scale 16][zero 16][k of the block][16]` | (stored − zero) × scale |
///
/// There are no other combinations. In blocks, zero points are signed bytes and scales may be half floats; only
/// [`PanelLinear`] has weights in blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PanelFormat {
    pub element: PanelElement,
    pub scales: PanelScales,
}

/// Type of a stored weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PanelElement {
    #[default]
    F32,
    /// `F32` in 28 bits. A code of four bits stands for one of the panel's 15 most frequent exponents. Weights with other
    /// exponents are in a list: 16 times `others` of them at most.
    Coded {
        others: u16,
    },
    F16,
    BF16,
    /// Signed bytes. Unsigned ones are stored less 128, and so are their zero points.
    I8,
    /// 0 to 15, two in a byte. Signed ones are stored plus 8, and so are their zero points.
    I4,
}

impl PanelElement {
    /// As reports name it.
    pub const fn name(self) -> &'static str {
        match self {
            PanelElement::F32 => "float32",
            PanelElement::Coded { .. } => "float32/28",
            PanelElement::F16 => "float16",
            PanelElement::BF16 => "bfloat16",
            PanelElement::I8 => "int8",
            PanelElement::I4 => "int4",
        }
    }
}

/// What stored weights are multiplied with to get the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum PanelScales {
    /// They are the weights.
    #[default]
    None,
    /// One for each output channel.
    PerChannel,
    /// A scale and a zero point for each output channel.
    PerChannelWithZero,
    /// A scale and a zero point for each output channel and each `len` steps of k; scales are half floats or `f32`.
    Blocks { len: u16, half: bool },
}

/// Lengths of blocks that there are.
pub const BLOCK_LENS: [usize; 5] = [16, 32, 64, 128, 256];

impl PanelFormat {
    /// Bytes of one panel with `k` inner steps; `None` for more than there can be.
    pub fn panel_bytes(self, k: u128) -> Option<u64> {
        let lanes = crate::graph::LANES as u128;
        let bias_bytes = lanes * 4;
        let step_bytes = match self.element {
            PanelElement::F32 => lanes * 4,
            PanelElement::Coded { .. } => lanes * 7 / 2,
            PanelElement::F16 | PanelElement::BF16 => lanes * 2,
            PanelElement::I8 => lanes,
            PanelElement::I4 => lanes / 2,
        };
        let scale_bytes = match self.scales {
            PanelScales::None => match self.element {
                PanelElement::Coded { others } => lanes * 4 * (1 + u128::from(others)),
                _ => 0,
            },
            PanelScales::PerChannel => lanes * 4,
            PanelScales::PerChannelWithZero => lanes * 8,
            PanelScales::Blocks { len, half } => {
                let block_bytes = if half { lanes * 3 } else { lanes * 5 };
                k.div_ceil(u128::from(len.max(1)))
                    .checked_mul(block_bytes)?
            }
        };
        let steps_bytes = k.checked_mul(step_bytes)?;
        let bytes = steps_bytes
            .checked_add(scale_bytes)?
            .checked_add(bias_bytes)?;
        u64::try_from(bytes).ok()
    }

    /// Whether it has weights in blocks.
    pub fn has_blocks(self) -> bool {
        matches!(self.scales, PanelScales::Blocks { .. })
    }

    /// Whether there is such a combination.
    pub fn is_known(self) -> bool {
        if let PanelScales::Blocks { len, .. } = self.scales {
            return matches!(self.element, PanelElement::I4 | PanelElement::I8)
                && BLOCK_LENS.contains(&usize::from(len));
        }
        matches!(
            (self.element, self.scales),
            (
                PanelElement::F32 | PanelElement::Coded { .. },
                PanelScales::None
            ) | (
                PanelElement::F16 | PanelElement::BF16,
                PanelScales::None | PanelScales::PerChannel
            ) | (PanelElement::I8, PanelScales::PerChannelWithZero)
        )
    }
}
