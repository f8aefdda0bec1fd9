//! What the bits of a training depend on, in words: a checkpoint is taken up by the same training only.

use crate::data::DataSet;
use crate::error::{Result, unreadable};
use crate::options::{RateDecay, TrainOptions};
use crate::recipe::Recipe;
use neap_autodiff::{BatchNorm, Clip, Loss};
use neaptide::Adapters;
use std::collections::BTreeMap;
use std::fs::File;

/// By the option's name, or what else it is.
pub type Settings = BTreeMap<String, String>;

/// The name of the learning rate.
pub const RATE: &str = "--lr";

/// What may be another when a training goes on: the steps that were taken stay what they are.
const MAY_CHANGE: [&str; 4] = [RATE, "--warm-up", "--lr-decay", "--epochs"];

/// Names of what is told apart by a digest, which says nothing to anybody.
const MODEL: &str = "the model";
const PARAMETERS: &str = "what is trained, or the optimizer";

/// Of a training.
///
/// # Errors
/// The model cannot be read.
pub fn of(recipe: &Recipe, data: &DataSet, options: &TrainOptions) -> Result<Settings> {
    let mut hasher = blake3::Hasher::new();
    let path = &recipe.start.given;
    let file = File::open(path).map_err(|e| unreadable(path, e))?;
    hasher
        .update_reader(file)
        .map_err(|e| unreadable(path, e))?;
    let digest = hasher.finalize().to_hex();
    let updates: Vec<String> = recipe
        .trained
        .iter()
        .map(|(n, u)| format!("{n} {u:?}"))
        .collect();
    let updates = blake3::hash(updates.join("\n").as_bytes()).to_hex();
    let mut settings = BTreeMap::from(
        [
            (MODEL, digest[..16].to_string()),
            (PARAMETERS, updates[..16].to_string()),
            ("--batch", recipe.batch.to_string()),
            ("--loss", loss(&recipe.loss)),
            ("--batch-norm", batch_norm(recipe.batch_norm)),
            ("--clip-norm or --clip-value", clip(recipe.clip)),
            ("--seed", options.seed.to_string()),
            (RATE, options.rate.to_string()),
            ("--warm-up", options.warm_up.to_string()),
            ("--lr-decay", decay(options.decay).into()),
            ("samples", data.train.count().to_string()),
        ]
        .map(|(name, value)| (name.to_string(), value)),
    );
    if let (true, Some(classes)) = (recipe.start.has_new_classes, recipe.sample.classes) {
        settings.insert("--classes".into(), classes.to_string());
    }
    if let Some(lora) = &recipe.lora {
        let Adapters { rank, alpha, .. } = &lora.adapters;
        settings.insert("--lora".into(), format!("{rank}, alpha {alpha}"));
    }
    // A rate that falls until the end depends on where that is.
    if options.decay != RateDecay::Constant {
        settings.insert("--epochs".into(), options.epochs.to_string());
    }
    settings.extend(options.settings.iter().cloned());
    Ok(settings)
}

fn loss(loss: &Loss) -> String {
    match loss {
        Loss::CrossEntropy {
            label_smoothing, ..
        } if *label_smoothing > 0.0 => {
            format!("cross-entropy with label smoothing {label_smoothing}")
        }
        Loss::CrossEntropy { .. } => "cross-entropy".into(),
        Loss::MeanSquare => "mse".into(),
        Loss::MeanAbsolute => "l1".into(),
        Loss::BinaryCrossEntropy => "bce".into(),
    }
}

fn batch_norm(batch_norm: BatchNorm) -> String {
    match batch_norm {
        BatchNorm::Given => "given".into(),
        BatchNorm::Batch { momentum } => format!("batch, momentum {momentum}"),
    }
}

fn clip(clip: Option<Clip>) -> String {
    match clip {
        None => "none".into(),
        Some(Clip::Norm(norm)) => format!("norm {norm}"),
        Some(Clip::Value(value)) => format!("value {value}"),
    }
}

fn decay(decay: RateDecay) -> &'static str {
    match decay {
        RateDecay::Constant => "constant",
        RateDecay::Linear => "linear",
        RateDecay::Cosine => "cosine",
    }
}

/// What differs so that one training cannot go on as the other, in words.
pub fn difference(then: &Settings, now: &Settings) -> Option<String> {
    let name = differing(then, now).find(|name| !MAY_CHANGE.contains(name))?;
    let said = |of: Option<&String>| of.map_or("none", String::as_str).to_string();
    Some(match name {
        MODEL | PARAMETERS => format!("{name} is another"),
        _ => format!(
            "{name} was {}, now it is {}",
            said(then.get(name)),
            said(now.get(name))
        ),
    })
}

/// What is another than it was when a training goes on, in words.
pub fn changes(then: &Settings, now: &Settings) -> Vec<String> {
    let changed = differing(then, now).filter(|name| MAY_CHANGE.contains(name));
    let said = |of: Option<&String>| of.map_or("not set", String::as_str).to_string();
    changed
        .map(|name| {
            let (then, now) = (said(then.get(name)), said(now.get(name)));
            format!("{name} was {then}, from here on it is {now}")
        })
        .collect()
}

fn differing<'a>(then: &'a Settings, now: &'a Settings) -> impl Iterator<Item = &'a str> {
    let mut names: Vec<&str> = then.keys().chain(now.keys()).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    names
        .into_iter()
        .filter(|name| then.get(*name) != now.get(*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(name: &str, value: &str) -> Settings {
        BTreeMap::from([(name.to_string(), value.to_string())])
    }

    #[test]
    fn differences_are_named_in_plain_words() {
        let batch = |value| map("--batch", value);
        assert_eq!(difference(&batch("64"), &batch("64")), None);
        let text = difference(&batch("64"), &batch("32")).unwrap();
        assert_eq!(text, "--batch was 64, now it is 32");
        let text = difference(&batch("64"), &BTreeMap::new()).unwrap();
        assert_eq!(text, "--batch was 64, now it is none");
        let text = difference(&map(MODEL, "8ddf"), &map(MODEL, "0a1b")).unwrap();
        assert_eq!(text, "the model is another");
    }

    #[test]
    fn a_rate_may_change() {
        let rate = |value| map(RATE, value);
        assert_eq!(difference(&rate("0.1"), &rate("0.2")), None);
        let told = changes(&rate("0.1"), &rate("0.2"));
        assert_eq!(told, ["--lr was 0.1, from here on it is 0.2"]);
    }
}
