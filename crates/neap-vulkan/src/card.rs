//! What this process takes of a card's memory: with contexts, code and pools of the driver, which none of our allocations shows.
//!
//! NVIDIA's own library tells it by process, as `nvidia-smi` does. Elsewhere `VK_EXT_memory_budget` tells how much less of the card there
//! is for this process than before the device was opened, beside what the process has allocated.

use libloading::{Library, Symbol};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};

/// Of a heap of the card, as the driver tells.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Heap {
    /// What this process may have there, with what it has.
    pub budget_bytes: u64,
    pub usage_bytes: u64,
}

/// `before` and `now`: its heap before the device was opened, and now.
pub(crate) fn taken_bytes(uuid: [u8; 16], before: Heap, now: Heap) -> u64 {
    let unseen = before.budget_bytes.saturating_sub(now.budget_bytes);
    let told = now.usage_bytes;
    match of_process(uuid) {
        Some(bytes) => bytes.max(told),
        None => told + unseen,
    }
}

const MOST_PROCESSES: usize = 256;

/// `nvmlProcessInfo_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    pid: c_uint,
    used_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

type Card = *mut c_void;
type OfProcesses = unsafe extern "C" fn(Card, *mut c_uint, *mut Process) -> c_int;

/// As NVIDIA's library counts; `None` without it, or where it does not know this process.
fn of_process(uuid: [u8; 16]) -> Option<u64> {
    // SAFETY: the driver's own library, whose functions are as its header declares them.
    unsafe {
        let library = Library::new("libnvidia-ml.so.1").ok()?;
        let begin: Symbol<unsafe extern "C" fn() -> c_int> = library.get(b"nvmlInit_v2\0").ok()?;
        let end: Symbol<unsafe extern "C" fn() -> c_int> = library.get(b"nvmlShutdown\0").ok()?;
        (begin() == 0).then_some(())?;
        let found = of_card(&library, uuid);
        end();
        found
    }
}

/// # Safety
/// The library is NVIDIA's, and was begun.
unsafe fn of_card(library: &Library, uuid: [u8; 16]) -> Option<u64> {
    type ByUuid = unsafe extern "C" fn(*const c_char, *mut Card) -> c_int;
    let name = CString::new(name_of(uuid)).ok()?;
    let mut card: Card = std::ptr::null_mut();
    // SAFETY: passed on.
    unsafe {
        let find: Symbol<ByUuid> = library.get(b"nvmlDeviceGetHandleByUUID\0").ok()?;
        (find(name.as_ptr(), &raw mut card) == 0).then_some(())?;
    }
    // It computes; some drivers count it among those that draw, too.
    let kinds: [&[u8]; 2] = [
        b"nvmlDeviceGetComputeRunningProcesses_v3\0",
        b"nvmlDeviceGetGraphicsRunningProcesses_v3\0",
    ];
    let each = kinds.into_iter().filter_map(|kind| {
        let mut processes = [Process::default(); MOST_PROCESSES];
        let mut count = MOST_PROCESSES as c_uint;
        // SAFETY: passed on; the list has room for so many.
        unsafe {
            let list: Symbol<OfProcesses> = library.get(kind).ok()?;
            (list(card, &raw mut count, processes.as_mut_ptr()) == 0).then_some(())?;
        }
        let own = std::process::id();
        let mut known = processes.iter().take(count as usize);
        // All ones: it does not tell.
        let found = known.find(|process| process.pid == own && process.used_bytes != u64::MAX);
        found.map(|process| process.used_bytes)
    });
    each.max()
}

/// As NVIDIA writes it.
fn name_of(uuid: [u8; 16]) -> String {
    let mut name = "GPU".to_owned();
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 0 | 4 | 6 | 8 | 10) {
            name.push('-');
        }
        name += &format!("{byte:02x}");
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_the_name_that_its_maker_gives_it() {
        let uuid = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(name_of(uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }

    /// No library knows this card, so what there is less of the card counts with what was allocated.
    #[test]
    fn what_the_driver_takes_unseen_is_counted() {
        const MIB: u64 = 1 << 20;
        let heap = |budget, usage| Heap {
            budget_bytes: budget * MIB,
            usage_bytes: usage * MIB,
        };
        assert_eq!(taken_bytes([0; 16], heap(900, 0), heap(780, 1)), 121 * MIB);
        // Others have given something back meanwhile.
        assert_eq!(taken_bytes([0; 16], heap(900, 0), heap(950, 2)), 2 * MIB);
    }
}
