//! Operands: typed views of memory that someone else owns.
//!
//! Views are raw because an output may lie on top of an input where
//! [`crate::may_overwrite`] allows it.

use neap_ir::panel::PanelFormat;
use neap_ir::{DType, Layout, TensorType};
use neap_kernels::parallel::Parallel;
use neap_kernels::simd::Isa;
use std::marker::PhantomData;
use std::ops::Range;

/// A tensor to read.
#[derive(Clone, Copy)]
pub struct TensorRef<'a> {
    pub ty: &'a TensorType,
    pub layout: Layout,
    ptr: *const u8,
    memory: PhantomData<&'a [u8]>,
}

/// A tensor to write.
#[derive(Clone, Copy)]
pub struct TensorMut<'a> {
    pub ty: &'a TensorType,
    pub layout: Layout,
    ptr: *mut u8,
    memory: PhantomData<&'a [u8]>,
}

/// Panels `range.start .. range.end` of a layer's weights, contiguous.
#[derive(Clone)]
pub struct PanelSlice<'a> {
    pub range: Range<usize>,
    /// Of panels as packed; prepared ones are `f32`.
    pub format: PanelFormat,
    pub bytes: &'a [u8],
}

/// What an operator computes with.
pub struct Context<'a> {
    pub par: &'a dyn Parallel,
    pub isa: Isa,
    /// At least [`crate::workspace_bytes`]; contents are not kept.
    pub workspace: &'a mut [u8],
}

// SAFETY: a view only carries an address; reads and writes through it are the operators', whose
// parallel tasks write disjoint parts.
unsafe impl Send for TensorRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for TensorRef<'_> {}
// SAFETY: as above.
unsafe impl Send for TensorMut<'_> {}
// SAFETY: as above.
unsafe impl Sync for TensorMut<'_> {}

impl<'a> TensorRef<'a> {
    /// # Safety
    /// `ptr` is aligned to the element size (8 bytes at least when the tensor is not empty) and
    /// readable for `ty.layout_bytes(layout)` bytes during `'a`. Nothing else writes there during
    /// `'a`, except an output that [`crate::may_overwrite`] lets take this input's place (exactly
    /// the same address).
    pub unsafe fn new(ty: &'a TensorType, layout: Layout, ptr: *const u8) -> TensorRef<'a> {
        TensorRef {
            ty,
            layout,
            ptr,
            memory: PhantomData,
        }
    }

    /// Plain tensor over borrowed bytes; `None` when they are too few or not aligned to the
    /// element size.
    pub fn from_bytes(ty: &'a TensorType, bytes: &'a [u8]) -> Option<TensorRef<'a>> {
        let aligned = bytes.as_ptr().addr().is_multiple_of(ty.dtype.size_bytes());
        (aligned && bytes.len() >= ty.len_bytes()).then_some(TensorRef {
            ty,
            layout: Layout::Plain,
            ptr: bytes.as_ptr(),
            memory: PhantomData,
        })
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.ptr
    }

    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    pub fn shape(&self) -> &'a [usize] {
        &self.ty.shape
    }

    pub fn elements(&self) -> usize {
        self.ty.elements()
    }

    pub fn len_bytes(&self) -> usize {
        self.ty.layout_bytes(self.layout)
    }
}

impl<'a> TensorMut<'a> {
    /// # Safety
    /// As [`TensorRef::new`], and writable; no other output overlaps it.
    pub unsafe fn new(ty: &'a TensorType, layout: Layout, ptr: *mut u8) -> TensorMut<'a> {
        TensorMut {
            ty,
            layout,
            ptr,
            memory: PhantomData,
        }
    }

    /// Plain tensor over borrowed bytes; `None` when they are too few or not aligned to the
    /// element size.
    pub fn from_bytes(ty: &'a TensorType, bytes: &'a mut [u8]) -> Option<TensorMut<'a>> {
        let aligned = bytes.as_ptr().addr().is_multiple_of(ty.dtype.size_bytes());
        (aligned && bytes.len() >= ty.len_bytes()).then_some(TensorMut {
            ty,
            layout: Layout::Plain,
            ptr: bytes.as_mut_ptr(),
            memory: PhantomData,
        })
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    pub fn shape(&self) -> &'a [usize] {
        &self.ty.shape
    }

    pub fn elements(&self) -> usize {
        self.ty.elements()
    }

    pub fn len_bytes(&self) -> usize {
        self.ty.layout_bytes(self.layout)
    }
}

impl<'a> TensorRef<'a> {
    /// The tensor as it lies in memory.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        // SAFETY: `new`'s caller vouches for the bytes and that only an output that may take this
        // input's place writes them; operators then read through the output instead.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len_bytes()) }
    }

    /// All elements, padding lanes included; empty for other types.
    pub(crate) fn f32s(&self) -> &'a [f32] {
        if self.ty.dtype != DType::F32 {
            return &[];
        }
        // SAFETY: `new`'s caller vouches for the bytes and that only an output that may take this
        // input's place writes them; operators then read through the output instead.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len_bytes() / 4) }
    }

    /// As [`TensorRef::f32s`].
    pub(crate) fn f64s(&self) -> &'a [f64] {
        if self.ty.dtype != DType::F64 {
            return &[];
        }
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.len_bytes() / 8) }
    }
}

impl<'a> TensorMut<'a> {
    /// All elements, padding lanes included; empty for other types.
    ///
    /// # Safety
    /// No other reference into the tensor is alive: operators take this once, and do not take
    /// [`TensorRef::f32s`] of an input at the same address.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn f32s_mut(&self) -> &'a mut [f32] {
        if self.ty.dtype != DType::F32 {
            return &mut [];
        }
        // SAFETY: as the caller and `new`'s caller vouch.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.len_bytes() / 4) }
    }

    /// As [`TensorMut::f32s_mut`].
    ///
    /// # Safety
    /// The same.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn f64s_mut(&self) -> &'a mut [f64] {
        if self.ty.dtype != DType::F64 {
            return &mut [];
        }
        // SAFETY: as the caller and `new`'s caller vouch.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.len_bytes() / 8) }
    }

    /// The tensor as it lies in memory.
    ///
    /// # Safety
    /// As [`TensorMut::f32s_mut`].
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn bytes_mut(&self) -> &'a mut [u8] {
        // SAFETY: as the caller and `new`'s caller vouch.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len_bytes()) }
    }

    /// Elements as they lie in memory, padding lanes included.
    pub(crate) fn layout_elements(&self) -> usize {
        self.len_bytes() / self.ty.dtype.size_bytes()
    }

    /// Whether this output takes the input's place.
    pub(crate) fn is_at(&self, input: &TensorRef) -> bool {
        std::ptr::eq(self.ptr.cast_const(), input.ptr)
    }
}
