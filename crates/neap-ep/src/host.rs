//! onnxruntime's functions, by their place in its tables. Places never change once they are published.

use crate::tables::{ApiBase, VERSION};
use neaptide::DType;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

/// Something of onnxruntime's.
pub type Object = *const c_void;

/// Null is success; anything else is an error that onnxruntime frees.
pub type Status = *mut c_void;

/// What went wrong, in one line.
pub type Result<T> = std::result::Result<T, String>;

/// Places of functions in the main table, of version 23 at most.
mod place {
    pub const CREATE_STATUS: usize = 0;
    pub const GET_ERROR_MESSAGE: usize = 2;
    pub const GET_TENSOR_MUTABLE_DATA: usize = 51;
    pub const GET_TENSOR_ELEMENT_TYPE: usize = 60;
    pub const GET_DIMENSIONS_COUNT: usize = 61;
    pub const GET_DIMENSIONS: usize = 62;
    pub const GET_TENSOR_TYPE_AND_SHAPE: usize = 65;
    pub const KERNEL_CONTEXT_GET_INPUT: usize = 90;
    pub const KERNEL_CONTEXT_GET_OUTPUT: usize = 91;
    pub const RELEASE_STATUS: usize = 93;
    pub const RELEASE_TENSOR_TYPE_AND_SHAPE_INFO: usize = 99;
    pub const HAS_SESSION_CONFIG_ENTRY: usize = 237;
    pub const GET_SESSION_CONFIG_ENTRY: usize = 238;
    pub const GET_VALUE_INFO_NAME: usize = 289;
    pub const GET_KEY_VALUE_PAIRS: usize = 298;
    pub const RELEASE_KEY_VALUE_PAIRS: usize = 300;
    pub const HARDWARE_DEVICE_TYPE: usize = 307;
    pub const GET_EP_API: usize = 317;
    pub const GRAPH_GET_MODEL_PATH: usize = 334;
    pub const GRAPH_GET_NUM_NODES: usize = 344;
    pub const GRAPH_GET_NODES: usize = 345;
    pub const GRAPH_GET_PARENT_NODE: usize = 346;
    pub const NODE_GET_NUM_INPUTS: usize = 353;
    pub const NODE_GET_INPUTS: usize = 354;
    pub const NODE_GET_NUM_OUTPUTS: usize = 355;
    pub const NODE_GET_OUTPUTS: usize = 356;
    pub const GET_SESSION_OPTIONS_CONFIG_ENTRIES: usize = 379;
}

/// Places in the table for providers.
mod ep_place {
    pub const CREATE_EP_DEVICE: usize = 0;
    pub const ADD_NODES_TO_FUSE: usize = 2;
}

/// Codes of errors.
const FAIL: c_int = 1;

/// Kinds of hardware.
const CPU: c_int = 0;

/// onnxruntime, as a provider calls it.
#[derive(Clone, Copy)]
pub struct Host {
    main: *const *const c_void,
    ep: *const *const c_void,
}

// SAFETY: the tables are constants of onnxruntime, whose functions may be called from any thread.
unsafe impl Send for Host {}
// SAFETY: as above.
unsafe impl Sync for Host {}

/// A function of a table, with its type.
macro_rules! function {
    ($table:expr, $place:expr, fn($($argument:ty),*) $(-> $result:ty)?) => {
        // SAFETY: the place is one that the table of this version has, with a function of this type.
        unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($argument),*) $(-> $result)?>(
                *$table.add($place),
            )
        }
    };
}

impl Host {
    /// `None` where onnxruntime is older than 1.23.
    ///
    /// # Safety
    /// `base` is onnxruntime's table.
    pub unsafe fn of(base: *const ApiBase) -> Option<Host> {
        // SAFETY: as the caller says.
        let main = unsafe { ((*base).get_api)(VERSION) };
        if main.is_null() {
            return None;
        }
        let get = function!(main, place::GET_EP_API, fn() -> *const *const c_void);
        // SAFETY: it takes nothing, and gives a constant table.
        let ep = unsafe { get() };
        (!ep.is_null()).then_some(Host { main, ep })
    }

    /// An error for onnxruntime.
    pub fn error(self, what: &str) -> Status {
        let text = CString::new(what.replace('\0', " ")).unwrap_or_default();
        let create = function!(
            self.main,
            place::CREATE_STATUS,
            fn(c_int, *const c_char) -> Status
        );
        // SAFETY: it copies the text.
        unsafe { create(FAIL, text.as_ptr()) }
    }

