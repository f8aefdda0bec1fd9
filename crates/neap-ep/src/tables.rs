//! Tables of functions that onnxruntime calls, as its interface of version 1.23 lays them out. It calls no function that a
//! later version added, because the tables say which version they are of.
//!
//! A field that is `None` or a plain word is a function that this provider does not have.

use crate::host::{Object, Status};
use std::ffi::{c_char, c_void};

/// Version of the interface: onnxruntime 1.23.
pub const VERSION: u32 = 23;

/// A function that is not there.
pub type Absent = Option<extern "C" fn()>;

#[repr(C)]
pub struct ApiBase {
    pub get_api: extern "C" fn(version: u32) -> *const *const c_void,
    pub version: extern "C" fn() -> *const c_char,
}

/// Makes providers.
#[repr(C)]
pub struct FactoryTable {
    pub version: u32,
    pub name: extern "C" fn(*const FactoryTable) -> *const c_char,
    pub vendor: extern "C" fn(*const FactoryTable) -> *const c_char,
    pub supported_devices: unsafe extern "C" fn(
        *mut FactoryTable,
        *const Object,
        usize,
        *mut Object,
        usize,
        *mut usize,
    ) -> Status,
    pub create_ep: unsafe extern "C" fn(
        *mut FactoryTable,
        *const Object,
        *const Object,
        usize,
        Object,
        Object,
        *mut *mut EpTable,
    ) -> Status,
    pub release_ep: unsafe extern "C" fn(*mut FactoryTable, *mut EpTable),
    pub vendor_id: extern "C" fn(*const FactoryTable) -> u32,
    pub own_version: extern "C" fn(*const FactoryTable) -> *const c_char,
    pub validate_compiled: Absent,
    pub create_allocator:
        unsafe extern "C" fn(*mut FactoryTable, Object, Object, *mut Object) -> Status,
    pub release_allocator: extern "C" fn(*mut FactoryTable, Object),
    pub create_data_transfer: unsafe extern "C" fn(*mut FactoryTable, *mut Object) -> Status,
    pub is_stream_aware: extern "C" fn(*const FactoryTable) -> bool,
    pub create_stream:
        unsafe extern "C" fn(*mut FactoryTable, Object, Object, *mut Object) -> Status,
}

/// The provider of a session.
#[repr(C)]
pub struct EpTable {
    pub version: u32,
    pub name: extern "C" fn(*const EpTable) -> *const c_char,
    pub capability: unsafe extern "C" fn(*mut EpTable, Object, Object) -> Status,
    pub compile: unsafe extern "C" fn(
        *mut EpTable,
        *const Object,
        *const Object,
        usize,
        *mut *mut ComputeTable,
        *mut Object,
    ) -> Status,
    pub release_computes: unsafe extern "C" fn(*mut EpTable, *mut *mut ComputeTable, usize),
    pub preferred_layout: Absent,
    pub should_convert_layout: Absent,
    pub set_options: Absent,
    pub on_run_start: Absent,
    pub on_run_end: Absent,
    pub create_allocator: Absent,
    pub create_stream: Absent,
    pub compatibility: Absent,
}

/// One compiled model.
#[repr(C)]
pub struct ComputeTable {
    pub version: u32,
    pub create_state: unsafe extern "C" fn(*mut ComputeTable, Object, *mut *mut c_void) -> Status,
    pub compute: unsafe extern "C" fn(*mut ComputeTable, *mut c_void, Object) -> Status,
    pub release_state: unsafe extern "C" fn(*mut ComputeTable, *mut c_void),
}

/// How nodes are taken.
#[repr(C)]
pub struct FusionOptions {
    pub version: u32,
    pub drop_constant_initializers: bool,
}
