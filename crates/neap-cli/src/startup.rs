//! What happens around every command: a small heap, quiet panics, exit codes.

use crate::failure::{Failure, Outcome, one_line};
use crate::interrupt::{self, Interrupt};
use neaptide::memory;
use std::io::Write;
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;

/// Larger blocks are mapped one by one, so that freeing them gives the memory back at once.
const MAP_FROM_BYTES: i32 = 128 * 1024;

/// The last panic, for the one line that is said about it.
static PANIC: Mutex<Option<String>> = Mutex::new(None);

pub fn prepare() {
    // First, as it bounds how much of the program is mapped when parts of it are used.
    memory::trim_program();
    tune_heap();
    interrupt::install();
    if std::env::var_os("RUST_BACKTRACE").is_none_or(|v| v == "0") {
        panic::set_hook(Box::new(|info| {
            let text = one_line(&info.to_string());
            if let Ok(mut last) = PANIC.lock() {
                *last = Some(text);
            }
        }));
    }
}

/// Runs a command; says what went wrong in one line and turns it into an exit code.
pub fn guarded(command: impl FnOnce() -> Outcome) -> ExitCode {
    let failure = match panic::catch_unwind(AssertUnwindSafe(command)) {
        Ok(Ok(())) => return ExitCode::SUCCESS,
        Ok(Err(failure)) => failure,
        Err(payload) => match payload.downcast_ref::<Interrupt>() {
            Some(Interrupt(signal)) => Failure::Interrupted(*signal),
            None => {
                let text = PANIC.lock().ok().and_then(|mut last| last.take());
                Failure::Internal(text.unwrap_or_else(|| "it panicked".into()))
            }
        },
    };
    if let Some(message) = failure.message() {
        // Where standard error is closed there is nobody to tell.
        let _ = writeln!(std::io::stderr().lock(), "neap: {}", one_line(&message));
    }
    if let Failure::Interrupted(signal) = failure {
        interrupt::die_of(signal);
    }
    ExitCode::from(failure.exit_code())
}

/// One heap for all threads and no growing thresholds: memory that is freed is the kernel's again.
fn tune_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt may be called at any time and only sets parameters of the allocator.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAP_FROM_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, MAP_FROM_BYTES);
    }
}
