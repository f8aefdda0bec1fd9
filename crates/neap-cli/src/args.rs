//! Options that several commands share.

use crate::budgets::schedule::parse_time;
use crate::failure::{Outcome, bad};
use crate::input;
use crate::strategies::{self, StrategyArg};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};
use neaptide::{
    BandMode, Budget, Cache, Calibration, IoMode, Isa, OpenOptions, PlanOptions, RunOptions,
    SearchEffort, StepOrder,
};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// Which model, at which shapes.
#[derive(Args)]
pub struct ModelArgs {
    /// An .onnx model, packed on first use, or a packed .neap
    pub model: PathBuf,
    #[command(flatten)]
    pub open: OpenArgs,
}

#[derive(Args, Clone)]
#[command(next_help_heading = "Opening the model")]
pub struct OpenArgs {
    /// Shape of an input with open dimensions, such as x=1x3x224x224. Of those that nothing says, one that stands first is 1;
    /// `neap run` takes them from --input
    #[arg(long = "shape", value_name = "NAME=SHAPE", value_parser = parse_shape)]
    pub shapes: Vec<(String, Vec<usize>)>,
    /// Value of an input that decides shapes; it is no input of the opened model. `neap run` takes such values
    /// from --input by itself
    #[arg(long = "bind", value_name = "NAME=FILE.npy", value_parser = OsStringValueParser::new().try_map(parse_bind))]
    pub bindings: Vec<(String, PathBuf)>,
    /// The most that a size can be that is known only when running, and that nothing in the model bounds: NAME is the
    /// output of the node that makes it, as the refusal says
    #[arg(long = "bound", value_name = "NAME=N", value_parser = parse_size_bound)]
    pub size_bounds: Vec<(String, usize)>,
    /// Pack steps in the order of the model file, though another needs less memory
    #[arg(long)]
    pub given_order: bool,
    /// Keep packed models here instead of beside the model or in the user's cache folder
    #[arg(long, value_name = "DIR")]
    pub cache_dir: Option<PathBuf>,
}

