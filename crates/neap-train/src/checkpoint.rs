//! Where a training is: parameters, moments and statistics, and everything else that the next step depends on.
//!
//! A checkpoint is one file of safetensors, so it can be looked into. It replaces the one before it in a single step.

use crate::error::{Result, TrainError, bad};
use crate::history::History;
use crate::metrics::Tally;
use crate::tensors::{self, Tensors};
use neap_ir::{DType, TensorType};
use neaptide::{StateRole, Trainer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

const KEY: &str = "neaptide.training";
const VERSION: u32 = 2;

/// What a training has done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Of the format; [`write`] sets it.
    pub version: u32,
    /// CRC-32C of the states' bytes, in their order; [`write`] sets it.
    pub crc: u32,
    /// Options and data on which the bits depend, by name.
    pub settings: BTreeMap<String, String>,
    /// Steps taken.
    pub step: u64,
    /// Epochs that are over.
    pub epochs: u64,
    /// Batches taken of the epoch under way.
    pub batches: u64,
    /// Of the epoch under way.
    pub tally: Tally,
    /// Best validation so far.
    pub best: Option<Best>,
    pub history: History,
    /// Length of the log when the checkpoint was written.
    pub log_bytes: u64,
}

/// The epoch with the lowest loss of validation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    pub epoch: u64,
    /// The loss, as bits.
    pub loss_bits: u64,
}

/// Writes a checkpoint in place of the one before.
///
/// # Errors
/// [`TrainError::Diverged`] where a parameter is no finite number: the old checkpoint stays. Otherwise the file cannot be
/// written: the old one stays, too.
pub fn write(path: &Path, trainer: &mut Trainer, progress: &Progress) -> Result<()> {
    let crc = checksum(trainer)?;
    let progress = Progress {
        version: VERSION,
        crc,
        ..progress.clone()
    };
    let text = serde_json::to_string(&progress).map_err(|e| TrainError::Defect(e.to_string()))?;
    let chosen = changing(trainer);
    let of = |&index: &usize| {
        let state = &trainer.states()[index];
        (state.name.clone(), state.ty.clone())
    };
    let named: Vec<(String, TensorType)> = chosen.iter().map(of).collect();
    let mut fetch =
        |index: usize, visit: &mut dyn FnMut(&[u8])| Ok(trainer.read(chosen[index], visit)?);
    tensors::write(path, &named, &mut fetch, (KEY, text))
}

/// States that are not the model's as they are.
fn changing(trainer: &Trainer) -> Vec<usize> {
    let states = trainer.states().iter().enumerate();
    let states = states.filter(|(_, s)| s.role != StateRole::Frozen);
    states.map(|(index, _)| index).collect()
}

/// Of the states' bytes; refuses what is not finite.
fn checksum(trainer: &mut Trainer) -> Result<u32> {
    let mut crc = 0;
    for index in changing(trainer) {
        let mut finite = Finite::new(trainer.states()[index].ty.dtype);
        trainer.read(index, &mut |piece| {
            crc = crc32c::crc32c_append(crc, piece);
            finite.see(piece);
        })?;
        if !finite.all {
            let name = &trainer.states()[index].name;
            return Err(TrainError::Diverged(format!(
                "'{name}' is not finite any more; a lower --lr or --clip-norm may help"
            )));
        }
    }
    Ok(crc)
}

/// Whether float32 numbers that come in pieces are finite.
struct Finite {
    is_f32: bool,
    /// Bytes of a number that is cut in two.
    left: Vec<u8>,
    all: bool,
}

impl Finite {
    fn new(dtype: DType) -> Finite {
        Finite {
            is_f32: dtype == DType::F32,
            left: Vec::new(),
            all: true,
        }
    }

    fn see(&mut self, mut piece: &[u8]) {
        if !self.is_f32 {
            return;
        }
        while !self.left.is_empty() && !piece.is_empty() {
            self.left.push(piece[0]);
            piece = &piece[1..];
            if let Ok(whole) = <[u8; 4]>::try_from(&self.left[..]) {
                self.all &= f32::from_le_bytes(whole).is_finite();
                self.left.clear();
            }
        }
        let (whole, rest) = piece.as_chunks();
        self.all &= whole.iter().all(|&b| f32::from_le_bytes(b).is_finite());
        self.left.extend_from_slice(rest);
    }
}

/// Reads what a checkpoint says of the training.
///
/// # Errors
/// It is no checkpoint, or one of another version.
pub fn progress(path: &Path) -> Result<Progress> {
    let broken = |why: &str| bad(format!("{} is no checkpoint: {why}", path.display()));
    let file = Tensors::open(path)?;
    let text = file
        .entry(KEY)
        .ok_or_else(|| broken("it has no progress"))?;
    let progress: Progress = serde_json::from_str(text).map_err(|e| broken(&e.to_string()))?;
    if progress.version != VERSION {
        return Err(broken("it is of another version of this program"));
    }
    Ok(progress)
}

/// Sets a trainer's states to those of a checkpoint, and the number of its steps.
///
/// # Errors
/// The file is damaged, or of another model.
pub fn restore(path: &Path, trainer: &mut Trainer) -> Result<()> {
    let progress = progress(path)?;
    let file = Tensors::open(path)?;
    for index in changing(trainer) {
        let state = trainer.states()[index].clone();
        file.read(&state.name, &state.ty, &mut |offset, bytes| {
            Ok(trainer.write(index, offset, bytes)?)
        })?;
    }
    trainer.set_steps(progress.step);
    if checksum(trainer)? != progress.crc {
        return Err(bad(format!(
            "{} is damaged: its content has another checksum",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_cut_in_two_are_seen() {
        let values = [1.0f32, f32::NAN, 2.0, f32::INFINITY, 3.0];
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        for cut in 0..=20 {
            for (from, finite) in [(0, false), (8, false), (16, true)] {
                let mut seen = Finite::new(DType::F32);
                let (a, b) = bytes.split_at(cut);
                let skip = |part: &[u8], n: usize| part[n.min(part.len())..].to_vec();
                seen.see(&skip(a, from));
                seen.see(&skip(b, from.saturating_sub(cut)));
                assert_eq!(seen.all, finite, "cut at {cut}, from {from}");
            }
        }
    }
}
