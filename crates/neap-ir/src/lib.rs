//! Typed graph of a neural network: operators, values, static shapes, weight references. No I/O.
//!
//! A [`Graph`] is what every stage after the ONNX reader speaks: the reader makes it, the
//! rewriter transforms it, the packer serialises it, the runtime interprets it. Shapes are
//! static (dynamic dimensions were bound by the reader), operator attributes are typed and
//! resolved (axes non-negative, pads explicit, shape-like inputs folded into attributes), and
//! weights are references to bytes elsewhere until something needs them.

#![forbid(unsafe_code)]

mod attributes;
pub mod bands;
mod check;
pub mod dtype;
pub mod float8;
pub mod gradient;
pub mod graph;
mod ids;
pub mod infer;
pub mod late;
pub mod learned;
pub mod literal;
pub mod op;
mod op_name;
pub mod panel;
pub mod print;
pub mod program;
pub mod recipe;
pub mod sampling;
pub mod spectrum;
pub mod strips;
mod tensor;
pub mod update;

pub use dtype::DType;
pub use float8::Float8;
pub use gradient::Gradient;
pub use graph::{BoundInput, Const, FileRange, Graph, GraphError, Node, SourceFile, State, Value};
pub use ids::{ConstId, FileId, NodeId, PackedId, ValueId};
pub use literal::Literal;
pub use op::Op;
pub use program::Program;
pub use tensor::{Layout, TensorType};
