//! Whether this process may multiply tiles of bytes (AMX).
//!
//! The processor must have tiles of the usual size, and Linux must keep their registers: it does so for a process that asks.

use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::sync::OnceLock;

/// Found once, as the standard library does for other instructions: a virtual machine takes long to tell. What is allowed is allowed to
/// all threads.
pub(super) fn are_allowed() -> bool {
    static ALLOWED: OnceLock<bool> = OnceLock::new();
    *ALLOWED.get_or_init(|| has_instructions() && asks())
}

/// Whether the processor has products of bytes, of 8 tiles of 16 rows of 64 bytes, and the system knows of their registers.
fn has_instructions() -> bool {
    const FEATURES: u32 = 7;
    const TILES: u32 = 0x1d;
    const TILE_AND_INT8: u32 = 0b11 << 24;
    const OSXSAVE: u32 = 1 << 27;
    const REGISTERS: u64 = 0b11 << 17;
    if __cpuid(0).eax < TILES || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(FEATURES, 0).edx;
    if features & TILE_AND_INT8 != TILE_AND_INT8 || __cpuid_count(TILES, 0).eax == 0 {
        return false;
    }
    let palette = __cpuid_count(TILES, 1);
    let [bytes, row_bytes, tiles] = [palette.eax >> 16, palette.ebx & 0xffff, palette.ebx >> 16];
    if [bytes, row_bytes, tiles, palette.ecx & 0xffff] != [1024, 64, 8, 16] {
        return false;
    }
    #[target_feature(enable = "xsave")]
    fn registers() -> u64 {
        // SAFETY: the processor has the instruction.
        unsafe { _xgetbv(0) }
    }
    // SAFETY: the system uses it, as OSXSAVE says.
    let kept = unsafe { registers() };
    kept & REGISTERS == REGISTERS
}

/// Asks Linux to keep what tiles hold.
fn asks() -> bool {
    const ARCH_PRCTL: isize = 158;
    const ASK_FOR_STATE: usize = 0x1023;
    const TILE_DATA: usize = 18;
    let answer: isize;
    // SAFETY: the call touches no memory of this process, and only these registers.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ASK_FOR_STATE,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}
