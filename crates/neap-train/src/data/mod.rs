//! Data sets: finding out what a path holds, and reading it sample by sample.
//!
//! ```text
//! IDX ─┐
//! npz ─┼─ Array: rows of a file ─┬─ Pairs ──┐
//! npy ─┘                         └─ Tokens ─┼─ Samples ─ Loader: batches, on a thread of its own
//! folder of pictures ───────────── Folder ──┘
//! ```
//! No reader holds its data: rows are read from files when a batch needs them.

mod array;
mod digits;
mod folder;
mod idx;
mod loader;
mod numpy;
mod pairs;
mod prepare;
mod sample;
mod tokens;

pub use folder::Largest;
pub use loader::{Augment, Batch, Loader, memory_bytes};
pub use prepare::Augmentation;
pub use sample::{SampleType, Samples};

use crate::error::{Result, bad};
use array::Array;
use digits::Digits;
use folder::Folder;
use neap_ir::DType;
use neap_picture::Recipe;
use pairs::Pairs;
use prepare::Prepare;
use sample::{first, split};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokens::Tokens;

/// How data are read.
#[derive(Debug, Clone, PartialEq)]
pub struct DataOptions {
    /// How pictures and bytes become inputs.
    pub picture: Recipe,
    pub augmentation: Augmentation,
    /// Share of the samples that is kept for validation, where the data name none for that.
    pub validation_share: f64,
    /// Train on the first so many samples only.
    pub limit: Option<usize>,
    pub seed: u64,
}

/// Samples to train on and to validate with.
pub struct DataSet {
    pub train: Arc<dyn Samples>,
    pub validation: Option<Arc<dyn Samples>>,
    /// Names of classes, where the data have any.
    pub classes: Vec<String>,
    /// How a model that was trained with these says that pictures are prepared; `None` where inputs are no pictures.
    pub picture: Option<Recipe>,
    /// The picture that takes the most memory to decode, where samples are files of pictures.
    pub largest: Option<Largest>,
    /// What the user should hear.
    pub remarks: Vec<String>,
}

impl DataSet {
    /// Beside the batches: what decoding a picture takes.
    pub fn decoding_bytes(&self) -> u64 {
        self.largest.as_ref().map_or(0, |largest| largest.bytes)
    }
}

/// Whether the data at `path` are tokens, whose targets are their successors.
pub fn are_tokens(path: &Path) -> bool {
    matches!(Kind::of(path), Ok(Kind::Tokens { .. }))
}

/// What a path holds.
enum Kind {
    /// Files of images and labels.
    Idx {
        train: [PathBuf; 2],
        validation: Option<[PathBuf; 2]>,
    },
    Npz(PathBuf),
    Tokens {
        train: PathBuf,
        validation: Option<PathBuf>,
    },
    Folder {
        train: PathBuf,
        validation: Option<PathBuf>,
    },
}

const VALIDATION_NAMES: [&str; 4] = ["val", "valid", "validation", "test"];

