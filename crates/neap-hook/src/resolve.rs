//! How programs get the driver's functions, and get ours instead: `dlsym`, and `cuGetProcAddress` in its two forms.
//!
//! Copies of the CUDA runtime are linked statically into many libraries, so only the driver's interface is common to all
//! of a process.

use crate::export::{Entry, export};
use crate::real::{self, driver};
use crate::settings;
use crate::{alloc, contexts, info, job, vmm, waits, work};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

/// Of `cuGetProcAddress`: streams are each thread's own unless said otherwise.
const PER_THREAD: u64 = 2;

/// From which version on a second form goes by the plain name. All others have theirs since 3.2.
const SECOND_FORMS: [(&str, c_int); 10] = [
    ("cuGetProcAddress", 12000),
    ("cuMemPrefetchAsync", 12020),
    ("cuMemcpyBatchAsync", 13000),
    ("cuMemcpy3DBatchAsync", 13000),
    ("cuStreamWriteValue32", 11070),
    ("cuStreamWriteValue64", 11070),
    ("cuStreamBatchMemOp", 11070),
    ("cuDevicePrimaryCtxReset", 11000),
    ("cuDevicePrimaryCtxRelease", 11000),
    ("cuCtxSynchronize", 13000),
];

fn tables() -> impl Iterator<Item = &'static Entry> {
    let tables = [
        work::ENTRIES,
        waits::ENTRIES,
        alloc::ENTRIES,
        vmm::ENTRIES,
        info::ENTRIES,
        contexts::ENTRIES,
        job::ENTRIES,
        ENTRIES,
    ];
    tables.into_iter().flatten()
}

/// Our function of exactly this name.
fn ours(name: &str) -> Option<*mut c_void> {
    let entry = tables().find(|entry| entry.name == name)?;
    Some(entry.function.cast_mut().cast())
}

/// Our function for a plain name, as a version of the driver's interface and a kind of default stream have it.
fn of_version(name: &str, version: c_int, flags: u64) -> Option<*mut c_void> {
    let known = SECOND_FORMS.iter().find(|(plain, _)| *plain == name);
    let since = known.map_or(3020, |&(_, since)| since);
    let forms: &[&str] = match version >= since {
        true => &["_v2", ""],
        false => &[""],
    };
    let ends: &[&str] = match flags & PER_THREAD != 0 {
        true => &["_ptsz", "_ptds", ""],
        false => &[""],
    };
    let names = forms
        .iter()
        .flat_map(|form| ends.iter().map(move |end| (form, end)));
    let mut found = names.map(|(form, end)| ours(&format!("{name}{form}{end}")));
    found.find_map(|f| f)
}

/// What `dlsym` gives for a name; null where it is the C library's affair.
unsafe extern "C" fn find(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    let real = real::dlsym();
    if name.is_null() {
        return null_mut();
    }
    // SAFETY: the program's name ends with a zero.
    let bytes = unsafe { CStr::from_ptr(name) }.to_bytes();
    if !bytes.starts_with(b"cu") && !bytes.starts_with(b"nvml") {
        return null_mut();
    }
    let Some(found) = std::str::from_utf8(bytes).ok().and_then(ours) else {
        return null_mut();
    };
    if settings::get().is_none() {
        return null_mut();
    }
    let is_special = handle as isize == -1 || handle.is_null();
    // SAFETY: the arguments are the program's own. What the driver lacks, we lack.
    match is_special || !unsafe { real(handle, name) }.is_null() {
        true => found,
        false => null_mut(),
    }
}

/// `dlsym`, in which the driver's names are ours. All else is the C library's: it is jumped to, so that it sees who
/// called, as `RTLD_NEXT` needs.
///
/// # Safety
/// As the C library's.
#[cfg(target_arch = "x86_64")]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    std::arch::naked_asm!(
        "push rdi",
        "push rsi",
        "sub rsp, 8",
        "call {find}",
        "add rsp, 8",
        "pop rsi",
        "pop rdi",
        "test rax, rax",
        "jne 2f",
        "jmp qword ptr [rip + {real}]",
        "2:",
        "ret",
        find = sym find,
        real = sym real::DLSYM,
    )
}

