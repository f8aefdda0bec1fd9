//! What rounding weights changes: layer by layer, and at the outputs.

use crate::failure::{Outcome, bad};
use crate::input::{self, ImageOptions, Settings};
use crate::interrupt;
use crate::names;
use crate::progress::note;
use neaptide::{Budget, Model, OpenOptions, RunOptions, WeightError, WeightFormats};
use std::ffi::OsString;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// For what outputs are compared.
pub struct Inputs<'a> {
    pub given: &'a [OsString],
    pub seed: u64,
    pub image: &'a ImageOptions,
}

/// A line for each layer that was rounded.
pub fn layers(errors: &[WeightError]) -> String {
    let mut text = format!(
        "weights rounded in {} layers; change relative to the weights\n",
        errors.len()
    );
    for error in errors {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "  {:8.2e}  {:8}  {}",
            error.relative,
            error.stored,
            names::shown(&error.name)
        );
    }
    text
}

/// The model with its own weights, packed beside the other for the comparison and removed after it.
struct Exact(PathBuf);

impl Drop for Exact {
    fn drop(&mut self) {
        // What is not there need not be removed.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Runs the model as packed and with its own weights, and tells how outputs differ.
///
/// # Errors
/// Inputs that do not fit the model, or a run that fails.
pub fn outputs(
    source: &Path,
    rounded: Model,
    options: &OpenOptions,
    inputs: &Inputs,
) -> Outcome<String> {
    let packed = rounded.packed_path().map(Path::to_path_buf);
    let packed = packed.ok_or_else(|| bad("the packed model has no file"))?;
    let _deferred = interrupt::defer();
    let exact = Exact(packed.with_extension(format!("{}.exact.neap", std::process::id())));
    let options = OpenOptions {
        weights: WeightFormats::Exact,
        ..options.clone()
    };
    neaptide::pack(source, &exact.0, &options, &mut |_| {
        interrupt::unwind_if_asked();
    })?;
    let settings = Settings {
        given: inputs.given,
        image: inputs.image,
        seed: inputs.seed,
        decode_limit_bytes: None,
    };
    let loaded = input::load(&rounded, &settings)?;
    for remark in &loaded.remarks {
        note(remark);
    }
    let infos = rounded.outputs();
    let got = results(rounded, &loaded.tensors)?;
    let want = results(
        Model::open(&exact.0, &options, &mut |_| {})?,
        &loaded.tensors,
    )?;
    let mut text = String::from("outputs; change relative to the output\n");
    for (info, (got, want)) in infos.iter().zip(got.iter().zip(&want)) {
        let told = match info.ty.dtype {
            neaptide::DType::F32 => {
                let change = change(&floats(got), &floats(want));
                format!("{:8.2e}  largest {:8.2e}", change.relative, change.largest)
            }
            _ if got == want => "the same".into(),
            _ => "other values".into(),
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {told}  {}", names::shown(&info.name));
    }
    Ok(text)
}

fn results(model: Model, inputs: &[Vec<u8>]) -> Outcome<Vec<Vec<u8>>> {
    let options = RunOptions {
        budget: Budget::Unlimited,
        exact: true,
        ..RunOptions::default()
    };
    let mut outputs = (model.outputs().iter())
        .map(input::zeros)
        .collect::<Result<Vec<_>, _>>()
        .map_err(bad)?;
    let plan = model.plan(&options)?;
    let mut session = model.into_session(plan, &options)?;
    let given: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    let mut taken: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
    let ran = session.run_unless(&interrupt::token(), &given, &mut taken);
    interrupt::check()?;
    ran?;
    Ok(outputs)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|&word| f32::from_le_bytes(word)).collect()
}

/// How an output differs: root mean square, and the largest difference, both relative to the output's own.
struct Change {
    relative: f64,
    largest: f64,
}

fn change(got: &[f32], want: &[f32]) -> Change {
    let square = |x: f64| x * x;
    let pairs = || {
        got.iter()
            .zip(want)
            .map(|(&g, &w)| (f64::from(g), f64::from(w)))
    };
    let ratio = |part: f64, whole: f64| if part == 0.0 { 0.0 } else { part / whole };
    let squares: f64 = pairs().map(|(g, w)| square(g - w)).sum();
    let whole: f64 = pairs().map(|(_, w)| square(w)).sum();
    let largest = pairs().map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
    let most = pairs().map(|(_, w)| w.abs()).fold(0.0, f64::max);
    Change {
        relative: ratio(squares, whole).sqrt(),
        largest: ratio(largest, most),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_relative_to_the_output() {
        let told = change(&[3.0, 4.0], &[3.0, 5.0]);
        assert!((told.relative - (1.0f64 / 34.0).sqrt()).abs() < 1e-12);
        assert!((told.largest - 0.2).abs() < 1e-12);
        let same = change(&[0.0], &[0.0]);
        assert_eq!((same.relative, same.largest), (0.0, 0.0));
    }
}
