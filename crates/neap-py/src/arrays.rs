//! Numpy's arrays as tensors of the engine. Inputs are read where they lie, outputs are written where they stay.

use crate::failure::{invalid, raise};
use neaptide::{DType, Tensor, TensorInfo};
use numpy::npyffi::{NPY_TYPES, PY_ARRAY_API};
use numpy::prelude::*;
use numpy::{PyArrayDescr, PyArrayDyn, PyUntypedArray};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyString};
use std::slice;

/// Element types by numpy's numbers. Types that came to numpy from elsewhere, such as bfloat16, have a name only.
const TYPES: [(NPY_TYPES, DType); 14] = [
    (NPY_TYPES::NPY_FLOAT, DType::F32),
    (NPY_TYPES::NPY_LONG, DType::I64),
    (NPY_TYPES::NPY_UBYTE, DType::U8),
    (NPY_TYPES::NPY_BOOL, DType::Bool),
    (NPY_TYPES::NPY_BYTE, DType::I8),
    (NPY_TYPES::NPY_SHORT, DType::I16),
    (NPY_TYPES::NPY_USHORT, DType::U16),
    (NPY_TYPES::NPY_INT, DType::I32),
    (NPY_TYPES::NPY_UINT, DType::U32),
    (NPY_TYPES::NPY_ULONG, DType::U64),
    (NPY_TYPES::NPY_LONGLONG, DType::I64),
    (NPY_TYPES::NPY_ULONGLONG, DType::U64),
    (NPY_TYPES::NPY_DOUBLE, DType::F64),
    (NPY_TYPES::NPY_HALF, DType::F16),
];
const BFLOAT16: &str = "bfloat16";

/// An array that the engine can take as it is: row-major, of this machine's byte order, of a type that it knows.
pub struct Array<'py> {
    array: Bound<'py, PyUntypedArray>,
    dtype: DType,
}

