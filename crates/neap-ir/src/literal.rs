//! A small tensor with its data: folded constants, index tables, test inputs.

use crate::DType;
use crate::tensor::TensorType;
use serde::{Deserialize, Serialize};

/// Row-major tensor data held in memory, aligned to 8 bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Literal {
    dtype: DType,
    shape: Vec<usize>,
    /// Little-endian elements in 8-byte words, so that every dtype is aligned.
    words: Vec<u64>,
}

impl Literal {
    /// All-zero tensor; the caller fills [`Literal::bytes_mut`].
    pub fn zeros(dtype: DType, shape: &[usize]) -> Literal {
        let len_bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        Literal {
            dtype,
            shape: shape.to_vec(),
            words: vec![0; len_bytes.div_ceil(8)],
        }
    }

    /// From little-endian bytes; `None` when the length does not fit the shape.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Option<Literal> {
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
        if elements.checked_mul(dtype.size_bytes())? != bytes.len() {
            return None;
        }
        let mut literal = Literal::zeros(dtype, shape);
        literal.bytes_mut().copy_from_slice(bytes);
        Some(literal)
    }

    pub fn from_i64(shape: &[usize], data: &[i64]) -> Literal {
        let mut literal = Literal::zeros(DType::I64, shape);
        assert_eq!(literal.words.len(), data.len(), "data fits the shape");
        for (word, &x) in literal.words.iter_mut().zip(data) {
            *word = x as u64;
        }
        literal
    }

    pub fn from_f32(shape: &[usize], data: &[f32]) -> Literal {
        let mut literal = Literal::zeros(DType::F32, shape);
        let bytes = literal.bytes_mut();
        assert_eq!(bytes.len(), data.len() * 4, "data fits the shape");
        for (chunk, x) in bytes.chunks_exact_mut(4).zip(data) {
            chunk.copy_from_slice(&x.to_le_bytes());
        }
        literal
    }

    /// Whether there is as much data as the shape says: for literals read from a file.
    pub fn is_whole(&self) -> bool {
        let sizes = self.shape.iter().copied();
        let bytes = sizes
            .chain([self.dtype.size_bytes()])
            .try_fold(1usize, usize::checked_mul);
        bytes.is_some_and(|bytes| self.words.len() == bytes.div_ceil(8))
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub fn ty(&self) -> TensorType {
        TensorType {
            dtype: self.dtype,
            shape: self.shape.clone(),
        }
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub fn len_bytes(&self) -> usize {
        self.elements() * self.dtype.size_bytes()
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len_bytes()]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = self.len_bytes();
        &mut bytemuck::cast_slice_mut(&mut self.words)[..len]
    }

    /// Same data under another shape with the same number of elements.
    pub fn reshaped(mut self, shape: &[usize]) -> Literal {
        assert_eq!(
            self.elements(),
            shape.iter().product::<usize>(),
            "element count is kept"
        );
        self.shape = shape.to_vec();
        self
    }

    /// Elements as `f32`; `None` unless the dtype is `F32`.
    pub fn as_f32(&self) -> Option<&[f32]> {
        (self.dtype == DType::F32).then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// Elements as `i64` whatever integer or bool type they are stored in; `None` for floats.
    pub fn to_i64_vec(&self) -> Option<Vec<i64>> {
        let b = self.bytes();
        Some(match self.dtype {
            DType::I64 => bytemuck::cast_slice::<u8, i64>(b).to_vec(),
            DType::I32 => bytemuck::cast_slice::<u8, i32>(b)
                .iter()
                .map(|&x| x.into())
                .collect(),
            DType::I16 => bytemuck::cast_slice::<u8, i16>(b)
                .iter()
                .map(|&x| x.into())
                .collect(),
            DType::I8 => b.iter().map(|&x| (x as i8).into()).collect(),
            DType::U8 | DType::Bool => b.iter().map(|&x| x.into()).collect(),
            DType::U16 => bytemuck::cast_slice::<u8, u16>(b)
                .iter()
                .map(|&x| x.into())
                .collect(),
            DType::U32 => bytemuck::cast_slice::<u8, u32>(b)
                .iter()
                .map(|&x| x.into())
                .collect(),
            DType::U64 => bytemuck::cast_slice::<u8, u64>(b)
                .iter()
                .map(|&x| x as i64)
                .collect(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_must_fit_the_shape() {
        assert!(Literal::from_bytes(DType::F32, &[2, 3], &[0; 24]).is_some());
        assert!(Literal::from_bytes(DType::F32, &[2, 3], &[0; 23]).is_none());
        assert!(Literal::from_bytes(DType::F32, &[usize::MAX, 3], &[0; 24]).is_none());
    }

    #[test]
    fn integers_widen() {
        let l = Literal::from_bytes(DType::I8, &[3], &[1, 255, 3]).expect("fits");
        assert_eq!(l.to_i64_vec(), Some(vec![1, -1, 3]));
        assert_eq!(Literal::from_f32(&[1], &[1.0]).to_i64_vec(), None);
    }
}
