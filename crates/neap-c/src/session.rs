//! An open model.

use crate::cancel::NeapCancel;
use crate::failure::{NeapError, NeapStatus, told};
use crate::given::{array, is_null, path, text};
use crate::options::{NeapOptions, budget_of};
use crate::tensor::{NeapPlace, NeapTensor, NeapType, places, tensor};
use neaptide::{
    CancelToken, Declared, DeclaredDim, Error, Progress, Result, Runner, Tensor, TensorType,
};
use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::{Mutex, MutexGuard, TryLockError};

/// An open model, used by one call at a time. A call that comes while another one goes on is refused and changes nothing.
pub struct NeapSession {
    inputs: Vec<Known>,
    outputs: Vec<Known>,
    /// Nobody waits for it: calls from several threads are a mistake of the program's.
    running: Mutex<Running>,
}

struct Running {
    runner: Runner,
    progress: Box<dyn FnMut(Progress)>,
}

/// What the model says of a tensor, in C's terms.
struct Known {
    name: CString,
    element_type: NeapType,
    dims: Option<Vec<i64>>,
}

/// What a model declares of an input or output.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NeapDeclared {
    pub name: *const c_char,
    pub element_type: NeapType,
    /// Whether the model says how many dimensions there are.
    pub has_rank: bool,
    pub rank: usize,
    /// As many as the rank; -1 where the model leaves one open.
    pub dims: *const i64,
}

/// The type and shape of an output of the next run.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct NeapResult {
    pub element_type: NeapType,
    pub rank: usize,
    pub dims: *const usize,
    pub len_bytes: usize,
}

/// Opens an .onnx or .neap file. An .onnx is packed once, beside it or in a cache folder; packed files are read again as long as
/// the model is the same. Without options they are those of `neap_options_new`.
///
/// # Safety
/// `model` ends with a zero; `options` is NULL or options that were not freed; `session` is a place for a pointer, and `error` one
/// or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_open(
    model: *const c_char,
    options: *const NeapOptions,
    session: *mut *mut NeapSession,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            if session.is_null() {
                return Err(is_null("the place for the session"));
            }
            session.write(ptr::null_mut());
            let model = path(model, "the model's path")?;
            let default = NeapOptions::default();
            let options = options.as_ref().unwrap_or(&default);
            let mut progress = options.listener();
            let runner = Runner::open(model, &options.open, &options.run, &mut progress)?;
            let signature = runner.signature();
            let opened = NeapSession {
                inputs: signature.inputs.iter().map(known).collect(),
                outputs: signature.outputs.iter().map(known).collect(),
                running: Mutex::new(Running {
                    progress: Box::new(progress),
                    runner,
                }),
            };
            session.write(Box::into_raw(Box::new(opened)));
            Ok(())
        })
    }
}

/// Closes a session. One that another thread runs stays open for ever.
///
/// # Safety
/// `session` is NULL, or a session that was not freed and is not used afterwards.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_free(session: *mut NeapSession) {
    if !session.is_null() {
        // SAFETY: sessions are boxes, and this one is the caller's to give up.
        let _ = unsafe {
            told(ptr::null_mut(), || {
                // The lock of another thread would outlive what it locks.
                if used(session).is_ok() {
                    drop(Box::from_raw(session));
                }
                Ok(())
            })
        };
    }
}

/// How many inputs the model has; 0 for NULL.
///
/// # Safety
/// `session` is NULL or a session that was not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_input_count(session: *const NeapSession) -> usize {
    // SAFETY: the caller says so.
    unsafe { session.as_ref() }.map_or(0, |session| session.inputs.len())
}

/// How many outputs the model has; 0 for NULL.
///
/// # Safety
/// As `neap_session_input_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_output_count(session: *const NeapSession) -> usize {
    // SAFETY: the caller says so.
    unsafe { session.as_ref() }.map_or(0, |session| session.outputs.len())
}

/// What the model declares of an input. Pointers in it live as long as the session. False if there is no such input.
///
/// # Safety
/// As `neap_session_input_count`; `declared` is a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_input(
    session: *const NeapSession,
    index: usize,
    declared: *mut NeapDeclared,
) -> bool {
    // SAFETY: the caller says so.
    unsafe { written(session.as_ref().and_then(|s| s.inputs.get(index)), declared) }
}