/// `dlsym`, in which the driver's names are ours.
///
/// # Safety
/// As the C library's.
#[cfg(not(target_arch = "x86_64"))]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // SAFETY: the arguments are the program's own.
    let found = unsafe { find(handle, name) };
    match found.is_null() {
        // SAFETY: as above.
        true => unsafe { real::dlsym()(handle, name) },
        false => found,
    }
}

/// Puts our function in the place of the driver's.
///
/// # Safety
/// The name ends with a zero, and the driver has written to `out`.
unsafe fn replace(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) {
    if settings::get().is_none() || name.is_null() || out.is_null() {
        return;
    }
    // SAFETY: the caller says so.
    let (name, found) = unsafe { (CStr::from_ptr(name), *out) };
    if found.is_null() {
        return;
    }
    if let Some(ours) = name
        .to_str()
        .ok()
        .and_then(|name| of_version(name, version, flags))
    {
        // SAFETY: the caller says so.
        unsafe { *out = ours };
    }
}

export! {
    fn cuGetProcAddress(name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64) {
        let status = driver!(cuGetProcAddress(
            name => *const c_char, out => *mut *mut c_void, version => c_int, flags => u64
        ));
        if status == 0 {
            // SAFETY: the driver has read the name and written there.
            unsafe { replace(name, out, version, flags) };
        }
        status
    }

    fn cuGetProcAddress_v2(
        name: *const c_char, out: *mut *mut c_void, version: c_int, flags: u64, how: *mut c_int,
    ) {
        let status = driver!(cuGetProcAddress_v2(
            name => *const c_char, out => *mut *mut c_void, version => c_int, flags => u64, how => *mut c_int
        ));
        if status == 0 {
            // SAFETY: the driver has read the name and written there.
            unsafe { replace(name, out, version, flags) };
        }
        status
    }
}

/// In a child after a fork.
extern "C" fn in_child() {
    crate::agent::forget();
}

/// Runs when the library is loaded.
extern "C" fn loaded() {
    real::dlsym();
    // SAFETY: the handler only stores numbers.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_form_is_given() {
        let name = |name, version, flags| {
            let found = of_version(name, version, flags)?;
            tables()
                .find(|e| e.function.cast_mut().cast() == found)
                .map(|e| e.name)
        };
        for (plain, version, flags, expected) in [
            ("cuMemAlloc", 12090, 0, Some("cuMemAlloc_v2")),
            ("cuMemcpyHtoD", 12090, 2, Some("cuMemcpyHtoD_v2_ptds")),
            ("cuLaunchKernel", 13000, 2, Some("cuLaunchKernel_ptsz")),
            ("cuMemPrefetchAsync", 12000, 0, Some("cuMemPrefetchAsync")),
            (
                "cuMemPrefetchAsync",
                13000,
                0,
                Some("cuMemPrefetchAsync_v2"),
            ),
            ("cuGetProcAddress", 11040, 0, Some("cuGetProcAddress")),
            ("cuGetProcAddress", 12000, 0, Some("cuGetProcAddress_v2")),
            ("cuCtxSynchronize", 12000, 0, Some("cuCtxSynchronize")),
            ("cuMemAlloc", 3010, 0, None),
            ("cuInit", 12000, 0, None),
        ] {
            assert_eq!(
                name(plain, version, flags),
                expected,
                "{plain} {version} {flags}"
            );
        }
    }

    /// Without a scheduler in the environment the driver's names are the C library's affair, too.
    #[test]
    fn what_is_not_ours_is_the_c_librarys() {
        real::dlsym();
        for name in [c"malloc", c"cuMemAlloc_v2", c"no such name"] {
            for handle in [null_mut(), libc::RTLD_NEXT] {
                // SAFETY: the name ends with a zero.
                let (found, expected) = unsafe {
                    (
                        dlsym(handle, name.as_ptr()),
                        libc::dlsym(handle, name.as_ptr()),
                    )
                };
                assert_eq!(found, expected, "{name:?}");
            }
        }
    }

    #[test]
    fn names_are_there_once() {
        let mut names: Vec<&str> = tables().map(|e| e.name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