    /// onnxruntime's own error, which is released.
    fn check(self, status: Status) -> Result<()> {
        if status.is_null() {
            return Ok(());
        }
        let message = function!(
            self.main,
            place::GET_ERROR_MESSAGE,
            fn(Status) -> *const c_char
        );
        let release = function!(self.main, place::RELEASE_STATUS, fn(Status));
        // SAFETY: the status is there until it is released, and its text as long.
        unsafe {
            let text = text_of(message(status)).unwrap_or_default();
            release(status);
            Err(text)
        }
    }

    /// Whether a piece of hardware is a processor.
    ///
    /// # Safety
    /// `device` is a hardware device of onnxruntime's; in what follows, objects are of the kind that is named.
    pub unsafe fn is_cpu(self, device: Object) -> bool {
        let kind = function!(self.main, place::HARDWARE_DEVICE_TYPE, fn(Object) -> c_int);
        // SAFETY: as the caller says.
        unsafe { kind(device) == CPU }
    }

    /// # Safety
    /// A factory of this library, and a device.
    pub unsafe fn ep_device(self, factory: *mut c_void, device: Object) -> Result<Object> {
        let create = function!(
            self.ep,
            ep_place::CREATE_EP_DEVICE,
            fn(*mut c_void, Object, Object, Object, *mut Object) -> Status
        );
        let mut made = ptr::null();
        // SAFETY: as the caller says; metadata and options may be null.
        self.check(unsafe { create(factory, device, ptr::null(), ptr::null(), &mut made) })?;
        Ok(made)
    }

    /// An entry of a session's options.
    ///
    /// # Safety
    /// Options of a session.
    pub unsafe fn entry(self, options: Object, key: &str) -> Result<Option<String>> {
        let key = CString::new(key).map_err(|e| e.to_string())?;
        let has = function!(
            self.main,
            place::HAS_SESSION_CONFIG_ENTRY,
            fn(Object, *const c_char, *mut c_int) -> Status
        );
        let get = function!(
            self.main,
            place::GET_SESSION_CONFIG_ENTRY,
            fn(Object, *const c_char, *mut c_char, *mut usize) -> Status
        );
        let (mut there, mut bytes) = (0, 0);
        // SAFETY: as the caller says; the first call gives the size for the second.
        unsafe {
            self.check(has(options, key.as_ptr(), &mut there))?;
            if there == 0 {
                return Ok(None);
            }
            self.check(get(options, key.as_ptr(), ptr::null_mut(), &mut bytes))?;
            let mut text = vec![0u8; bytes];
            self.check(get(
                options,
                key.as_ptr(),
                text.as_mut_ptr().cast(),
                &mut bytes,
            ))?;
            let text = CStr::from_bytes_until_nul(&text).map_err(|e| e.to_string())?;
            Ok(Some(text.to_string_lossy().into_owned()))
        }
    }

    /// Keys of a session's options that begin so, without that.
    ///
    /// # Safety
    /// Options of a session.
    pub unsafe fn keys(self, options: Object, prefix: &str) -> Result<Vec<String>> {
        let entries = function!(
            self.main,
            place::GET_SESSION_OPTIONS_CONFIG_ENTRIES,
            fn(Object, *mut Object) -> Status
        );
        let list = function!(
            self.main,
            place::GET_KEY_VALUE_PAIRS,
            fn(Object, *mut *const *const c_char, *mut *const *const c_char, *mut usize)
        );
        let release = function!(self.main, place::RELEASE_KEY_VALUE_PAIRS, fn(Object));
        let mut pairs = ptr::null();
        let (mut keys, mut values, mut count) = (ptr::null(), ptr::null(), 0);
        let mut found = Vec::new();
        // SAFETY: as the caller says; keys are there as long as the pairs, which are released last.
        unsafe {
            self.check(entries(options, &mut pairs))?;
            list(pairs, &mut keys, &mut values, &mut count);
            for index in 0..count {
                let key = text_of(*keys.add(index)).unwrap_or_default();
                found.extend(key.strip_prefix(prefix).map(str::to_string));
            }
            release(pairs);
        }
        Ok(found)
    }

