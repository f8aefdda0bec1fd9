//! All tensors of a checkpoint, by today's names.

use super::bad;
use super::file::{Stored, TensorFile};
use super::names::{self, Meaning, Original, Part};
use crate::ZooError;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

type Key = (Part, String);

#[derive(Debug)]
pub(super) struct Found {
    path: PathBuf,
    tensors: BTreeMap<Key, (Arc<TensorFile>, Stored)>,
    /// In an order that is always the same.
    unknown: Vec<String>,
    averages: usize,
    /// The text encoder is OpenCLIP's, as one file has it.
    pub has_open_clip: bool,
}

impl Found {
    /// Reads headers.
    pub fn open(path: &Path) -> Result<Found, ZooError> {
        let mut found = Found {
            path: path.into(),
            tensors: BTreeMap::new(),
            unknown: Vec::new(),
            averages: 0,
            has_open_clip: false,
        };
        match path.is_dir() {
            true => {
                is_known_pipeline(path)?;
                for part in [Part::Text, Part::Unet, Part::Vae] {
                    for path in files(path, part)? {
                        let (file, tensors) = TensorFile::open(&path)?;
                        let of = |name: &str| names::of_folder(part, name);
                        found.add(file, tensors, of)?;
                    }
                }
            }
            false => {
                let (file, tensors) = TensorFile::open(path)?;
                is_whole_model(path, &tensors)?;
                let names = tensors.iter().map(|(name, _)| name.as_str());
                let original = Original::of(names)
                    .ok_or_else(|| bad(format!("{}: {NO_MODEL}", path.display())))?;
                found.has_open_clip = original.has_open_clip();
                found.add(file, tensors, |name| original.meaning(name))?;
            }
        }
        Ok(found)
    }

