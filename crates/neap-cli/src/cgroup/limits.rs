//! Limits of a group while processes run in it: read by who follows them, moved by who sets them.

use super::{Found, Version, find, supervise};
use crate::budgets::schedule::Schedule;
use crate::progress::note;
use neaptide::Budget;
use std::fs;
use std::path::Path;

/// What v1 shows for "no limit" is a little less than this.
const NO_LIMIT_BYTES: u64 = 1 << 60;

/// The kernel counts in these.
const PAGE_BYTES: u64 = 4096;

/// The lowest limit of the group and of all around it, hard or soft; `None` without any.
///
/// Soft limits are how a group is asked to shrink: v1 refuses to lower a hard limit below what is in use (EBUSY).
pub fn lowest_bytes(found: &Found) -> Option<u64> {
    lowest(
        found,
        match found.version {
            Version::V1 => &["memory.soft_limit_in_bytes", "memory.limit_in_bytes"],
            // Above `memory.high` the group is slowed down, above `memory.max` it is killed.
            Version::V2 => &["memory.high", "memory.max"],
        },
    )
}

/// The lowest limit of the group and of all around it, above which the kernel ends a process.
pub fn lowest_hard_bytes(found: &Found) -> Option<u64> {
    lowest(
        found,
        match found.version {
            Version::V1 => &["memory.limit_in_bytes"],
            Version::V2 => &["memory.max"],
        },
    )
}

/// A budget of this process, as an option has it: no more than the kernel gives. A line says so where it is less.
///
/// # Errors
/// What is wrong with the text.
pub fn budget(text: &str) -> Result<Budget, String> {
    Ok(no_more(any_budget(text)?))
}

/// A budget, of this process or of another one like it; `auto` is what [`automatic`] finds here.
///
/// # Errors
/// What is wrong with the text.
pub fn any_budget(text: &str) -> Result<Budget, String> {
    match text.trim().eq_ignore_ascii_case("auto") {
        true => automatic().map(Budget::Bytes),
        false => text
            .parse()
            .map_err(|error: String| error.replace("25% or none", "25%, auto or none")),
    }
}

/// What a process may take here if nobody names a budget: the limit of the memory cgroup around it, or half of what the
/// machine has free where there is no limit.
///
/// # Errors
/// Where the kernel tells neither.
pub fn automatic() -> Result<u64, String> {
    let limit = find().ok().and_then(|found| lowest_hard_bytes(&found));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    chosen(limit, &memory).ok_or_else(|| "the kernel tells no free memory here: name a size".into())
}

fn chosen(limit: Option<u64>, memory: &str) -> Option<u64> {
    limit.or_else(|| Some(free_bytes(memory)? / 2))
}

