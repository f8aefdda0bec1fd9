//! Which machine this is, as far as costs depend on it.

use super::profile::Machine;
use crate::options::RunOptions;
use std::path::Path;

/// The longest name that is kept.
const MOST_NAME_BYTES: usize = 200;

/// This machine with what computes for these options, and the file system of `packed`.
pub(super) fn here(packed: &Path, options: &RunOptions) -> Machine {
    let accelerator = options.accelerator.as_ref().map(|a| a.name());
    let name = accelerator.into_iter().chain([cpu_name()]);
    let name = name.collect::<Vec<_>>().join(", ");
    Machine {
        cpu: name.chars().take(MOST_NAME_BYTES).collect(),
        isa: options.isa.name().into(),
        threads: options.threads.try_into().unwrap_or(u32::MAX),
        device: rustix::fs::stat(packed).map_or(0, |stat| stat.st_dev),
    }
}

/// From the first processor's entry; the architecture where the kernel says nothing of it.
fn cpu_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let first = text.split("\n\n").next().unwrap_or_default();
    let keys = [
        "model name",
        "cpu family",
        "model",
        "stepping",
        "CPU implementer",
        "CPU part",
    ];
    let fields: Vec<&str> = keys
        .iter()
        .filter_map(|&key| {
            let mut lines = first.lines().filter_map(|line| line.split_once(':'));
            let (_, value) = lines.find(|(name, _)| name.trim() == key)?;
            Some(value.trim())
        })
        .collect();
    if fields.is_empty() {
        return std::env::consts::ARCH.into();
    }
    fields.join(" ")
}
