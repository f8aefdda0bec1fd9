//! Descriptions of devices to plan for: files, and some that come with the program.
//!
//! ```toml
//! name = "a device"
//!
//! [compute]
//! flops_per_second = 1e12            # at its best
//! memory_bytes_per_second = 50e9
//! efficiency = 0.6                   # share of each that layers reach [default: 1]
//! memory_efficiency = 0.8
//! overhead_us = 5.0                  # of every step; and of every slice of one, beside that [default: 0]
//! slice_overhead_us = 10.0
//!
//! [link]                             # to storage, or to the host's memory
//! load_bytes_per_second = 3e9
//! store_bytes_per_second = 2e9       # [default: as loads]
//! both_ways_bytes_per_second = 4e9   # loads and stores at once, together [default: the faster of them]
//! latency_us = 100.0                 # of one request
//! queue_depth = 8                    # requests at once
//! group = "4MiB"                     # it reports no read before all are done that it has in hand, so loads are
//!                                    # handed over in groups of so much [default: each by itself]
//! handling_us = 2.0                  # what a load takes from computing, and each byte of it [default: 0]
//! handling_ns_per_byte = 0.05
//! wake_us = 30.0                     # how much later than its load a compute begins that waited for it [default: 0]
//! ```

use crate::failure::{Outcome, bad, one_line};
use neaptide::{CostProfile, Profile, parse_bytes};
use serde::Deserialize;
use std::fmt::Write as _;
use std::path::Path;

/// What comes with the program: name and text.
const SHIPPED: [(&str, &str); 5] = [
    ("v100-pcie", include_str!("../devices/v100-pcie.toml")),
    ("rtx3090-pcie", include_str!("../devices/rtx3090-pcie.toml")),
    ("jetson-nx", include_str!("../devices/jetson-nx.toml")),
    (
        "raspberry-pi-4",
        include_str!("../devices/raspberry-pi-4.toml"),
    ),
    ("phone", include_str!("../devices/phone.toml")),
];

/// Files are no larger.
const MOST_BYTES: u64 = 64 << 10;

/// Groups of loads are no larger.
const MOST_GROUP_BYTES: u64 = 1 << 30;

