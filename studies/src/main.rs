//! What is measured and studied, and the pages of figures that come of it: `cargo study`.
//!
//! A workspace of its own: the product does not depend on it, and builds without it.

#![forbid(unsafe_code)]

mod bench;
mod beside;
mod bindings;
mod chart;
mod engine;
mod flexnn;
mod formats;
mod gpu;
mod group;
mod kept;
mod lab;
mod layering;
mod pages;
mod peer;
mod planning;
mod prediction;
mod rtswap;
mod runtime;
mod scaling;
mod serve;
mod setting;
mod sharing;
mod storage;
mod strategies;
mod swapadvisor;
mod swapnet;
mod torch;
mod train_worker;
mod vulkan_device;
mod vulkan_steps;
mod watch;
mod worker;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use xtask::{accuracy, check, models, python, root};

#[derive(Parser)]
#[command(about = "Measurements and studies of Neaptide")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    /// Every network beside onnxruntime.
    Networks {
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
    /// Measure every page of figures in docs/ anew, in one sitting.
    Pages(pages::PagesArgs),
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
    #[command(hide = true)]
    BenchWorker(worker::WorkerArgs),
    #[command(hide = true)]
    RuntimeWorker(runtime::WorkerArgs),
    #[command(hide = true)]
    TrainWorker(train_worker::TrainWorkerArgs),
}

fn main() -> ExitCode {
    lab::run().unwrap_or_else(|| match study() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("Error: {error:?}");
            ExitCode::FAILURE
        }
    })
}

fn study() -> Result<()> {
    match Args::parse().command {
        Command::Flexnn(args) => flexnn::run(&root(), &args),
        Command::Bindings(args) => bindings::run(&root(), &args),
        Command::Planning(args) => planning::run(&root(), &args),
        Command::Strategies(args) => strategies::run(&root(), &args),
        Command::Sharing(args) => sharing::run(&root(), &args),
        Command::Engine(args) => engine::run(&root(), &args),
        Command::Serve(args) => serve::run(&root(), &args),
        Command::Scaling(args) => scaling::run(&root(), &args),
        Command::Layering(args) => layering::run(&root(), &args),
        Command::Formats(args) => formats::run(&root(), &args),
        Command::Vulkan(args) => gpu::run(&root(), &args),
        Command::Torch(args) => torch::run(&root(), &args),
        Command::VulkanSteps(args) => vulkan_steps::run(&root(), &args),
        Command::Swapadvisor(args) => swapadvisor::run(&root(), &args),
        Command::Rtswap(args) => rtswap::run(&root(), &args),
        Command::Runtime(args) => runtime::run(&root(), &args),
        Command::Swapnet(args) => swapnet::run(&root(), &args),
        Command::Pages(args) => pages::run(&root(), &args),
        Command::Networks {
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
        Command::Prediction {
            only,
            rounds,
            write,
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
        Command::VulkanWorker(args) => gpu::work(&args),
        Command::BenchWorker(args) => worker::run(&args),
        Command::RuntimeWorker(args) => runtime::work(&args),
        Command::TrainWorker(args) => train_worker::run(&args),
    }
}
