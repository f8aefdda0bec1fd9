//! The functions behind the hook: those of the C library, of the driver, and of its management library.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};

/// A result of the driver; 0 is success.
pub type Status = c_int;

pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NOT_FOUND: Status = 500;
pub const NOT_SUPPORTED: Status = 801;
pub const SYSTEM_NOT_READY: Status = 802;

pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// `dlsym` of the C library. The hook of `dlsym` jumps through it.
pub static DLSYM: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds `dlsym` of the C library, once.
pub fn dlsym() -> Dlsym {
    let mut found = DLSYM.load(Relaxed);
    if found.is_null() {
        for version in [c"GLIBC_2.34", c"GLIBC_2.2.5", c"GLIBC_2.17"] {
            // SAFETY: both strings end with a zero, and RTLD_NEXT is a handle.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
            if !found.is_null() {
                break;
            }
        }
        if found.is_null() {
            // SAFETY: nothing is shared. Without `dlsym` no program of any use could run.
            unsafe { libc::abort() };
        }
        DLSYM.store(found, Relaxed);
    }
    // SAFETY: the C library has this function by this name and type.
    unsafe { std::mem::transmute::<*mut c_void, Dlsym>(found) }
}

/// A function of a library that the program has loaded, looked up when it is first used.
pub struct Real {
    name: &'static CStr,
    library: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub const fn driver(name: &'static CStr) -> Real {
        Real::of(name, c"libcuda.so.1")
    }

    pub const fn of(name: &'static CStr, library: &'static CStr) -> Real {
        Real {
            name,
            library,
            found: AtomicPtr::new(null_mut()),
        }
    }

    /// The function's address; null where the library has none by that name.
    pub fn get(&self) -> *mut c_void {
        let found = self.found.load(Relaxed);
        if !found.is_null() {
            return found;
        }
        // SAFETY: the names end with a zero; a library that is opened stays.
        let found = unsafe {
            let library = libc::dlopen(self.library.as_ptr(), libc::RTLD_LAZY);
            match library.is_null() {
                true => null_mut(),
                false => dlsym()(library, self.name.as_ptr()),
            }
        };
        self.found.store(found, Relaxed);
        found
    }
}

/// A function of the driver, called by name: `driver!(cuMemRelease(handle: u64))`. [`NOT_FOUND`] where there is none.
macro_rules! driver {
    ($name:ident($($value:expr => $type:ty),*)) => {{
        static REAL: $crate::real::Real = $crate::real::Real::driver(
            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!(),
            },
        );
        let found = REAL.get();
        match found.is_null() {
            true => $crate::real::NOT_FOUND,
            false => {
                type Function = unsafe extern "C" fn($($type),*) -> $crate::real::Status;
                // SAFETY: the driver's headers give the function of this name this type.
                let function = unsafe { std::mem::transmute::<*mut std::ffi::c_void, Function>(found) };
                // SAFETY: the arguments are the program's own, or live as long as the call.
                unsafe { function($($value),*) }
            }
        }
    }};
}
pub(crate) use driver;