/// What the model declares of an output. Pointers in it live as long as the session. False if there is no such output.
///
/// # Safety
/// As `neap_session_input`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_output(
    session: *const NeapSession,
    index: usize,
    declared: *mut NeapDeclared,
) -> bool {
    // SAFETY: the caller says so.
    unsafe {
        written(
            session.as_ref().and_then(|s| s.outputs.get(index)),
            declared,
        )
    }
}

/// Makes the session ready for inputs of these types and shapes. Values are looked at only where shapes depend on them. New shapes
/// are planned; nothing is packed again. Needed before a run only to learn the outputs' sizes.
///
/// # Safety
/// `session` is a session that was not freed; `inputs` are `count` tensors in the model's order, valid during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_prepare(
    session: *mut NeapSession,
    inputs: *const NeapTensor,
    count: usize,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            let mut running = used(session)?;
            let Running { runner, progress } = &mut *running;
            let inputs = tensors(inputs, count)?;
            runner.ready(&inputs, progress)?;
            Ok(())
        })
    }
}

/// Type and shape of an output, for the shapes that the session is ready for. Where the data decide its size, this is the largest. Pointers
/// in it live until the session is prepared or run again. False if there is no such output or the session is not ready for any
/// shapes yet.
///
/// # Safety
/// As `neap_session_input_count`; `result` is a place to write to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_result(
    session: *const NeapSession,
    index: usize,
    result: *mut NeapResult,
) -> bool {
    // SAFETY: the caller says so.
    unsafe {
        let running = used(session).ok();
        let found = running.as_ref().and_then(|r| r.runner.outputs().get(index));
        told_of(found.map(|info| &info.ty), result)
    }
}

/// Type and shape that an output had in the last run, if that ended well. Where the data decide its size, it is at the beginning of its
/// place. Pointers in it live as those of `neap_session_result`.
///
/// # Safety
/// As `neap_session_result`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_last_result(
    session: *const NeapSession,
    index: usize,
    result: *mut NeapResult,
) -> bool {
    // SAFETY: the caller says so.
    unsafe {
        let running = used(session).ok();
        let found = running.as_ref().and_then(|r| r.runner.session());
        let found = found.filter(|session| index < session.outputs().len());
        told_of(found.map(|session| session.output_type(index)), result)
    }
}

/// Runs once: reads `inputs`, writes all outputs to `outputs`, each in the model's order. `cancel` may end it early, or is NULL.
/// Prepares the session first, where it is not ready for these inputs. Outputs mean nothing when it fails; the session can
/// run again.
///
/// # Safety
/// As `neap_session_prepare`; `outputs` are `output_count` places, which nobody else uses during the call; `cancel` is NULL or was
/// not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_run(
    session: *mut NeapSession,
    inputs: *const NeapTensor,
    input_count: usize,
    outputs: *const NeapPlace,
    output_count: usize,
    cancel: *const NeapCancel,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            let mut running = used(session)?;
            let Running { runner, progress } = &mut *running;
            let inputs = tensors(inputs, input_count)?;
            let mut outputs = places(array(outputs, output_count, "outputs")?, &inputs)?;
            if !runner.is_ready(&inputs) {
                runner.ready(&inputs, progress)?;
            }
            check_places(runner, &outputs)?;
            let token = cancel.as_ref().map(|cancel| cancel.token.clone());
            let token = token.unwrap_or_else(CancelToken::new);
            runner.run_unless(&token, &inputs, &mut outputs, progress)
        })
    }
}

/// Runs within another budget from now on, written as in `neap_options_set_memory_budget`. The old one stays when it fails.
///
/// # Safety
/// `session` is a session that was not freed; `budget` ends with a zero.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_set_memory_budget(
    session: *mut NeapSession,
    budget: *const c_char,
    error: *mut *mut NeapError,
) -> NeapStatus {
    // SAFETY: as the caller says of each.
    unsafe {
        told(error, || {
            let budget = budget_of(text(budget, "the memory budget")?)?;
            used(session)?.runner.set_budget(budget)
        })
    }
}

