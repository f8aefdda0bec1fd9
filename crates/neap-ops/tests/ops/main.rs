//! Operators against values worked out by hand and against naive references.

mod elementwise;
mod movement;
mod products;
mod reductions;
mod support;
