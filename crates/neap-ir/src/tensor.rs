//! Types of tensors, and how their elements lie in memory.

use crate::DType;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TensorType {
    pub dtype: DType,
    pub shape: Vec<usize>,
}

/// How a value's elements lie in memory.
///
/// ```text
/// Plain      [N][C][H][W]                 row-major, any rank, any dtype
/// Blocked    [N][ceil(C/16)][H][W][16]    rank 3 or 4, f32; lanes past C are padding
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Layout {
    Plain,
    Blocked,
}

/// Lanes of a channel block and of a weight panel.
pub const LANES: usize = 16;

impl TensorType {
    pub fn new(dtype: DType, shape: &[usize]) -> TensorType {
        TensorType {
            dtype,
            shape: shape.to_vec(),
        }
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Bytes in plain layout.
    pub fn len_bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }

    /// Bytes in the given layout, padding lanes included.
    pub fn layout_bytes(&self, layout: Layout) -> usize {
        match layout {
            Layout::Plain => self.len_bytes(),
            Layout::Blocked => {
                let spatial: usize = self.shape[2..].iter().product();
                let blocks = self.shape[0] * self.shape[1].div_ceil(LANES);
                blocks * spatial * LANES * self.dtype.size_bytes()
            }
        }
    }
}
