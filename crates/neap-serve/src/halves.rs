//! Half floats of clients, which the engine takes and gives as `f32`.

use crate::buffer::{Buffer, Tensor};
use crate::catalogue::Served;
use crate::executor::Done;
use neaptide::{TensorInfo, is_half, round_to_halves, widen_halves};

/// Inputs as the engine takes them.
pub fn widened(model: &Served, inputs: Vec<Tensor>) -> Vec<Tensor> {
    let declared = model.inputs.iter().zip(inputs);
    let wide = declared.map(|(info, tensor)| {
        if !is_half(info.ty.dtype) {
            return tensor;
        }
        let mut buffer = Buffer::zeroed(2 * tensor.bytes().len());
        widen_halves(info.ty.dtype, tensor.bytes(), buffer.bytes_mut());
        Tensor::new(buffer)
    });
    wide.collect()
}

/// Outputs as the model declares them.
pub fn rounded(model: &Served, mut done: Done) -> Done {
    let declared = model.outputs.iter().zip(&mut done.outputs);
    for (declared, (info, tensor)) in declared {
        if is_half(declared.ty.dtype) && info.ty.dtype != declared.ty.dtype {
            let mut buffer = Buffer::zeroed(tensor.bytes().len() / 2);
            round_to_halves(declared.ty.dtype, tensor.bytes(), buffer.bytes_mut());
            *tensor = Tensor::new(buffer);
            info.ty.dtype = declared.ty.dtype;
        }
    }
    done
}

/// What conversions of one row take beside what the engine takes and gives.
pub fn converted_bytes(model: &Served) -> u64 {
    let inputs = model.inputs.iter().zip(&*model.engine_inputs);
    let wide = inputs.filter(|(declared, _)| is_half(declared.ty.dtype));
    let wide: u64 = wide.map(|(_, engine)| engine.len_bytes() as u64).sum();
    let halves = model.outputs.iter();
    let halves = halves.filter(|info: &&TensorInfo| is_half(info.ty.dtype));
    wide + halves.map(|info| info.len_bytes() as u64).sum::<u64>()
}
