//! What computing and loading cost on this machine: measured once and kept, or estimated.
//!
//! ```text
//!   off    constants
//!   auto   the cached profile of this machine, else an estimate that takes milliseconds
//!   full   storage is measured, the model runs under a few budgets, and what is learnt is cached
//! ```
//! A profile holds rates of the machine and times of steps by what determines them, so that layers of
//! one model are known when another has them too. Steps that were never measured are estimated by the
//! measured rates.

mod file;
mod fit;
mod known;
mod machine;
mod observe;
mod profile;
mod quick;
mod storage;
mod study;
#[cfg(test)]
mod tests;

pub(crate) use known::Known;
pub use known::{Calibration, CostSource};
pub use profile::{ComputeRates, Machine, Profile, StoragePoint, StorageRates};
pub use study::{CalibrationReport, MeasuredPoint};

use crate::budget::Budget;
use crate::error::Result;
use crate::model::Model;
use crate::options::RunOptions;
use neap_compile::{Kernels, Target, workload};
use neap_kernels::simd::Isa;
use neap_runtime::CancelToken;
use neap_store::IoMode;
use std::path::PathBuf;

/// What a profile says of a model.
fn of_profile(profile: Profile, model: &Model, source: CostSource, isa: Isa) -> Known {
    let mut costs = profile.costs();
    let threads = profile.machine.threads as usize;
    let workload = workload(model.program(), Target { threads, isa }, Kernels::Direct);
    let times = profile.times();
    times.apply(model.program(), &workload, &mut costs);
    Known {
        costs,
        times,
        source,
        remark: None,
    }
}

/// Puts the rates into `costs` that whole steps show: operations, bytes touched and nanoseconds of each.
pub(crate) fn rates_of(
    steps: impl Iterator<Item = (u64, u64, u64)>,
    costs: &mut neap_sim::CostProfile,
) {
    let steps: Vec<_> = steps
        .map(|(flops, touched_bytes, ns)| fit::WholeStep {
            flops,
            touched_bytes,
            ns,
        })
        .collect();
    let mut rates = ComputeRates {
        flops_per_second: costs.flops_per_second,
        memory_bytes_per_second: costs.memory_bytes_per_second,
        compute_overhead_ns: costs.compute_overhead_ns,
        slice_overhead_ns: costs.slice_overhead_ns,
        load_handling_ns: costs.load_handling_ns,
        load_handling_ns_per_byte: costs.load_handling_ns_per_byte,
    };
    fit::roofline(&steps, &mut rates);
    costs.flops_per_second = rates.flops_per_second;
    costs.memory_bytes_per_second = rates.memory_bytes_per_second;
    costs.compute_overhead_ns = rates.compute_overhead_ns;
}

/// Costs as `options` ask for them.
pub(crate) fn known(model: &Model, options: &RunOptions) -> Result<Known> {
    let mut known = known_of_storage(model, options)?;
    if matches!(options.io, IoMode::Pread | IoMode::Cached) {
        // Threads read, each for itself.
        known.costs.group_bytes = 0;
    }
    if let Some(rate) = options.throttle_bytes_per_second {
        let costs = &mut known.costs;
        costs.storage_bytes_per_second = costs.storage_bytes_per_second.min(rate as f64);
        // What is throttled arrives piece by piece.
        costs.group_bytes = 0;
    }
    by_link(&mut known, options);
    Ok(known)
}

/// What is loaded to a device's own memory goes over its link, too.
fn by_link(known: &mut Known, options: &RunOptions) {
    let rates = options.accelerator.as_ref().and_then(|a| a.rates());
    let Some(link) = rates.and_then(|rates| rates.link) else {
        return;
    };
    let costs = &mut known.costs;
    let (in_rate, out_rate) = (
        link.to_device_bytes_per_second,
        link.to_host_bytes_per_second,
    );
    costs.store_bytes_per_second = costs.store_rate().min(out_rate);
    costs.storage_bytes_per_second = costs.storage_bytes_per_second.min(in_rate);
    costs.request_latency_ns += link.latency_ns;
    costs.link_bytes_per_second = in_rate;
}

/// The same with storage as it is.
fn known_of_storage(model: &Model, options: &RunOptions) -> Result<Known> {
    if let Some(costs) = &options.costs {
        return Ok(Known {
            costs: costs.clone(),
            source: CostSource::Given,
            ..Known::default()
        });
    }
    match options.calibration {
        Calibration::Off => Ok(Known::default()),
        Calibration::Auto => Ok(cached_or_estimated(model, options)),
        Calibration::Full => {
            let report = study::study(model, &CancelToken::new(), options)?;
            let mut known = of_profile(report.profile, model, CostSource::Measured, options.isa);
            known.remark = report.remark;
            Ok(known)
        }
    }
}

fn cached_or_estimated(model: &Model, options: &RunOptions) -> Known {
    let (profile, remark) = cached(model, options);
    let known = match profile {
        Some(profile) => of_profile(profile, model, CostSource::Cached, options.isa),
        None => estimated(model, options),
    };
    Known { remark, ..known }
}

/// Reads a little of the packed file when the plan may have to, and there is memory for it.
fn estimated(model: &Model, options: &RunOptions) -> Known {
    let streams = match options.budget {
        Budget::Unlimited => false,
        Budget::Bytes(bytes) => {
            let now = model.host.charged_bytes();
            bytes.saturating_sub(now) >= neap_store::PROBE_MEMORY_BYTES
        }
        Budget::Engine(bytes) => bytes >= neap_store::PROBE_MEMORY_BYTES,
        Budget::Percent(_) => false,
    };
    let packed = model.packed_path().filter(|_| streams);
    let packed = packed.map(|path| (path, options.io));
    let mut costs = quick::estimate(options, packed);
    if let Some(device) = &options.accelerator {
        costs.step_ns = device.step_ns(model.program());
        costs.least_slice_ns = device.least_slice_ns(model.program());
    }
    Known {
        costs,
        source: CostSource::Estimated,
        ..Known::default()
    }
}

/// This machine's profile, and what is wrong with the file.
fn cached(model: &Model, options: &RunOptions) -> (Option<Profile>, Option<String>) {
    let Some(path) = cache_path(model) else {
        return (None, None);
    };
    let machine = machine::here(model.place(), options);
    let cached = file::read(&path);
    (file::find(cached.profiles, &machine), cached.remark)
}

/// Beside cached models where a folder for them was given, else in the user's cache folder.
fn cache_path(model: &Model) -> Option<PathBuf> {
    Some(model.cache.folder()?.join(file::FILE_NAME))
}

impl Model {
    /// Measures storage and this model, under `options.budget` and below, and keeps the profile for
    /// later plans. Takes seconds; within the budget, and with some random input.
    ///
    /// # Errors
    /// As planning and running the model. A profile that cannot be written is a remark of the report.
    pub fn calibrate(&self, options: &RunOptions) -> Result<CalibrationReport> {
        self.calibrate_unless(&CancelToken::new(), options)
    }

    /// [`Model::calibrate`], which ends within a run when `cancel` asks it to.
    ///
    /// # Errors
    /// As [`Model::calibrate`], and [`Error::Cancelled`](crate::Error::Cancelled).
    pub fn calibrate_unless(
        &self,
        cancel: &CancelToken,
        options: &RunOptions,
    ) -> Result<CalibrationReport> {
        study::study(self, cancel, &self.in_bytes(options))
    }
}
