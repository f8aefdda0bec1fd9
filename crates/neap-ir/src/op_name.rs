//! Operators' names, for messages and listings.

use crate::op::{Activation, Binary, Op, Pool, Reduce, Softmax, Unary};

impl Op {
    /// ONNX's name, or ours for operators that the rewriter makes; for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Conv(..) => "Conv",
            Op::ConvTranspose { .. } => "ConvTranspose",
            Op::MatMul => "MatMul",
            Op::Gemm { .. } => "Gemm",
            Op::Einsum { .. } => "Einsum",
            Op::Det => "Det",
            Op::Inverse => "Inverse",
            Op::Dft(_) => "DFT",
            Op::Stft(_) => "STFT",
            Op::Unary(unary) => unary.name(),
            Op::Binary(binary) => binary.name(),
            Op::Clip { .. } => "Clip",
            Op::Where => "Where",
            Op::Cast { .. } => "Cast",
            Op::BitCast { .. } => "BitCast",
            Op::Quantize { .. } => "QuantizeLinear",
            Op::Dequantize { .. } | Op::DequantizeBlocks { .. } => "DequantizeLinear",
            Op::Nibbles { .. } => "Nibbles",
            Op::Float8s { .. } => "Float8s",
            Op::RoundToFloat8 { .. } => "RoundToFloat8",
            Op::CoveringSteps => "CoveringSteps",
            Op::Reduce { kind, .. } => match kind {
                Reduce::Sum => "ReduceSum",
                Reduce::Mean => "ReduceMean",
                Reduce::Max => "ReduceMax",
                Reduce::Min => "ReduceMin",
                Reduce::Prod => "ReduceProd",
                Reduce::L1 => "ReduceL1",
                Reduce::L2 => "ReduceL2",
                Reduce::LogSum => "ReduceLogSum",
                Reduce::LogSumExp => "ReduceLogSumExp",
                Reduce::SumSquare => "ReduceSumSquare",
            },
            Op::ArgReduce { largest: true, .. } => "ArgMax",
            Op::ArgReduce { largest: false, .. } => "ArgMin",
            Op::TopK { .. } => "TopK",
            Op::CumSum { .. } => "CumSum",
            Op::Softmax { kind, .. } => match kind {
                Softmax::Softmax => "Softmax",
                Softmax::LogSoftmax => "LogSoftmax",
                Softmax::Hardmax => "Hardmax",
            },
            Op::BatchNorm { .. } => "BatchNormalization",
            Op::LayerNorm { .. } => "LayerNormalization",
            Op::RmsNorm { .. } => "RMSNormalization",
            Op::InstanceNorm { .. } => "InstanceNormalization",
            Op::GroupNorm { .. } => "GroupNormalization",
            Op::LpNorm { .. } => "LpNormalization",
            Op::Lrn { .. } => "LRN",
            Op::Pool { kind, .. } => match kind {
                Pool::Max { .. } => "MaxPool",
                Pool::Average { .. } => "AveragePool",
                Pool::Lp { .. } => "LpPool",
            },
            Op::GlobalPool(kind) => match kind {
                Pool::Max { .. } => "GlobalMaxPool",
                Pool::Average { .. } => "GlobalAveragePool",
                Pool::Lp { .. } => "GlobalLpPool",
            },
            Op::Concat { .. } => "Concat",
            Op::Split { .. } => "Split",
            Op::Slice { .. } => "Slice",
            Op::Reshape { .. } => "Reshape",
            Op::Transpose { .. } => "Transpose",
            Op::Expand { .. } => "Expand",
            Op::Tile { .. } => "Tile",
            Op::Pad { .. } => "Pad",
            Op::Gather { .. } => "Gather",
            Op::GatherElements { .. } => "GatherElements",
            Op::GatherNd { .. } => "GatherND",
            Op::ScatterElements { .. } => "ScatterElements",
            Op::ScatterNd { .. } => "ScatterND",
            Op::DepthToSpace { .. } => "DepthToSpace",
            Op::SpaceToDepth { .. } => "SpaceToDepth",
            Op::Resize(_) => "Resize",
            Op::Sampling(sampling) => sampling.name(),
            Op::TfIdf(_) => "TfIdfVectorizer",
            Op::Trees(_) => "TreeEnsemble",
            Op::OneHot { .. } => "OneHot",
            Op::Trilu { .. } => "Trilu",
            Op::ReverseSequence { .. } => "ReverseSequence",
            Op::EyeLike { .. } => "EyeLike",
            Op::Lstm(_) => "LSTM",
            Op::Gru { .. } => "GRU",
            Op::Rnn(_) => "RNN",
            Op::Attention(_) => "Attention",
            Op::Late(late) => late.op.name(),
            Op::BatchNormTraining { .. } => "BatchNormTraining",
            Op::Dropout { .. } => "Dropout",
            Op::Update(update) | Op::UpdatePart { update, .. } => update.name(),
            Op::Gradient(gradient) => gradient.name(),
            Op::PanelConv(_) => "PanelConv",
            Op::PanelDepthwise(_) => "PanelDepthwise",
            Op::Bands(_) => "Bands",
            Op::PanelLinear(_) => "PanelLinear",
            Op::ScaleShift { .. } => "ScaleShift",
            Op::Rows(_) => "Rows",
            Op::PutRows(_) => "PutRows",
            Op::Moments => "Moments",
            Op::NormFactors(_) => "NormFactors",
            Op::Normalise { .. } => "Normalise",
            Op::FoldPlaces(_) => "FoldPlaces",
            Op::PoolPlaces(_) => "PoolPlaces",
            Op::ResizeStrip(_) => "ResizeStrip",
            Op::AttendKeys(_) => "AttendKeys",
            Op::Reorder => "Reorder",
            Op::GatherRows { .. } => "GatherRows",
        }
    }
}

