//! `neap pack`: writes the packed form of a model to a file of the user's choice.

use crate::args::OpenArgs;
use crate::failure::{Outcome, bad};
use crate::interrupt;
use crate::progress::Progress;
use crate::stdout;
use clap::Args;
use neaptide::{Bytes, Model, shape_text};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct PackArgs {
    /// The .onnx model
    model: PathBuf,
    /// The packed model to write
    #[arg(long, short, value_name = "FILE.neap")]
    output: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
}

pub fn run(args: &PackArgs, quiet: bool) -> Outcome {
    if args
        .output
        .extension()
        .is_none_or(|e| !e.eq_ignore_ascii_case("neap"))
    {
        return Err(bad(format!(
            "{} does not end in .neap, by which packed models are known",
            args.output.display()
        )));
    }
    let options = args.open.options()?;
    {
        let _deferred = interrupt::defer();
        let mut progress =
            Progress::new(format!("packing {}", super::file_name(&args.model)), quiet);
        neaptide::pack(&args.model, &args.output, &options, &mut |p| {
            super::follow(&mut progress, p)
        })?;
        progress.finish();
    }
    interrupt::check()?;
    let model = Model::open(&args.output, &options, &mut |_| {})?;
    super::note_memory(&model);
    let mut text = format!(
        "{}: {} of weights\n",
        args.output.display(),
        Bytes(model.weight_bytes())
    );
    for (what, infos) in [("input ", model.inputs()), ("output", model.outputs())] {
        for info in infos {
            let (dtype, shape) = (info.ty.dtype, shape_text(&info.ty.shape));
            // Writing to a string cannot fail.
            let _ = writeln!(text, "  {what}  {}  {dtype} {shape}", info.name);
        }
    }
    stdout::print(&text)
}
