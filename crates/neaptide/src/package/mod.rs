//! A packed model: the model itself with its symbolic dimensions, one table of weights that serves every binding of
//! them, and the programs of one binding.
//!
//! ```text
//!   contents   the table of contents: weights, where the skeleton lies, programs of the first binding
//!   weights    the table: what each extent is made of, and how
//!   skeleton   the part of the model's own files that binding it needs
//!   bind       skeleton + binding ─► graph ─► programs over the weights of the table
//! ```
//! Programs of the first binding save time when a model is opened. Others are lowered when they are asked for; nothing
//! is packed for them.

mod bind;
mod binding;
mod contents;
mod skeleton;
mod weights;

pub(crate) use bind::bind;
pub(crate) use binding::{Asked, Binding, Package, unsaid};
pub(crate) use contents::{Cached, Contents, decode, encode, is_of_this_build};
pub(crate) use skeleton::{SkeletonSource, write_skeleton};
pub(crate) use weights::{Table, Weight, uncovered};
