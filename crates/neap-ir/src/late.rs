//! Late values: tensors with a size that is known only when running.
//!
//! A graph is static over *bounds*: the type of a late value is the largest that it can have, and memory is planned for
//! that. Some of its axes are late: in a run they may be shorter. Every operator that reads or makes a late value is an
//! [`Op::Late`]. No pass of the rewriter knows what such an operator computes, so none can rely on its sizes. When it
//! runs, its operands have their actual shapes, and so has what it computes: elements lie row-major, one after another,
//! at the beginning of the place that is planned for the bound.
//!
//! Branches that the data decide use the same operators. One is computed only where its *guard* says so: a bool that
//! another operator made before ([`LateOp::Gate`]). What reads its results is behind the same guard, or chooses among them
//! by it ([`LateOp::Select`]), so nobody looks at what was not computed.
//!
//! A loop of many passes is one operator that holds a graph ([`LateOp::Repeat`]).

use crate::attributes::{PadMode, ResizeAttrs, Window};
use crate::graph::Graph;
use crate::{Op, TensorType};
use serde::{Deserialize, Serialize};

/// An operator over actual sizes, and the bounds of its results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Late {
    pub op: LateOp,
    /// Of all its results.
    pub bounds: Vec<Bound>,
    /// Behind its operands it has one more, a bool of one element: it is computed only where that is true.
    pub is_guarded: bool,
}

/// The largest type that a result can have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    pub ty: TensorType,
    /// Of each axis, whether a run may give it fewer.
    pub late: Vec<bool>,
}

/// What is computed. Operands that decide sizes are inputs here, unlike in other operators.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum LateOp {
    /// An operator whose attributes hold no sizes.
    Over(Op),

    // --- sizes that the data decide ---
    /// x → `[rank, count]` int64.
    NonZero,
    /// x, condition (bool, one axis). Without an axis, x is taken flat.
    Compress { axis: Option<usize> },
    /// x → distinct values, first places, inverse, counts (int64). Without an axis, x is taken flat.
    Unique { axis: Option<usize>, sorted: bool },
    /// boxes `[batch, n, 4]`, scores `[batch, classes, n]`, most per class (int64), least overlap, least score (f32);
    /// the last three optional → `[count, 3]` int64.
    NonMaxSuppression { center_point_box: bool },

    // --- sizes as data ---
    /// x → sizes of the axes `start..end`, int64.
    Shape { start: usize, end: usize },
    /// x → the number of its elements, int64.
    Size,

    // --- sizes that operands give ---
    /// x, shape: one may be -1; 0 is the size of x there unless `allow_zero`.
    Reshape { allow_zero: bool },
    /// x → two axes, those before `axis` and the rest.
    Flatten { axis: usize },
    /// x → without these axes, which have one element.
    Squeeze { axes: Vec<usize> },
    /// x → with these axes (of the result) of one element.
    Unsqueeze { axes: Vec<usize> },
    /// x, shape; numpy broadcast of both.
    Expand,
    /// x, starts, ends, optional steps; one for each of `axes`.
    Slice { axes: Vec<usize> },
    /// start, limit, delta.
    Range,
    /// shape, value of one element → that value everywhere.
    Fill,
    /// x, repeats.
    Tile,
    /// x, pads (begins, then ends, of `axes`), optional fill value.
    Pad { mode: PadMode, axes: Vec<usize> },
    /// x, k.
    TopK {
        axis: usize,
        largest: bool,
        sorted: bool,
    },
    /// indices, depth, values.
    OneHot { axis: usize },
    /// x → as many times larger as its scales say. The shape of its result is of the bound.
    Resize(ResizeAttrs),
    /// x, w, optional bias, as [`Op::ConvTranspose`] takes them. `output_spatial` is of the bound; `extra` is what each axis has
    /// more than windows and pads give it.
    ConvTranspose {
        window: Window,
        groups: usize,
        extra: Vec<usize>,
        output_spatial: Vec<usize>,
    },

    // --- branches and passes that the data decide ---
    /// condition, optional guard around it (bools of one element) → whether both hold; the condition turned around with
    /// `not`. Where the guard around it does not hold, the condition may be anything.
    Gate { not: bool },
    /// condition, a, b → a where it holds, else b.
    Select,
    /// bools of one element each → how many hold, `[1]` int64.
    Count,
    /// whether one more pass would follow, x → x. An error where one would: memory is planned for `passes`.
    Ended { passes: usize },
    /// Operands and results are listed there.
    Repeat(Box<Repeat>),
}

