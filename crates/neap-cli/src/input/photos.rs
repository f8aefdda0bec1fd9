//! Many photos for one input: a folder of them, or several files.

use super::{Settings, Trouble, has_extension, image, open_file};
use crate::failure::{Outcome, bad};
use neap_picture::{ENDINGS, Head, Recipe, Target, is_picture};
use neaptide::TensorInfo;
use std::fs;
use std::path::{Path, PathBuf};

/// Photos in the batches that the input takes.
pub struct Photos {
    pub files: Vec<PathBuf>,
    /// Which input they are for.
    pub input: usize,
    /// How many of them at once.
    pub at_once: usize,
    info: TensorInfo,
    recipe: Recipe,
    limit_bytes: Option<u64>,
    /// The most that decoding one takes.
    pub decoding_bytes: u64,
}

impl Photos {
    /// Looks at the heads of all of them, so that what is no photo is found before anything runs.
    pub fn open(
        input: usize,
        info: &TensorInfo,
        files: &[PathBuf],
        recipe: &Recipe,
        settings: &Settings,
    ) -> Outcome<Photos> {
        let shape = &info.ty.shape;
        let mut photos = Photos {
            files: files.to_vec(),
            input,
            at_once: if shape.len() == 4 { shape[0].max(1) } else { 1 },
            info: info.clone(),
            recipe: recipe.clone(),
            limit_bytes: settings.decode_limit_bytes,
            decoding_bytes: 0,
        };
        let sample = Target::of(&shape[shape.len().saturating_sub(3)..], recipe.layout);
        let width = sample.map_or(0, |target| target.width);
        for path in files {
            let head = open_file(path).and_then(|file| Head::of(&file));
            let head =
                head.map_err(|e| bad(format!("input '{}': {}: {e}", info.name, path.display())))?;
            photos.decoding_bytes = photos.decoding_bytes.max(head.bytes(width));
        }
        Ok(photos)
    }

    /// How many runs they take.
    pub fn batches(&self) -> usize {
        self.files.len().div_ceil(self.at_once)
    }

    /// The input of one batch; places behind the last photo repeat it.
    pub fn batch(&self, number: usize) -> Result<Vec<u8>, Trouble> {
        let from = number * self.at_once;
        let mut tensor = super::room(self.info.len_bytes())?;
        for place in 0..self.at_once {
            match self.files.get(from + place) {
                Some(path) => {
                    let read = open_file(path).map_err(Trouble::Bad).and_then(|file| {
                        image::read(&file, &self.info, &self.recipe, self.limit_bytes)
                    });
                    tensor.extend(read.map_err(|e| e.at(path.display()))?);
                }
                None => {
                    let sample = tensor.len() / place.max(1);
                    tensor.extend_from_within(tensor.len() - sample..);
                }
            }
        }
        Ok(tensor)
    }

    /// How many photos a batch has.
    pub fn count(&self, number: usize) -> usize {
        self.at_once.min(self.files.len() - number * self.at_once)
    }
}

/// The photos in a folder, or in its folders, in alphabetical order.
pub fn in_folder(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = listed(folder)?;
    let folders: Vec<PathBuf> = found.iter().filter(|p| p.is_dir()).cloned().collect();
    found.retain(|path| is_picture(path) && !path.is_dir());
    if found.is_empty() {
        for inner in folders {
            let mut files = listed(&inner)?;
            files.retain(|path| is_picture(path) && !path.is_dir());
            found.extend(files);
        }
    }
    match found.is_empty() {
        true => Err(format!("has no photos (.{})", ENDINGS.join(", ."))),
        false => Ok(found),
    }
}

fn listed(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let entries = fs::read_dir(folder).map_err(|e| e.to_string())?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let name = path.file_name().unwrap_or_default();
        if !name.to_string_lossy().starts_with('.') {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Names of classes in a file: a JSON list, or one in a line.
pub fn labels(path: &Path) -> Outcome<Vec<String>> {
    let fails = |e: &dyn std::fmt::Display| bad(format!("--labels {}: {e}", path.display()));
    let text = fs::read_to_string(path).map_err(|e| fails(&e))?;
    let labels: Vec<String> = match has_extension(path, &["json"]) {
        true => serde_json::from_str(&text).map_err(|e| fails(&e))?,
        false => text.lines().map(|line| line.trim().to_string()).collect(),
    };
    match labels.is_empty() {
        true => Err(fails(&"it names no class")),
        false => Ok(labels),
    }
}
