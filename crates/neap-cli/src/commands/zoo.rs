//! `neap zoo`: writes the networks that the papers measure, with seeded weights.

use crate::destination::Destination;
use crate::failure::{Outcome, bad};
use crate::interrupt;
use crate::progress::Progress;
use crate::stdout;
use clap::Args;
use neap_zoo::{Batch, FolderOptions, Options};
use neaptide::{Bytes, shape_text};
use std::fmt::Write;
use std::path::PathBuf;

/// What `--list` says nothing about.
const LIST_CONFLICTS: [&str; 9] = [
    "name",
    "output",
    "seed",
    "batch",
    "free_size",
    "lm_head",
    "half",
    "external_data",
    "shapes_only",
];

#[derive(Args)]
pub struct ZooArgs {
    /// Which network
    #[arg(required_unless_present = "list")]
    name: Option<String>,
    /// The model to write [default: NAME.onnx, or the folder NAME]
    #[arg(long, short, value_name = "FILE.onnx")]
    output: Option<PathBuf>,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Size of the first dimension of inputs and outputs, or 'dynamic'
    #[arg(long, value_name = "N", default_value = "1", value_parser = parse_batch)]
    batch: Batch,
    /// Leave the size of images, or the number of tokens, to whoever opens the model
    #[arg(long)]
    free_size: bool,
    /// For gpt2: end in the language-model head
    #[arg(long)]
    lm_head: bool,
    /// For folders: networks in half floats
    #[arg(long)]
    half: bool,
    /// Put the weights into a file of their own beside the model
    #[arg(long)]
    external_data: bool,
    /// Write no weights, only a sparse file of their size: for `neap plan` and `neap inspect`
    #[arg(long)]
    shapes_only: bool,
    /// List the networks
    #[arg(long, conflicts_with_all = LIST_CONFLICTS)]
    list: bool,
}

pub fn run(args: &ZooArgs, quiet: bool) -> Outcome {
    let Some(name) = args.name.as_ref().filter(|_| !args.list) else {
        return stdout::print(&list());
    };
    let is_folder = neap_zoo::folders().iter().any(|entry| entry.name == name);
    if is_folder {
        return folder(args, name, quiet);
    }
    let entry = neap_zoo::find(name).ok_or_else(|| {
        let names = neap_zoo::list().iter().map(|e| e.name);
        let folders = neap_zoo::folders().iter().map(|e| e.name);
        let names: Vec<_> = names.chain(folders).collect();
        bad(format!(
            "the zoo has no network '{name}'; it has {}",
            names.join(", ")
        ))
    })?;
    if args.half {
        return Err(bad("--half is for folders of networks, such as sd_15"));
    }
    let path = args
        .output
        .clone()
        .unwrap_or_else(|| format!("{}.onnx", entry.name).into());
    let path = Destination::file(&path)?;
    let options = Options {
        seed: args.seed,
        batch: args.batch,
        free_size: args.free_size,
        lm_head: args.lm_head,
        external_data: args.external_data,
        shapes_only: args.shapes_only,
    };
    let written = {
        let _deferred = interrupt::defer();
        let mut progress = Progress::new(format!("writing {}", super::file_name(&path)), quiet);
        let written = neap_zoo::write(entry.name, &path, &options, &mut |done, total| {
            progress.at(done, total)
        })?;
        progress.finish();
        written
    };
    interrupt::check()?;
    let mut text = format!(
        "{}: {}, {} of weights, seed {}\n",
        path.display(),
        entry.summary,
        Bytes(written.weight_bytes),
        args.seed
    );
    if let Some((path, bytes)) = &written.external {
        // Writing to a string cannot fail.
        let what = if args.shapes_only {
            "room for"
        } else {
            "holds"
        };
        let _ = writeln!(text, "{}: {what} {} of it", path.display(), Bytes(*bytes));
    }
    stdout::print(&text)
}

/// A model that is a folder of networks.
fn folder(args: &ZooArgs, name: &str, quiet: bool) -> Outcome {
    let has_options = args.batch != Batch::Fixed(1)
        || args.free_size
        || args.lm_head
        || args.external_data
        || args.shapes_only;
    if has_options {
        return Err(bad(format!(
            "{name} is a folder of networks: of the options it takes --seed, --half and --output"
        )));
    }
    let path = args.output.clone().unwrap_or_else(|| name.into());
    let options = FolderOptions {
        seed: args.seed,
        half: args.half,
    };
    let weight_bytes = {
        let _deferred = interrupt::defer();
        let mut progress = Progress::new(format!("writing {}", super::file_name(&path)), quiet);
        let bytes = neap_zoo::write_folder(name, &path, &options, &mut |done, total| {
            progress.at(done, total)
        })?;
        progress.finish();
        bytes
    };
    interrupt::check()?;
    stdout::print(&format!(
        "{}: {} of weights, seed {}\n",
        path.display(),
        Bytes(weight_bytes),
        args.seed
    ))
}

fn list() -> String {
    let mut text = String::new();
    for entry in neap_zoo::list() {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:18} {:>8.1} M parameters  {:10} {:12} {}{}",
            entry.name,
            entry.parameters as f64 / 1e6,
            entry.input_name,
            shape_text(entry.input_shape),
            entry.summary,
            if entry.shapes_only {
                " (--shapes-only)"
            } else {
                ""
            }
        );
    }
    for entry in neap_zoo::folders() {
        let _ = writeln!(text, "{:18} {}", entry.name, entry.summary);
    }
    text
}

fn parse_batch(text: &str) -> Result<Batch, String> {
    if text == "dynamic" {
        return Ok(Batch::Dynamic);
    }
    text.parse()
        .map(Batch::Fixed)
        .map_err(|_| "write a number or 'dynamic'".into())
}
