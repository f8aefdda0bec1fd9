//! Operators with typed, resolved attributes.
//!
//! Conventions: axes are non-negative and in range; pads, strides and dilations are explicit
//! (auto_pad and ceil_mode are resolved into pads and output size by the reader); inputs that ONNX
//! gives as tensors but that determine shapes (`Reshape`'s shape, `Slice`'s starts, `TopK`'s k, ...)
//! are attributes here. Input order is ONNX's with those removed. Variadic `Min/Max/Sum/Mean`
//! became chains of [`Binary`]. `Panel*` operators are made by the rewriter and take their weights
//! from [`crate::Node::panels`].

use crate::DType;
use crate::bands::Bands;
use crate::panel::{PanelConv, PanelDepthwise, PanelLinear};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Op {
    // --- products ---
    /// x `[N,C,spatial...]`, w `[M,C/groups,kernel...]`, optional bias `[M]`; any rank.
    Conv(Window, Groups),
    /// x, w `[C,M/groups,kernel...]`, optional bias. Output size is `output_shape` (spatial).
    ConvTranspose {
        window: Window,
        groups: usize,
        output_spatial: Vec<usize>,
    },
    /// numpy matmul semantics, any rank, broadcast batch.
    MatMul,
    /// `alpha * A' * B' + beta * C` (C optional, broadcast).
    Gemm {
        alpha: f32,
        beta: f32,
        trans_a: bool,
        trans_b: bool,
    },
    Einsum {
        equation: String,
    },

    // --- element-wise ---
    Unary(Unary),
    /// numpy broadcast.
    Binary(Binary),
    /// Limits as f64; absent limit is no limit.
    Clip {
        low: Option<f64>,
        high: Option<f64>,
    },
    /// condition, then, else; numpy broadcast.
    Where,
    Cast {
        to: DType,
    },

    // --- reductions ---
    Reduce {
        kind: Reduce,
        axes: Vec<usize>,
        keep_dims: bool,
    },
    ArgReduce {
        largest: bool,
        axis: usize,
        keep_dims: bool,
        select_last: bool,
    },
    /// Outputs values and int64 indices.
    TopK {
        axis: usize,
        k: usize,
        largest: bool,
        sorted: bool,
    },
    CumSum {
        axis: usize,
        exclusive: bool,
        reverse: bool,
    },

    // --- normalisations ---
    Softmax {
        axis: usize,
        kind: Softmax,
    },
    /// x, scale, bias, mean, var; over axis 1.
    BatchNorm {
        epsilon: f32,
    },
    /// x, scale, optional bias; over axes `axis..`. Optional outputs mean and inverse deviation.
    LayerNorm {
        axis: usize,
        epsilon: f32,
    },
    /// x, scale; over axes `axis..`.
    RmsNorm {
        axis: usize,
        epsilon: f32,
    },
    /// x, scale `[C]`, bias `[C]`.
    InstanceNorm {
        epsilon: f32,
    },
    /// x, scale, bias `[C]` (or `[groups]` when `per_group`, opset < 21).
    GroupNorm {
        groups: usize,
        epsilon: f32,
        per_group: bool,
    },
    LpNorm {
        axis: usize,
        p: u32,
    },
    Lrn {
        alpha: f32,
        beta: f32,
        bias: f32,
        size: usize,
    },

    // --- pooling ---
    Pool {
        kind: Pool,
        window: Window,
        output_spatial: Vec<usize>,
    },
    GlobalPool(Pool),

    // --- data movement ---
    Concat {
        axis: usize,
    },
    Split {
        axis: usize,
        sizes: Vec<usize>,
    },
    /// One entry per axis.
    Slice {
        ranges: Vec<SliceRange>,
    },
    /// Also squeeze, unsqueeze and flatten.
    Reshape {
        shape: Vec<usize>,
    },
    Transpose {
        perm: Vec<usize>,
    },
    Expand {
        shape: Vec<usize>,
    },
    Tile {
        repeats: Vec<usize>,
    },
    /// `pads[axis] = (before, after)`, negative crops; input 1 is the optional fill value (scalar).
    Pad {
        mode: PadMode,
        pads: Vec<(isize, isize)>,
    },
    /// data, indices; negative indices count from the end.
    Gather {
        axis: usize,
    },
    GatherElements {
        axis: usize,
    },
    GatherNd {
        batch_dims: usize,
    },
    ScatterElements {
        axis: usize,
        reduction: ScatterReduction,
    },
    ScatterNd {
        reduction: ScatterReduction,
    },
    DepthToSpace {
        block: usize,
        column_row_depth: bool,
    },
    SpaceToDepth {
        block: usize,
    },
    Resize(ResizeAttrs),
    /// indices, values `[off, on]`.
    OneHot {
        axis: usize,
        depth: usize,
    },
    Trilu {
        upper: bool,
        diagonal: i64,
    },
    /// x, sequence_lens.
    ReverseSequence {
        batch_axis: usize,
        time_axis: usize,
    },
    EyeLike {
        dtype: DType,
        diagonal: i64,
    },

    // --- recurrent: ONNX inputs X, W, R, B, sequence_lens, initial_h, (initial_c, P) ---
    Lstm(Recurrent),
    Gru {
        recurrent: Recurrent,
        linear_before_reset: bool,
    },
    Rnn(Recurrent),

    // --- attention ---
    /// q, k, v, optional additive or boolean mask.
    Attention(AttentionAttrs),

    // --- made by the rewriter ---
    /// x, optional residual.
    PanelConv(PanelConv),
    PanelDepthwise(PanelDepthwise),
    PanelLinear(PanelLinear),
    /// x, the layers' panels, optional residual.
    Bands(Bands),
    /// x, then per-channel scale and shift (`[C]`, plain): `x * scale + shift` on axis 1.
    ScaleShift {
        activation: Activation,
    },
    /// Plain to blocked or back; direction is in the values' layouts.
    Reorder,
    /// indices; rows of a table in the packed file are read from storage when they are needed.
    GatherRows {
        table: crate::PackedId,
        rows: usize,
        row_elements: usize,
    },
}

pub type Groups = usize;

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
