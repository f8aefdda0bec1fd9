//! What the kernel charges this process, and the most it ever charged.

#[cfg(target_os = "linux")]
mod program;
/// Elsewhere the program's pages are the kernel's affair.
#[cfg(not(target_os = "linux"))]
mod program {
    pub fn trim_program() {}

    pub(super) fn counted_bytes() -> u64 {
        5 << 20
    }
}

pub use program::trim_program;
use serde::Serialize;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

/// Peak memory and who counted it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Peak {
    pub bytes: u64,
    pub source: PeakSource,
}

/// Who counted a peak, and so what it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PeakSource {
    /// `memory.max_usage_in_bytes` of the process's own cgroup.
    CgroupV1,
    /// `memory.peak` of the process's own cgroup.
    CgroupV2,
    /// `VmHWM`: resident pages only, no page cache.
    VmHwm,
}

/// Peak since the process (or its own cgroup) began. A cgroup counts only when this process is
/// alone in it, told by `own_cgroup`.
pub fn peak(own_cgroup: bool) -> Peak {
    if own_cgroup {
        if let Some(bytes) =
            cgroup_v1_dir().and_then(|d| read_number(d.join("memory.max_usage_in_bytes")))
        {
            return Peak {
                bytes,
                source: PeakSource::CgroupV1,
            };
        }
        if let Some(bytes) = cgroup_v2_dir().and_then(|d| read_number(d.join("memory.peak"))) {
            return Peak {
                bytes,
                source: PeakSource::CgroupV2,
            };
        }
    }
    Peak {
        bytes: status_bytes(&["VmHWM:"]),
        source: PeakSource::VmHwm,
    }
}

/// What this process takes now, in bytes: its own pages and page tables, and of the files that it
/// maps (its program) at least what a run touches, since those pages come and go. With a cgroup of its
/// own at least what that counts.
pub fn current_bytes(own_cgroup: bool) -> u64 {
    let own = status_bytes(&["RssAnon:", "RssShmem:", "VmPTE:"]);
    let resident = own + status_bytes(&["RssFile:"]).max(program::counted_bytes());
    let charged = if own_cgroup {
        let v1 = || cgroup_v1_dir().and_then(|d| unreclaimable_v1(&d));
        let v2 = || cgroup_v2_dir().and_then(|d| read_number(d.join("memory.current")));
        v1().or_else(v2).unwrap_or(0)
    } else {
        0
    };
    resident.max(charged)
}

/// What this process takes now where nothing of it is trimmed: its pages and page tables, those of mapped files too,
/// and the program text that running a model may still touch.
pub(crate) fn embedded_bytes() -> u64 {
    /// Mapped pages before any model ran, or nearly.
    static FIRST_MAPPED_BYTES: OnceLock<u64> = OnceLock::new();
    let mapped = status_bytes(&["RssFile:"]);
    let first = *FIRST_MAPPED_BYTES.get_or_init(|| mapped);
    // Not on top of what the first models have touched.
    status_bytes(&["RssAnon:", "RssShmem:", "VmPTE:"]) + mapped.max(first + UNTRIMMED_TEXT_BYTES)
}

/// Program text and constants that running a model touches for the first time. Mapped with their neighbours, they are 2
/// to 5 MiB.
const UNTRIMMED_TEXT_BYTES: u64 = 5 << 20;

/// What the kernel charges this process now: the count of its own cgroup, or its resident pages.
pub fn counted_bytes(own_cgroup: bool) -> u64 {
    let charged = || {
        let v1 = || cgroup_v1_dir().and_then(|d| read_number(d.join("memory.usage_in_bytes")));
        let v2 = || cgroup_v2_dir().and_then(|d| read_number(d.join("memory.current")));
        v1().or_else(v2)
    };
    let own = own_cgroup.then(charged).flatten();
    own.unwrap_or_else(|| status_bytes(&["VmRSS:"]))
}

/// [`trim_heap`] and [`trim_program`]: between two stages of work, so that what both touch is not charged
/// together.
pub fn trim() {
    trim_heap();
    trim_program();
}

/// Returns freed heap pages to the kernel.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no preconditions.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Usage less clean page cache, which the kernel drops before it lets the limit be felt.
fn unreclaimable_v1(dir: &std::path::Path) -> Option<u64> {
    let usage = read_number(dir.join("memory.usage_in_bytes"))?;
    let stat = fs::read_to_string(dir.join("memory.stat")).ok()?;
    let cache: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(key, _)| matches!(*key, "total_inactive_file" | "total_active_file"))
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum();
    Some(usage.saturating_sub(cache))
}

/// The most that this process could ever take: the machine's memory, or the hard limit of a group that the process is in.
/// `None` where neither is told.
pub fn machine_bytes() -> Option<u64> {
    let machine = match bytes_in("/proc/meminfo", &["MemTotal:"]) {
        0 => None,
        bytes => Some(bytes),
    };
    let v1 = (
        cgroup_v1_dir(),
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
    );
    let v2 = (cgroup_v2_dir(), "/sys/fs/cgroup", "memory.max");
    let limits = [v1, v2].into_iter().filter_map(|(own, root, file)| {
        // In a container the path may be the host's, and only the root be visible.
        let own = own.unwrap_or_else(|| PathBuf::from(root));
        let groups = own.ancestors().take_while(|dir| dir.starts_with(root));
        groups.filter_map(|dir| read_number(dir.join(file))).min()
    });
    limits.chain(machine).min()
}

fn status_bytes(keys: &[&str]) -> u64 {
    bytes_in("/proc/self/status", keys)
}

/// Sum of the lines that begin so.
fn bytes_in(file: &str, keys: &[&str]) -> u64 {
    let status = fs::read_to_string(file).unwrap_or_default();
    let of = |line: &str| -> Option<u64> {
        let value = keys.iter().find_map(|key| line.strip_prefix(key))?;
        value
            .trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<u64>()
            .ok()
    };
    status.lines().filter_map(of).sum::<u64>() * 1024
}

fn read_number(path: PathBuf) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn cgroup_v1_dir() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = table.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let controllers = fields.next()?;
        controllers
            .split(',')
            .any(|c| c == "memory")
            .then(|| fields.next())?
    })?;
    let dir = PathBuf::from("/sys/fs/cgroup/memory").join(path.trim_start_matches('/'));
    dir.is_dir().then_some(dir)
}

fn cgroup_v2_dir() -> Option<PathBuf> {
    let table = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = table.lines().find_map(|line| line.strip_prefix("0::"))?;
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(|root| PathBuf::from(root).join(path.trim_start_matches('/')))
        .find(|dir| dir.join("memory.current").exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_more_than_this_process_takes() {
        let machine = machine_bytes().expect("Linux tells it");
        assert!(machine > current_bytes(false), "{machine}");
    }

    #[test]
    fn a_touched_allocation_shows() {
        let before = current_bytes(false);
        let block = std::hint::black_box(vec![1u8; 16 << 20]);
        let after = current_bytes(false);
        assert!(after >= before + (15 << 20), "{before} then {after}");
        assert!(peak(false).bytes >= 16 << 20);
        drop(std::hint::black_box(block));
    }
}
