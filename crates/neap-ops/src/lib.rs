//! Executes one typed operator on plain or channel-blocked tensors.
//!
//! An executor calls [`supported`] for every node when it opens a model, asks
//! [`workspace_bytes`] how much scratch each needs, and then calls [`execute`] with memory it owns.
//! [`execute`] never allocates, and its results do not depend on the number of workers.
//! [`evaluate`] is the same for constant folding: it infers, allocates and runs serially.

mod args; // operands of one call, scratch
mod attention;
mod bands; // chains of layers in row bands
mod chosen; // running with a chosen kernel
mod copy; // strided copies
mod elementwise;
mod error;
mod evaluate;
mod execute;
mod gradient; // backward passes
mod index;
mod integer; // index tensors
mod interpret;
mod kernel; // kernels by name, and what they cost
mod late; // sizes known when running
mod layer; // operators with panel weights
mod layout; // plain to blocked and back
mod learned; // n-grams, decision trees
mod movement;
mod nd; // loops over strided operands
mod norm;
mod pairs;
mod product;
mod query;
mod recurrent;
mod reduce;
mod resize;
mod sampling; // between elements
mod scalar; // element types
mod spectrum; // Fourier transforms
mod tensor;
mod twister; // random numbers, as numpy draws them
mod window;

pub use attention::Steps as HeadSteps;
pub use bands::{choose_heights, layer_kernels};
pub use chosen::{execute_with, kernels, prepare_panels, prepared_panel_bytes};
pub use error::OpError;
pub use evaluate::{evaluate, evaluate_outputs, evaluate_wanted};
pub use execute::execute;
pub use interpret::interpret;
pub use kernel::{
    Choice, FormFacts, Kernel, KernelFacts, ScratchKernel, Tile, UnknownKernel, WeightForm,
};
pub use late::execute_late;
pub use query::{
    OperandForm, blocked_inputs, flops, inner_bytes, may_be_overwritten_by, may_overwrite,
    supported, untouched_bytes, workspace_bytes,
};
pub use recurrent::takes_panels;
pub use resize::{resize_pair, resize_reach};
pub use tensor::{Context, PanelSlice, TensorMut, TensorRef};
