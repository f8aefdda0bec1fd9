//! Operators with typed, resolved attributes.
//!
//! Conventions: axes are non-negative and in range; pads, strides and dilations are explicit
//! (auto_pad and ceil_mode are resolved into pads and output size by the reader); inputs that ONNX
//! gives as tensors but that determine shapes (`Reshape`'s shape, `Slice`'s starts, `TopK`'s k, ...)
//! are attributes here. Input order is ONNX's with those removed. Variadic `Min/Max/Sum/Mean`
//! became chains of [`Binary`]. `Panel*` operators are made by the rewriter and take their weights
//! from [`crate::Node::panels`].

use crate::DType;
pub use crate::attributes::{
    Activation, AttentionAttrs, Binary, CoordinateTransform, Direction, Generator, HeadLayout,
    NearestMode, PadMode, Pool, Recurrent, RecurrentActivation, Reduce, ResizeAttrs, ResizeMode,
    ScatterReduction, SliceRange, Softmax, Unary, Window,
};
use crate::bands::{BandLayer, Bands};
use crate::float8::Float8;
use crate::gradient::Gradient;
use crate::ids::PackedId;
pub use crate::late::{Bound, Late, LateOp};
use crate::learned::{TfIdf, Trees};
use crate::panel::{ConvForm, PanelConv, PanelDepthwise, PanelLinear};
use crate::sampling::Sampling;
use crate::spectrum::{Dft, Stft};
pub use crate::strips::SpaceNorm;
use crate::strips::{KeyStrip, PlaceFold, PlacePool, ResizeStrip, Rows};
use crate::update::Update;
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
    /// Of each matrix that the last two axes hold.
    Det,
    /// Of each matrix that the last two axes hold; what has none gives NaN or infinities.
    Inverse,
    Dft(Dft),
    Stft(Stft),

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
    /// The bytes of each element as another type of as many bytes.
    BitCast {
        to: DType,
    },
    /// x, scale, optional zero point of type `to`: `saturate(round(x / scale) + zero)`. Scale and zero point have one
    /// element, or one for each place along `axis`.
    Quantize {
        axis: usize,
        to: DType,
    },
    /// x, scale, optional zero point of the type of x: `(x - zero) * scale` as `F32`; otherwise as `Quantize`.
    Dequantize {
        axis: usize,
    },
    /// x, scale, optional zero point of the type of x: as `Dequantize`, with a scale and a zero point for each `block`
    /// places along `axis`. They have the shape of x, with one place for each block, or the zero point is a scalar; the last block may be
    /// shorter.
    DequantizeBlocks {
        axis: usize,
        block: usize,
        /// Whether a product with it may round its other operand to steps of 8 bits in the same blocks.
        rounds_other: bool,
    },
    /// Four-bit integers from bytes, whatever the shape of those: element `2i` of the result is the low half of byte `i`,
    /// element `2i + 1` its high half. `I8` if `signed`, else `U8`.
    Nibbles {
        shape: Vec<usize>,
        signed: bool,
    },
    /// Numbers of 8 bits from bytes, as `F32`.
    Float8s {
        kind: Float8,
    },
    /// x (`F32`) to the nearest number that 8 bits hold.
    RoundToFloat8 {
        kind: Float8,
        saturate: bool,
    },

    /// Scale (`F32`) and zero point (`U8`) of steps that cover all numbers of x (`F32`), and zero: DynamicQuantizeLinear without
    /// the quantised tensor.
    CoveringSteps,

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
    /// At places that data say; operands are listed there.
    Sampling(Sampling),
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

    // --- classical models ---
    TfIdf(Box<TfIdf>),
    Trees(Box<Trees>),

    // --- sizes that are known when running ---
    /// Reads or makes late values; operands are listed there.
    Late(Box<Late>),

    // --- training ---
    /// x, scale, bias `[C]` → y, the batch's mean and (biased) variance `[C]`; over axis 1.
    BatchNormTraining {
        epsilon: f32,
    },
    /// x, seed (one int64) → y, optionally what was kept (bool). Elements are dropped with probability `ratio`, the others
    /// scaled by `1 / (1 - ratio)`; which ones follows from seed and generator alone, forward and backward.
    Dropout {
        ratio: f32,
        generator: Generator,
    },
    /// An optimiser's step for one parameter; operands are listed there.
    Update(Update),
    /// The same of the parameter's elements from `start` on, as many as the gradient and the moments have; the others stay
    /// as they are. The first result is the whole parameter.
    UpdatePart {
        update: Update,
        start: usize,
    },
    /// Of a backward pass; operands are listed there.
    Gradient(Gradient),

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

    // --- strips ---
    /// Strips of one tensor, in order.
    Rows(Rows),
    /// A strip, optional whole with rows of others → the whole of `len` rows, with the strip's from row `start` on.
    PutRows(Rows),
    /// x (blocked), optional moments of other strips → `[N, channel blocks, 2, 16]` (`F64`): each channel's sum and sum of squares.
    Moments,
    /// moments of all strips, scale, bias `[C]` → `[N, channel blocks, 3, 16]`: each channel's mean, scale and bias.
    NormFactors(SpaceNorm),
    /// factors, strips of one image (blocked), in order → of its rows, `activation((x - mean) * scale + bias)`.
    Normalise {
        activation: Activation,
        rows: Rows,
    },
    /// x (blocked), optional result for other strips → `[N, channel blocks, 1, 16]` (`F64`): what it says of each channel.
    FoldPlaces(PlaceFold),
    /// What `FoldPlaces` gives for all strips → what `GlobalPool` gives for the whole.
    PoolPlaces(Box<PlacePool>),
    ResizeStrip(Box<ResizeStrip>),
    /// queries, a strip of keys, one of values, optional mask (of all keys), then both results for the strips before, where there
    /// are any → the attention so far, `[B, heads, 2, queries]`: each row's largest score and sum of weights. Rows are divided by
    /// their sums after the last strip.
    AttendKeys(Box<KeyStrip>),
    /// indices; rows of a table in the packed file are read from storage when they are needed. Those of half floats
    /// become `F32`.
    GatherRows {
        table: PackedId,
        rows: usize,
        row_elements: usize,
        /// Of the table's elements.
        stored: DType,
    },
}

