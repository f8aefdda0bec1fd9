//! An execution provider that onnxruntime (1.23 or later) loads: it takes whole models, and runs them inside a budget.
//!
//! ```text
//!   onnxruntime ─► CreateEpFactories ─► Factory ─► CreateEp ─► Provider: GetCapability takes a model whose file can be opened
//!                                                              Compile ─► Compiled: Compute runs it
//!   host       onnxruntime's functions, by their place in its table
//!   tables     tables of functions that onnxruntime calls, as its interface lays them out
//!   factory    what onnxruntime asks the library for
//!   provider   of one session: takes models, compiles them
//!   compiled   one model that runs
//! ```
//! onnxruntime reads a model into memory before a provider sees it. The provider opens the model's own file again, and
//! has onnxruntime drop its copies of the weights.

mod compiled;
mod factory;
mod host;
mod provider;
mod tables;

use host::{Host, Status, guarded};
use std::ffi::{c_char, c_void};
use std::ptr;
use tables::{ApiBase, FactoryTable};

/// What onnxruntime looks for in the library.
///
/// # Safety
/// As onnxruntime calls it: `base` is its table, `factories` has room for one, and `count` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn CreateEpFactories(
    _registered_name: *const c_char,
    base: *const ApiBase,
    _logger: *const c_void,
    factories: *mut *mut FactoryTable,
    most: usize,
    count: *mut usize,
) -> Status {
    // SAFETY: the caller gives its own table.
    let Some(host) = (unsafe { Host::of(base) }) else {
        // Without its functions there is no way to say what is wrong: there is no provider then.
        // SAFETY: the caller says that it may be written.
        unsafe { *count = 0 };
        return ptr::null_mut();
    };
    guarded(host, || {
        if most == 0 {
            return Err("there is no room for a factory".into());
        }
        // SAFETY: the caller says that there is room for one, and that the count may be written.
        unsafe {
            *factories = factory::create(host);
            *count = 1;
        }
        Ok(())
    })
}

/// Gives back what [`CreateEpFactories`] made.
///
/// # Safety
/// `factory` was made there, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ReleaseEpFactory(factory: *mut FactoryTable) -> Status {
    // SAFETY: as the caller says.
    unsafe { factory::release(factory) };
    ptr::null_mut()
}
