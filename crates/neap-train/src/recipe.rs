//! From a model file and what is wanted of it to what is trained, and how.

use crate::data::SampleType;
use crate::error::{Result, bad};
use crate::lora::{Lora, LoraOptions};
use crate::start::Start;
use neap_autodiff::{BatchNorm, Clip, Loss, parameters};
use neap_ir::update::Update;
use neap_ir::{DType, Graph, Op, TensorType};
use neap_onnx::{DeclaredDim, OpenOptions, Replaceable};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What the model's result is compared with.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LossKind {
    CrossEntropy { label_smoothing: f32 },
    MeanSquare,
    MeanAbsolute,
    BinaryCrossEntropy,
}

/// What is wanted of a model.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    pub batch: usize,
    /// Input name to its whole shape, for dimensions that the model leaves open.
    pub shapes: BTreeMap<String, Vec<usize>>,
    pub loss: LossKind,
    /// For each parameter, whose decay is left out where it has one axis: biases, scales and shifts.
    pub update: Update,
    /// Patterns of names (`*` and `?`) that are not trained.
    pub freeze: Vec<String>,
    /// Adapters are trained, and nothing else.
    pub lora: Option<LoraOptions>,
    pub batch_norm: BatchNorm,
    pub clip: Option<Clip>,
    /// A new last layer of so many classes.
    pub classes: Option<usize>,
    /// Of that layer's first values.
    pub seed: u64,
    /// Where the model is written as it is trained, if it must be another than it is; gone with the recipe.
    pub start: PathBuf,
}

/// What is trained.
#[derive(Debug, Clone)]
pub struct Recipe {
    pub start: Start,
    pub shapes: BTreeMap<String, Vec<usize>>,
    pub batch: usize,
    pub loss: Loss,
    pub batch_norm: BatchNorm,
    pub clip: Option<Clip>,
    /// Name of each trained initializer, or matrix of an adapter, with its update.
    pub trained: BTreeMap<String, Update>,
    pub trained_elements: u64,
    /// Means and variances that the batches move, by name.
    pub statistics: BTreeSet<String>,
    /// Constants that could be trained and are not.
    pub frozen: usize,
    pub lora: Option<Lora>,
    pub sample: SampleType,
    /// Of the model's first output.
    pub result: TensorType,
    /// What the trained model says of itself, beside what the model said.
    pub metadata: Vec<(String, String)>,
}

impl Recipe {
    /// Whether training changes the initializer of this name.
    pub fn is_learned(&self, name: &str) -> bool {
        let is_trained = match &self.lora {
            Some(_) => self.is_adapted(name),
            None => self.trained.contains_key(name),
        };
        is_trained || self.statistics.contains(name)
    }

    /// Whether the initializer of this name has an adapter.
    pub fn is_adapted(&self, name: &str) -> bool {
        let lora = self.lora.as_ref();
        lora.is_some_and(|lora| lora.parts.contains_key(name))
    }

