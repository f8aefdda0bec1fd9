//! Index tensors: any integer type, negative values counting from the end.

use crate::TensorRef;
use neap_ir::DType;

#[derive(Clone, Copy)]
pub(crate) struct Indices {
    ptr: *const u8,
    dtype: DType,
}

// SAFETY: only reads memory that nobody writes during the call.
unsafe impl Send for Indices {}
// SAFETY: as above.
unsafe impl Sync for Indices {}

impl Indices {
    pub fn of(tensor: &TensorRef) -> Indices {
        Indices {
            ptr: tensor.as_ptr(),
            dtype: tensor.dtype(),
        }
    }

    /// # Safety
    /// `at` is inside the tensor.
    #[inline(always)]
    pub unsafe fn get(&self, at: usize) -> i64 {
        // SAFETY: the caller keeps `at` inside; the type says how wide elements are.
        unsafe {
            match self.dtype {
                DType::I64 => *self.ptr.cast::<i64>().add(at),
                DType::I32 => i64::from(*self.ptr.cast::<i32>().add(at)),
                DType::I16 => i64::from(*self.ptr.cast::<i16>().add(at)),
                DType::I8 => i64::from(*self.ptr.cast::<i8>().add(at)),
                DType::U16 => i64::from(*self.ptr.cast::<u16>().add(at)),
                DType::U32 => i64::from(*self.ptr.cast::<u32>().add(at)),
                DType::U64 => i64::try_from(*self.ptr.cast::<u64>().add(at)).unwrap_or(i64::MAX),
                DType::U8 | DType::Bool => i64::from(*self.ptr.add(at)),
                DType::F32 => *self.ptr.cast::<f32>().add(at) as i64,
                DType::F64 => *self.ptr.cast::<f64>().add(at) as i64,
                DType::F16 => f32::from(*self.ptr.cast::<half::f16>().add(at)) as i64,
                DType::BF16 => f32::from(*self.ptr.cast::<half::bf16>().add(at)) as i64,
            }
        }
    }

    /// The position in an axis of `size`; `None` where it is out of range.
    ///
    /// # Safety
    /// As [`Indices::get`].
    #[inline(always)]
    pub unsafe fn position(&self, at: usize, size: usize) -> Option<usize> {
        // SAFETY: as the caller vouches.
        let index = unsafe { self.get(at) };
        let index = if index < 0 {
            index.checked_add(size as i64)?
        } else {
            index
        };
        usize::try_from(index).ok().filter(|&i| i < size)
    }
}
