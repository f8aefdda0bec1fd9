//! The native half of the Python package `neaptide`. The other half, in `python/neaptide`, has the names and habits of
//! onnxruntime; this one has sessions.
//!
//! ```text
//!   arrays    numpy arrays as tensors of the engine, without a copy; places for outputs
//!   failure   the engine's errors as Python's exceptions
//!   options   how a session is opened
//!   session   opens and runs, without the interpreter's lock
//!   interrupt ends runs early: on request, and on Ctrl-C
//!   language  language models that answer
//!   trainer   takes steps of training
//!   listener  tells Python how far packing is
//! ```

mod arrays;
mod failure;
mod interrupt;
mod language;
mod listener;
mod options;
mod session;
mod signature;
mod trainer;

use pyo3::prelude::*;

/// Sessions of Neaptide; use the package `neaptide`.
#[pymodule(gil_used = true)]
mod _neaptide {
    #[pymodule_export]
    use crate::interrupt::Cancel;
    #[pymodule_export]
    use crate::language::LanguageModel;
    #[pymodule_export]
    use crate::options::{
        HeldModel, cache_clear, cache_list, check_budget, forget_model, kept_model, known_bounds,
        parse_bounds,
    };
    #[pymodule_export]
    use crate::session::Session;
    #[pymodule_export]
    use crate::signature::signature;
    #[pymodule_export]
    use crate::trainer::Trainer;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
