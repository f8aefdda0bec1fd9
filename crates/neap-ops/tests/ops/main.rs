//! Operators against values worked out by hand and against naive references.

// Lists of operands read better alike.
#![allow(clippy::cloned_ref_to_slice_refs)]

mod bands;
mod bands_winograd;
mod blocked;
mod elementwise;
mod empty;
mod guarded;
mod in_place;
mod kernel;
mod learned;
mod movement;
mod networks;
mod products;
mod recurrent;
mod recurrent_panels;
mod reductions;
mod resize;
mod sampling;
mod spectrum;
mod strips;
mod support;