impl Kind {
    fn of(path: &Path) -> Result<Kind> {
        let shown = path.display();
        if path.is_file() {
            let train = path.to_path_buf();
            return match path.extension().and_then(|e| e.to_str()) {
                Some("npz") => Ok(Kind::Npz(train)),
                Some("npy" | "bin") => Ok(Kind::Tokens {
                    train,
                    validation: None,
                }),
                _ => Err(bad(format!(
                    "{shown} is no data that is known: .npz, or tokens as .npy or .bin"
                ))),
            };
        }
        if !path.is_dir() {
            return Err(bad(format!("there is no {shown}")));
        }
        let pair = |of: &str| {
            let file = |what: &str| {
                let plain = path.join(format!("{of}-{what}-ubyte"));
                let packed = path.join(format!("{of}-{what}-ubyte.gz"));
                [plain, packed].into_iter().find(|p| p.is_file())
            };
            Some([file("images-idx3")?, file("labels-idx1")?])
        };
        if let Some(train) = pair("train") {
            let validation = pair("t10k").or_else(|| pair("test"));
            return Ok(Kind::Idx { train, validation });
        }
        let tokens = |name: &str| {
            let files = ["bin", "npy"].map(|kind| path.join(format!("{name}.{kind}")));
            files.into_iter().find(|p| p.is_file())
        };
        if let Some(train) = tokens("train") {
            let validation = VALIDATION_NAMES.iter().find_map(|name| tokens(name));
            return Ok(Kind::Tokens { train, validation });
        }
        if folder::folders(path)?.is_empty() {
            return Err(bad(format!(
                "{shown} holds none of train-images-idx3-ubyte, train.bin, train.npy and folders of pictures"
            )));
        }
        let inner = |name: &str| Some(path.join(name)).filter(|p| p.is_dir());
        Ok(match inner("train") {
            Some(train) => Kind::Folder {
                train,
                validation: VALIDATION_NAMES.iter().find_map(|name| inner(name)),
            },
            None => Kind::Folder {
                train: path.into(),
                validation: None,
            },
        })
    }
}

/// Opens what `path` holds.
///
/// # Errors
/// It is not known, cannot be read, or does not fit the model.
pub fn open(path: &Path, wanted: &SampleType, options: &DataOptions) -> Result<DataSet> {
    let mut classes = Vec::new();
    let (mut largest, mut remarks) = (None, Vec::new());
    let mut picture = None;
    let (train, validation): (Arc<dyn Samples>, Option<Arc<dyn Samples>>) = match Kind::of(path)? {
        Kind::Idx { train, validation } => {
            let mut open = |[images, labels]: [PathBuf; 2]| {
                let images = idx::open(&images)?;
                picture = of_bytes(&images, wanted, options)?;
                pairs(images, idx::open(&labels)?, wanted, options)
            };
            (open(train)?, validation.map(&mut open).transpose()?)
        }
        Kind::Npz(path) => of_npz(&path, wanted, options, &mut picture)?,
        Kind::Tokens { train, validation } => of_tokens(&train, validation, wanted, options)?,
        Kind::Folder { train, validation } => {
            let train = Folder::open(&train, wanted, prepare(wanted, options)?, None)?;
            classes = train.classes().to_vec();
            picture = train.picture();
            remarks.extend(train.remark());
            let mut most = train.largest().clone();
            let mut open = |path: PathBuf| -> Result<Arc<dyn Samples>> {
                let prepare = prepare(wanted, options)?;
                let opened = Folder::open(&path, wanted, prepare, Some(&classes))?;
                remarks.extend(opened.remark());
                if opened.largest().bytes > most.bytes {
                    most = opened.largest().clone();
                }
                Ok(Arc::new(opened))
            };
            let validation = validation.map(&mut open).transpose()?;
            largest = Some(most);
            (Arc::new(train), validation)
        }
    };
    if let Some(remark) = few_classes(&classes, wanted) {
        remarks.push(remark);
    }
    let (train, validation) = match validation {
        Some(validation) => (train, Some(validation)),
        None => split(train, options.validation_share, options.seed),
    };
    if train
        .count()
        .max(validation.as_ref().map_or(0, |v| v.count()))
        > u32::MAX as usize
    {
        return Err(bad("there are more than 2^32 samples"));
    }
    Ok(DataSet {
        train: first(train, options.limit),
        validation,
        classes,
        picture,
        largest,
        remarks,
    })
}

/// Digits that are drawn, no two the same: `count` to train on, and a quarter as many to validate with.
///
/// # Errors
/// The model takes something else than pictures of 28 x 28 in ten classes.
pub fn digits(wanted: &SampleType, options: &DataOptions, count: usize) -> Result<DataSet> {
    let picture = prepare(wanted, options)?.told();
    let draw = |count: usize, seed: u64| -> Result<Arc<dyn Samples>> {
        let prepare = prepare(wanted, options)?;
        Ok(Arc::new(Digits::new(wanted, prepare, count, seed)?))
    };
    Ok(DataSet {
        train: draw(count, options.seed)?,
        validation: Some(draw(count / 4, !options.seed)?),
        classes: (0..10).map(|digit| digit.to_string()).collect(),
        picture,
        largest: None,
        remarks: Vec::new(),
    })
}

