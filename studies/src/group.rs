//! Memory cgroups of benchmarks: processes that are counted, and may not take more than a limit.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// A memory cgroup (version 1) with a hard limit and no swap, removed when it is dropped.
pub struct Group {
    folder: PathBuf,
}

const ROOT: &str = "/sys/fs/cgroup/memory";

impl Group {
    /// # Errors
    /// Where such a cgroup cannot be made.
    pub fn new(limit_bytes: Option<u64>) -> Result<Group> {
        // Of its own for each process: what is left of the last one may take long to end.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "neap-group-{}-{}",
            process::id(),
            MADE.fetch_add(1, Relaxed)
        );
        let folder = Path::new(ROOT).join(name);
        std::fs::create_dir(&folder)
            .with_context(|| format!("cannot make {} (version 1 is needed)", folder.display()))?;
        let group = Group { folder };
        if let Some(bytes) = limit_bytes {
            group.set("memory.limit_in_bytes", bytes)?;
            // Absent where the kernel does not account swap.
            if group.folder.join("memory.memsw.limit_in_bytes").exists() {
                group.set("memory.memsw.limit_in_bytes", bytes)?;
            }
        }
        group.set("memory.swappiness", 0)?;
        Ok(group)
    }

    /// The same program with the same arguments, in the group before anything of it runs.
    pub fn around(&self, command: &Command) -> Command {
        let mut joined = Command::new("sh");
        let join = "echo $$ > \"$0\" && exec \"$@\"";
        joined
            .args(["-c", join])
            .arg(self.folder.join("cgroup.procs"));
        joined.arg(command.get_program()).args(command.get_args());
        joined
    }

    fn set(&self, file: &str, value: u64) -> Result<()> {
        let path = self.folder.join(file);
        std::fs::write(&path, value.to_string())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    /// The most that the kernel ever charged.
    pub fn peak_bytes(&self) -> Result<u64> {
        self.number("memory.max_usage_in_bytes")
    }

    /// What is charged now, by the kernel's name of it, such as `cache` and `rss`.
    pub fn charged_bytes(&self, name: &str) -> Result<u64> {
        let text = std::fs::read_to_string(self.folder.join("memory.stat"))?;
        let mut lines = text.lines().filter_map(|line| line.split_once(' '));
        let found = lines.find(|(key, _)| *key == name);
        let (_, bytes) = found.with_context(|| format!("memory.stat has no {name}"))?;
        Ok(bytes.parse()?)
    }

    /// How often something was refused at first, as the limit was reached.
    pub fn reached(&self) -> Result<u64> {
        // With both limits the same, that of memory and swap together is met first.
        let both = self.number("memory.memsw.failcnt").unwrap_or(0);
        Ok(both + self.number("memory.failcnt")?)
    }

    /// How many processes the kernel ended for lack of memory.
    pub fn kills(&self) -> Result<u64> {
        let text = std::fs::read_to_string(self.folder.join("memory.oom_control"))?;
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        Ok(count.map_or(Ok(0), |count| count.trim().parse())?)
    }

    fn number(&self, file: &str) -> Result<u64> {
        let text = std::fs::read_to_string(self.folder.join(file))?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process may be on its way out.
        for _ in 0..500 {
            if std::fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        eprintln!("cannot remove {}", self.folder.display());
    }
}