    /// Reads a model's structure. `tokens`: targets are for each token, with classes along the last axis.
    ///
    /// # Errors
    /// The model cannot be read or trained as wanted.
    pub fn new(model: &Path, options: &ModelOptions, tokens: bool) -> Result<Recipe> {
        let start = Start::new(model, &options.start, options.classes, options.seed)?;
        let model = start.model();
        let shapes = shapes(model, options)?;
        let open = OpenOptions {
            shapes: shapes.clone(),
            keep_parameters: true,
            ..OpenOptions::default()
        };
        let graph = neap_onnx::open(model, &open).map_err(|error| match options.classes {
            Some(classes) => bad(format!("with {classes} classes: {error}")),
            None => error.into(),
        })?;
        let &[input] = &graph.inputs[..] else {
            return Err(bad(format!(
                "the model has {} inputs, one can be trained with",
                graph.inputs.len()
            )));
        };
        let Some(&result) = graph.outputs.first() else {
            return Err(bad("the model has no outputs"));
        };
        let (input, result) = (graph.ty(input).clone(), graph.ty(result).clone());
        if result.dtype != DType::F32 {
            return Err(bad(format!(
                "the model's first output is {}, a loss takes float32",
                result.dtype
            )));
        }
        let class_axis = if tokens {
            result.shape.len().saturating_sub(1)
        } else {
            1
        };
        let loss = match options.loss {
            LossKind::CrossEntropy { label_smoothing } => Loss::CrossEntropy {
                class_axis,
                label_smoothing,
                ignore_index: None,
            },
            LossKind::MeanSquare => Loss::MeanSquare,
            LossKind::MeanAbsolute => Loss::MeanAbsolute,
            LossKind::BinaryCrossEntropy => Loss::BinaryCrossEntropy,
        };
        let target = loss.target(&result)?;
        let classes = matches!(loss, Loss::CrossEntropy { .. }).then(|| result.shape[class_axis]);
        for (what, ty) in [("input", &input), ("output", &target)] {
            if ty.shape.first() != Some(&options.batch) {
                return Err(bad(format!(
                    "the model's {what} is {:?}, its first axis is no batch of {}",
                    ty.shape, options.batch
                )));
            }
        }
        let candidates = candidates(model, &graph)?;
        let lora = (options.lora.as_ref())
            .map(|lora| Lora::choose(&graph, &candidates, lora))
            .transpose()?;
        let chosen = chosen(&candidates, lora.as_ref(), &options.freeze)?;
        let update_of = |ty: &TensorType| for_shape(options.update, &ty.shape);
        let (batch_norm, statistics) = batch_norm(&graph, options.batch_norm);
        let of_sample = |ty: &TensorType| TensorType::new(ty.dtype, &ty.shape[1..]);
        Ok(Recipe {
            shapes,
            batch: options.batch,
            loss,
            batch_norm,
            statistics,
            clip: options.clip,
            trained_elements: chosen.values().map(|ty| ty.elements() as u64).sum(),
            frozen: match &lora {
                Some(_) => candidates.len(),
                None => candidates.len() - chosen.len(),
            },
            trained: (chosen.iter())
                .map(|(name, ty)| (name.clone(), update_of(ty)))
                .collect(),
            lora,
            sample: SampleType {
                input: of_sample(&input),
                target: of_sample(&target),
                classes,
            },
            result,
            metadata: Vec::new(),
            start,
        })
    }

    /// The file that is trained.
    pub fn model(&self) -> &Path {
        self.start.model()
    }
}

/// The shape of the model's input: its first axis is the batch.
fn shapes(model: &Path, options: &ModelOptions) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes = options.shapes.clone();
    let signature = neap_onnx::signature(model)?;
    let Some(input) = signature.inputs.first() else {
        return Err(bad("the model has no inputs"));
    };
    let Some(dims) = &input.dims else {
        return Ok(shapes);
    };
    if let Some(&DeclaredDim::Fixed(batch)) = dims.first()
        && batch != options.batch
    {
        return Err(bad(format!(
            "the model takes batches of {batch} only: give --batch {batch}, or export it with an open first dimension"
        )));
    }
    let fixed = |dim: &DeclaredDim| match dim {
        DeclaredDim::Fixed(size) => Some(*size),
        _ => None,
    };
    let rest: Option<Vec<usize>> = dims.iter().skip(1).map(fixed).collect();
    if let (Some(rest), false) = (rest, dims.is_empty()) {
        let whole = [&[options.batch], &rest[..]].concat();
        shapes.entry(input.name.clone()).or_insert(whole);
    }
    Ok(shapes)
}

/// Initializers of the file that are parameters: what is trained can be written back. Constants that were computed of
/// others cannot, and stay as they are.
fn candidates(model: &Path, graph: &Graph) -> Result<BTreeMap<String, TensorType>> {
    let file = Replaceable::open(model)?;
    let named: BTreeSet<&str> = file.initializers().map(|i| i.name.as_str()).collect();
    let found = parameters(graph).into_iter();
    let found = found.map(|v| (graph.value(v).name.clone(), graph.ty(v).clone()));
    Ok(found
        .filter(|(name, _)| named.contains(name.as_str()))
        .collect())
}

