//! Two arrays: inputs, and what goes with each.

use super::array::Array;
use super::prepare::Prepare;
use super::sample::{SampleType, Samples};
use crate::error::{Result, bad};
use crate::random::Draw;
use neap_ir::DType;
use neap_picture::{OF_BYTES, Pixels};

pub struct Pairs {
    inputs: Array,
    targets: Array,
    prepare: Option<Prepare>,
    /// Rows are pictures of another size: height, width, channels.
    pixels: Option<[usize; 3]>,
    classes: Option<usize>,
}

impl Pairs {
    /// `prepare` is for inputs of floating-point numbers; integers are taken as they are.
    ///
    /// # Errors
    /// The arrays do not fit each other or the model.
    pub fn new(
        inputs: Array,
        targets: Array,
        wanted: &SampleType,
        prepare: Option<Prepare>,
    ) -> Result<Pairs> {
        if inputs.count() != targets.count() {
            return Err(bad(format!(
                "{} has {} rows, {} has {}",
                inputs.name(),
                inputs.count(),
                targets.name(),
                targets.count()
            )));
        }
        if wanted.classes.is_some() && targets.dtype().is_float() {
            let (name, dtype) = (targets.name(), targets.dtype());
            return Err(bad(format!("{name} is {dtype}, classes are integers")));
        }
        let rows: usize = targets.row_shape().iter().product();
        if rows != wanted.target.elements() {
            return Err(bad(format!(
                "{} has {:?} for each sample, the loss takes {:?}",
                targets.name(),
                targets.row_shape(),
                wanted.target.shape
            )));
        }
        let squeezed =
            |shape: &[usize]| -> Vec<usize> { shape.iter().copied().filter(|&d| d != 1).collect() };
        let same = squeezed(inputs.row_shape()) == squeezed(&wanted.input.shape);
        let planes = prepare.as_ref().and_then(Prepare::target);
        let pixels = match (same, planes, inputs.dtype(), inputs.row_shape()) {
            (true, ..) => None,
            (_, Some(_), DType::U8, &[h, w]) => Some([h, w, 1]),
            (_, Some(_), DType::U8, &[h, w, c @ (1 | 3)]) => Some([h, w, c]),
            (_, Some(_), DType::U8, &[1, h, w]) => Some([h, w, 1]),
            _ => {
                return Err(bad(format!(
                    "{} has {:?} for each sample, the model takes {:?}",
                    inputs.name(),
                    inputs.row_shape(),
                    wanted.input.shape
                )));
            }
        };
        if let Some(classes) = wanted.classes {
            check_all_classes(&targets, classes)?;
        }
        Ok(Pairs {
            inputs,
            targets,
            prepare,
            pixels,
            classes: wanted.classes,
        })
    }
}

impl Samples for Pairs {
    fn count(&self) -> usize {
        self.inputs.count()
    }

    fn fill(
        &self,
        index: usize,
        draw: Option<Draw>,
        input: &mut [u8],
        target: &mut [u8],
    ) -> Result<()> {
        match (&self.prepare, self.pixels) {
            (Some(prepare), Some([h, w, c])) => {
                let pixels = Pixels::new(w, h, c, self.inputs.bytes(index)?).map_err(bad)?;
                prepare.write_picture(&pixels, draw, input)?;
            }
            (Some(prepare), None) => {
                let scale = match self.inputs.dtype() {
                    DType::U8 => OF_BYTES,
                    _ => 1.0,
                };
                prepare.write(&self.inputs.floats(index)?, scale, draw, input);
            }
            (None, _) => {
                let count = self.inputs.row_shape().iter().product();
                let values = self.inputs.integers(index * count, count)?;
                write_integers(&values, input);
            }
        }
        let count = self.targets.row_shape().iter().product();
        if let Some(classes) = self.classes {
            let values = self.targets.integers(index * count, count)?;
            check_classes(&values, classes, self.targets.name(), index)?;
            write_integers(&values, target);
        } else {
            let values = self.targets.floats(index)?;
            for (out, value) in target.as_chunks_mut().0.iter_mut().zip(values) {
                *out = value.to_le_bytes();
            }
        }
        Ok(())
    }
}

/// As int64.
pub fn write_integers(values: &[i64], out: &mut [u8]) {
    for (out, value) in out.as_chunks_mut().0.iter_mut().zip(values) {
        *out = value.to_le_bytes();
    }
}

/// Targets of more elements than this are looked at when they are read.
const MOST_LOOKED_AT: usize = 64 << 20;
/// At once.
const LOOKED_AT: usize = 16 << 10;

/// Refuses classes that the model has not, before anything is trained.
fn check_all_classes(targets: &Array, classes: usize) -> Result<()> {
    let row = targets.row_shape().iter().product::<usize>().max(1);
    let all = targets.count().saturating_mul(row);
    if all > MOST_LOOKED_AT {
        return Ok(());
    }
    let rows = (LOOKED_AT / row).max(1);
    for first in (0..targets.count()).step_by(rows) {
        let count = rows.min(targets.count() - first);
        let values = targets.integers(first * row, count * row)?;
        for (index, values) in values.chunks(row).enumerate() {
            check_classes(values, classes, targets.name(), first + index)?;
        }
    }
    Ok(())
}

/// Refuses classes that the model has not.
///
/// # Errors
/// The first wrong one, by name and number.
pub fn check_classes(values: &[i64], classes: usize, name: &str, index: usize) -> Result<()> {
    let is_wrong = |v: &&i64| usize::try_from(**v).map_or(true, |v| v >= classes);
    match values.iter().find(is_wrong) {
        None => Ok(()),
        Some(wrong) => Err(bad(format!(
            "{name}: sample {index} has class {wrong}, the model has {classes} classes, from 0; --classes gives it a last layer of another number"
        ))),
    }
}