    /// Path of the model's file; empty where there is none.
    ///
    /// # Safety
    /// A graph.
    pub unsafe fn model_path(self, graph: Object) -> Result<String> {
        let get = function!(
            self.main,
            place::GRAPH_GET_MODEL_PATH,
            fn(Object, *mut *const c_char) -> Status
        );
        let mut path = ptr::null();
        // SAFETY: as the caller says; the path is the graph's.
        unsafe {
            self.check(get(graph, &mut path))?;
            Ok(text_of(path).unwrap_or_default())
        }
    }

    /// Whether a graph is a part of a node, such as a branch.
    ///
    /// # Safety
    /// A graph.
    pub unsafe fn is_nested(self, graph: Object) -> Result<bool> {
        let get = function!(
            self.main,
            place::GRAPH_GET_PARENT_NODE,
            fn(Object, *mut Object) -> Status
        );
        let mut parent = ptr::null();
        // SAFETY: as the caller says.
        self.check(unsafe { get(graph, &mut parent) })?;
        Ok(!parent.is_null())
    }

    /// # Safety
    /// A graph.
    pub unsafe fn nodes(self, graph: Object) -> Result<Vec<Object>> {
        let places = (place::GRAPH_GET_NUM_NODES, place::GRAPH_GET_NODES);
        // SAFETY: as the caller says.
        unsafe { self.list(graph, places) }
    }

    /// Names of a node's inputs.
    ///
    /// # Safety
    /// A node.
    pub unsafe fn inputs(self, node: Object) -> Result<Vec<String>> {
        // SAFETY: as the caller says.
        unsafe { self.names(node, (place::NODE_GET_NUM_INPUTS, place::NODE_GET_INPUTS)) }
    }

    /// Names of a node's outputs.
    ///
    /// # Safety
    /// A node.
    pub unsafe fn outputs(self, node: Object) -> Result<Vec<String>> {
        // SAFETY: as the caller says.
        unsafe { self.names(node, (place::NODE_GET_NUM_OUTPUTS, place::NODE_GET_OUTPUTS)) }
    }

    unsafe fn names(self, node: Object, places: (usize, usize)) -> Result<Vec<String>> {
        let get = function!(
            self.main,
            place::GET_VALUE_INFO_NAME,
            fn(Object, *mut *const c_char) -> Status
        );
        let name = |&value: &Object| {
            if value.is_null() {
                return Ok(String::new());
            }
            let mut name = ptr::null();
            // SAFETY: the value is one of the node's, and the name is the value's.
            unsafe {
                self.check(get(value, &mut name))?;
                Ok(text_of(name).unwrap_or_default())
            }
        };
        // SAFETY: as the caller says.
        unsafe { self.list(node, places)? }
            .iter()
            .map(name)
            .collect()
    }

    /// By the places of two functions: how many, and which.
    unsafe fn list(self, of: Object, places: (usize, usize)) -> Result<Vec<Object>> {
        let count = function!(self.main, places.0, fn(Object, *mut usize) -> Status);
        let get = function!(
            self.main,
            places.1,
            fn(Object, *mut Object, usize) -> Status
        );
        let mut length = 0;
        // SAFETY: as the caller says; the list has room for as many as there are.
        unsafe {
            self.check(count(of, &mut length))?;
            let mut list = vec![ptr::null(); length];
            self.check(get(of, list.as_mut_ptr(), length))?;
            Ok(list)
        }
    }

    /// Takes nodes as one.
    ///
    /// # Safety
    /// What a graph is asked with, nodes of that graph, and options.
    pub unsafe fn take(
        self,
        support: Object,
        nodes: &[Object],
        options: *const c_void,
    ) -> Result<()> {
        let add = function!(
            self.ep,
            ep_place::ADD_NODES_TO_FUSE,
            fn(Object, *const Object, usize, *const c_void) -> Status
        );
        // SAFETY: as the caller says.
        self.check(unsafe { add(support, nodes.as_ptr(), nodes.len(), options) })
    }

