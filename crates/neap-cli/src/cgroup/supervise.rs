//! `--enforce`: runs this command again inside a memory cgroup, and watches.
//!
//! ```text
//!   parent   make group ─ fork ─────────────────── wait ─ read the kernel's count of kills ─ remove group
//!   child               └ enter group ─ exec self ─ run … ┘
//! ```
//! The child enters before it executes, so everything that it ever touches is charged to the group.

use super::{Group, find};
use crate::failure::{Failure, Outcome, bad};
use crate::interrupt;
use crate::progress::detail;
use neaptide::Bytes;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

/// Tells the child its hard limit in bytes.
const MARK: &str = "NEAPTIDE_HARD_LIMIT_BYTES";

/// The hard limit under which this process runs, when a supervisor started it.
pub fn own_limit_bytes() -> Option<u64> {
    let limit = std::env::var(MARK).ok()?.parse().ok()?;
    // The mark alone proves nothing: it is inherited.
    let found = find().ok()?;
    let name = found.dir.file_name()?.to_str()?;
    name.starts_with(super::PREFIX).then_some(limit)
}

/// How a supervised child ended.
pub enum Ended {
    Well,
    /// The kernel killed it for exceeding the limit.
    OutOfMemory,
}

/// Whether a child could be given a hard limit here.
pub fn possible() -> Result<(), String> {
    Group::create(&find()?, 1 << 30).map(drop)
}

/// Runs this very command line in a group with `limit_bytes`.
pub fn run_again(limit_bytes: u64) -> Outcome<Ended> {
    let group = find()
        .and_then(|found| Group::create(&found, limit_bytes))
        .map_err(needs_rights)?;
    let entrance = group.entrance().map_err(|e| needs_rights(e.to_string()))?;
    detail(|| {
        format!(
            "beginning again within a hard limit of {}",
            Bytes(limit_bytes)
        )
    });
    let mut command = Command::new("/proc/self/exe");
    if let Some(name) = std::env::args_os().next() {
        command.arg0(name);
    }
    command
        .args(std::env::args_os().skip(1))
        .env(MARK, limit_bytes.to_string());
    confine(&mut command, Some(&entrance));
    let mut child = command
        .spawn()
        .map_err(|e| needs_rights(format!("cannot start a process in the group: {e}")))?;
    let status = interrupt::with_child(child.id(), || child.wait())
        .map_err(|e| Failure::Internal(format!("cannot wait for the run: {e}")))?;
    if group.oom_kills() > 0 {
        return Ok(Ended::OutOfMemory);
    }
    ended(status).map(|()| Ended::Well)
}

/// What to say when a group cannot be made.
pub fn needs_rights(reason: String) -> Failure {
    bad(format!(
        "--enforce needs the right to make memory cgroups: {reason} (run it as root, or with a \
         delegated group: systemd-run --user --scope -p Delegate=yes neap run ...)"
    ))
}

/// Has the child enter a group, whose `entrance` this is, before it executes, and die with this process.
pub fn confine(command: &mut Command, entrance: Option<&File>) {
    let door = entrance.map(AsRawFd::as_raw_fd);
    let parent = std::process::id();
    // SAFETY: between fork and exec only system calls are made, which are allowed there.
    unsafe {
        command.pre_exec(move || {
            if let Some(door) = door
                && libc::write(door, b"0".as_ptr().cast(), 1) != 1
            {
                return Err(std::io::Error::last_os_error());
            }
            // When the supervisor is killed, nobody would watch.
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            if libc::getppid() as u32 != parent {
                return Err(std::io::Error::from_raw_os_error(libc::ECANCELED));
            }
            Ok(())
        });
    }
}

/// A child's end as this process's own.
pub fn ended(status: ExitStatus) -> Outcome {
    interrupt::check()?;
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) => Err(Failure::Reported(code as u8)),
        (None, Some(signal)) => Err(Failure::Internal(format!(
            "the run was ended by signal {signal}"
        ))),
        (None, None) => Err(Failure::Internal("the run ended strangely".into())),
    }
}

/// What to say when the kernel's limit was felt.
pub fn out_of_memory(limit_bytes: u64) -> String {
    format!(
        "the kernel ended the run: it needed more than its hard limit of {}",
        Bytes(limit_bytes)
    )
}