/// A device, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    pub name: String,
    pub costs: CostProfile,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    name: String,
    compute: Compute,
    link: Link,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compute {
    flops_per_second: f64,
    memory_bytes_per_second: f64,
    #[serde(default = "all")]
    efficiency: f64,
    #[serde(default = "all")]
    memory_efficiency: f64,
    #[serde(default)]
    overhead_us: f64,
    #[serde(default)]
    slice_overhead_us: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Link {
    load_bytes_per_second: f64,
    store_bytes_per_second: Option<f64>,
    both_ways_bytes_per_second: Option<f64>,
    latency_us: f64,
    #[serde(default = "one")]
    queue_depth: u32,
    group: Option<String>,
    #[serde(default)]
    handling_us: f64,
    #[serde(default)]
    handling_ns_per_byte: f64,
    #[serde(default)]
    wake_us: f64,
}

fn all() -> f64 {
    1.0
}

fn one() -> u32 {
    1
}

impl Device {
    /// One that comes with the program, or that a file describes.
    pub fn find(name_or_file: &str) -> Outcome<Device> {
        if let Some((name, text)) = SHIPPED.iter().find(|(name, _)| *name == name_or_file) {
            return parse(text).map_err(|why| bad(format!("--device {name}: {why}")));
        }
        let path = Path::new(name_or_file);
        let known = || SHIPPED.map(|(name, _)| name).join(", ");
        let size = std::fs::metadata(path).map_err(|e| {
            bad(format!(
                "--device {name_or_file}: {e}; it is a file, or one of {}",
                known()
            ))
        })?;
        if !size.is_file() || size.len() > MOST_BYTES {
            return Err(bad(format!(
                "--device {name_or_file}: not a description of a device"
            )));
        }
        let text = std::fs::read_to_string(path)
            .map_err(|e| bad(format!("--device {name_or_file}: {e}")))?;
        parse(&text).map_err(|why| bad(format!("--device {name_or_file}: {why}")))
    }
}

fn parse(text: &str) -> Result<Device, String> {
    let described: Described = toml::from_str(text).map_err(|e| {
        let line = e.span().map_or(1, |span| {
            1 + text[..span.start.min(text.len())].matches('\n').count()
        });
        format!("line {line}: {}", one_line(e.message()))
    })?;
    let Described {
        name,
        compute,
        link,
    } = described;
    let rate = |name: &str, value: f64| match value {
        v if (1e3..=1e18).contains(&v) => Ok(v),
        v => Err(format!("{name} = {v} is no rate of a device")),
    };
    let share = |name: &str, value: f64| match value {
        v if v > 0.0 && v <= 1.0 => Ok(v),
        v => Err(format!("{name} = {v} is not between 0 and 1")),
    };
    let ns = |name: &str, us: f64| match us {
        us if (0.0..=1e9).contains(&us) => Ok((us * 1e3) as u64),
        us => Err(format!("{name} = {us} is no time of a device")),
    };
    let load = rate("load_bytes_per_second", link.load_bytes_per_second)?;
    let store = link.store_bytes_per_second.unwrap_or(load);
    let store = rate("store_bytes_per_second", store)?;
    let both = link
        .both_ways_bytes_per_second
        .unwrap_or_else(|| load.max(store));
    let both = rate("both_ways_bytes_per_second", both)?;
    if both > load + store {
        return Err("both_ways_bytes_per_second is more than loads and stores have alone".into());
    }
    if !(1..=64).contains(&link.queue_depth) {
        return Err(format!("queue_depth = {} is not 1 to 64", link.queue_depth));
    }
    if !(0.0..=1e6).contains(&link.handling_ns_per_byte) {
        return Err("handling_ns_per_byte is no time of a device".into());
    }
    let group_bytes = link.group.as_deref().map_or(Ok(0), |size| {
        let found = parse_bytes(size).map_err(|why| format!("group: {why}"))?;
        match found {
            1..=MOST_GROUP_BYTES => Ok(found),
            _ => Err(format!("group = {size:?} is more than 1 GiB")),
        }
    })?;
    let flops = rate("flops_per_second", compute.flops_per_second)?;
    let memory = rate("memory_bytes_per_second", compute.memory_bytes_per_second)?;
    let costs = CostProfile {
        flops_per_second: flops * share("efficiency", compute.efficiency)?,
        memory_bytes_per_second: memory * share("memory_efficiency", compute.memory_efficiency)?,
        compute_overhead_ns: ns("overhead_us", compute.overhead_us)?,
        slice_overhead_ns: ns("slice_overhead_us", compute.slice_overhead_us)?,
        storage_bytes_per_second: load,
        store_bytes_per_second: store,
        both_ways_bytes_per_second: both,
        request_latency_ns: ns("latency_us", link.latency_us)?,
        queue_depth: link.queue_depth,
        group_bytes,
        load_handling_ns: ns("handling_us", link.handling_us)?,
        load_handling_ns_per_byte: link.handling_ns_per_byte,
        wake_ns: ns("wake_us", link.wake_us)?,
        ..CostProfile::default()
    };
    Ok(Device { name, costs })
}

/// A measured machine as such a file. Times of single layers are not in it.
pub fn describe(profile: &Profile) -> String {
    let (machine, c, s) = (&profile.machine, &profile.compute, &profile.storage);
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "# Measured by neap profile, {threads} threads, {isa}.\n\
         name = {name}\n\n\
         [compute]\n\
         flops_per_second = {flops:e}          # in layers that calculate\n\
         memory_bytes_per_second = {memory:e}  # in layers that move data\n\
         overhead_us = {overhead:?}\n\
         slice_overhead_us = {slice:?}\n\n\
         [link]\n\
         load_bytes_per_second = {load:e}      # loads of running plans; sustained {sustained:e}, at best {burst:e}\n\
         latency_us = {latency:?}\n\
         queue_depth = {depth}\n\
         {group}\
         handling_us = {handling:?}\n\
         handling_ns_per_byte = {per_byte:?}\n\
         wake_us = {wake:?}\n",
        threads = machine.threads,
        isa = machine.isa,
        name = toml_string(&machine.cpu),
        flops = c.flops_per_second,
        memory = c.memory_bytes_per_second,
        overhead = c.compute_overhead_ns as f64 / 1e3,
        slice = c.slice_overhead_ns as f64 / 1e3,
        load = s.load_bytes_per_second,
        sustained = s.sustained_bytes_per_second,
        burst = s.burst_bytes_per_second,
        latency = s.load_latency_ns as f64 / 1e3,
        depth = CostProfile::default().queue_depth,
        group = match s.group_bytes {
            0 => String::new(),
            bytes =>
                format!("group = \"{bytes}\"           # bytes: reads are reported together\n"),
        },
        handling = c.load_handling_ns as f64 / 1e3,
        per_byte = c.load_handling_ns_per_byte,
        wake = CostProfile::default().wake_ns as f64 / 1e3,
    );
    text
}

