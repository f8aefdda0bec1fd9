//! `--follow`: the budget goes after the memory cgroup's limit, or after memory pressure.

use crate::cgroup::{Found, limits};
use clap::ValueEnum;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Follow {
    /// The lowest limit, hard or soft, of the memory cgroup that this process is in and of those around it
    Cgroup,
    /// Memory pressure (PSI): smaller in steps while there is some, larger again when it is calm
    Psi,
}

/// Between these the budget moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub least_bytes: u64,
    pub most_bytes: u64,
}

/// Follows a cgroup's limit.
pub struct LimitWatch {
    found: Found,
    range: Range,
}

impl LimitWatch {
    pub fn new(found: Found, range: Range) -> LimitWatch {
        LimitWatch { found, range }
    }

    /// The budget that the limits now allow.
    pub fn budget_bytes(&self) -> u64 {
        limits::lowest_bytes(&self.found)
            .unwrap_or(u64::MAX)
            .min(self.range.most_bytes)
            .max(self.range.least_bytes)
    }
}

/// Follows the kernel's count of time in which something waited for memory.
pub struct PressureWatch {
    file: PathBuf,
    steps: Steps,
}

impl PressureWatch {
    /// The cgroup's own pressure where it is counted, else that of the machine.
    pub fn new(found: Option<&Found>, range: Range, start_bytes: u64) -> Result<Self, String> {
        let own = found.map(|f| f.dir.join("memory.pressure"));
        let machine = PathBuf::from("/proc/pressure/memory");
        let file = own
            .into_iter()
            .chain([machine])
            .find(|file| fs::read_to_string(file).is_ok_and(|text| stalled_us(&text).is_some()));
        Ok(PressureWatch {
            file: file.ok_or("the kernel does not tell memory pressure here (no PSI)")?,
            steps: Steps::new(range, start_bytes),
        })
    }

    pub fn budget_bytes(&mut self, now: Duration) -> u64 {
        if self.steps.is_due(now) {
            let text = fs::read_to_string(&self.file).unwrap_or_default();
            if let Some(us) = stalled_us(&text) {
                self.steps.observe(now, us);
            }
        }
        self.steps.budget_bytes
    }
}

/// Microseconds in which some process waited for memory, ever: `some avg10=0.00 ... total=1234`.
fn stalled_us(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let total = line
        .split(' ')
        .find_map(|word| word.strip_prefix("total="))?;
    total.trim().parse().ok()
}

/// How often pressure is looked at.
const EVERY: Duration = Duration::from_millis(500);

/// A share of the time waited for memory that asks for a smaller budget, and one that is calm.
const PRESSED: f64 = 0.05;
const CALM: f64 = 0.005;

/// Calm must last so long before the budget grows.
const CALM_FOR: Duration = Duration::from_secs(5);

/// Each step is this share of the way to the end of the range.
const STEP: u64 = 4;

/// Less than this is not worth a new plan.
const LEAST_STEP_BYTES: u64 = 1 << 20;

/// From pressure to budgets, without a clock of its own.
struct Steps {
    range: Range,
    budget_bytes: u64,
    last: Option<(Duration, u64)>,
    calm_since: Option<Duration>,
}

impl Steps {
    fn new(range: Range, start_bytes: u64) -> Steps {
        Steps {
            range,
            budget_bytes: start_bytes.min(range.most_bytes).max(range.least_bytes),
            last: None,
            calm_since: None,
        }
    }

    fn is_due(&self, now: Duration) -> bool {
        self.last.is_none_or(|(then, _)| now >= then + EVERY)
    }

    fn observe(&mut self, now: Duration, stalled_us: u64) {
        let Some((then, before_us)) = self.last.replace((now, stalled_us)) else {
            return;
        };
        let passed_us = now.saturating_sub(then).as_micros().max(1) as f64;
        let share = stalled_us.saturating_sub(before_us) as f64 / passed_us;
        let Range {
            least_bytes,
            most_bytes,
        } = self.range;
        let part = |way: u64| (way / STEP).max(LEAST_STEP_BYTES).min(way);
        if share >= PRESSED {
            self.calm_since = None;
            self.budget_bytes -= part(self.budget_bytes - least_bytes);
        } else if share > CALM {
            self.calm_since = None;
        } else if now.saturating_sub(*self.calm_since.get_or_insert(then)) >= CALM_FOR {
            self.calm_since = Some(now);
            self.budget_bytes += part(most_bytes - self.budget_bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pressure_files() {
        let text = "some avg10=1.53 avg60=0.87 avg300=0.10 total=1554431\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=445361\n";
        assert_eq!(stalled_us(text), Some(1554431));
        for bad in ["", "full total=3", "some avg10=1", "some total=x"] {
            assert_eq!(stalled_us(bad), None, "{bad}");
        }
    }

    #[test]
    fn smaller_in_steps_under_pressure_and_larger_after_calm() {
        let range = Range {
            least_bytes: 20 * MIB,
            most_bytes: 100 * MIB,
        };
        let mut steps = Steps::new(range, 100 * MIB);
        let (mut now, mut us) = (Duration::ZERO, 7);
        let mut seen = vec![steps.budget_bytes];
        let mut second = |steps: &mut Steps, share: f64| {
            now += Duration::from_secs(1);
            us += (share * 1e6) as u64;
            assert!(steps.is_due(now));
            steps.observe(now, us);
            seen.push(steps.budget_bytes);
            assert!(!steps.is_due(now + Duration::from_millis(10)));
        };
        second(&mut steps, 0.0);
        second(&mut steps, 0.3);
        assert_eq!(steps.budget_bytes, 80 * MIB);
        for _ in 0..40 {
            second(&mut steps, 0.2);
        }
        assert_eq!(steps.budget_bytes, range.least_bytes);
        // Neither pressed nor calm: nothing moves, and calm has to begin anew.
        for _ in 0..4 {
            second(&mut steps, 0.0);
        }
        second(&mut steps, 0.02);
        for _ in 0..4 {
            second(&mut steps, 0.0);
        }
        assert_eq!(steps.budget_bytes, range.least_bytes);
        second(&mut steps, 0.0);
        assert_eq!(steps.budget_bytes, 40 * MIB);
        for _ in 0..200 {
            second(&mut steps, 0.0);
        }
        assert_eq!(steps.budget_bytes, range.most_bytes);
        assert!(
            seen.iter()
                .all(|b| (range.least_bytes..=range.most_bytes).contains(b))
        );
    }
}
