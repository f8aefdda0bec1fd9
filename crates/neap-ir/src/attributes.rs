//! Attributes of operators: what is computed, over which window, along which axes.

use crate::panel::{PanelElement, PanelFormat, PanelScales, panel_count};
use crate::{DType, TensorType};
use serde::{Deserialize, Serialize};

/// Sliding window over the spatial axes; all vectors have one entry per spatial axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Window {
    pub kernel: Vec<usize>,
    pub strides: Vec<usize>,
    pub dilations: Vec<usize>,
    pub pads_begin: Vec<usize>,
    pub pads_end: Vec<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Unary {
    Abs,
    Neg,
    Floor,
    Ceil,
    /// Half to even.
    Round,
    Sign,
    Sqrt,
    Reciprocal,
    Exp,
    Log,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    Asinh,
    Acosh,
    Atanh,
    Erf,
    Tanh,
    Softplus,
    Softsign,
    Mish,
    Elu {
        alpha: f32,
    },
    Selu {
        alpha: f32,
        gamma: f32,
    },
    Celu {
        alpha: f32,
    },
    ThresholdedRelu {
        alpha: f32,
    },
    Shrink {
        lambda: f32,
        bias: f32,
    },
    /// The activations that kernels can fuse.
    Activation(Activation),
    Not,
    BitwiseNot,
    IsNan,
    IsInf {
        positive: bool,
        negative: bool,
    },
    Identity,
}