/// A basic string: quotes, backslashes and control characters escaped.
fn toml_string(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_is_sound_and_says_where_figures_are_from() {
        for (name, text) in SHIPPED {
            let device = Device::find(name).unwrap();
            assert!(device.costs.storage_bytes_per_second < device.costs.memory_bytes_per_second);
            for line in text.lines() {
                let is_figure = line.contains(" = ") && !line.starts_with("name");
                let is_told = line.contains('#') || line.starts_with("queue_depth");
                assert!(!is_figure || is_told, "{name}: no source: {line}");
            }
        }
        let rates = |name: &str| Device::find(name).unwrap().costs.storage_bytes_per_second;
        assert_eq!(rates("v100-pcie"), 12e9);
        assert_eq!((rates("raspberry-pi-4"), rates("phone")), (257e6, 718e6));
    }

    #[test]
    fn groups_are_sizes() {
        let of = |line: &str| {
            let text = SHIPPED[0].1.replacen("queue_depth = 8", line, 1);
            parse(&text).unwrap().costs.group_bytes
        };
        assert_eq!(of("queue_depth = 8"), 0);
        assert_eq!(of("group = \"4MiB\""), 4 << 20);
        assert_eq!(of("group = \"4096\""), 4096);
    }

    #[test]
    fn mistakes_are_one_line() {
        let good = SHIPPED[0].1;
        for (from, to, why) in [
            ("15.7e12", "-1.0", "flops_per_second"),
            ("efficiency = 0.6", "efficiency = 1.6", "between 0 and 1"),
            ("queue_depth = 8", "queue_depth = 0", "queue_depth"),
            ("20e9", "25e9", "alone"),
            ("latency_us = 10.0", "latency_us = -1.0", "latency_us"),
            ("latency_us = 10.0", "latency_us = nan", "latency_us"),
            ("latency_us = 10.0", "latency = 10.0", "line 1"),
            ("queue_depth = 8", "group = \"4XB\"", "group"),
            ("queue_depth = 8", "group = \"2GiB\"", "1 GiB"),
            ("queue_depth = 8", "group = 4", "line"),
            ("[link]", "[lnk]", "line"),
        ] {
            let error = parse(&good.replacen(from, to, 1)).unwrap_err();
            assert!(
                error.contains(why) && !error.contains('\n'),
                "{to}: {error}"
            );
        }
        for missing in ["nowhere.toml", "."] {
            assert!(Device::find(missing).is_err());
        }
    }
}