/// Of a machine, in the words of `/proc/meminfo`: what processes could take without anything being swapped out.
pub fn free_bytes(memory: &str) -> Option<u64> {
    let line = memory.lines().find(|l| l.starts_with("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib << 10)
}

/// The same of a budget that is known in bytes.
pub fn bytes(bytes: u64) -> u64 {
    match no_more(Budget::Bytes(bytes)) {
        Budget::Bytes(lowered) => lowered,
        _ => bytes,
    }
}

fn no_more(budget: Budget) -> Budget {
    let limit = find().ok().and_then(|found| lowest_hard_bytes(&found));
    let lowered = limited(budget, limit);
    // Within a group of its own this was said before.
    if lowered != budget && supervise::own_limit_bytes().is_none() {
        note(&format!(
            "the memory budget is {lowered} instead of {budget}: the limit of the memory cgroup around this process"
        ));
    }
    lowered
}

/// Budgets over time, none more than the kernel gives. A line says so where one is.
///
/// # Errors
/// What is wrong with the text.
pub fn schedule(text: &str) -> Result<Schedule, String> {
    Ok(lowered(text.parse()?))
}

/// As [`schedule`].
pub fn lowered(schedule: Schedule) -> Schedule {
    let limit = find().ok().and_then(|found| lowest_hard_bytes(&found));
    let within = within(&schedule, limit);
    if let (true, Some(limit)) = (within != schedule, limit)
        && supervise::own_limit_bytes().is_none()
    {
        note(&format!(
            "memory budgets of more than {0} are {0}: the limit of the memory cgroup around this process",
            neaptide::Bytes(limit)
        ));
    }
    within
}

fn within(schedule: &Schedule, limit_bytes: Option<u64>) -> Schedule {
    schedule.in_bytes(|budget| match limited(budget, limit_bytes) {
        Budget::Bytes(bytes) => Some(bytes),
        _ => None,
    })
}

/// A limit that the kernel rounded down to whole pages is still the budget that was asked for.
fn limited(budget: Budget, limit_bytes: Option<u64>) -> Budget {
    match (budget, limit_bytes) {
        (Budget::Bytes(bytes), Some(limit)) if bytes.saturating_sub(limit) >= PAGE_BYTES => {
            Budget::Bytes(limit)
        }
        _ => budget,
    }
}

fn lowest(found: &Found, files: &[&str]) -> Option<u64> {
    let inside = |dir: &&Path| dir.starts_with(&found.mount);
    let groups = found.dir.ancestors().take_while(inside);
    groups
        .flat_map(|dir| files.iter().map(move |file| dir.join(file)))
        .filter_map(|file| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok())
        .filter(|&bytes| bytes < NO_LIMIT_BYTES)
        .min()
}

/// Gives the group another hard limit. To lower it, what is above must have been given back before.
pub fn set(found: &Found, bytes: u64) -> Result<(), String> {
    let write = |file: &str| {
        let path = found.dir.join(file);
        fs::write(&path, bytes.to_string())
            .map_err(|e| format!("cannot write {bytes} to {}: {e}", path.display()))
    };
    match found.version {
        Version::V1 => {
            let limit = "memory.limit_in_bytes";
            let with_swap = "memory.memsw.limit_in_bytes";
            let before = fs::read_to_string(found.dir.join(limit)).unwrap_or_default();
            let raised = before.trim().parse::<u64>().is_ok_and(|b| b < bytes);
            // The limit with swap is never below the one without.
            let swap = found.dir.join(with_swap).exists().then_some(with_swap);
            let both = if raised {
                [swap, Some(limit)]
            } else {
                [Some(limit), swap]
            };
            both.into_iter().flatten().try_for_each(write)
        }
        Version::V2 => write("memory.max"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(version: Version, root: &Path) -> Found {
        let dir = root.join("a/b");
        fs::create_dir_all(&dir).unwrap();
        Found {
            version,
            mount: root.into(),
            dir,
        }
    }

    #[test]
    fn the_lowest_limit_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let v2 = group(Version::V2, root.path());
        assert_eq!(lowest_bytes(&v2), None);
        fs::write(root.path().join("a/b/memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "5000\n").unwrap();
        assert_eq!(lowest_bytes(&v2), Some(5000));
        fs::write(root.path().join("a/b/memory.high"), "4096\n").unwrap();
        assert_eq!(lowest_bytes(&v2), Some(4096));
        assert_eq!(lowest_hard_bytes(&v2), Some(5000));
        let budget = |bytes| limited(Budget::Bytes(bytes), lowest_hard_bytes(&v2));
        assert_eq!(budget(9096), Budget::Bytes(5000));
        assert_eq!(budget(9095), Budget::Bytes(9095));
        assert_eq!(budget(4999), Budget::Bytes(4999));
        assert_eq!(limited(Budget::Unlimited, Some(1)), Budget::Unlimited);
        let memory = "MemTotal: 64 kB\nMemAvailable:      32 kB\nCached: 8 kB\n";
        assert_eq!(chosen(lowest_hard_bytes(&v2), memory), Some(5000));
        assert_eq!(chosen(None, memory), Some(16 << 10));
        assert_eq!(chosen(None, "MemTotal: 64 kB\n"), None);
        let times: Schedule = "0s:4999,1s:9999,2s:50%".parse().unwrap();
        let budgets = within(&times, lowest_hard_bytes(&v2));
        let budgets: Vec<Budget> = budgets.budgets().map(|(_, budget)| budget).collect();
        let expected = [
            Budget::Bytes(4999),
            Budget::Bytes(5000),
            "50%".parse().unwrap(),
        ];
        assert_eq!(budgets, expected);
        set(&v2, 3000).unwrap();
        assert_eq!(lowest_bytes(&v2), Some(3000));

        let root = tempfile::tempdir().unwrap();
        let v1 = group(Version::V1, root.path());
        let file = v1.dir.join("memory.limit_in_bytes");
        fs::write(&file, "9223372036854771712\n").unwrap();
        assert_eq!(lowest_bytes(&v1), None);
        set(&v1, 4096).unwrap();
        assert_eq!(lowest_bytes(&v1), Some(4096));
        let soft = v1.dir.join("memory.soft_limit_in_bytes");
        fs::write(&soft, "9223372036854771712\n").unwrap();
        assert_eq!(lowest_bytes(&v1), Some(4096));
        fs::write(&soft, "2048\n").unwrap();
        assert_eq!(lowest_bytes(&v1), Some(2048));
        assert!(!v1.dir.join("memory.memsw.limit_in_bytes").exists());
    }
}