pub type Groups = usize;

impl Op {
    /// Whether it is a layer that is computed in integers.
    pub fn is_in_integers(&self) -> bool {
        let epilogue = match self {
            Op::PanelConv(conv) => &conv.epilogue,
            Op::PanelLinear(linear) => &linear.epilogue,
            Op::PanelDepthwise(depthwise) => &depthwise.epilogue,
            _ => return false,
        };
        epilogue.integers.is_some()
    }
}

impl BandLayer {
    /// Of an operator that can be a layer of a chain. Of one in integers, the input's steps have to be set.
    pub fn of(op: &Op) -> Option<BandLayer> {
        Some(match op {
            Op::PanelConv(conv)
                if conv.epilogue.integers.is_none() || conv.form == ConvForm::Blocked =>
            {
                BandLayer::Conv(conv.clone())
            }
            Op::PanelDepthwise(depthwise) => BandLayer::Depthwise(depthwise.clone()),
            Op::Pool {
                kind,
                window,
                output_spatial,
            } => BandLayer::Pool {
                kind: *kind,
                window: window.clone(),
                output_spatial: output_spatial.clone(),
            },
            _ => return None,
        })
    }

    /// The layer by itself.
    pub fn op(&self) -> Op {
        match self {
            BandLayer::Conv(conv) => Op::PanelConv(conv.clone()),
            BandLayer::Depthwise(depthwise) => Op::PanelDepthwise(depthwise.clone()),
            BandLayer::Pool {
                kind,
                window,
                output_spatial,
            } => Op::Pool {
                kind: *kind,
                window: window.clone(),
                output_spatial: output_spatial.clone(),
            },
        }
    }
}
