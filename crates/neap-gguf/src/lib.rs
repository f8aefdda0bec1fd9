//! GGUF files (version 3): what is in them and where, without reading their weights.
//!
//! ```text
//!   "GGUF" version | counts | key-value pairs            | names, shapes, types, offsets | padding | weights …
//!                             arrays stay in the file:     Tensor::range: bytes of the file
//!                             Array::range
//! ```
//! A file is input that nobody vouches for. Whatever its bytes, [`Header::read`] ends with a header or an [`Error`], and
//! takes memory in proportion to the part before the weights, arrays left out.
//!
//! Source: the GGUF specification of the ggml project.
#![forbid(unsafe_code)]

mod blocks;
mod error;
mod header;
mod kind;
mod language_model;
mod reader;
mod shards;
mod value;

pub use blocks::dequantize;
pub use error::Error;
pub use header::{Header, Tensor};
pub use kind::Kind;
pub use language_model::LanguageModel;
pub use shards::{Shards, other_shards};
pub use value::{Array, ElementType, Value};

/// What reading a file gives.
pub type Result<T> = std::result::Result<T, Error>;
