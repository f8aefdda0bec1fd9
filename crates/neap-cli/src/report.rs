//! The report of a run: what `--json` writes and what a person reads.

use crate::commands::run::Judged;
use crate::failure::Outcome;
use crate::names;
use crate::output::Written;
use neaptide::memory::PeakSource;
use neaptide::{Accelerator, Adaptation, BandCount, Bytes, Ledger, Plan, Session, shape_text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::Write;

/// Everything measured and planned. Memory is that of the whole process.
#[derive(Debug, Serialize)]
pub struct Report {
    pub model: String,
    pub graph_digest: String,
    /// Inputs that got random values.
    pub random_inputs: Vec<String>,
    /// What opening the model had to say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    pub threads: usize,
    pub strategy: String,
    /// `None` without a budget.
    pub memory_budget_bytes: Option<u64>,
    pub peak_memory_bytes: u64,
    pub peak_memory_source: PeakSource,
    pub planned_high_water_bytes: u64,
    pub lower_bound_bytes: u64,
    pub arena_bytes: u64,
    pub base_overhead_bytes: u64,
    /// Where the planned peak goes, part by part.
    pub ledger: Ledger,
    pub resident_weight_bytes: u64,
    /// Whether the packed model lies in memory that the budget does not count.
    pub packed_in_memory: bool,
    /// Panels that are also kept in the form that kernels take; told to people only.
    #[serde(skip)]
    pub prepared_weight_bytes: u64,
    pub loaded_bytes_per_run: u64,
    /// Activations written to the spill file.
    pub stored_bytes_per_run: u64,
    /// How many layers each kernel computes.
    pub kernels: BTreeMap<&'static str, usize>,
    /// Chains of layers that run in row bands.
    pub bands: BandCount,
    /// What computes beside the processor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<OnDevice>,
    /// Median per run.
    pub stall_ms: f64,
    pub predicted_latency_ms: f64,
    pub latency_ms: Latency,
    /// Of all processors together, on the average of the measured runs.
    pub processor_ms_per_run: f64,
    /// Of the machine's processors, other programs included; `None` where they do not count it, or not for this user.
    pub energy_mj_per_run: Option<f64>,
    /// Where nobody named a budget, the smallest that the model has; told to people only.
    #[serde(skip)]
    pub smallest_bytes: Option<u64>,
    pub outputs: Vec<Written>,
    /// What the model sees in each of several photos.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub photos: Option<Judged>,
    /// With `--keep-activations`, what the last run left of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub activations: Option<Vec<Kept>>,
    /// Changes of the budget, in order; absent where it could not change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adaptations: Option<Vec<Adapted>>,
}

/// Where steps are computed.
#[derive(Debug, Clone, Serialize)]
pub struct OnDevice {
    pub name: String,
    /// How many steps it computes.
    pub steps: usize,
    /// Those that the processor computes, by operator.
    pub steps_on_processor: BTreeMap<&'static str, usize>,
    /// Of these, steps that it could compute, and that are predicted to be faster on the processor.
    #[serde(skip_serializing_if = "is_none")]
    pub steps_left_to_processor: usize,
    /// Of the device itself, where plans are in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<OwnMemory>,
    /// Moved to the device's memory from what the host's keeps, on the average of all runs.
    #[serde(skip_serializing_if = "is_zero")]
    pub copied_bytes_per_run: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_none(steps: &usize) -> bool {
    *steps == 0
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// A device's own memory.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct OwnMemory {
    /// `None` without a limit.
    pub budget_bytes: Option<u64>,
    /// What this process took there at the most: the driver, as measured, and the plan's memory.
    pub peak_bytes: u64,
    pub planned_bytes: u64,
}

impl OwnMemory {
    /// After the runs; `None` where plans are in the host's memory.
    pub fn of(
        device: &dyn Accelerator,
        budget_bytes: Option<u64>,
        ledger: &Ledger,
    ) -> Option<OwnMemory> {
        let figures = device.own_memory()?;
        Some(OwnMemory {
            budget_bytes,
            peak_bytes: figures.reserve_bytes + figures.peak_bytes,
            planned_bytes: ledger.device.map_or(0, |device| device.total_bytes()),
        })
    }
}

impl OnDevice {
    pub fn of(device: &dyn Accelerator, plan: &Plan) -> OnDevice {
        let program = &plan.program;
        let could_be = device.computes(program);
        let is_here = plan.on_device.as_ref().unwrap_or(&could_be);
        let mut steps_on_processor = BTreeMap::new();
        for (step, _) in program
            .steps
            .iter()
            .zip(is_here)
            .filter(|(_, here)| !**here)
        {
            let name = program.graph.nodes[step.index()].op.name();
            *steps_on_processor.entry(name).or_default() += 1;
        }
        OnDevice {
            name: device.name(),
            steps: is_here.iter().filter(|here| **here).count(),
            steps_on_processor,
            steps_left_to_processor: (could_be.iter().zip(is_here))
                .filter(|(could_be, here)| **could_be && !**here)
                .count(),
            memory: None,
            copied_bytes_per_run: 0,
        }
    }

    pub fn text(&self) -> String {
        let others: Vec<String> = (self.steps_on_processor.iter())
            .map(|(name, count)| format!("{name} {count}"))
            .collect();
        match others.is_empty() {
            true => format!("{}, all {} steps", self.name, self.steps),
            false => {
                let left = match self.steps_left_to_processor {
                    0 => String::new(),
                    count => format!(", {count} of them as they are faster there"),
                };
                format!(
                    "{}, {} steps; on the processor {}{left}",
                    self.name,
                    self.steps,
                    others.join(", ")
                )
            }
        }
    }
}

impl OwnMemory {
    fn text(&self, copied_bytes_per_run: u64) -> String {
        let budget = match self.budget_bytes {
            None => "no budget".into(),
            Some(bytes) => format!("budget {}", Bytes(bytes)),
        };
        format!(
            "its memory: {budget}, peak {}, planned {}; {} a run from the host's on average, the first run counted",
            Bytes(self.peak_bytes),
            Bytes(self.planned_bytes),
            Bytes(copied_bytes_per_run)
        )
    }
}

/// An activation that was kept after the run, as the program has it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kept {
    pub name: String,
    pub bytes: u64,
    /// BLAKE3.
    pub digest: String,
}

impl Kept {
    pub fn all(session: &mut Session) -> Outcome<Vec<Kept>> {
        let mut all: Vec<Kept> = session
            .kept()
            .map(|(name, bytes)| Kept {
                name: name.to_owned(),
                bytes,
                digest: String::new(),
            })
            .collect();
        for (index, kept) in all.iter_mut().enumerate() {
            kept.digest = session.kept_digest(index)?;
        }
        Ok(all)
    }
}

/// One change of the budget, and the runs until the next.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Adapted {
    pub at_s: f64,
    pub budget_before_bytes: Option<u64>,
    pub budget_bytes: Option<u64>,
    pub total_ms: f64,
    pub planning_ms: f64,
    pub rearranging_ms: f64,
    /// Resident weights that stayed, were given up, are read beside the next run.
    pub kept_bytes: u64,
    pub released_bytes: u64,
    pub read_bytes: u64,
    pub planned_high_water_bytes: u64,
    pub predicted_latency_ms: f64,
    /// While the change was made; `None` where the kernel cannot count anew.
    pub peak_while_adapting_bytes: Option<u64>,
    /// From the change on to the next, or the end.
    pub peak_memory_bytes: Option<u64>,
    pub runs: u64,
    pub latency_ms_total: f64,
}