impl Unary {
    pub fn name(&self) -> &'static str {
        match self {
            Unary::Abs => "Abs",
            Unary::Neg => "Neg",
            Unary::Floor => "Floor",
            Unary::Ceil => "Ceil",
            Unary::Round => "Round",
            Unary::Sign => "Sign",
            Unary::Sqrt => "Sqrt",
            Unary::Reciprocal => "Reciprocal",
            Unary::Exp => "Exp",
            Unary::Log => "Log",
            Unary::Sin => "Sin",
            Unary::Cos => "Cos",
            Unary::Tan => "Tan",
            Unary::Asin => "Asin",
            Unary::Acos => "Acos",
            Unary::Atan => "Atan",
            Unary::Sinh => "Sinh",
            Unary::Cosh => "Cosh",
            Unary::Asinh => "Asinh",
            Unary::Acosh => "Acosh",
            Unary::Atanh => "Atanh",
            Unary::Erf => "Erf",
            Unary::Tanh => "Tanh",
            Unary::Softplus => "Softplus",
            Unary::Softsign => "Softsign",
            Unary::Mish => "Mish",
            Unary::Elu { .. } => "Elu",
            Unary::Selu { .. } => "Selu",
            Unary::Celu { .. } => "Celu",
            Unary::ThresholdedRelu { .. } => "ThresholdedRelu",
            Unary::Shrink { .. } => "Shrink",
            Unary::Activation(activation) => activation.name(),
            Unary::Not => "Not",
            Unary::BitwiseNot => "BitwiseNot",
            Unary::IsNan => "IsNaN",
            Unary::IsInf { .. } => "IsInf",
            Unary::Identity => "Identity",
        }
    }
}

impl Activation {
    pub fn name(&self) -> &'static str {
        match self {
            Activation::None => "Identity",
            Activation::Relu => "Relu",
            Activation::Clip { .. } => "Clip",
            Activation::LeakyRelu { .. } => "LeakyRelu",
            Activation::Sigmoid => "Sigmoid",
            Activation::Silu => "Silu",
            Activation::Gelu => "Gelu",
            Activation::GeluTanh => "GeluTanh",
            Activation::HardSigmoid { .. } => "HardSigmoid",
            Activation::HardSwish => "HardSwish",
            Activation::Requantize { .. } => "Requantize",
            Activation::Tanh => "Tanh",
        }
    }
}

impl Binary {
    pub fn name(&self) -> &'static str {
        match self {
            Binary::Add => "Add",
            Binary::Sub => "Sub",
            Binary::Mul => "Mul",
            Binary::Div => "Div",
            Binary::Pow => "Pow",
            Binary::Mod { .. } => "Mod",
            Binary::Min => "Min",
            Binary::Max => "Max",
            Binary::Equal => "Equal",
            Binary::Less => "Less",
            Binary::LessOrEqual => "LessOrEqual",
            Binary::Greater => "Greater",
            Binary::GreaterOrEqual => "GreaterOrEqual",
            Binary::And => "And",
            Binary::Or => "Or",
            Binary::Xor => "Xor",
            Binary::BitAnd => "BitwiseAnd",
            Binary::BitOr => "BitwiseOr",
            Binary::BitXor => "BitwiseXor",
            Binary::ShiftLeft | Binary::ShiftRight => "BitShift",
            Binary::PRelu => "PRelu",
        }
    }

    /// Comparisons and logic give `Bool`.
    pub fn gives_bool(&self) -> bool {
        matches!(
            self,
            Binary::Equal
                | Binary::Less
                | Binary::LessOrEqual
                | Binary::Greater
                | Binary::GreaterOrEqual
                | Binary::And
                | Binary::Or
                | Binary::Xor
        )
    }
}
