//! One group with a hard memory limit.

use super::{Found, PREFIX, Version};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A group that this process made. Dropping removes it, when nothing is left in it.
pub struct Group {
    version: Version,
    dir: PathBuf,
}

impl Group {
    /// Makes a group for a child of this process with `limit_bytes` as hard limit and no swap.
    ///
    /// # Errors
    /// One line that says what is missing, mostly rights.
    pub fn create(found: &Found, limit_bytes: u64) -> Result<Group, String> {
        let name = format!("{PREFIX}{}", std::process::id());
        let mut first_error = None;
        for parent in parents(found) {
            remove_abandoned(&parent);
            if found.version == Version::V2
                && let Err(error) = offer_memory(found, &parent)
            {
                first_error.get_or_insert(error);
                continue;
            }
            let dir = parent.join(&name);
            match fs::create_dir(&dir) {
                Ok(()) => {}
                Err(error) => {
                    first_error.get_or_insert(format!("cannot create {}: {error}", dir.display()));
                    continue;
                }
            }
            let group = Group {
                version: found.version,
                dir,
            };
            match group.limit(limit_bytes) {
                Ok(()) => return Ok(group),
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        Err(first_error.unwrap_or_else(|| "there is no place for a memory cgroup".into()))
    }

    fn limit(&self, bytes: u64) -> Result<(), String> {
        let limit = bytes.to_string();
        match self.version {
            Version::V1 => {
                self.set("memory.limit_in_bytes", &limit)?;
                // Absent where the kernel does not account swap.
                self.set_if_there("memory.memsw.limit_in_bytes", &limit)?;
                self.set_if_there("memory.swappiness", "0")
            }
            Version::V2 => {
                self.set("memory.max", &limit)?;
                self.set_if_there("memory.swap.max", "0")?;
                // Kills all of the group together, so that nothing of it lingers.
                self.set_if_there("memory.oom.group", "1")
            }
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<(), String> {
        let path = self.dir.join(file);
        fs::write(&path, value)
            .map_err(|e| format!("cannot write {value} to {}: {e}", path.display()))
    }

    fn set_if_there(&self, file: &str, value: &str) -> Result<(), String> {
        if self.dir.join(file).exists() {
            self.set(file, value)
        } else {
            Ok(())
        }
    }

    /// The file by which a process enters the group: it writes `0`.
    pub fn entrance(&self) -> io::Result<File> {
        OpenOptions::new()
            .write(true)
            .open(self.dir.join("cgroup.procs"))
    }

    /// Another hard limit, while processes run in it. To lower it, what is above must have been given back.
    pub fn set_limit(&self, bytes: u64) -> Result<(), String> {
        let own = Found {
            version: self.version,
            mount: self.dir.clone(),
            dir: self.dir.clone(),
        };
        super::limits::set(&own, bytes)
    }

    /// The most that was ever charged to it, and by which count.
    pub fn peak_bytes(&self) -> Option<(u64, &'static str)> {
        let (file, source) = match self.version {
            Version::V1 => ("memory.max_usage_in_bytes", "cgroup_v1"),
            Version::V2 => ("memory.peak", "cgroup_v2"),
        };
        let text = fs::read_to_string(self.dir.join(file)).ok()?;
        Some((text.trim().parse().ok()?, source))
    }

    /// How often the kernel killed something in here for want of memory.
    pub fn oom_kills(&self) -> u64 {
        let file = match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        };
        let text = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
        number_of(&text, "oom_kill").unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may still be counted for a moment.
        for _ in 0..100 {
            match fs::remove_dir(&self.dir) {
                Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// Where a group may be made: below the own one; with v2 beside it as well.
fn parents(found: &Found) -> Vec<PathBuf> {
    let mut parents = vec![found.dir.clone()];
    if found.version == Version::V2
        && found.dir != found.mount
        && let Some(parent) = found.dir.parent()
    {
        parents.push(parent.to_path_buf());
    }
    parents
}

/// Makes sure that children of `parent` have the memory controller.
fn offer_memory(found: &Found, parent: &Path) -> Result<(), String> {
    let control = parent.join("cgroup.subtree_control");
    let text = |path: &Path| fs::read_to_string(path).unwrap_or_default();
    if has_word(&text(&control), "memory") {
        return Ok(());
    }
    if !has_word(&text(&parent.join("cgroup.controllers")), "memory") {
        return Err(format!("{} has no memory controller", parent.display()));
    }
    let enable = || fs::write(&control, "+memory");
    let result = enable().or_else(|error| {
        // A group with processes cannot have controlled children. When all of them is this process,
        // it can move down.
        let alone = text(&parent.join("cgroup.procs")).trim() == std::process::id().to_string();
        if !(alone && parent == found.dir) {
            return Err(error);
        }
        let leaf = parent.join(format!("{PREFIX}main"));
        match fs::create_dir(&leaf) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
            _ => {}
        }
        fs::write(leaf.join("cgroup.procs"), "0")?;
        enable()
    });
    result.map_err(|e| {
        format!(
            "cannot pass the memory controller on in {}: {e}",
            parent.display()
        )
    })
}

/// Removes groups of processes that were killed before they could do it.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let maker = name
            .to_str()
            .and_then(|n| n.strip_prefix(PREFIX))
            .and_then(|n| n.parse::<u32>().ok());
        if let Some(pid) = maker
            && !Path::new(&format!("/proc/{pid}")).exists()
        {
            // It stays where something still runs in it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn has_word(text: &str, word: &str) -> bool {
    text.split_whitespace().any(|w| w == word)
}

/// The number behind `key` in lines of `key number`.
fn number_of(text: &str, key: &str) -> Option<u64> {
    text.lines()
        .find_map(|line| line.split_once(' ').filter(|(k, _)| *k == key))
        .and_then(|(_, value)| value.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let v2 = "low 0\nhigh 0\nmax 17\noom 1\noom_kill 2\noom_group_kill 0\n";
        assert_eq!(number_of(v1, "oom_kill"), Some(3));
        assert_eq!(number_of(v2, "oom_kill"), Some(2));
        assert_eq!(number_of("", "oom_kill"), None);
    }

    /// Folders stand in for the kernel's; it would make the control files itself.
    fn v2(root: &Path, own: &str) -> Found {
        fs::create_dir_all(root.join(own)).unwrap();
        Found {
            version: Version::V2,
            mount: root.into(),
            dir: root.join(own),
        }
    }

    #[test]
    fn without_a_controller_nothing_is_made() {
        let root = tempfile::tempdir().unwrap();
        let found = v2(root.path(), "a");
        let error = Group::create(&found, 1 << 20).err().unwrap();
        assert!(error.contains("no memory controller"), "{error}");
        assert_eq!(fs::read_dir(root.path().join("a")).unwrap().count(), 0);
    }

    #[test]
    fn a_group_beside_the_own_one_will_do() {
        let root = tempfile::tempdir().unwrap();
        let found = v2(root.path(), "a");
        fs::write(root.path().join("cgroup.subtree_control"), "cpu memory\n").unwrap();
        let group = Group::create(&found, 1 << 20).unwrap();
        assert_eq!(group.dir.parent(), Some(root.path()));
        assert_eq!(
            fs::read_to_string(group.dir.join("memory.max")).unwrap(),
            "1048576"
        );
    }

    #[test]
    fn abandoned_groups_go() {
        let root = tempfile::tempdir().unwrap();
        // No process has this number: it is above the kernel's highest.
        let abandoned = root.path().join("neaptide-4194999");
        let alive = root.path().join(format!("neaptide-{}", std::process::id()));
        let other = root.path().join("other");
        for dir in [&abandoned, &alive, &other] {
            fs::create_dir(dir).unwrap();
        }
        remove_abandoned(root.path());
        assert!(!abandoned.exists() && alive.exists() && other.exists());
    }
}
