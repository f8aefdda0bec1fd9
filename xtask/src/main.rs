//! Project automation: `cargo xtask tidy|test|conformance|bench|pages|wheels`.

mod accuracy;
mod arm;
mod background;
mod bench;
mod beside;
mod bindings;
mod c_library;
mod chart;
mod check;
mod checked;
mod circles;
mod conformance;
mod engine;
mod features;
mod flexnn;
mod formats;
mod fuzz;
mod fuzz_lock;
mod gpu;
mod group;
mod instruction_sets;
mod kept;
mod layering;
mod models;
mod nightly;
mod pages;
mod peer;
mod planning;
mod prediction;
mod published;
mod python;
mod real_data;
mod rtswap;
mod runtime;
mod scaling;
mod serve;
mod serving;
mod setting;
mod sharing;
mod skips;
mod storage;
mod strategies;
mod survive;
mod swapadvisor;
mod swapnet;
mod test;
mod tidy;
mod torch;
mod train_worker;
mod vulkan;
mod vulkan_device;
mod vulkan_steps;
mod watch;
mod wheels;
mod worker;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Project automation for Neaptide")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the house rules: floors, file headers, sizes, unsafe code.
    Tidy,
    /// Run all tests, or with `--target aarch64` those for 64-bit Arm under emulation.
    Test {
        #[arg(long)]
        target: Option<String>,
        /// Only this part of the tests.
        #[arg(long, conflicts_with = "target")]
        part: Option<String>,
    },
    /// Compare every model with onnxruntime, without a budget and at the smallest feasible one.
    Accuracy {
        /// Only models whose name begins so.
        only: Vec<String>,
    },
    /// Run the ONNX standard's node tests.
    Conformance(conformance::ConformanceArgs),
    /// Build the Python package for x86-64 and 64-bit Arm, and try both.
    Wheels,
    /// Measure every page of figures in docs/ anew, in one sitting.
    Pages(pages::PagesArgs),
    /// Measure side by side with onnxruntime.
    #[command(
        args_conflicts_with_subcommands = true,
        subcommand_precedence_over_arg = true
    )]
    Bench {
        #[command(subcommand)]
        suite: Option<Suite>,
        /// Only these zoo models.
        only: Vec<String>,
        #[arg(long, default_value_t = 8)]
        rounds: usize,
        #[arg(long, default_value_t = 5)]
        runs_per_round: usize,
        /// Write docs/benchmarks.md.
        #[arg(long)]
        write: bool,
    },
    /// Run zoo models over and over at their smallest feasible budgets, enforced by the kernel.
    Survive {
        /// Only these models.
        only: Vec<String>,
        #[arg(long, default_value_t = 200)]
        runs: usize,
    },
    #[command(hide = true)]
    PredictionWorker {
        name: String,
        model: PathBuf,
        #[arg(long)]
        cache_dir: PathBuf,
        #[arg(long)]
        rounds: u32,
    },
    #[command(hide = true)]
    VulkanWorker(gpu::WorkerArgs),
    /// Run the tests with new seeds, and several models for long under changing budgets.
    Nightly(nightly::NightlyArgs),
    /// Look for inputs that break something, guided by coverage.
    Fuzz(fuzz::FuzzArgs),
    #[command(hide = true)]
    ConformanceWorker {
        folder: PathBuf,
        scratch: PathBuf,
        #[arg(long)]
        vulkan: bool,
    },
    #[command(hide = true)]
    BenchWorker(worker::WorkerArgs),
    #[command(hide = true)]
    RuntimeWorker(runtime::WorkerArgs),
    #[command(hide = true)]
    TrainWorker(train_worker::TrainWorkerArgs),
}

