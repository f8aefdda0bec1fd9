//! `.onnx` file to [`neap_ir::Graph`]: dimensions are bound, constants fold, weights stay unread.
//!
//! [`open`] walks the protobuf without loading it: an initializer becomes a byte range of the model
//! file or of an external data file beside it. Operators become typed, with what differs between
//! opset versions resolved. Anything that cannot be represented exactly is an error that names the
//! node; nothing is approximated silently.
//!
//! A [`Skeleton`] is a model whose dimensions are still symbols. It is read from the model's files, or from an
//! [`Extract`] of them that was kept, and [`Skeleton::bind`] makes the same graph of either.
//!
//! ```text
//! file --wire--> fields --decode--> proto --import--> nodes in order, scopes, branches, functions
//!                                     |                    |
//!                                   tensor               ops/*  one ONNX node -> typed operators
//!                                     |                    |
//!                                  constants  ------->  builder  infer, fold, append --> cleanup
//! ```

#![forbid(unsafe_code)]

mod builder;
mod cleanup;
mod containers;
mod count;
mod decode;
mod error;
mod example;
mod external;
mod extract;
mod files;
mod folder;
mod import;
mod inputs;
mod late;
mod narrow;
mod need;
mod node;
mod open_file;
mod ops;
mod order;
mod other_formats;
mod proto;
mod replace;
mod signature;
mod skeleton;
mod source;
mod tensor;
mod undeclared;
mod wire;

pub use builder::Stored;
pub use count::count_nodes;
pub use error::{OnnxError, OpenDim};
pub use example::example;
pub use extract::{Elsewhere, Extract, KeptFile, merged};
pub use folder::ModelFolder;
pub use inputs::Inputs;
pub use need::Need;
pub use open_file::OpenFile;
pub use replace::{Initializer, NewLayer, ReplaceError, Replaceable, Untied};
pub use signature::{
    About, Declared, DeclaredDim, Signature, declared_inputs, signature, type_text,
};
pub use skeleton::{Bound, Skeleton};

use neap_ir::{Graph, Literal};
use std::collections::BTreeMap;
use std::path::Path;

/// Key of a model's metadata that says of its external data whether they exist.
pub const WEIGHTS_KEY: &str = "neaptide.weights";
/// The value for data that were never written: the file is not looked for, and reads as zeros.
pub const WEIGHTS_ABSENT: &str = "absent";

/// What the model file leaves open.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// Input name to its whole shape.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// Size of a dimension that the model names, wherever it occurs.
    pub dims: BTreeMap<String, usize>,
    /// What is taken for dimensions that neither these options nor the model say.
    pub unsaid: Unsaid,
    /// Inputs whose value is known when the model is opened; they become constants and are no
    /// inputs of the graph. Needed for inputs that decide shapes.
    pub bindings: BTreeMap<String, Literal>,
    /// For sizes that are known only when running, where nothing in the model bounds them: by the name of a node's first
    /// output, the most that each such size of it can be.
    pub size_bounds: BTreeMap<String, usize>,
    /// Half-float values (f16, bf16) are typed and computed as f32; their weights widen when packed.
    pub widen_half: bool,
    /// Weights of convolutions and products stay in the file however small they are: for whoever packs them from there,
    /// and has no use for them in memory.
    pub leave_weights: bool,
    /// Initializers that may be parameters stay whole, under their names: nothing is computed of them when the model is
    /// opened. For who trains them.
    pub keep_parameters: bool,
}

/// Sizes of open dimensions that nothing says; without one, they are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Unsaid {
    /// Of a dimension that stands first in an input, which is the batch: not of one whose name that input has twice.
    pub first: Option<usize>,
    /// Of all others.
    pub others: Option<usize>,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions {
            shapes: BTreeMap::new(),
            dims: BTreeMap::new(),
            unsaid: Unsaid::default(),
            bindings: BTreeMap::new(),
            size_bounds: BTreeMap::new(),
            widen_half: true,
            leave_weights: false,
            keep_parameters: false,
        }
    }
}

/// Reads a model's structure. Weights larger than a few KiB are left in the file.
///
/// # Errors
/// The file cannot be read, is malformed, needs a dimension or value that `options` does not give,
/// or uses something unsupported; the message is one line for the user.
pub fn open(path: &Path, options: &OpenOptions) -> Result<Graph, OnnxError> {
    Ok(Skeleton::open(path)?.bind(options)?.graph)
}
