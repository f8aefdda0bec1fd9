//! `neap import`: a checkpoint of Stable Diffusion as the folder of networks that `neap imagine` takes.

use crate::failure::Outcome;
use crate::interrupt;
use crate::progress::{Progress, note};
use crate::stdout;
use clap::Args;
use neaptide::Bytes;
use std::path::PathBuf;

#[derive(Args)]
pub struct ImportArgs {
    /// A folder of diffusers, or one file of safetensors with all networks
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
    /// The folder to write
    #[arg(long, short, value_name = "FOLDER")]
    output: PathBuf,
    /// A folder of diffusers, whose weights are not looked at, for what the checkpoint does not have: the tokenizer, the scheduler's
    /// settings, sizes that tensors do not show
    #[arg(long, value_name = "FOLDER")]
    settings: Option<PathBuf>,
}

pub fn run(args: &ImportArgs, quiet: bool) -> Outcome {
    let imported = {
        let _deferred = interrupt::defer();
        let name = super::file_name(&args.output);
        let mut progress = Progress::new(format!("writing {name}"), quiet);
        let settings = args.settings.as_deref();
        let mut follow = |done, total| progress.at(done, total);
        let imported = neap_zoo::import(&args.checkpoint, &args.output, settings, &mut follow)?;
        progress.finish();
        imported
    };
    interrupt::check()?;
    imported.remarks.iter().for_each(|remark| note(remark));
    stdout::print(&format!(
        "{}: {} of weights\n",
        args.output.display(),
        Bytes(imported.weight_bytes)
    ))
}
