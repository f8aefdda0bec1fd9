//! Many photos, one batch after another, and what the model sees in each.

use crate::failure::{Outcome, bad};
use crate::input::Photos;
use crate::interrupt;
use crate::output::{Top, top};
use neaptide::{DType, Model, Session, TensorInfo};
use serde::Serialize;
use std::collections::BTreeSet;

/// Results of all photos, as outputs of one long batch.
pub struct Seen {
    pub infos: Vec<TensorInfo>,
}

/// What several photos take beside a run: their results, and a picture that is decoded while the session is there.
pub fn reserve_bytes(photos: &Photos, model: &Model) -> u64 {
    let outputs: u64 = model.outputs().iter().map(|o| o.len_bytes() as u64).sum();
    let inputs: u64 = model.inputs().iter().map(|i| i.len_bytes() as u64).sum();
    // Grown by doubling, at most.
    photos.decoding_bytes + inputs + 2 * outputs * photos.batches() as u64
}

/// Runs all batches but the first, whose results are in `outputs`, and appends theirs.
pub fn all(
    photos: &Photos,
    session: &mut Session,
    given: &[&[u8]],
    outputs: &mut [Vec<u8>],
) -> Outcome<Seen> {
    let mut infos: Vec<TensorInfo> = Vec::new();
    let mut all: Vec<Vec<u8>> = outputs.iter().map(|_| Vec::new()).collect();
    for number in 0..photos.batches() {
        if number > 0 {
            let tensor = photos.batch(number)?;
            let mut given = given.to_vec();
            given[photos.input] = &tensor;
            let mut slots: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
            session.run(&given, &mut slots)?;
            interrupt::check()?;
        }
        for (index, (output, all)) in outputs.iter().zip(&mut all).enumerate() {
            let name = session.outputs()[index].name.clone();
            let ty = session.output_type(index).clone();
            let has_batch = ty.shape.first() == Some(&photos.at_once);
            if !has_batch && photos.at_once > 1 {
                return Err(bad(format!(
                    "output '{name}' has no axis for several photos: run them one by one, with --shape for a batch of 1"
                )));
            }
            let sample = if has_batch {
                &ty.shape[1..]
            } else {
                &ty.shape[..]
            };
            let bytes = ty.len_bytes() / photos.at_once * photos.count(number);
            all.extend_from_slice(&output[..bytes]);
            let shape = [&[photos.files.len()], sample].concat();
            let info = TensorInfo::new(name.clone(), ty.dtype, &shape);
            match infos.get(index) {
                None => infos.push(info),
                Some(before) if *before == info => {}
                Some(_) => {
                    return Err(bad(format!(
                        "output '{name}' has another shape for another photo: run them one by one"
                    )));
                }
            }
        }
    }
    for (output, all) in outputs.iter_mut().zip(all) {
        *output = all;
    }
    Ok(Seen { infos })
}

/// What the model sees in photos.
#[derive(Debug, Serialize)]
pub struct Judged {
    pub photos: Vec<OnePhoto>,
    /// Share of the photos whose folder is named like the class that the model sees; with it, how many of how many.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<Accuracy>,
}

#[derive(Debug, Serialize)]
pub struct OnePhoto {
    pub file: String,
    pub top: Vec<Top>,
}

#[derive(Debug, Clone, Copy, Serialize)]
pub struct Accuracy {
    pub right: usize,
    pub of: usize,
}

/// By the first output, where that has a number for each class.
pub fn judged(
    photos: &Photos,
    infos: &[TensorInfo],
    outputs: &[Vec<u8>],
    labels: &[String],
) -> Option<Judged> {
    let (info, output) = (infos.first()?, outputs.first()?);
    let classes = info.ty.elements() / photos.files.len().max(1);
    if info.ty.dtype != DType::F32 || classes < 2 || info.ty.shape.len() < 2 {
        return None;
    }
    let samples = output.chunks_exact(classes * 4);
    let seen: Vec<OnePhoto> = (photos.files.iter().zip(samples))
        .map(|(path, sample)| OnePhoto {
            file: path.display().to_string(),
            top: top(sample, labels),
        })
        .collect();
    let folder = |path: &std::path::Path| -> Option<String> {
        Some(path.parent()?.file_name()?.to_str()?.to_string())
    };
    let folders: Option<Vec<String>> = photos.files.iter().map(|p| folder(p)).collect();
    Some(Judged {
        accuracy: folders.and_then(|folders| accuracy(&folders, &seen, labels)),
        photos: seen,
    })
}

/// A folder is a class where the model names it so; without names, folders are classes in alphabetical order.
fn accuracy(folders: &[String], seen: &[OnePhoto], labels: &[String]) -> Option<Accuracy> {
    let all: BTreeSet<&String> = folders.iter().collect();
    let named: Vec<&String> = match labels.is_empty() {
        true if all.len() > 1 => all.iter().copied().collect(),
        true => return None,
        false => labels.iter().collect(),
    };
    let of = |folder: &String| named.iter().position(|name| *name == folder);
    let wanted: Option<Vec<usize>> = folders.iter().map(of).collect();
    let right = (wanted?.iter().zip(seen))
        .filter(|(wanted, photo)| photo.top.first().map(|t| t.index) == Some(**wanted))
        .count();
    Some(Accuracy {
        right,
        of: seen.len(),
    })
}