fn prepare(wanted: &SampleType, options: &DataOptions) -> Result<Prepare> {
    Prepare::new(&wanted.input, &options.picture, options.augmentation)
}

/// Of inputs that are bytes of pictures.
fn of_bytes(inputs: &Array, wanted: &SampleType, options: &DataOptions) -> Result<Option<Recipe>> {
    match (inputs.dtype(), wanted.input.dtype) {
        (DType::U8, DType::F32) => Ok(prepare(wanted, options)?.told()),
        _ => Ok(None),
    }
}

/// What to say where most of a model's classes are in no picture.
fn few_classes(classes: &[String], wanted: &SampleType) -> Option<String> {
    let (found, of_model) = (classes.len(), wanted.classes?);
    (0 < found && found < of_model).then(|| {
        format!(
            "the model has {of_model} classes, the data have {found}: --classes {found} would give it a last layer of {found}"
        )
    })
}

fn pairs(
    inputs: Array,
    targets: Array,
    wanted: &SampleType,
    options: &DataOptions,
) -> Result<Arc<dyn Samples>> {
    let prepare = match wanted.input.dtype {
        DType::I64 => None,
        _ => Some(prepare(wanted, options)?),
    };
    Ok(Arc::new(Pairs::new(inputs, targets, wanted, prepare)?))
}

type Both = (Arc<dyn Samples>, Option<Arc<dyn Samples>>);

/// Arrays `x` and `y`, or as Keras names them.
fn of_npz(
    path: &Path,
    wanted: &SampleType,
    options: &DataOptions,
    picture: &mut Option<Recipe>,
) -> Result<Both> {
    let members = numpy::members(path)?;
    let named = |x: &str, y: &str| {
        let has = |name: &str| members.iter().any(|m| m == name);
        (has(x) && has(y)).then(|| [x.to_string(), y.to_string()])
    };
    let mut open = |[x, y]: [String; 2]| {
        let inputs = numpy::member(path, &x)?;
        *picture = of_bytes(&inputs, wanted, options)?;
        pairs(inputs, numpy::member(path, &y)?, wanted, options)
    };
    let train = named("x_train", "y_train").or_else(|| named("x", "y"));
    let train = train.ok_or_else(|| {
        let (path, members) = (path.display(), members.join(", "));
        bad(format!(
            "{path} needs arrays x and y, or x_train and y_train; it has {members}"
        ))
    })?;
    let validation = named("x_val", "y_val").or_else(|| named("x_test", "y_test"));
    Ok((open(train)?, validation.map(&mut open).transpose()?))
}

fn of_tokens(
    train: &Path,
    validation: Option<PathBuf>,
    wanted: &SampleType,
    options: &DataOptions,
) -> Result<Both> {
    let open = |path: &Path| match path.extension().and_then(|e| e.to_str()) {
        Some("npy") => numpy::open(path),
        _ => tokens::bare(path),
    };
    let array = open(train)?;
    let count = array.count();
    if let Some(path) = validation {
        let other = open(&path)?;
        let all = 0..other.count();
        let validation = Arc::new(Tokens::new(other, wanted, all)?);
        return Ok((
            Arc::new(Tokens::new(array, wanted, 0..count)?),
            Some(validation),
        ));
    }
    // The end of a text says more of what comes next than stretches between those trained on.
    let held_back = (count as f64 * options.validation_share).round() as usize;
    let middle = count - held_back.min(count);
    let validation: Option<Arc<dyn Samples>> = match held_back {
        0 => None,
        _ => Some(Arc::new(Tokens::new(open(train)?, wanted, middle..count)?)),
    };
    Ok((Arc::new(Tokens::new(array, wanted, 0..middle)?), validation))
}
