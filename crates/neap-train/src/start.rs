//! The model that a training begins with: the file itself, or that file with what a training needs otherwise.
//!
//! ```text
//! shared initial values ─► parted     normalisations in training mode ─► in inference mode, so that the trainer moves
//! last layer ─► a new one, for another number of classes                 their statistics
//! ```

use crate::drive::DriveWriter;
use crate::error::{Result, bad, unwritable};
use crate::random::{Draw, Purpose};
use crate::stored::narrowed;
use crate::whole;
use neap_ir::DType;
use neap_onnx::{Initializer, ReplaceError, Replaceable};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a training begins with.
#[derive(Debug, Clone)]
pub struct Start {
    /// As the user gave it.
    pub given: PathBuf,
    /// With what is otherwise; gone with the last clone of this.
    changed: Option<Arc<Removed>>,
    /// What the user should hear of it.
    pub remarks: Vec<String>,
    /// Whether there are dropouts in training mode, which what is written has not.
    pub has_dropouts: bool,
    /// Whether the last layer is new, so that names of the old classes are wrong.
    pub has_new_classes: bool,
}

/// A file that goes when this does.
#[derive(Debug)]
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        // The next training writes over what is left.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Names of a few things.
const SOME: usize = 3;

impl Start {
    /// The file to train.
    pub fn model(&self) -> &Path {
        self.changed.as_ref().map_or(&self.given, |file| &file.0)
    }

    /// Reads the model at `given`, and writes it to `target` where it must be another: with a last layer of so many `classes`.
    ///
    /// # Errors
    /// It cannot be read or written, or has no last layer that is known.
    pub fn new(given: &Path, target: &Path, classes: Option<usize>, seed: u64) -> Result<Start> {
        let mut start = Start {
            given: given.into(),
            changed: None,
            remarks: Vec::new(),
            has_dropouts: Replaceable::open(given)?.set_dropouts_to_inference()? > 0,
            has_new_classes: classes.is_some(),
        };
        let mut model = Replaceable::open(given)?;
        let untied = model.untie()?;
        if !untied.parted.is_empty() {
            start.remarks.push(format!(
                "the exporter had shared equal initial values: {} of them are trained by themselves now ({})",
                untied.parted.len(),
                some(untied.parted.iter().map(String::as_str))
            ));
        }
        if !untied.kept.is_empty() {
            let pairs = untied.kept.iter().map(|(a, b)| format!("{a} is {b}"));
            let pairs: Vec<String> = pairs.collect();
            start.remarks.push(format!(
                "shared weights are trained as one: {}",
                some(pairs.iter().map(String::as_str))
            ));
        }
        let norms = model.set_norms_to_inference()?;
        if norms > 0 {
            start.remarks.push(format!(
                "{norms} batch normalisations were exported in training mode: the trained model has them in inference mode"
            ));
        }
        if let Some(classes) = classes {
            let mut draw = |of: &Initializer, inputs: usize| first_values(of, inputs, seed);
            let new = model.replace_classes(classes, &mut draw)?;
            start.remarks.push(format!(
                "the last layer ({}) is new: {classes} classes instead of {}",
                new.node, new.before
            ));
        }
        if model.is_changed() {
            write(&mut model, target)?;
            start.changed = Some(Arc::new(Removed(target.into())));
        }
        Ok(start)
    }
}

fn some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> String {
    let more = names.len().saturating_sub(SOME);
    let first: Vec<&str> = names.take(SOME).collect();
    let first = first.join(", ");
    match more {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

/// Spread evenly between ±1/√inputs, as PyTorch begins a layer.
fn first_values(of: &Initializer, inputs: usize, seed: u64) -> Vec<u8> {
    let name = blake3::hash(of.name.as_bytes());
    let stream = u64::from_le_bytes(*name.as_bytes().first_chunk().unwrap_or(&[0; 8]));
    let bound = 1.0 / (inputs.max(1) as f32).sqrt();
    let values = Draw::new(Purpose::Layer, seed, stream, 0).between(bound, of.ty.elements());
    match of.ty.dtype {
        DType::F64 => values
            .iter()
            .flat_map(|&v| f64::from(v).to_le_bytes())
            .collect(),
        dtype => narrowed(values.iter().flat_map(|v| v.to_le_bytes()).collect(), dtype),
    }
}

fn write(model: &mut Replaceable, target: &Path) -> Result<()> {
    whole::write(target, |partial| {
        let mut out = DriveWriter::create(partial).map_err(|e| unwritable(target, &e))?;
        let mut none = |_: &Initializer| Err(io::Error::other("no value is replaced"));
        let written = model.write(&|_| false, &mut none, &mut out);
        match written.and_then(|()| Ok(out.finish()?)) {
            Err(ReplaceError::Io(error)) => Err(unwritable(target, &error)),
            written => written.map_err(bad),
        }
    })
}