/// How to run.
#[derive(Args, Clone)]
#[command(next_help_heading = "Planning and computing")]
pub struct EngineArgs {
    /// Threads that compute [default: all processors]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u16>(1..=256))]
    pub threads: Option<u16>,
    /// How weights come into memory
    #[arg(long, value_name = "STRATEGY", default_value = "preload", value_parser = strategies::names())]
    pub strategy: StrategyArg,
    /// For how long to search with --strategy search or auto
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_search_time)]
    pub search_time: f64,
    /// Seed of the search
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    pub search_seed: u64,
    /// Do not load for the next run while one runs (to compare)
    #[arg(long, hide_short_help = true)]
    pub no_cyclic: bool,
    /// Activations where an allocator would put them, weights in memory of their own (to compare)
    #[arg(long, hide_short_help = true)]
    pub no_static_memory: bool,
    /// How weights are read from storage
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub io: IoArg,
    /// Whether layers with large activations run in row bands, and where that is too much in strips
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub bands: BandsArg,
    /// Vector instructions to compute with, instead of the best of this processor
    #[arg(long, hide = true, value_name = "NAME", value_parser = parse_isa)]
    pub isa: Option<Isa>,
    /// What plans count with
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub calibrate: CalibrateArg,
    /// The same kernels under every budget, so that outputs are the same bits too
    #[arg(long)]
    pub exact: bool,
    /// Never store activations to a file, though the budget be too small without
    #[arg(long, conflicts_with = "spill_dir")]
    pub no_spill: bool,
    /// Where activations are stored that do not fit, if need be [default: beside the packed model]
    #[arg(long, value_name = "DIR")]
    pub spill_dir: Option<PathBuf>,
    /// Keep all activations to the end of the run, as a backward pass would need them; the report has a
    /// digest of each
    #[arg(long)]
    pub keep_activations: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CalibrateArg {
    /// What was measured on this machine before, or an estimate that takes milliseconds
    Auto,
    /// Built-in estimates
    Off,
    /// Measure this model first, which takes some seconds, and keep what is found
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BandsArg {
    /// Where that is faster within the budget, or nothing else fits into it
    Auto,
    Off,
    /// Row bands wherever they lower the memory needed, and no strips
    On,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IoArg {
    /// io_uring where it works, else pread
    Auto,
    Uring,
    Pread,
}

impl OpenArgs {
    pub fn options(&self) -> Outcome<OpenOptions> {
        let mut shapes = BTreeMap::new();
        for (name, shape) in &self.shapes {
            if shapes.insert(name.clone(), shape.clone()).is_some() {
                return Err(bad(format!("--shape is given twice for input '{name}'")));
            }
        }
        let mut size_bounds = BTreeMap::new();
        for (name, bound) in &self.size_bounds {
            if size_bounds.insert(name.clone(), *bound).is_some() {
                return Err(bad(format!("--bound is given twice for '{name}'")));
            }
        }
        Ok(OpenOptions {
            shapes,
            bindings: input::bindings(&self.bindings)?,
            size_bounds,
            step_order: match self.given_order {
                true => StepOrder::Given,
                false => StepOrder::LeastMemory,
            },
            cache: self.cache_dir.clone().map_or(Cache::Auto, Cache::Folder),
            ..OpenOptions::of_own_process()
        })
    }
}

impl EngineArgs {
    pub fn threads(&self) -> usize {
        self.threads.map_or_else(
            || std::thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        )
    }

    pub fn options(&self, budget: Budget) -> RunOptions {
        RunOptions {
            budget,
            threads: self.threads(),
            isa: self.isa.unwrap_or_else(Isa::detect),
            strategy: self.strategy.choice(),
            search: SearchEffort {
                seconds: self.search_time,
                seed: self.search_seed,
                threads: self.threads(),
                ..SearchEffort::default()
            },
            planner: PlanOptions {
                cyclic: !self.no_cyclic,
                static_memory: !self.no_static_memory,
                spill: !self.no_spill,
                ..PlanOptions::default()
            },
            io: self.io.mode(),
            bands: match self.bands {
                BandsArg::Auto => BandMode::Auto,
                BandsArg::Off => BandMode::Off,
                BandsArg::On => BandMode::On,
            },
            calibration: match self.calibrate {
                CalibrateArg::Auto => Calibration::Auto,
                CalibrateArg::Off => Calibration::Off,
                CalibrateArg::Full => Calibration::Full,
            },
            exact: self.exact,
            spill_dir: self.spill_dir.clone(),
            keep_activations: self.keep_activations,
            ..RunOptions::default()
        }
    }
}

impl IoArg {
    pub fn mode(self) -> IoMode {
        match self {
            IoArg::Auto => IoMode::Auto,
            IoArg::Uring => IoMode::Uring,
            IoArg::Pread => IoMode::Pread,
        }
    }
}

/// `portable`, `avx2`, `avx512`, `amx` or `neon`, where this processor has it.
fn parse_isa(text: &str) -> Result<Isa, String> {
    Isa::by_name(text).ok_or_else(|| {
        let names: Vec<_> = Isa::available().map(Isa::name).collect();
        format!("this processor has {}", names.join(", "))
    })
}

/// Up to a day.
fn parse_search_time(text: &str) -> Result<f64, String> {
    let seconds = parse_time(text)?.as_secs_f64();
    match seconds <= 86_400.0 {
        true => Ok(seconds),
        false => Err("write from 0s to 24h".into()),
    }
}

/// `x=1x3x224x224`; `,` is as good as `x` between numbers, and `x=scalar` has no dimensions.
pub fn parse_shape(text: &str) -> Result<(String, Vec<usize>), String> {
    let (name, dims) = text
        .rsplit_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("write NAME=1x3x224x224")?;
    if dims == "scalar" {
        return Ok((name.into(), Vec::new()));
    }
    let shape = dims
        .split(['x', ','])
        .map(|d| {
            d.trim()
                .parse::<usize>()
                .map_err(|_| format!("'{d}' is no dimension: write NAME=1x3x224x224"))
        })
        .collect::<Result<_, _>>()?;
    Ok((name.into(), shape))
}

/// `shape=shape.npy`.
fn parse_size_bound(text: &str) -> Result<(String, usize), String> {
    let (name, most) = text
        .rsplit_once('=')
        .filter(|(name, _)| !name.is_empty())
        .ok_or("write NAME=N")?;
    let most = most.parse().map_err(|_| format!("'{most}' is no size"))?;
    Ok((name.into(), most))
}

fn parse_bind(given: OsString) -> Result<(String, PathBuf), String> {
    let (name, path) = input::name_and_file(&given)
        .filter(|(name, path)| !name.is_empty() && !path.as_os_str().is_empty())
        .ok_or("write NAME=FILE.npy")?;
    Ok((name.into(), path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_as_people_write_them() {
        let dims = |text: &str| parse_shape(text).map(|(_, d)| d);
        assert_eq!(dims("x=1x3x224x224"), Ok(vec![1, 3, 224, 224]));
        assert_eq!(dims("x=1,3"), Ok(vec![1, 3]));
        assert_eq!(dims("x=scalar"), Ok(vec![]));
        assert_eq!(parse_shape("a=b=2").unwrap().0, "a=b");
        for bad in ["x", "=1", "x=", "x=1x", "x=-1", "x=ax3"] {
            assert!(parse_shape(bad).is_err(), "{bad}");
        }
    }
}
