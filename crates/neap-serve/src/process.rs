//! The process as Prometheus' own libraries tell it: `process_…`.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub struct Metrics {
    cpu_seconds: Counter<f64, AtomicU64>,
    resident_bytes: Gauge,
    virtual_bytes: Gauge,
    open_files: Gauge,
    most_files: Gauge,
    began: Gauge<f64, AtomicU64>,
}

/// Of `/proc/self/stat`: what follows the name of the program, from its third field on.
struct Stat {
    cpu_ticks: u64,
    began_ticks: u64,
    virtual_bytes: u64,
    resident_pages: u64,
}

impl Stat {
    fn of(text: &str) -> Option<Stat> {
        // The name is in brackets, and may have any.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        Some(Stat {
            cpu_ticks: field(14)? + field(15)?,
            began_ticks: field(22)?,
            virtual_bytes: field(23)?,
            resident_pages: field(24)?,
        })
    }
}

impl Metrics {
    pub fn register(r: &mut Registry) -> Metrics {
        let metrics = Metrics {
            cpu_seconds: Counter::default(),
            resident_bytes: Gauge::default(),
            virtual_bytes: Gauge::default(),
            open_files: Gauge::default(),
            most_files: Gauge::default(),
            began: Gauge::default(),
        };
        let m = &metrics;
        let text = "Processor time of user and system";
        r.register_with_unit("process_cpu", text, Unit::Seconds, m.cpu_seconds.clone());
        let text = "Memory that is resident";
        let resident = m.resident_bytes.clone();
        r.register_with_unit("process_resident_memory", text, Unit::Bytes, resident);
        let text = "Memory that is mapped";
        let mapped = m.virtual_bytes.clone();
        r.register_with_unit("process_virtual_memory", text, Unit::Bytes, mapped);
        r.register(
            "process_open_fds",
            "Descriptors that are open",
            m.open_files.clone(),
        );
        r.register(
            "process_max_fds",
            "Descriptors that may be open",
            m.most_files.clone(),
        );
        let text = "When it began, since 1970";
        r.register_with_unit("process_start_time", text, Unit::Seconds, m.began.clone());
        metrics
    }

    /// Reads them anew.
    pub fn note(&self) {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let ticks = rustix::param::clock_ticks_per_second() as f64;
        if let Some(stat) = Stat::of(&read("/proc/self/stat")) {
            let cpu_s = stat.cpu_ticks as f64 / ticks;
            self.cpu_seconds.inner().store(cpu_s.to_bits(), Relaxed);
            let page = rustix::param::page_size() as u64;
            self.resident_bytes.set((stat.resident_pages * page) as i64);
            self.virtual_bytes.set(stat.virtual_bytes as i64);
            let booted = read("/proc/stat");
            let booted = booted.lines().find_map(|line| line.strip_prefix("btime "));
            let booted = booted.and_then(|s| s.trim().parse::<f64>().ok());
            let began = booted.unwrap_or(0.0) + stat.began_ticks as f64 / ticks;
            self.began.set(began);
        }
        let open = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        self.open_files.set(open as i64);
        let limits = read("/proc/self/limits");
        let most = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let most = most.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        self.most_files.set(most.unwrap_or(-1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_from_the_name_on() {
        let text = "7 (a b) c) S 1 7 7 0 -1 4194304 100 0 0 0 11 22 0 0 20 0 3 0 4242 5000 60 18446744073709551615";
        let stat = Stat::of(text).unwrap();
        assert_eq!((stat.cpu_ticks, stat.began_ticks), (33, 4242));
        assert_eq!((stat.virtual_bytes, stat.resident_pages), (5000, 60));
        assert!(Stat::of("rubbish").is_none());
        let metrics = Metrics::register(&mut Registry::default());
        metrics.note();
        assert!(metrics.resident_bytes.get() > 0 && metrics.began.get() > 1e9);
        assert!(metrics.open_files.get() > 0);
    }
}
