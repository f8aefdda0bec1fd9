//! The words that a kernel is told: `Call` and `Shape` of its source, in that order.

use neap_ir::op::Activation;

/// Bytes that a dispatch may tell: a multiple of every device's alignment of uniform bindings.
pub(crate) const PARAMS_BYTES: usize = 256;
/// Operands outside of the plan's memory are copied beside them up to this size: literals, single rows, tables.
pub(crate) const ASIDE_BYTES: usize = 16 << 10;
const CALL_WORDS: usize = 12;
const SHAPE_WORDS: usize = PARAMS_BYTES / 4 - CALL_WORDS;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    pub activation: Activation,
    /// 0: none, 1: in its own binding, 2: where the result goes.
    pub residual: u32,
    /// How panels hold weights of fewer bits: as `weights_bits.wgsl` has it, or `weights_blocks.wgsl`.
    pub format: u32,
    shape: [u32; SHAPE_WORDS],
    len: usize,
}

impl Words {
    pub(crate) fn new(shape: &[u32]) -> Words {
        let mut words = [0; SHAPE_WORDS];
        let len = shape.len().min(SHAPE_WORDS);
        words[..len].copy_from_slice(&shape[..len]);
        Words {
            activation: Activation::None,
            residual: 0,
            format: 0,
            shape: words,
            len,
        }
    }

    pub(crate) fn shape(&self) -> &[u32] {
        &self.shape[..self.len]
    }

    pub(crate) fn shape_mut(&mut self) -> &mut [u32] {
        &mut self.shape[..self.len]
    }

    /// With where operands begin in their bindings.
    pub(crate) fn write(&self, at: [u32; 5], out: &mut [u8]) {
        let (number, [a, b, c, d]) = activation(self.activation).unwrap_or_default();
        let call = [
            at[0],
            at[1],
            at[2],
            at[3],
            number,
            a.to_bits(),
            b.to_bits(),
            c.to_bits(),
            d.to_bits(),
            self.residual,
            at[4],
            self.format,
        ];
        let words = call.iter().chain(&self.shape[..self.len]);
        for (bytes, word) in out.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Whether it bounds results at most: see `bound` of the shaders.
pub(crate) fn is_bounded(activation: Activation) -> bool {
    matches!(
        activation,
        Activation::None | Activation::Relu | Activation::Clip { .. }
    )
}

/// As the shaders number it, with its parameters; `None` for what they do not have.
pub(crate) fn activation(activation: Activation) -> Option<(u32, [f32; 4])> {
    Some(match activation {
        Activation::None => (0, [0.0; 4]),
        Activation::Relu => (1, [0.0; 4]),
        Activation::Clip { low, high } => (2, [low, high, 0.0, 0.0]),
        Activation::LeakyRelu { alpha } => (3, [alpha, 0.0, 0.0, 0.0]),
        Activation::Sigmoid => (4, [0.0; 4]),
        Activation::Silu => (5, [0.0; 4]),
        Activation::Gelu => (6, [0.0; 4]),
        Activation::GeluTanh => (7, [0.0; 4]),
        Activation::HardSigmoid { alpha, beta } => (8, [alpha, beta, 0.0, 0.0]),
        Activation::HardSwish => (9, [0.0; 4]),
        Activation::Tanh => (10, [0.0; 4]),
        Activation::Requantize { .. } => return None,
    })
}
