//! How the packed file's extents are made from a model's constants.
//!
//! The rewriter writes recipes without reading weights; the packer follows them one layer at a
//! time, holding at most one layer.

use crate::panel::{ConvForm, PanelFormat};
use crate::{DType, ValueId};
use serde::{Deserialize, Serialize};

/// Makes one extent. `PackedId(i)` is made by recipe `i`. Equal recipes make the same bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Recipe {
    /// Panels of a convolution. `weight` is `[c_out, c_in/groups, kh, kw]` row-major.
    Conv {
        weight: ValueId,
        form: ConvForm,
        c_out: usize,
        c_in_per_group: usize,
        groups: usize,
        kernel: [usize; 2],
        affine: Affine,
    },
    /// Panels of a depthwise convolution. `weight` is `[channels, 1, kh, kw]`.
    Depthwise {
        weight: ValueId,
        channels: usize,
        kernel: [usize; 2],
        affine: Affine,
    },
    /// Panels of a matrix: `weight` is `[k, n]`, or `[n, k]` when `transposed`.
    Matrix {
        weight: ValueId,
        k: usize,
        n: usize,
        transposed: bool,
        affine: Affine,
    },
    /// Panels in blocks of a matrix: `weight` has rows of output channels when `transposed`, else rows of k.
    Blocks {
        weight: Steps,
        /// One element, one for each output channel, or `[n, blocks]` when `transposed` and else `[blocks, n]`.
        scale: ValueId,
        /// As many as scales; rows may be longer.
        zero: Option<Steps>,
        k: usize,
        n: usize,
        /// Steps of k that share a scale.
        block: usize,
        transposed: bool,
        bias: Affine,
    },
    /// Row-major elements of a constant, widened to `to`.
    Raw { constant: ValueId, to: DType },
}

/// Where integers of 4 or 8 bits are stored, in rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps {
    /// Bytes; with four bits two integers in each, the first in its low half.
    pub constant: ValueId,
    pub has_four_bits: bool,
    pub is_signed: bool,
    /// Integers from row to row; even with four bits.
    pub row: usize,
}

/// Per output channel: `(w - zero) * scale`, then `+ bias`; `None` is 1 and 0.
#[derive(Debug, Clone, Default)]
pub struct Affine {
    pub scale: Option<Vec<f32>>,
    pub bias: Option<Vec<f32>>,
    /// Of quantised weights.
    pub zero: Option<Vec<f32>>,
}

impl Recipe {
    /// The weights; what an `affine` holds has been read.
    pub fn constant(&self) -> ValueId {
        match *self {
            Recipe::Conv { weight, .. }
            | Recipe::Depthwise { weight, .. }
            | Recipe::Matrix { weight, .. } => weight,
            Recipe::Blocks { weight, .. } => weight.constant,
            Recipe::Raw { constant, .. } => constant,
        }
    }

    /// All constants that are read to follow it.
    pub fn constants(&self) -> impl Iterator<Item = ValueId> {
        let beside = match self {
            Recipe::Blocks { scale, zero, .. } => [Some(*scale), zero.map(|zero| zero.constant)],
            _ => [None; 2],
        };
        std::iter::once(self.constant()).chain(beside.into_iter().flatten())
    }
}

/// To the bit: zeros of other signs make other panels.
impl PartialEq for Affine {
    fn eq(&self, other: &Affine) -> bool {
        fn bits(values: &Option<Vec<f32>>) -> impl Iterator<Item = u32> {
            values.iter().flatten().map(|v| v.to_bits())
        }
        fn same(a: &Option<Vec<f32>>, b: &Option<Vec<f32>>) -> bool {
            a.is_some() == b.is_some() && bits(a).eq(bits(b))
        }
        same(&self.scale, &other.scale)
            && same(&self.bias, &other.bias)
            && same(&self.zero, &other.zero)
    }
}

/// One extent of the packed file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Packed {
    pub name: String,
    /// Block-aligned.
    pub offset: u64,
    pub bytes: u64,
    pub form: PackedForm,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum PackedForm {
    Panels {
        panels: u32,
        panel_bytes: u64,
        format: PanelFormat,
    },
    Raw,
}

/// Names what an extent is made of and how, whatever shapes the model is bound to: equal keys of one model's
/// weights mean equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WeightKey(pub [u8; 16]);

/// Constants up to this size stay in memory for the whole session.
pub const INLINE_LIMIT_BYTES: usize = 16 * 1024;
