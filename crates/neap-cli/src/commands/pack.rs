//! `neap pack`: writes the packed form of a model to a file of the user's choice.

use super::rounding;
use crate::args::OpenArgs;
use crate::destination::Destination;
use crate::failure::{Outcome, bad};
use crate::input::ImageOptions;
use crate::interrupt;
use crate::names;
use crate::progress::{Progress, note};
use crate::stdout;
use clap::{Args, ValueEnum};
use neap_picture::Recipe;
use neaptide::{Bytes, Model, OpenOptions, WeightFormats, shape_text};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Args)]
pub struct PackArgs {
    /// The .onnx model
    model: PathBuf,
    /// The packed model to write
    #[arg(long, short, value_name = "FILE.neap")]
    output: PathBuf,
    /// In how many bits float weights are packed
    ///
    /// Fewer than the model has are rounded: what that changes is printed, layer by layer and at the outputs. Tables of which
    /// rows are read stay as they are.
    #[arg(long, value_name = "FORMAT", default_value = "exact")]
    weights: WeightsArg,
    /// With --weights, an input for which outputs are compared, as `neap run` takes it [default: random values]
    #[arg(long = "input", value_name = "NAME=FILE")]
    inputs: Vec<OsString>,
    /// Seed of random inputs
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = crate::numbers::any::<u64>)]
    seed: u64,
    // Also written into the packed model, which `neap run` and `neap serve` then go by.
    #[command(flatten)]
    image: ImageOptions,
    #[command(flatten)]
    open: OpenArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WeightsArg {
    /// As in the model: the same results
    Exact,
    /// As exact; most float32 in 28 bits, which takes longer to pack and to compute with
    Lossless,
    /// Half floats
    F16,
    /// Half floats with the exponents of f32
    Bf16,
    /// 8-bit integers, a scale for each output channel
    Int8,
    /// 4-bit integers in blocks of 32 for matrices, else int8
    Int4,
}

impl PackArgs {
    /// Inputs are for the comparison of outputs, which only rounded weights change.
    fn check_inputs(&self) -> Outcome {
        if !self.weights.rounds() && !self.inputs.is_empty() {
            return Err(bad(
                "--input is for weights that are rounded: give --weights f16, bf16, int8 or int4, or leave it out",
            ));
        }
        Ok(())
    }

    /// What the packed model says of how photos are prepared, where options say so.
    fn metadata(&self) -> Outcome<Vec<(String, String)>> {
        if self.image.first_given().is_none() {
            return Ok(Vec::new());
        }
        let signature = neaptide::signature(&self.model).map_err(bad)?;
        let recipe = self.image.of_model(&signature.about.metadata)?;
        Ok(vec![(Recipe::KEY.to_string(), recipe.text())])
    }
}

impl WeightsArg {
    fn rounds(self) -> bool {
        !matches!(self, WeightsArg::Exact | WeightsArg::Lossless)
    }

    fn formats(self) -> WeightFormats {
        match self {
            WeightsArg::Exact => WeightFormats::Exact,
            WeightsArg::Lossless => WeightFormats::Lossless,
            WeightsArg::F16 => WeightFormats::F16,
            WeightsArg::Bf16 => WeightFormats::Bf16,
            WeightsArg::Int8 => WeightFormats::Int8,
            WeightsArg::Int4 => WeightFormats::Int4,
        }
    }
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
    args.check_inputs()?;
    let output = Destination::file(&args.output)?;
    let options = OpenOptions {
        weights: args.weights.formats(),
        metadata: args.metadata()?,
        ..args.open.options()?
    };
    let packed = {
        let _deferred = interrupt::defer();
        let mut progress =
            Progress::new(format!("packing {}", super::file_name(&args.model)), quiet);
        let packed = neaptide::pack(&args.model, &output, &options, &mut |p| {
            super::follow(&mut progress, p)
        })?;
        progress.finish();
        packed
    };
    packed.remarks.iter().for_each(|remark| note(remark));
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
            let _ = writeln!(
                text,
                "  {what}  {}  {dtype} {shape}",
                names::shown(&info.name)
            );
        }
    }
    if args.weights.rounds() {
        text.push_str(&rounding::layers(&packed.errors));
        let inputs = rounding::Inputs {
            given: &args.inputs,
            seed: args.seed,
            image: &args.image,
        };
        text.push_str(&rounding::outputs(&args.model, model, &options, &inputs)?);
    }
    stdout::print(&text)
}
