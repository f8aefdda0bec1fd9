//! `--budget-schedule 0s:200MiB,5s:60MiB,10s:120MiB`: which budget holds from when on.

use neaptide::Budget;
use std::str::FromStr;
use std::time::Duration;

/// Entries in order of time.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    entries: Vec<(Duration, Budget)>,
    /// Entries that have been given out.
    given: usize,
}

impl FromStr for Schedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Schedule, String> {
        let mut entries: Vec<(Duration, Budget)> = Vec::new();
        for entry in text.split(',') {
            let entry = entry.trim();
            let (time, budget) = entry.split_once(':').ok_or_else(|| {
                format!("'{entry}' is no entry: write TIME:SIZE, such as 5s:60MiB")
            })?;
            let time = parse_time(time)?;
            let budget = budget.parse::<Budget>()?;
            if entries.last().is_some_and(|&(before, _)| before >= time) {
                return Err(format!("'{entry}' does not come after the entry before it"));
            }
            entries.push((time, budget));
        }
        Ok(Schedule { entries, given: 0 })
    }
}

impl Schedule {
    /// The budget from the very beginning, when there is one.
    pub fn at_start(&self) -> Option<Budget> {
        let first = self.entries.first();
        first.filter(|(time, _)| time.is_zero()).map(|&(_, b)| b)
    }

    pub fn budgets(&self) -> impl Iterator<Item = (Duration, Budget)> + '_ {
        self.entries.iter().copied()
    }

    /// The same with every budget in bytes; those that are no limit stay so.
    pub fn in_bytes(&self, bytes: impl Fn(Budget) -> Option<u64>) -> Schedule {
        let entries = self.entries.iter();
        let entries = entries.map(|&(time, b)| (time, bytes(b).map_or(b, Budget::Bytes)));
        Schedule {
            entries: entries.collect(),
            given: self.given,
        }
    }

    /// When the last budget has been held for as long as the one before it.
    pub fn end(&self) -> Duration {
        let time = |back: usize| {
            let at = self.entries.len().checked_sub(back);
            at.map_or(Duration::ZERO, |i| self.entries[i].0)
        };
        time(1) + (time(1) - time(2))
    }

    /// Whether the last entry has come into force.
    pub fn is_given(&self) -> bool {
        self.given == self.entries.len()
    }

    /// The newest entry that is due and was not given before.
    pub fn due(&mut self, now: Duration) -> Option<Budget> {
        let reached = self.entries.partition_point(|&(time, _)| time <= now);
        let newest = (reached > self.given).then(|| self.entries[reached - 1].1);
        self.given = self.given.max(reached);
        newest
    }
}

/// As [`neaptide::parse_duration`], or seconds without a unit.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    match text.trim().ends_with(|c: char| c.is_ascii_digit()) {
        true => neaptide::parse_duration(&format!("{text}s")),
        false => neaptide::parse_duration(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(s: f64) -> Duration {
        Duration::from_secs_f64(s)
    }

    #[test]
    fn entries_come_due_once_each() {
        let mut s: Schedule = "0s:200MiB, 500ms:60M,2:none,1m:25%".parse().unwrap();
        assert_eq!(s.at_start(), Some(Budget::Bytes(200 << 20)));
        assert_eq!(s.end(), seconds(118.0));
        assert_eq!(s.due(seconds(0.0)), Some(Budget::Bytes(200 << 20)));
        assert_eq!(s.due(seconds(0.4)), None);
        assert_eq!(s.due(seconds(0.6)), Some(Budget::Bytes(60 << 20)));
        assert_eq!(s.due(seconds(0.7)), None);
        assert!(!s.is_given());
        // A long run may pass over entries.
        assert_eq!(s.due(seconds(90.0)), Some(Budget::Percent(25.0)));
        assert!(s.is_given());
        assert_eq!(s.due(seconds(99.0)), None);
        let late: Schedule = "3s:1G".parse().unwrap();
        assert_eq!((late.at_start(), late.end()), (None, seconds(6.0)));
    }

    #[test]
    fn malformed_schedules() {
        for bad in [
            "",
            "5s",
            "5s:",
            ":5M",
            "5x:5M",
            "-1s:5M",
            "0s:5M,",
            "5s:1M,5s:2M",
            "5s:1M,4s:2M",
            "0s:0",
            "1e9:5M",
            "nan:5M",
            "0s:5Q",
            "99999999h:5M",
            "0s=5M",
        ] {
            assert!(bad.parse::<Schedule>().is_err(), "{bad}");
        }
    }
}
