//! What work costs beside time and memory: time of the processors, and energy where the machine counts it.
//!
//! Processors with RAPL count the energy of a whole package under `/sys/class/powercap`. Other programs are in it, too. By
//! default only root may read it.

use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::{Path, PathBuf};

const COUNTERS: &str = "/sys/class/powercap";

/// Counts from its start on.
pub struct Meter {
    processor_ns: u64,
    counters: Vec<Counter>,
}

/// The energy of one package, which starts anew after the largest number it can hold.
struct Counter {
    folder: PathBuf,
    most_uj: u64,
    at_uj: u64,
}

/// From the start of a meter to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Of all threads of this process together.
    pub processor_ns: u64,
    /// Of all packages; `None` where there is no counter that may be read.
    pub energy_uj: Option<u64>,
}

impl Meter {
    pub fn start() -> Meter {
        Meter {
            counters: counters(Path::new(COUNTERS)),
            processor_ns: processor_ns(),
        }
    }

    pub fn stop(&self) -> Cost {
        Cost {
            processor_ns: processor_ns().saturating_sub(self.processor_ns),
            energy_uj: energy_uj(&self.counters),
        }
    }
}

/// Those of whole packages, of which the other ones count parts.
fn counters(folder: &Path) -> Vec<Counter> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let found = entries.filter_map(|entry| {
        let folder = entry.path();
        let name = fs::read_to_string(folder.join("name")).ok()?;
        name.starts_with("package").then_some(())?;
        Some(Counter {
            most_uj: number(&folder.join("max_energy_range_uj"))?,
            at_uj: number(&folder.join("energy_uj"))?,
            folder,
        })
    });
    found.collect()
}

fn energy_uj(counters: &[Counter]) -> Option<u64> {
    let since = |counter: &Counter| {
        let now = number(&counter.folder.join("energy_uj"))?;
        Some(match now.checked_sub(counter.at_uj) {
            Some(energy) => energy,
            None => counter.most_uj.saturating_sub(counter.at_uj) + now,
        })
    };
    match counters.is_empty() {
        true => None,
        false => counters.iter().map(since).sum(),
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Of all threads of this process since it began.
pub fn processor_ns() -> u64 {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    spent.tv_sec as u64 * 1_000_000_000 + spent.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counter(folder: &Path, name: &str, energy_uj: u64) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("name"), format!("{name}\n")).unwrap();
        fs::write(folder.join("max_energy_range_uj"), "1000\n").unwrap();
        fs::write(folder.join("energy_uj"), format!("{energy_uj}\n")).unwrap();
    }

    #[test]
    fn packages_are_added_up_and_counters_that_start_anew_are_seen() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        assert_eq!(energy_uj(&counters(folder.path())), None);
        counter(&at("intel-rapl:0"), "package-0", 100);
        counter(&at("intel-rapl:1"), "package-1", 990);
        counter(&at("intel-rapl:0:0"), "core", 50);
        let counters = counters(folder.path());
        assert_eq!(counters.len(), 2);
        counter(&at("intel-rapl:0"), "package-0", 130);
        counter(&at("intel-rapl:1"), "package-1", 5);
        counter(&at("intel-rapl:0:0"), "core", 500);
        assert_eq!(energy_uj(&counters), Some(30 + 15));
        fs::remove_file(at("intel-rapl:1").join("energy_uj")).unwrap();
        assert_eq!(energy_uj(&counters), None);
    }

    #[test]
    fn computing_takes_time_of_processors() {
        let meter = Meter::start();
        let mut sum = 0u64;
        while meter.stop().processor_ns < 2_000_000 {
            sum = std::hint::black_box(sum.wrapping_mul(31) + 7);
        }
        assert!(meter.stop().processor_ns >= 2_000_000, "{sum}");
    }
}
