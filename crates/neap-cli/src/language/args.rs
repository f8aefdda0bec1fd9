//! Options of the commands for language models.

use crate::args::IoArg;
use clap::Args;
use neap_chat::{CacheType, PenaltyOptions, Sampling};
use neaptide::Budget;
use std::path::PathBuf;

#[derive(Args, Clone)]
pub struct ModelArgs {
    /// A language model in a .gguf file
    pub model: PathBuf,
    /// Memory that the whole process may take: 64MiB, auto or none
    ///
    /// 64M is 64MiB, and a number without a unit is bytes. auto is what can be spared here.
    #[arg(long, value_name = "SIZE", default_value = "none", value_parser = crate::cgroup::limits::budget)]
    pub memory_budget: Budget,
    /// Let the kernel enforce the budget, as the limit of a memory cgroup
    #[arg(long)]
    pub enforce: bool,
    /// Tokens that prompts and answers may have together
    #[arg(long, value_name = "N", default_value_t = 2048, value_parser = crate::numbers::whole::<u32>(1..=1 << 20))]
    pub context: u32,
    /// In which type keys and values are kept: f32, f16 or int8
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    pub kv: CacheType,
    /// Threads that compute [default: all processors]
    #[arg(long, value_name = "N", value_parser = crate::numbers::whole::<u16>(1..=256))]
    threads: Option<u16>,
    /// Most tokens of a prompt that are computed in one pass over the weights
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = crate::numbers::whole::<u16>(1..=4096))]
    pub chunk: u16,
    /// Most tokens that are guessed from the text so far and checked in one pass; the answer is the same with any
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = crate::numbers::whole::<u8>(0..=32))]
    pub draft: u8,
    /// How weights are read from storage
    #[arg(long, value_name = "MODE", default_value = "auto")]
    pub io: IoArg,
}

impl ModelArgs {
    pub fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, usize::from);
        self.threads.map_or_else(all, usize::from)
    }
}

/// Where a text goes on from one command to the next.
#[derive(Args, Clone)]
pub struct SessionArgs {
    /// Keep the text and the model's cache of it in this file: the next command with it computes what is new only
    #[arg(long, value_name = "FILE")]
    pub save_session: Option<PathBuf>,
}

/// How tokens are chosen.
#[derive(Args, Clone)]
#[command(next_help_heading = "Choosing tokens")]
pub struct SamplingArgs {
    /// Most tokens of an answer [default: what the context has room for]
    #[arg(short = 'n', long = "tokens", value_name = "N", value_parser = crate::numbers::whole::<u32>(1..=1 << 20))]
    pub tokens: Option<u32>,
    /// How far from the most likely tokens the choice may go; 0 takes the most likely one
    #[arg(long = "temp", value_name = "X", default_value_t = 0.0, value_parser = crate::numbers::from_zero_f32)]
    temperature: f32,
    /// Only so many of the most likely tokens may be chosen; 0 is 4096
    #[arg(long, value_name = "N", default_value_t = 40, value_parser = crate::numbers::any::<u32>)]
    top_k: u32,
    /// Of those, the most likely ones that have this probability together
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = share)]
    top_p: f32,
    /// Of those, the ones that have this share of the best one's probability
    #[arg(long, value_name = "X", default_value_t = 0.0, value_parser = share)]
    min_p: f32,
    /// Makes tokens less likely that were among the last 64; 1 does nothing
    #[arg(long, value_name = "X", default_value_t = 1.0, value_parser = positive)]
    repeat_penalty: f32,
    /// Seed of the choice
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    seed: u64,
    /// The answer ends before this text; may be given several times
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k as usize,
            top_p: self.top_p,
            min_p: self.min_p,
            penalties: PenaltyOptions {
                repeat: self.repeat_penalty,
                ..PenaltyOptions::default()
            },
            seed: self.seed,
            logprobs: None,
        }
    }

    pub fn request(&self, prompt: neap_chat::Prompt) -> neap_chat::Request {
        neap_chat::Request {
            sampling: self.sampling(),
            max_tokens: self.tokens.map(|n| n as usize),
            stop: self.stop.clone(),
            ..neap_chat::Request::new(prompt)
        }
    }
}

fn share(text: &str) -> Result<f32, String> {
    let share = crate::numbers::from_zero_f32(text)?;
    (share <= 1.0)
        .then_some(share)
        .ok_or_else(|| "write a number from 0 to 1".into())
}

fn positive(text: &str) -> Result<f32, String> {
    let number = crate::numbers::from_zero_f32(text)?;
    (number > 0.0)
        .then_some(number)
        .ok_or_else(|| "write a number above 0".into())
}
