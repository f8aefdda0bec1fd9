//! What states are before the first step: the model's constants, read piece by piece, or random numbers.

use crate::error::{Error, Result};
use crate::source_weights::SourceFiles;
use crate::train::step::StepState;
use neap_autodiff::Adapter;
use neap_ir::{Graph, ValueId};
use std::collections::HashMap;

/// Elements that are read at once.
const PIECE: usize = 1 << 18;

/// Hands `visit` a state's first bytes in pieces, each with the offset of its first byte; nothing for a state that begins
/// as zeros. `model` is the graph before it was made into a step.
pub(super) fn first_bytes(
    model: &Graph,
    files: &SourceFiles,
    drawn: &Drawn,
    state: &StepState,
    visit: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let Some(value) = state.begins_as else {
        return Ok(());
    };
    let dtype = state.ty.dtype;
    let (mut raw, mut bytes) = (Vec::new(), Vec::new());
    let elements = state.ty.elements();
    for start in (0..elements).step_by(PIECE) {
        let count = PIECE.min(elements - start);
        if let Some(uniform) = drawn.0.get(&value) {
            bytes.clear();
            let numbers = (start..start + count).map(|i| uniform.at(i as u64));
            bytes.extend(numbers.flat_map(f32::to_le_bytes));
        } else {
            files
                .read_bytes(model, value, start, count, dtype, &mut raw, &mut bytes)
                .map_err(|reason| {
                    Error::BadInput(format!("constant '{}': {reason}", state.name))
                })?;
        }
        visit((start * dtype.size_bytes()) as u64, &bytes)?;
    }
    Ok(())
}

/// Float32 states that begin as random numbers: the first matrices of adapters.
#[derive(Default)]
pub(super) struct Drawn(HashMap<ValueId, Uniform>);

impl Drawn {
    /// As PyTorch's layers begin: evenly between minus and plus one over the root of the inputs.
    pub fn of(graph: &Graph, adapters: &[Adapter], seed: u64) -> Drawn {
        let uniform = |(index, adapter): (usize, &Adapter)| {
            let [inputs, _] = adapter.form.sides(&graph.ty(adapter.weight).shape);
            let uniform = Uniform {
                // Dropouts draw by the seed itself.
                key: draw(!seed, index as u64),
                bound: 1.0 / (inputs as f32).sqrt(),
            };
            (adapter.down, uniform)
        };
        Drawn(adapters.iter().enumerate().map(uniform).collect())
    }
}

/// Numbers that are spread evenly between minus and plus `bound`.
struct Uniform {
    key: u64,
    bound: f32,
}

impl Uniform {
    fn at(&self, index: u64) -> f32 {
        let unit = (draw(self.key, index) >> 40) as f32 / (1u64 << 23) as f32;
        (unit - 1.0) * self.bound
    }
}

/// One of a seed's numbers (splitmix64).
pub(super) fn draw(seed: u64, index: u64) -> u64 {
    let z = seed.wrapping_add(index.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_even_and_within_the_bound() {
        let uniform = Uniform {
            key: draw(!7, 0),
            bound: 0.25,
        };
        let numbers: Vec<f32> = (0..10_000).map(|i| uniform.at(i)).collect();
        assert!(numbers.iter().all(|v| v.abs() <= 0.25));
        let mean = numbers.iter().sum::<f32>() / 1e4;
        let square = numbers.iter().map(|v| v * v).sum::<f32>() / 1e4;
        assert!(mean.abs() < 0.005, "{mean}");
        // A third of the bound's square.
        assert!((square - 0.0208).abs() < 0.001, "{square}");
    }
}
