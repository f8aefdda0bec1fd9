//! `--follow cgroup` against the kernel: a group is asked to shrink and to grow while a model runs in it.

use super::onnx::layers;
use super::support::{Bench, NEAP};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A memory cgroup of version 1 below this process's own; dropping it removes it.
struct Group(PathBuf);

impl Group {
    /// Says why where there can be none.
    fn create() -> Result<Group, String> {
        let table = fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?;
        let own = table.lines().find_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let (controllers, path) = rest.split_once(':')?;
            controllers
                .split(',')
                .any(|c| c == "memory")
                .then_some(path)
        });
        let own = own.ok_or("no memory cgroup of version 1")?;
        let parent = Path::new("/sys/fs/cgroup/memory").join(own.trim_start_matches('/'));
        let dir = parent.join(format!("follow-test-{}", std::process::id()));
        fs::create_dir(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        Ok(Group(dir))
    }

    fn set(&self, file: &str, bytes: u64) -> std::io::Result<()> {
        fs::write(self.0.join(file), bytes.to_string())
    }

    /// Anonymous memory in use: what the kernel cannot take back without swap.
    fn anonymous_bytes(&self) -> u64 {
        let text = fs::read_to_string(self.0.join("memory.stat")).unwrap();
        let line = text.lines().find_map(|l| l.strip_prefix("total_rss "));
        line.unwrap().trim().parse().unwrap()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{what} does not come"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_soft_limit_shrinks_what_the_hard_one_cannot() {
    let bench = Bench::with_model(&layers());
    let group = match Group::create() {
        Ok(group) => group,
        Err(reason) => return eprintln!("SKIPPED: {reason}"),
    };
    let facts = bench.json("inspect m.onnx --threads 2 --format json");
    // The kernel rounds limits down to pages.
    let bytes = |key: &str| facts[key].as_u64().unwrap() / 4096 * 4096;
    let (small, large) = (
        bytes("smallest_feasible_bytes") + (1 << 20),
        bytes("unlimited_high_water_bytes") + (2 << 20),
    );
    group
        .set("memory.limit_in_bytes", large + (4 << 20))
        .unwrap();
    group.set("memory.swappiness", 0).unwrap();
    let run = format!(
        "echo $$ > {}/cgroup.procs && exec {NEAP} run m.onnx --threads 2 --follow cgroup \
         --memory-budget {large} --trace t.csv --json r.json --live",
        group.0.display()
    );
    let mut child = Command::new("sh")
        .args(["-c", &run])
        .current_dir(bench.dir.path())
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("all of the model", || group.anonymous_bytes() > small);
    // The kernel refuses this while so much is in use.
    let refused = group.set("memory.limit_in_bytes", small);
    assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EBUSY));
    group.set("memory.soft_limit_in_bytes", small).unwrap();
    wait_until("a smaller process", || group.anonymous_bytes() <= small);
    wait_until("a lower hard limit", || {
        group
            .set("memory.limit_in_bytes", small + (1 << 20))
            .is_ok()
    });
    group
        .set("memory.limit_in_bytes", large + (4 << 20))
        .unwrap();
    group.set("memory.soft_limit_in_bytes", large).unwrap();
    wait_until("a larger process", || group.anonymous_bytes() > small);
    // SAFETY: the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    child.wait().unwrap();
    let report: Value = serde_json::from_slice(&fs::read(bench.path("r.json")).unwrap()).unwrap();
    let changes = report["adaptations"].as_array().unwrap();
    let budgets: Vec<u64> = changes
        .iter()
        .map(|c| c["budget_bytes"].as_u64().unwrap())
        .collect();
    assert!(budgets.contains(&small), "{budgets:?}");
    assert_eq!(budgets.last(), Some(&large));
    for change in changes {
        let of = |key: &str| change[key].as_u64().unwrap();
        assert!(of("peak_memory_bytes") <= of("budget_bytes"), "{change}");
    }
}
