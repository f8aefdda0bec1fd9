//! Operators against values worked out by hand and against naive references.

mod elementwise;
mod movement;
mod reductions;
mod support;