impl Adapted {
    pub fn new(at_s: f64, done: &Adaptation, peak_bytes: Option<u64>) -> Adapted {
        Adapted {
            at_s,
            budget_before_bytes: done.budget_before_bytes,
            budget_bytes: done.budget_bytes,
            total_ms: ms(done.total_ns),
            planning_ms: ms(done.planning_ns),
            rearranging_ms: ms(done.rearranging_ns()),
            kept_bytes: done.kept_bytes,
            released_bytes: done.released_bytes,
            read_bytes: done.read_bytes,
            planned_high_water_bytes: done.high_water_bytes,
            predicted_latency_ms: ms(done.predicted_latency_ns),
            peak_while_adapting_bytes: peak_bytes,
            peak_memory_bytes: None,
            runs: 0,
            latency_ms_total: 0.0,
        }
    }
}

/// Of the measured runs; `first` is the very first one, warm-up included.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Latency {
    pub first: f64,
    pub median: f64,
    pub p95: f64,
    pub min: f64,
    pub max: f64,
    pub runs: usize,
}

impl Latency {
    /// `measured_ns` is not empty; it is sorted on the way.
    pub fn of(first_ns: u64, measured_ns: &mut [u64]) -> Latency {
        let median = median_ms(measured_ns);
        let rank = (measured_ns.len() * 95).div_ceil(100).max(1) - 1;
        Latency {
            first: ms(first_ns),
            median,
            p95: ms(measured_ns[rank]),
            min: ms(measured_ns[0]),
            max: ms(measured_ns[measured_ns.len() - 1]),
            runs: measured_ns.len(),
        }
    }
}

