//! One result element from one element of each operand.

pub(crate) mod binary;
pub(crate) mod cast;
pub(crate) mod float8;
pub(crate) mod math;
pub(crate) mod quantize;
pub(crate) mod select;
pub(crate) mod unary;
pub(crate) mod vector;