impl<'py> Array<'py> {
    /// An input. What is no such array is made one: a copy.
    ///
    /// # Errors
    /// `InvalidArgument` for element types that the engine does not have.
    pub fn input(
        name: &Bound<'py, PyString>,
        value: &Bound<'py, PyAny>,
        wanted: Option<DType>,
    ) -> PyResult<Array<'py>> {
        let py = value.py();
        if let Ok(array) = value.cast::<PyUntypedArray>()
            && let Some(array) = Array::as_it_is(array)
        {
            return Ok(array);
        }
        if value.is_none() {
            let what = format!("input '{name}': None is no tensor");
            return Err(invalid(py, what));
        }
        // A value of this package: its array.
        let given = match value.getattr_opt("_array")? {
            Some(array) => array,
            None => value.clone(),
        };
        let made = Array::made(&given, wanted).map_err(|e| {
            match e.is_instance_of::<PyValueError>(py) {
                true => invalid(py, format!("input '{name}': {}", e.value(py))),
                false => e,
            }
        })?;
        Array::as_it_is(&made).ok_or_else(|| {
            let dtype = made.dtype();
            invalid(
                py,
                format!("input '{name}': element type {dtype} is not supported"),
            )
        })
    }

    /// A row-major array of this machine's byte order.
    fn made(
        given: &Bound<'py, PyAny>,
        wanted: Option<DType>,
    ) -> PyResult<Bound<'py, PyUntypedArray>> {
        let py = given.py();
        let numpy = py.import("numpy")?;
        let dtype = wanted.filter(|_| !given.is_instance_of::<PyUntypedArray>());
        let made = match dtype {
            // Numbers and lists have no type of their own.
            Some(dtype) if given.getattr_opt("dtype")?.is_none() => {
                let kwargs = [("dtype", dtype.name())].into_py_dict(py)?;
                numpy.call_method("ascontiguousarray", (given,), Some(&kwargs))?
            }
            _ => numpy.call_method1("ascontiguousarray", (given,))?,
        };
        // It makes a row of a scalar.
        let made = match given.getattr_opt("shape")? {
            Some(shape) => made.call_method1("reshape", (shape,))?,
            None => made,
        };
        let dtype = made.getattr("dtype")?;
        let native = dtype.call_method1("newbyteorder", ("=",))?;
        let made = made.call_method1("astype", (native,))?;
        Ok(made.cast_into::<PyUntypedArray>()?)
    }

    /// A place for an output that is of this type and shape, and may be written.
    ///
    /// # Errors
    /// `InvalidArgument` where it is not.
    pub fn place(info: &TensorInfo, value: &Bound<'py, PyAny>) -> PyResult<Array<'py>> {
        let py = value.py();
        let found = value.cast::<PyUntypedArray>().ok();
        let found = found.and_then(Array::as_it_is);
        let fits =
            |place: &Array| place.dtype == info.ty.dtype && place.array.shape() == info.ty.shape;
        let place = found.filter(fits).ok_or_else(|| {
            let (name, ty) = (&info.name, &info.ty);
            let shape = neaptide::shape_text(&ty.shape);
            invalid(
                py,
                format!(
                    "output '{name}' is {} {shape}: its place is no such row-major array",
                    ty.dtype
                ),
            )
        })?;
        let flags = place.array.getattr("flags")?;
        match flags.getattr("writeable")?.is_truthy()? {
            true => Ok(place),
            false => Err(invalid(
                py,
                format!("the place of output '{}' is read-only", info.name),
            )),
        }
    }

    /// A new array, for an output.
    ///
    /// # Errors
    /// Python's, when there is no memory.
    pub fn empty(py: Python<'py>, info: &TensorInfo) -> PyResult<Array<'py>> {
        let dtype = info.ty.dtype;
        let known = TYPES.iter().find(|(_, known)| *known == dtype);
        let descr = match known {
            // SAFETY: the number is one of numpy's own types.
            Some((number, _)) => unsafe {
                let descr = PY_ARRAY_API.PyArray_DescrFromType(py, *number as _);
                Bound::from_owned_ptr_or_err(py, descr.cast())?.cast_into::<PyArrayDescr>()?
            },
            None => {
                py.import("ml_dtypes").map_err(|_| {
                    let (name, dtype) = (&info.name, info.ty.dtype);
                    let what = format!(
                        "output '{name}' is {dtype}, for which numpy needs the package ml_dtypes"
                    );
                    raise(py, "NotImplemented", what)
                })?;
                PyArrayDescr::new(py, dtype.name())?
            }
        };
        let mut dims: Vec<isize> = info.ty.shape.iter().map(|&size| size as isize).collect();
        // SAFETY: there are as many dimensions as are said, and the call takes the reference to the type that is
        // given up here.
        let array = unsafe {
            let made = PY_ARRAY_API.PyArray_Empty(
                py,
                dims.len() as _,
                dims.as_mut_ptr(),
                descr.into_ptr().cast(),
                0,
            );
            Bound::from_owned_ptr_or_err(py, made)?
        };
        let array = array.cast_into::<PyUntypedArray>()?;
        Ok(Array { array, dtype })
    }

    fn as_it_is(array: &Bound<'py, PyUntypedArray>) -> Option<Array<'py>> {
        let descr = array.dtype();
        let number = descr.num();
        let known = TYPES.iter().find(|(known, _)| *known as i32 == number);
        let dtype = match known {
            Some((_, dtype)) => *dtype,
            None => {
                let name = descr.getattr("name").ok()?;
                let is_bfloat = name.extract::<String>().is_ok_and(|name| name == BFLOAT16);
                is_bfloat.then_some(DType::BF16)?
            }
        };
        let is_native = descr.is_native_byteorder() != Some(false);
        (is_native && array.is_c_contiguous()).then(|| Array {
            array: array.clone(),
            dtype,
        })
    }

    fn data(&self) -> *mut u8 {
        // SAFETY: the type of the elements does not matter for where they are.
        unsafe { self.array.cast_unchecked::<PyArrayDyn<u8>>().data() }
    }

    fn len_bytes(&self) -> usize {
        self.array.len() * self.dtype.size_bytes()
    }

    /// The array as a tensor.
    ///
    /// # Safety
    /// Nobody writes the array while the tensor is in use: not this program's other threads, which may when the
    /// interpreter's lock is released, and no place of an output that overlaps with it.
    pub unsafe fn tensor(&self) -> Tensor<'_> {
        // SAFETY: a row-major array has so many bytes from there on, and lives as long as the reference to it.
        let bytes = unsafe { slice::from_raw_parts(self.data(), self.len_bytes()) };
        Tensor {
            dtype: self.dtype,
            shape: self.array.shape(),
            bytes,
        }
    }

    /// The array's bytes, to be written.
    ///
    /// # Safety
    /// As [`Array::tensor`], and nobody reads it either.
    #[expect(
        clippy::mut_from_ref,
        reason = "the array is Python's, which knows no exclusive references"
    )]
    pub unsafe fn bytes_mut(&self) -> &mut [u8] {
        // SAFETY: as above. The bytes came from numpy's allocator, so they are some bytes to the compiler.
        unsafe { slice::from_raw_parts_mut(self.data(), self.len_bytes()) }
    }

    /// Whether the two have bytes in common.
    pub fn overlaps(&self, other: &Array) -> bool {
        let (start, end) = self.range();
        let (other_start, other_end) = other.range();
        start < other_end && other_start < end
    }

    fn range(&self) -> (usize, usize) {
        let start = self.data() as usize;
        (start, start + self.len_bytes())
    }

    pub fn into_any(self) -> Bound<'py, PyAny> {
        self.array.into_any()
    }
}