    fn add(
        &mut self,
        file: TensorFile,
        tensors: Vec<(String, Stored)>,
        meaning: impl Fn(&str) -> Meaning,
    ) -> Result<(), ZooError> {
        let file = Arc::new(file);
        for (name, stored) in tensors {
            let (part, parts) = match meaning(&name) {
                Meaning::Tensor(part, name) => (part, vec![name]),
                Meaning::Stack(part, names) => (part, names),
                Meaning::Average => {
                    self.averages += 1;
                    continue;
                }
                Meaning::Unused => continue,
                Meaning::Unknown => {
                    self.unknown.push(name);
                    continue;
                }
            };
            let count = parts.len();
            for (index, today) in parts.into_iter().enumerate() {
                let piece = stored
                    .part(index, count)
                    .or((count == 1).then(|| stored.clone()));
                let piece = piece.ok_or_else(|| {
                    bad(format!(
                        "{}: '{name}' of shape {:?} are not {count} tensors",
                        file.path().display(),
                        stored.shape
                    ))
                })?;
                let before = self.tensors.insert((part, today), (file.clone(), piece));
                if before.is_some() {
                    return Err(bad(format!(
                        "{}: '{name}' is there twice, under names of different age",
                        file.path().display()
                    )));
                }
            }
        }
        Ok(())
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn get(&self, part: Part, name: &str) -> Option<&(Arc<TensorFile>, Stored)> {
        self.tensors.get(&(part, name.to_string()))
    }

    pub fn shape(&self, part: Part, name: &str) -> Option<&[usize]> {
        self.get(part, name)
            .map(|(_, stored)| stored.shape.as_slice())
    }

    pub fn has_scope(&self, part: Part, scope: &str) -> bool {
        let from = (part, scope.to_string());
        let mut after = self.tensors.range(from..).map(|(key, _)| key);
        after
            .next()
            .is_some_and(|key| key.0 == part && key.1.starts_with(scope))
    }

    /// How many there are of `before`, a number from 0 on, `after`.
    pub fn count(&self, part: Part, before: &str, after: &str) -> usize {
        let has = |n: &usize| self.get(part, &format!("{before}{n}{after}")).is_some();
        (0..).take_while(has).count()
    }

    /// What is left of it where networks take the tensors of these names.
    pub fn remarks(&self, used: &BTreeSet<(Part, &str)>) -> Vec<String> {
        let mut remarks = Vec::new();
        if self.averages > 0 {
            remarks.push(format!(
                "{} tensors of the moving average (EMA) are left out: the model's own weights are taken",
                self.averages
            ));
        }
        let all = self
            .tensors
            .keys()
            .map(|(part, name)| (*part, name.as_str()));
        let surplus = all.filter(|key| !used.contains(key)).map(|(_, name)| name);
        let surplus: Vec<&str> = surplus
            .chain(self.unknown.iter().map(String::as_str))
            .collect();
        if let Some(first) = surplus.first() {
            remarks.push(format!(
                "{} tensors have no place in these networks and are left out, such as '{first}'",
                surplus.len()
            ));
        }
        remarks
    }
}

const NO_MODEL: &str = "it has no UNet of Stable Diffusion (model.diffusion_model.input_blocks)";

/// Refuses what is known by its tensors' names to be something else.
fn is_whole_model(path: &Path, tensors: &[(String, Stored)]) -> Result<(), ZooError> {
    const KINDS: [(&str, &str); 9] = [
        ("lora_down.", LORA),
        ("lora_A.", LORA),
        ("hada_w1_a", LORA),
        ("control_model.", CONTROL),
        ("input_hint_block.", CONTROL),
        ("controlnet_cond_embedding.", CONTROL),
        (
            "conditioner.embedders.",
            "it is SDXL: take a folder that optimum exports",
        ),
        (
            "joint_blocks.",
            "it is Stable Diffusion 3, which is not supported",
        ),
        ("double_blocks.", "it is FLUX, which is not supported"),
    ];
    const LORA: &str = "it is a LoRA, which changes a model: merge it into a checkpoint first";
    const CONTROL: &str = "it is a ControlNet, which is not supported";
    for (part, what) in KINDS {
        if tensors.iter().any(|(name, _)| name.contains(part)) {
            return Err(bad(format!("{}: {what}", path.display())));
        }
    }
    Ok(())
}

/// Refuses folders of other models by the name that they give themselves.
fn is_known_pipeline(folder: &Path) -> Result<(), ZooError> {
    if !folder.join("unet").is_dir() {
        return Err(bad(format!(
            "{} is no folder of diffusers: it has no unet/",
            folder.display()
        )));
    }
    let index = super::settings::json(&folder.join("model_index.json"))?;
    let class = index.as_ref().and_then(|index| index.get("_class_name"));
    match class.and_then(Value::as_str) {
        None | Some("StableDiffusionPipeline" | "StableDiffusionImg2ImgPipeline") => Ok(()),
        Some(class) => Err(bad(format!(
            "{}: it is a {class}, and only StableDiffusionPipeline is supported",
            folder.display()
        ))),
    }
}

/// Where a part's tensors are: one file, or those of an index.
fn files(folder: &Path, part: Part) -> Result<Vec<PathBuf>, ZooError> {
    let folder = folder.join(part.folder());
    let stem = match part {
        Part::Text => "model",
        Part::Unet | Part::Vae => "diffusion_pytorch_model",
    };
    let listed =
        fs::read_dir(&folder).map_err(|e| bad(format!("cannot read {}: {e}", folder.display())))?;
    let names = listed.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let all: BTreeSet<String> = names.filter(|name| name.starts_with(stem)).collect();
    let whole: Vec<&String> = all
        .iter()
        .filter(|name| name.ends_with(".safetensors") && !name.contains("-of-"))
        .collect();
    let indices: Vec<&String> = all
        .iter()
        .filter(|name| name.contains(".safetensors.index") && name.ends_with(".json"))
        .collect();
    // What was trained comes before what was rounded from it.
    let is = |suffix: &str| format!("{stem}{suffix}.safetensors");
    let index = |half: bool| indices.iter().find(|name| name.contains(".fp16.") == half);
    if let Some(name) = whole.iter().find(|name| ***name == is("")) {
        return Ok(vec![folder.join(name)]);
    }
    if let Some(name) = index(false) {
        return shards(&folder, name);
    }
    if let Some(name) = whole.iter().find(|name| ***name == is(".fp16")) {
        return Ok(vec![folder.join(name)]);
    }
    if let Some(name) = index(true) {
        return shards(&folder, name);
    }
    match whole.as_slice() {
        [name] => Ok(vec![folder.join(name)]),
        [] => {
            let has_pickle = all.iter().any(|name| name.ends_with(".bin"));
            let hint = match has_pickle {
                true => {
                    "; its .bin is a pickle, which may run code when it is read: save it as safetensors"
                }
                false => "",
            };
            Err(bad(format!(
                "{} has no {stem}.safetensors{hint}",
                folder.display()
            )))
        }
        [first, ..] => Err(bad(format!(
            "{} has several files of weights, such as {first}, and none is {}",
            folder.display(),
            is("")
        ))),
    }
}

/// The files that an index names, all beside it.
fn shards(folder: &Path, index: &str) -> Result<Vec<PathBuf>, ZooError> {
    let path = folder.join(index);
    let broken = || bad(format!("{} is no index of safetensors", path.display()));
    let index = super::settings::json(&path)?.ok_or_else(broken)?;
    let map = index.get("weight_map").and_then(Value::as_object);
    let mut names = BTreeSet::new();
    for name in map.ok_or_else(broken)?.values() {
        let name = name.as_str().ok_or_else(broken)?;
        // Nothing leads out of the folder.
        let is_plain = Path::new(name).file_name().is_some_and(|own| own == name);
        if !is_plain {
            return Err(broken());
        }
        names.insert(folder.join(name));
    }
    match names.is_empty() {
        true => Err(broken()),
        false => Ok(names.into_iter().collect()),
    }
}