/// The most memory in bytes that the session's plan takes; 0 before it is ready for any shapes.
///
/// # Safety
/// As `neap_session_input_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn neap_session_planned_bytes(session: *const NeapSession) -> u64 {
    // SAFETY: the caller says so.
    let running = unsafe { used(session) }.ok();
    let session = running.as_ref().and_then(|r| r.runner.session());
    session.map_or(0, |session| session.ledger().total_bytes())
}

fn known(declared: &Declared) -> Known {
    let dim = |dim: &DeclaredDim| match dim {
        DeclaredDim::Fixed(size) => i64::try_from(*size).unwrap_or(-1),
        DeclaredDim::Named(_) | DeclaredDim::Open => -1,
    };
    let name = declared
        .name
        .bytes()
        .filter(|&byte| byte != 0)
        .collect::<Vec<u8>>();
    Known {
        name: CString::new(name).unwrap_or_default(),
        element_type: NeapType::of(declared.dtype),
        dims: declared
            .dims
            .as_ref()
            .map(|dims| dims.iter().map(dim).collect()),
    }
}

/// # Safety
/// `declared` is NULL or a place to write to.
unsafe fn written(known: Option<&Known>, declared: *mut NeapDeclared) -> bool {
    let Some(known) = known.filter(|_| !declared.is_null()) else {
        return false;
    };
    let dims = known.dims.as_deref();
    let found = NeapDeclared {
        name: known.name.as_ptr(),
        element_type: known.element_type,
        has_rank: dims.is_some(),
        rank: dims.map_or(0, <[i64]>::len),
        dims: dims.map_or(ptr::null(), <[i64]>::as_ptr),
    };
    // SAFETY: the caller gives a place to write to.
    unsafe { declared.write(found) };
    true
}

/// # Safety
/// `result` is NULL or a place to write to.
unsafe fn told_of(found: Option<&TensorType>, result: *mut NeapResult) -> bool {
    let Some(ty) = found.filter(|_| !result.is_null()) else {
        return false;
    };
    let found = NeapResult {
        element_type: NeapType::of(Some(ty.dtype)),
        rank: ty.shape.len(),
        dims: ty.shape.as_ptr(),
        len_bytes: ty.len_bytes(),
    };
    // SAFETY: the caller gives a place to write to.
    unsafe { result.write(found) };
    true
}

/// # Errors
/// [`Error::BadInput`] without a session, and while another call uses it.
///
/// # Safety
/// `session` is NULL or a session that is not freed while what is given lives.
unsafe fn used<'a>(session: *const NeapSession) -> Result<MutexGuard<'a, Running>> {
    // SAFETY: the caller says so.
    let session = unsafe { session.as_ref() }.ok_or_else(|| is_null("the session"))?;
    match session.running.try_lock() {
        Ok(running) => Ok(running),
        Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => Err(Error::BadInput(
            "the session is busy: another thread, or the listener to its progress, calls it meanwhile"
                .into(),
        )),
    }
}

/// # Safety
/// `inputs` are `count` tensors whose memory nobody writes while what is given lives.
unsafe fn tensors<'a>(inputs: *const NeapTensor, count: usize) -> Result<Vec<Tensor<'a>>> {
    // SAFETY: the caller says so.
    let given = unsafe { array(inputs, count, "inputs")? };
    let all = given.iter().enumerate();
    // SAFETY: the same.
    all.map(|(index, given)| unsafe { tensor(index, given) })
        .collect()
}

/// Whether there is a place of the right size for each output, aligned to its elements.
fn check_places(runner: &Runner, places: &[&mut [u8]]) -> Result<()> {
    let outputs = runner.outputs();
    if outputs.len() != places.len() {
        let (has, given) = (outputs.len(), places.len());
        return Err(Error::BadInput(format!(
            "the model has {has} outputs, {given} places were given"
        )));
    }
    for (info, place) in outputs.iter().zip(places) {
        let element_bytes = info.ty.dtype.size_bytes();
        if !place.is_empty() && !place.as_ptr().addr().is_multiple_of(element_bytes) {
            return Err(Error::BadInput(format!(
                "output '{}': its place is not aligned to its {element_bytes}-byte elements",
                info.name
            )));
        }
        if info.len_bytes() != place.len() {
            return Err(Error::BadInput(format!(
                "output '{}' takes {} bytes, {} were given",
                info.name,
                info.len_bytes(),
                place.len()
            )));
        }
    }
    Ok(())
}
