//! One model that runs: tensors of onnxruntime's are read where they lie, and outputs written where it wants them.

use crate::host::{Host, Input, Object, Result, Status, guarded};
use crate::tables::{ComputeTable, VERSION};
use neaptide::{Runner, Tensor};
use std::ffi::c_void;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// onnxruntime sees the table, which is first.
#[repr(C)]
struct Compiled {
    table: ComputeTable,
    host: Host,
    /// Runs take turns.
    runner: Mutex<Runner>,
    /// Of each input of the model, its number among the node's.
    inputs: Vec<usize>,
    /// Of each output of the model, its number among the node's; `None` where nobody wants it.
    outputs: Vec<Option<usize>>,
}

/// # Safety
/// The node that stands for the model.
///
/// # Errors
/// Its inputs and outputs are not the model's.
pub unsafe fn create(host: Host, runner: Runner, node: Object) -> Result<*mut ComputeTable> {
    // SAFETY: as the caller says.
    let (gives, takes) = unsafe { (host.inputs(node)?, host.outputs(node)?) };
    let number = |input: &neaptide::Declared| {
        let found = gives.iter().position(|name| *name == input.name);
        found.ok_or_else(|| format!("onnxruntime does not give input '{}'", input.name))
    };
    let signature = runner.signature();
    let inputs = signature
        .inputs
        .iter()
        .map(number)
        .collect::<Result<Vec<_>>>()?;
    let outputs = signature.outputs.iter();
    let outputs: Vec<Option<usize>> = outputs
        .map(|o| takes.iter().position(|name| *name == o.name))
        .collect();
    if let Some(name) = takes
        .iter()
        .find(|name| signature.outputs.iter().all(|o| o.name != **name))
    {
        return Err(format!("the model's file has no output '{name}'"));
    }
    let table = ComputeTable {
        version: VERSION,
        create_state,
        compute,
        release_state,
    };
    let runner = Mutex::new(runner);
    let compiled = Compiled {
        table,
        host,
        runner,
        inputs,
        outputs,
    };
    Ok(Box::into_raw(Box::new(compiled)).cast())
}

/// # Safety
/// It was made by [`create`], and is not used again.
pub unsafe fn release(table: *mut ComputeTable) {
    if !table.is_null() {
        // SAFETY: as the caller says.
        drop(unsafe { Box::from_raw(table.cast::<Compiled>()) });
    }
}

/// The state is the model itself.
unsafe extern "C" fn create_state(
    table: *mut ComputeTable,
    _context: Object,
    state: *mut *mut c_void,
) -> Status {
    // SAFETY: a place for the state.
    unsafe { *state = table.cast() };
    ptr::null_mut()
}

unsafe extern "C" fn release_state(_: *mut ComputeTable, _: *mut c_void) {}

unsafe extern "C" fn compute(table: *mut ComputeTable, _: *mut c_void, run: Object) -> Status {
    // SAFETY: onnxruntime hands its table back, perhaps to several threads, which share it.
    let compiled = unsafe { &*table.cast::<Compiled>() };
    guarded(compiled.host, || {
        // SAFETY: what a run is asked with.
        unsafe { compiled.run(run) }
    })
}

impl Compiled {
    unsafe fn run(&self, run: Object) -> Result<()> {
        // SAFETY: as the caller says, here and below: tensors live while the run goes on.
        let given = self
            .inputs
            .iter()
            .map(|&number| unsafe { self.host.input(run, number) });
        let given = given.collect::<Result<Vec<Input>>>()?;
        let tensors: Vec<Tensor> = (given.iter())
            .map(|input| Tensor {
                dtype: input.dtype,
                shape: &input.shape,
                // SAFETY: as above.
                bytes: unsafe { input.bytes() },
            })
            .collect();
        let mut runner = self.runner.lock().unwrap_or_else(PoisonError::into_inner);
        let infos = runner
            .ready(&tensors, &mut |_| {})
            .map_err(|e| e.to_string())?
            .to_vec();
        let mut unwanted: Vec<Vec<u8>> = Vec::new();
        let mut places: Vec<&mut [u8]> = Vec::new();
        for (info, number) in infos.iter().zip(&self.outputs) {
            let bytes = info.len_bytes();
            match number {
                Some(number) => {
                    // SAFETY: as above; onnxruntime makes a tensor of this shape, which is nobody else's.
                    places.push(unsafe {
                        let data = self.host.output(run, *number, &info.ty.shape)?;
                        match bytes {
                            0 => Default::default(),
                            _ => std::slice::from_raw_parts_mut(data, bytes),
                        }
                    });
                }
                None => {
                    unwanted.push(vec![0; bytes]);
                    places.push(&mut []);
                }
            }
        }
        let mut unwanted = unwanted.iter_mut();
        for (place, number) in places.iter_mut().zip(&self.outputs) {
            if number.is_none()
                && let Some(memory) = unwanted.next()
            {
                *place = memory;
            }
        }
        runner
            .run(&tensors, &mut places, &mut |_| {})
            .map_err(|e| e.to_string())?;
        let session = runner.session().ok_or("the session is gone")?;
        for (index, info) in session.outputs().iter().enumerate() {
            if session.output_type(index).shape != info.ty.shape {
                return Err(format!(
                    "output '{}' has a size that is known only when it runs, which a provider cannot give",
                    info.name
                ));
            }
        }
        Ok(())
    }
}