    /// An input of a run.
    ///
    /// # Safety
    /// What a run is asked with.
    pub unsafe fn input(self, run: Object, index: usize) -> Result<Input> {
        let get = function!(
            self.main,
            place::KERNEL_CONTEXT_GET_INPUT,
            fn(Object, usize, *mut Object) -> Status
        );
        let describe = function!(
            self.main,
            place::GET_TENSOR_TYPE_AND_SHAPE,
            fn(Object, *mut Object) -> Status
        );
        let kind = function!(
            self.main,
            place::GET_TENSOR_ELEMENT_TYPE,
            fn(Object, *mut c_int) -> Status
        );
        let rank = function!(
            self.main,
            place::GET_DIMENSIONS_COUNT,
            fn(Object, *mut usize) -> Status
        );
        let sizes = function!(
            self.main,
            place::GET_DIMENSIONS,
            fn(Object, *mut i64, usize) -> Status
        );
        let release = function!(
            self.main,
            place::RELEASE_TENSOR_TYPE_AND_SHAPE_INFO,
            fn(Object)
        );
        let (mut value, mut about) = (ptr::null(), ptr::null());
        let (mut number, mut count) = (0, 0);
        // SAFETY: as the caller says; the description is released after its last use.
        let shape = unsafe {
            self.check(get(run, index, &mut value))?;
            if value.is_null() {
                return Err(format!("input {index} is not there"));
            }
            self.check(describe(value, &mut about))?;
            let described: Result<Vec<i64>> = (|| {
                self.check(kind(about, &mut number))?;
                self.check(rank(about, &mut count))?;
                let mut shape = vec![0i64; count];
                self.check(sizes(about, shape.as_mut_ptr(), count))?;
                Ok(shape)
            })();
            release(about);
            described?
        };
        let dtype = dtype_of(number).ok_or_else(|| {
            format!("input {index} is of element type {number}, which is not supported")
        })?;
        let shape: Vec<usize> = shape.into_iter().map(|size| size as usize).collect();
        let len_bytes = shape.iter().product::<usize>() * dtype.size_bytes();
        // SAFETY: the value is a tensor, as it has an element type.
        let data = unsafe { self.data(value)? };
        Ok(Input {
            dtype,
            shape,
            data,
            len_bytes,
        })
    }

    /// Where an output of a run of this shape goes.
    ///
    /// # Safety
    /// What a run is asked with.
    pub unsafe fn output(self, run: Object, index: usize, shape: &[usize]) -> Result<*mut u8> {
        let get = function!(
            self.main,
            place::KERNEL_CONTEXT_GET_OUTPUT,
            fn(Object, usize, *const i64, usize, *mut Object) -> Status
        );
        let sizes: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let mut value = ptr::null();
        // SAFETY: as the caller says.
        unsafe {
            self.check(get(run, index, sizes.as_ptr(), sizes.len(), &mut value))?;
            self.data(value)
        }
    }

    unsafe fn data(self, value: Object) -> Result<*mut u8> {
        let get = function!(
            self.main,
            place::GET_TENSOR_MUTABLE_DATA,
            fn(Object, *mut *mut c_void) -> Status
        );
        let mut data = ptr::null_mut();
        // SAFETY: as the caller says.
        self.check(unsafe { get(value, &mut data) })?;
        Ok(data.cast())
    }
}

/// A tensor of onnxruntime's.
pub struct Input {
    pub dtype: DType,
    pub shape: Vec<usize>,
    data: *const u8,
    len_bytes: usize,
}

impl Input {
    /// # Safety
    /// The run that it is an input of goes on.
    pub unsafe fn bytes(&self) -> &[u8] {
        if self.len_bytes == 0 {
            return &[];
        }
        // SAFETY: onnxruntime's tensors are row-major; this is one of so many bytes.
        unsafe { std::slice::from_raw_parts(self.data, self.len_bytes) }
    }
}

/// Does what onnxruntime asks for: errors and panics become its errors.
pub fn guarded(host: Host, work: impl FnOnce() -> Result<()>) -> Status {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => ptr::null_mut(),
        Ok(Err(what)) => host.error(&format!("neaptide: {what}")),
        Err(_) => host.error("neaptide: internal error: it panicked"),
    }
}

/// ONNX's numbers of element types.
fn dtype_of(number: c_int) -> Option<DType> {
    Some(match number {
        1 => DType::F32,
        2 => DType::U8,
        3 => DType::I8,
        4 => DType::U16,
        5 => DType::I16,
        6 => DType::I32,
        7 => DType::I64,
        9 => DType::Bool,
        10 => DType::F16,
        11 => DType::F64,
        12 => DType::U32,
        13 => DType::U64,
        16 => DType::BF16,
        _ => return None,
    })
}

/// # Safety
/// Null, or a text that ends in a zero.
unsafe fn text_of(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: as the caller says.
    let text = unsafe { CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
}
