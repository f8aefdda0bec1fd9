//! The hard limit of a cell and how its process is scheduled.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process;
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
        // Of its own for each cell: what is left of the last one may take long to end.
        static MADE: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "neap-runtime-{}-{}",
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
    pub fn around(&self, command: &process::Command) -> process::Command {
        let mut joined = process::Command::new("sh");
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

/// How workers are started.
pub struct Command {
    /// What comes before the program, from a scheduling policy to processors.
    before: Vec<String>,
    /// For the page.
    pub told: String,
}

impl Command {
    /// By the policy SCHED_FIFO and on as many processors as there are threads, where that is allowed.
    pub fn new(wants_fifo: bool) -> Command {
        let usual = |why: &str| Command {
            before: Vec::new(),
            told: format!("usual scheduling ({why})"),
        };
        if !wants_fifo {
            return usual("--no-fifo");
        }
        let processors = format!("0-{}", super::tasks::THREADS - 1);
        let before = ["chrt", "-f", "10", "taskset", "-c", &processors].map(String::from);
        let tried = process::Command::new(&before[0])
            .args(&before[1..])
            .arg("true")
            .stderr(process::Stdio::null())
            .status();
        match tried.is_ok_and(|status| status.success()) {
            true => Command {
                before: before.into(),
                told: format!("SCHED_FIFO, processors {processors}"),
            },
            false => usual("SCHED_FIFO is not allowed here"),
        }
    }

    /// This program with other arguments, in the group. It is ended after `patience`.
    pub fn within(
        &self,
        group: &Group,
        patience: Duration,
        arguments: &[&str],
    ) -> Result<process::Command> {
        let mut command = process::Command::new("timeout");
        command.args(["-s", "KILL", &patience.as_secs().to_string()]);
        command.args(&self.before).arg(std::env::current_exe()?);
        command.args(arguments);
        Ok(group.around(&command))
    }
}
