//! Operators that fold axes: reductions, arg-extremes, the largest k.

pub(crate) mod arg;
pub(crate) mod fold;
pub(crate) mod steps;
pub(crate) mod topk;