/// A loop whose passes are not written out: a graph of one pass, computed as often as there are passes.
///
/// ```text
///   operands   how often (int64), whether at all (bool); first states …, shared values …
///   body       number of the pass (int64), states …, shared values …  ─►  whether there is another (bool), states …, collected …
///   results    last states …, collected values of all passes along a first axis …
/// ```
/// The body holds no constants: they are shared values, and so operands like any others. Weights of a body are packed and loaded as
/// those of other steps are, once for all passes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Repeat {
    /// Memory is planned for so many passes. A loop that would go on after them is an error.
    pub most: u64,
    /// How many values each pass gives to the next.
    pub states: usize,
    pub body: Graph,
}

impl Repeat {
    /// Operands before the first states.
    pub const CONTROLS: usize = 2;

    /// The first collected value among the outputs of the body.
    pub fn first_collected(&self) -> usize {
        1 + self.states
    }
}

impl Late {
    /// A node's operands, without the guard.
    pub fn operands<'a, T>(&self, inputs: &'a [T]) -> &'a [T] {
        let count = inputs.len().saturating_sub(self.is_guarded.into());
        &inputs[..count]
    }

    /// A node's guard.
    pub fn guard<'a, T>(&self, inputs: &'a [T]) -> Option<&'a T> {
        inputs.last().filter(|_| self.is_guarded)
    }
}

impl Bound {
    /// A result whose sizes are all known.
    pub fn fixed(ty: TensorType) -> Bound {
        let late = vec![false; ty.shape.len()];
        Bound { ty, late }
    }

    pub fn is_late(&self) -> bool {
        self.late.contains(&true)
    }

    /// Whether a run may give it this type.
    pub fn admits(&self, ty: &TensorType) -> bool {
        let axes = || self.ty.shape.iter().zip(&self.late).zip(&ty.shape);
        ty.dtype == self.ty.dtype
            && ty.shape.len() == self.ty.shape.len()
            && axes().all(|((&most, &late), &size)| size == most || (late && size < most))
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.late.len() == self.ty.shape.len()
    }
}

impl LateOp {
    pub fn name(&self) -> &'static str {
        match self {
            LateOp::Over(op) => op.name(),
            LateOp::NonZero => "NonZero",
            LateOp::Compress { .. } => "Compress",
            LateOp::Unique { .. } => "Unique",
            LateOp::NonMaxSuppression { .. } => "NonMaxSuppression",
            LateOp::Shape { .. } => "Shape",
            LateOp::Size => "Size",
            LateOp::Reshape { .. } => "Reshape",
            LateOp::Flatten { .. } => "Flatten",
            LateOp::Squeeze { .. } => "Squeeze",
            LateOp::Unsqueeze { .. } => "Unsqueeze",
            LateOp::Expand => "Expand",
            LateOp::Slice { .. } => "Slice",
            LateOp::Range => "Range",
            LateOp::Fill => "ConstantOfShape",
            LateOp::Tile => "Tile",
            LateOp::Pad { .. } => "Pad",
            LateOp::TopK { .. } => "TopK",
            LateOp::OneHot { .. } => "OneHot",
            LateOp::Resize(_) => "Resize",
            LateOp::ConvTranspose { .. } => "ConvTranspose",
            LateOp::Gate { .. } | LateOp::Select => "If",
            LateOp::Count | LateOp::Ended { .. } | LateOp::Repeat(_) => "Loop",
        }
    }
}