/// What is trained: the adapters, or else all candidates but those that are frozen.
fn chosen(
    candidates: &BTreeMap<String, TensorType>,
    lora: Option<&Lora>,
    freeze: &[String],
) -> Result<BTreeMap<String, TensorType>> {
    check_patterns(freeze, candidates)?;
    if let Some(lora) = lora {
        return Ok(lora.tensors().cloned().collect());
    }
    let is_frozen = |name: &str| freeze.iter().any(|p| matches(p, name));
    let chosen = candidates.iter().filter(|(name, _)| !is_frozen(name));
    let chosen: BTreeMap<_, _> = chosen.map(|(n, ty)| (n.clone(), ty.clone())).collect();
    match chosen.is_empty() {
        true => Err(bad("nothing is left to be trained")),
        false => Ok(chosen),
    }
}

/// Without decay where it would pull a bias or a scale to zero.
fn for_shape(update: Update, shape: &[usize]) -> Update {
    let mut update = update;
    if shape.len() < 2 {
        match &mut update {
            Update::Sgd { decay, .. }
            | Update::AdamW { decay, .. }
            | Update::Adagrad { decay, .. } => *decay = 0.0,
        }
    }
    update
}

/// The batch's statistics are of use only where the model has such normalisations; then the names of the model's own.
fn batch_norm(graph: &Graph, wanted: BatchNorm) -> (BatchNorm, BTreeSet<String>) {
    let norms = graph.nodes.iter();
    let norms = norms.filter(|n| matches!(n.op, Op::BatchNorm { .. }));
    let own = norms.flat_map(|n| [n.input(3), n.input(4)]).flatten();
    let names: BTreeSet<String> = own.map(|v| graph.value(v).name.clone()).collect();
    match wanted {
        BatchNorm::Batch { .. } if !names.is_empty() => (wanted, names),
        _ => (BatchNorm::Given, BTreeSet::new()),
    }
}

fn check_patterns(patterns: &[String], candidates: &BTreeMap<String, TensorType>) -> Result<()> {
    for pattern in patterns {
        if !candidates.keys().any(|name| matches(pattern, name)) {
            return Err(bad(format!(
                "--freeze {pattern} names no parameter{}",
                names_of(candidates.keys().map(String::as_str))
            )));
        }
    }
    Ok(())
}

/// What the first few things are called, for a refusal; nothing where there are none.
pub(crate) fn names_of<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let some: Vec<&str> = names.take(4).collect();
    match some.is_empty() {
        true => String::new(),
        false => format!("; they are named as {}", some.join(", ")),
    }
}

/// Whether a name fits a pattern, where `*` is anything and `?` is one character.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (pattern, name): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where to go on when what follows the last star does not fit.
    let mut again: Option<(usize, usize)> = None;
    while n < name.len() {
        if p < pattern.len() && pattern[p] == '*' {
            again = Some((p + 1, n));
            p += 1;
        } else if p < pattern.len() && (pattern[p] == '?' || pattern[p] == name[n]) {
            p += 1;
            n += 1;
        } else if let Some((after, at)) = again {
            again = Some((after, at + 1));
            p = after;
            n = at + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("features.*", "features.0.weight", true),
            ("features.*", "classifier.1.weight", false),
            ("*.bias", "a.b.bias", true),
            ("*.bias", "a.bias.b", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("?", "é", true),
            ("?", "ab", false),
            ("**", "", true),
            ("", "", true),
            ("", "a", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn only_matrices_decay() {
        let adam = Update::AdamW {
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            decay: 0.1,
        };
        assert_eq!(for_shape(adam, &[3, 4]), adam);
        assert!(matches!(
            for_shape(adam, &[3]),
            Update::AdamW { decay: 0.0, .. }
        ));
    }
}