/// Element-wise function that kernels can apply while results are in registers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub enum Activation {
    #[default]
    None,
    Relu,
    Clip {
        low: f32,
        high: f32,
    },
    LeakyRelu {
        alpha: f32,
    },
    Sigmoid,
    Silu,
    Gelu,
    GeluTanh,
    HardSigmoid {
        alpha: f32,
        beta: f32,
    },
    HardSwish,
    /// To the nearest of the steps that few bits can hold, and back:
    /// `(clip(round(x / scale) + zero, low, high) - zero) * scale`; NaN becomes the step `nan`, which a clip before leaves.
    Requantize {
        scale: f32,
        zero: f32,
        low: f32,
        high: f32,
        nan: f32,
    },
    Tanh,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Pow,
    /// `fmod`: result has the dividend's sign; otherwise the divisor's.
    Mod {
        fmod: bool,
    },
    Min,
    Max,
    Equal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    And,
    Or,
    Xor,
    BitAnd,
    BitOr,
    BitXor,
    ShiftLeft,
    ShiftRight,
    PRelu,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reduce {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Softmax {
    Softmax,
    LogSoftmax,
    Hardmax,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Pool {
    /// Optional second output: int64 indices into the flattened input; `column_major` as ONNX's storage_order.
    Max {
        column_major: bool,
    },
    Average {
        count_include_pad: bool,
    },
    Lp {
        p: u32,
    },
}

/// `start`, then every `step`, `len` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceRange {
    pub start: usize,
    pub step: isize,
    pub len: usize,
}

impl SliceRange {
    /// Python's slice of an axis: negative positions count from the end, those outside are clamped. `None` for a step of 0.
    pub fn of(start: i64, end: i64, step: i64, size: i64) -> Option<SliceRange> {
        let from_front = |p: i64| if p < 0 { p.saturating_add(size) } else { p };
        let (start, end) = (from_front(start), from_front(end));
        let (start, len) = match step {
            0 => return None,
            1.. => {
                let start = start.clamp(0, size);
                let end = end.clamp(0, size);
                (
                    start,
                    (end - start).max(0).div_euclid(step)
                        + i64::from((end - start).max(0) % step != 0),
                )
            }
            _ => {
                let start = start.clamp(-1, size - 1);
                let end = end.clamp(-1, size - 1);
                let back = step.checked_neg().unwrap_or(i64::MAX);
                let distance = (start - end).max(0);
                (start, distance / back + i64::from(distance % back != 0))
            }
        };
        Some(SliceRange {
            start: start.max(0) as usize,
            // A step longer than the axis takes one element, whatever it is exactly.
            step: step.clamp(-(1 << 40), 1 << 40) as isize,
            len: len as usize,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PadMode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScatterReduction {
    None,
    Add,
    Mul,
    Max,
    Min,
}

/// Resize with the output shape resolved; one scale per axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ResizeAttrs {
    pub output_shape: Vec<usize>,
    pub scales: Vec<f32>,
    pub mode: ResizeMode,
    pub coordinates: CoordinateTransform,
    pub nearest: NearestMode,
    pub cubic_a: f32,
    pub exclude_outside: bool,
    pub extrapolation: f32,
    pub antialias: bool,
    /// For `tf_crop_and_resize`: (start, end) per axis, normalised.
    pub roi: Vec<(f32, f32)>,
}

impl ResizeAttrs {
    /// `floor(size * scale)`, in `f32` as other runtimes compute it; whole, but maybe out of any range.
    pub fn scaled_size(size: usize, scale: f32) -> f32 {
        (size as f32 * scale).floor()
    }

    /// What its scales make of other sizes.
    pub fn scaled(&self, shape: &[usize]) -> Vec<usize> {
        let sizes = shape.iter().zip(&self.scales);
        let scaled = sizes.map(|(&size, &scale)| ResizeAttrs::scaled_size(size, scale) as usize);
        scaled.collect()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ResizeMode {
    Nearest,
    Linear,
    Cubic,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CoordinateTransform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    TfCropAndResize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NearestMode {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recurrent {
    pub hidden: usize,
    pub direction: Direction,
    /// Gate activations in ONNX's order, for each direction in turn.
    pub activations: Vec<RecurrentActivation>,
    pub clip: Option<f32>,
    /// LSTM's input_forget.
    pub couple_input_forget: bool,
    /// ONNX's layout = 1: `[batch, seq, ...]`.
    pub batch_first: bool,
    /// LSTM's state is rounded to 8 bits before it meets its weights, with steps of its own in each step of the
    /// sequence: onnxruntime's DynamicQuantizeLSTM.
    pub rounds_state: bool,
    /// W and R are panels of 8 bits, at [`Recurrent::PANELS`]: a pair for each direction. The hidden size is a multiple of 16.
    pub in_panels: bool,
}

impl Recurrent {
    /// Where each direction's W and R are among the inputs where they are panels.
    pub const PANELS: [[usize; 2]; 2] = [[1, 2], [8, 9]];

    pub const PANEL_FORMAT: PanelFormat = PanelFormat {
        element: PanelElement::I8,
        scales: PanelScales::PerChannelWithZero,
    };

    /// Panels of a matrix with so many outputs, as a tensor.
    pub fn panel_type(outputs: usize, k: usize) -> Option<TensorType> {
        let bytes = Recurrent::PANEL_FORMAT.panel_bytes(k as u128)?;
        let shape = [panel_count(outputs), usize::try_from(bytes).ok()?];
        shape[0].checked_mul(shape[1])?;
        Some(TensorType::new(DType::U8, &shape))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Direction {
    Forward,
    Reverse,
    Bidirectional,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum RecurrentActivation {
    Sigmoid,
    Tanh,
    Relu,
    LeakyRelu(f32),
    ThresholdedRelu(f32),
    Elu(f32),
    HardSigmoid(f32, f32),
    Softsign,
    Softplus,
    Affine(f32, f32),
    ScaledTanh(f32, f32),
}

/// softmax(scale * q kᵀ + mask) v without holding all heads' scores.
///
/// Each operand is a plain tensor whose axes are named by position, so that the transposes around
/// an exported attention need not be computed: `q: [B, H, S, D]` by default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AttentionAttrs {
    pub heads: usize,
    pub kv_heads: usize,
    pub scale: f32,
    pub causal: bool,
    /// Weights of a row that would be NaN are zeros: of a query that sees no key, or whose scores are not all numbers.
    pub nan_is_zero: bool,
    pub q: HeadLayout,
    pub k: HeadLayout,
    pub v: HeadLayout,
    pub out: HeadLayout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HeadLayout {
    /// `[B, H, S, D]`
    HeadMajor,
    /// `[B, S, H, D]`, equally `[B, S, H*D]`
    RowMajor,
    /// `[B, H, D, S]` (keys already transposed)
    HeadMajorTransposed,
    /// `[B, S, H*D]` columns `offset..offset+H*D` of a wider row of `row` elements (packed qkv).
    Packed { row: usize, offset: usize },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_pythons() {
        // start, end, step, size -> first, length
        for (start, end, step, size, first, len) in [
            (0, 10, 1, 10, 0, 10),
            (2, i64::MAX, 3, 10, 2, 3),
            (-3, -1, 1, 10, 7, 2),
            (5, 2, 1, 10, 5, 0),
            (20, 30, 1, 10, 10, 0),
            (-1, i64::MIN, -1, 10, 9, 10),
            (9, 0, -4, 10, 9, 3),
            (i64::MAX, -5, -1, 4, 3, 4),
            (0, 1, i64::MAX, 4, 0, 1),
            (3, i64::MIN, i64::MIN, 4, 3, 1),
            (0, 0, -1, 0, 0, 0),
        ] {
            let r = SliceRange::of(start, end, step, size).expect("step is not zero");
            assert_eq!(
                (r.start, r.len),
                (first, len),
                "[{start}:{end}:{step}] of {size}"
            );
        }
        assert!(SliceRange::of(0, 1, 0, 4).is_none());
    }
}

/// Of random numbers, one for each element of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Generator {
    /// Philox4x32-10: a number follows from seed, stream and element. Elements can be drawn in any order.
    Counter { stream: u64 },
    /// MT19937, one element after the other: what ONNX's reference draws for a node that has a seed.
    Twister,
}