#[derive(Subcommand)]
enum Suite {
    /// Memory against latency, beside three engines, on fast and slow storage; ablations.
    Flexnn(flexnn::FlexnnArgs),
    /// Every strategy on several models and budgets, predicted and measured.
    Strategies(strategies::StrategiesArgs),
    /// Time that planning takes, and predicted latencies to compare planners by.
    Planning(planning::PlanningArgs),
    /// Time that going over to other shapes takes, and what the packed file for all of them takes.
    Bindings(bindings::BindingsArgs),
    /// Several models on one machine, one request at a time: memory divided, or the machine time-shared.
    Sharing(sharing::SharingArgs),
    /// Many models in one process and one hard limit, beside a process for each.
    Engine(engine::EngineArgs),
    /// The server: batches under a quarter of a model's memory, and mixed requests at saturation with every answer checked.
    Serve(serve::ServeArgs),
    /// SwapAdvisor's search on the paper's networks and device, in simulation.
    Swapadvisor(swapadvisor::SwapadvisorArgs),
    /// RT-Swap's study of schedulability, ours beside it, and a hunt for missed deadlines; nothing is measured.
    Rtswap(rtswap::RtswapArgs),
    /// RT-Swap's runtime experiment: six tasks by the clock within a hard limit, ours, the kernel's paging, whole models.
    Runtime(runtime::RuntimeArgs),
    /// SwapNet's three applications: several models in one total of memory.
    Swapnet(swapnet::SwapnetArgs),
    /// One thread against two, with no budget.
    Scaling(scaling::ScalingArgs),
    /// Memory against delay, beside layers that are read one after the other.
    Layering(layering::LayeringArgs),
    /// Networks on Vulkan beside ncnn's, and predicted against measured latency there.
    Vulkan(gpu::GpuArgs),
    /// Which steps --device vulkan leaves to the processor.
    VulkanSteps(vulkan_steps::VulkanStepsArgs),
    /// Models in few bits beside onnxruntime: memory, and time with one and two threads.
    Formats(formats::FormatsArgs),
    /// Training beside PyTorch: memory and time of steps, with no limit and within shares of PyTorch's memory.
    Torch(torch::TorchArgs),
    /// Predicted against measured latency.
    Prediction {
        /// Only these models.
        only: Vec<String>,
        /// Turns of each session.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
        rounds: u32,
        /// Write docs/prediction.md and its plot.
        #[arg(long)]
        write: bool,
    },
}

fn main() -> Result<()> {
    match Args::parse().command {
        Command::Tidy => tidy::run(&root()),
        Command::Wheels => wheels::run(&root()),
        Command::Pages(args) => pages::run(&root(), &args),
        Command::Test { target, part } => test::run(&root(), target.as_deref(), part.as_deref()),
        Command::Nightly(args) => nightly::run(&root(), &args),
        Command::Fuzz(args) => fuzz::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Flexnn(args)),
            ..
        } => flexnn::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Bindings(args)),
            ..
        } => bindings::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Planning(args)),
            ..
        } => planning::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Strategies(args)),
            ..
        } => strategies::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Sharing(args)),
            ..
        } => sharing::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Engine(args)),
            ..
        } => engine::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Serve(args)),
            ..
        } => serve::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Scaling(args)),
            ..
        } => scaling::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Layering(args)),
            ..
        } => layering::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Formats(args)),
            ..
        } => formats::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Vulkan(args)),
            ..
        } => gpu::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Torch(args)),
            ..
        } => torch::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::VulkanSteps(args)),
            ..
        } => vulkan_steps::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Swapadvisor(args)),
            ..
        } => swapadvisor::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Rtswap(args)),
            ..
        } => rtswap::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Runtime(args)),
            ..
        } => runtime::run(&root(), &args),
        Command::Bench {
            suite: Some(Suite::Swapnet(args)),
            ..
        } => swapnet::run(&root(), &args),
        Command::Bench {
            suite:
                Some(Suite::Prediction {
                    only,
                    rounds,
                    write,
                }),
            ..
        } => prediction::run(
            &root(),
            &prediction::Options {
                only,
                rounds,
                write,
            },
        ),
        Command::PredictionWorker {
            name,
            model,
            cache_dir,
            rounds,
        } => prediction::worker(&name, &model, &cache_dir, rounds),
        Command::Bench {
            suite: None,
            only,
            rounds,
            runs_per_round,
            write,
        } => bench::run(
            &root(),
            &bench::Options {
                only,
                rounds,
                runs_per_round,
                write,
            },
        ),
        Command::Survive { only, runs } => survive::run(&root(), &survive::Options { only, runs }),
        Command::VulkanWorker(args) => gpu::work(&args),
        Command::BenchWorker(args) => worker::run(&args),
        Command::RuntimeWorker(args) => runtime::work(&args),
        Command::TrainWorker(args) => train_worker::run(&args),
        Command::Conformance(args) => conformance::run(&root(), &args),
        Command::ConformanceWorker {
            folder,
            scratch,
            vulkan,
        } => conformance::serve(&folder, &scratch, vulkan),
        Command::Accuracy { only } => accuracy::run(&root(), &only),
    }
}

/// The repository's root folder.
fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the root")
        .to_path_buf()
}