/// Milliseconds, to the microsecond.
pub fn ms(ns: u64) -> f64 {
    (ns as f64 / 1e3).round() / 1e3
}

/// As [`ms`], of a time that something is never longer than: rounded up.
pub fn bound_ms(ns: u64) -> f64 {
    ns.div_ceil(1000) as f64 / 1e3
}

/// Sorts; 0 of nothing.
pub fn median_ms(values_ns: &mut [u64]) -> f64 {
    values_ns.sort_unstable();
    let n = values_ns.len();
    match n {
        0 => 0.0,
        _ => ms(values_ns[(n - 1) / 2].midpoint(values_ns[n / 2])),
    }
}

pub fn source_name(source: PeakSource) -> &'static str {
    match source {
        PeakSource::CgroupV1 => "memory cgroup v1",
        PeakSource::CgroupV2 => "memory cgroup v2",
        PeakSource::VmHwm => "VmHWM",
    }
}

/// `14 layers in 3 chains`.
/// `33 direct, 16 winograd_f4`
pub fn kernels_text(kernels: &BTreeMap<&'static str, usize>) -> String {
    let parts = kernels
        .iter()
        .map(|(name, count)| format!("{count} {name}"));
    parts.collect::<Vec<_>>().join(", ")
}

pub fn bands_text(bands: BandCount) -> String {
    let chains = if bands.chains == 1 { "chain" } else { "chains" };
    format!("{} layers in {} {chains}", bands.layers, bands.chains)
}

/// What an output holds.
fn numbers_text(output: &Written) -> String {
    let mut text = match output.range {
        Some([least, most]) if least == most => format!("{least}"),
        Some([least, most]) => format!("{least:.4} to {most:.4}"),
        None => "no finite number".into(),
    };
    if output.not_finite > 0 {
        // Writing to a string cannot fail.
        let _ = write!(text, ", {} not finite", output.not_finite);
    }
    if !output.top.is_empty() {
        let top: Vec<String> = output.top.iter().map(ToString::to_string).collect();
        let _ = write!(text, "; largest {}", top.join(", "));
    }
    text
}

/// A line for each photo, and how many are right.
fn photos_text(judged: &Judged, line: &mut dyn FnMut(&str, String)) {
    for photo in &judged.photos {
        let first = photo.top.first().map(ToString::to_string);
        let first = first.unwrap_or_else(|| "no number".into());
        line("photo", format!("{}: {first}", names::shown(&photo.file)));
    }
    if let Some(accuracy) = judged.accuracy {
        let share = 100.0 * accuracy.right as f64 / accuracy.of.max(1) as f64;
        let (right, of) = (accuracy.right, accuracy.of);
        line(
            "accuracy",
            format!("{share:.2} %: {right} of {of} are what their folder says"),
        );
    }
}

impl Report {
    /// A few aligned lines.
    pub fn summary(&self, enforced: bool) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{label:<11} {value}");
        };
        line(
            "model",
            format!(
                "{}, {} thread{}, {}",
                self.model,
                self.threads,
                if self.threads == 1 { "" } else { "s" },
                self.strategy
            ),
        );
        let budget = match self.memory_budget_bytes {
            None => "none".into(),
            Some(bytes) if enforced => format!("{}, enforced by the kernel", Bytes(bytes)),
            Some(bytes) if self.smallest_bytes.is_some() => {
                format!("{}, which can be spared here", Bytes(bytes))
            }
            Some(bytes) => Bytes(bytes).to_string(),
        };
        line("budget", budget);
        line(
            "peak memory",
            format!(
                "{} ({}), planned {}",
                Bytes(self.peak_memory_bytes),
                source_name(self.peak_memory_source),
                Bytes(self.planned_high_water_bytes)
            ),
        );
        line("", self.ledger.to_string());
        line(
            "weights",
            format!(
                "{} resident, {} loaded per run",
                Bytes(self.resident_weight_bytes),
                Bytes(self.loaded_bytes_per_run)
            ),
        );
        if self.prepared_weight_bytes > 0 {
            let prepared = Bytes(self.prepared_weight_bytes);
            line("prepared", format!("{prepared} of weights"));
        }
        if self.stored_bytes_per_run > 0 {
            let stored = Bytes(self.stored_bytes_per_run);
            line("activations", format!("{stored} stored per run"));
        }
        if let Some(kept) = &self.activations {
            let bytes = kept.iter().map(|k| k.bytes).sum();
            line(
                "kept",
                format!("{} activations, {}", kept.len(), Bytes(bytes)),
            );
        }
        if self.kernels.len() > 1 {
            line("kernels", kernels_text(&self.kernels));
        }
        if let Some(device) = &self.device {
            line("device", device.text());
            if let Some(memory) = &device.memory {
                line("", memory.text(device.copied_bytes_per_run));
            }
        }
        if self.bands.chains > 0 {
            line("row bands", bands_text(self.bands));
        }
        if self.bands.strips > 0 {
            line("strips", format!("{} parts of layers", self.bands.strips));
        }
        let l = &self.latency_ms;
        let spread = match l.runs {
            1 => "1 run".into(),
            n => format!(
                "median of {n} runs, {:.2} to {:.2}, first {:.2}",
                l.min, l.max, l.first
            ),
        };
        line(
            "latency",
            format!(
                "{:.2} ms ({spread}), {:.2} ms of it waiting for weights; predicted {:.2} ms",
                l.median, self.stall_ms, self.predicted_latency_ms
            ),
        );
        line("processor", self.processor_text());
        if let Some(adaptations) = &self.adaptations {
            let most = |of: fn(&Adapted) -> f64| adaptations.iter().map(of).fold(0.0, f64::max);
            line(
                "adapted",
                format!(
                    "{} times, in at most {:.2} ms ({:.2} ms of planning)",
                    adaptations.len(),
                    most(|a| a.total_ms),
                    most(|a| a.planning_ms)
                ),
            );
        }
        for output in &self.outputs {
            let file = output.file.as_ref();
            line(
                "output",
                format!(
                    "{} {} {}{}",
                    names::shown(&output.name),
                    output.dtype,
                    shape_text(&output.shape),
                    file.map_or_else(String::new, |f| format!(" in {f}"))
                ),
            );
            line("", numbers_text(output));
        }
        if let Some(judged) = &self.photos {
            photos_text(judged, &mut line);
        }
        if let Some(smallest) = self.smallest_bytes {
            let option = format!("--memory-budget {}MiB", smallest.div_ceil(1 << 20));
            let smallest = Bytes(smallest);
            line(
                "smallest",
                format!("{smallest} are enough: {option}; --slower 10% chooses one"),
            );
        }
        text
    }

    fn processor_text(&self) -> String {
        let time = format!(
            "{:.2} ms a run, all threads together",
            self.processor_ms_per_run
        );
        match self.energy_mj_per_run {
            Some(energy) => format!("{time}; {energy:.1} mJ, other programs included"),
            None => time,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies() {
        let mut runs: Vec<u64> = (1..=20).rev().map(|i| i * 1_000_000).collect();
        let l = Latency::of(50_000_000, &mut runs);
        assert_eq!((l.first, l.median, l.p95), (50.0, 10.5, 19.0));
        assert_eq!((l.min, l.max, l.runs), (1.0, 20.0, 20));
        let l = Latency::of(7, &mut [1_234_567]);
        assert_eq!((l.median, l.p95), (1.235, 1.235));
    }
}
