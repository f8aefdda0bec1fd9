//! GGUF files: what `neap inspect` says of one.

use crate::failure::{Outcome, bad};
use crate::names;
use crate::printed::{Printed, TextOrJson};
use neap_gguf::{Header, LanguageModel, Shards, other_shards};
use neaptide::Bytes;
use serde::Serialize;
use std::fmt::Write;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Whether a file begins as such files do. A pipe is not opened: that would wait for who writes to it.
pub fn is_gguf(path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

#[derive(Serialize)]
struct Facts {
    model: String,
    files: u64,
    architecture: Option<String>,
    name: Option<String>,
    parameters: u64,
    layers: Option<u64>,
    width: Option<u64>,
    heads: Option<u64>,
    key_heads: Option<u64>,
    /// Of each layer, and how many of them a token is given to.
    #[serde(skip_serializing_if = "Option::is_none")]
    experts: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    experts_used: Option<u64>,
    context_positions: Option<u64>,
    weights: Vec<Weights>,
    weight_bytes: u64,
    /// That a token needs.
    bytes_of_a_token: u64,
    /// Of keys and values in half floats.
    bytes_of_a_position: Option<u64>,
    tokenizer: Option<String>,
    pre_tokenizer: Option<String>,
    vocabulary: Option<u64>,
    chat_template: bool,
}

#[derive(Serialize)]
struct Weights {
    #[serde(rename = "type")]
    kind: &'static str,
    tensors: usize,
    bytes: u64,
}

/// Prints what is in a model.
pub fn inspect(path: &Path, printed: &Printed<TextOrJson>) -> Outcome {
    let facts = gather(path)?;
    match printed.form() {
        TextOrJson::Json => printed.print_json(&facts),
        TextOrJson::Text => printed.print(&text(&facts)),
    }
}

fn gather(path: &Path) -> Outcome<Facts> {
    let mut header = read(path)?;
    let shards = Shards::of(&header).map_err(|e| of_file(path, e))?;
    for other in other_shards(path, shards).map_err(|e| of_file(path, e))? {
        let part = read(&other)?;
        header.tensors.extend(part.tensors);
        // The first part has the pairs, whichever was given.
        if part.pairs.len() > header.pairs.len() {
            header.pairs = part.pairs;
        }
    }
    let model = LanguageModel::of(&header);
    let weights: Vec<Weights> = (header.kinds().into_iter())
        .map(|(kind, (tensors, bytes))| Weights {
            kind: kind.name(),
            tensors,
            bytes,
        })
        .collect();
    Ok(Facts {
        model: path.display().to_string(),
        files: shards.count,
        parameters: header.parameters(),
        weight_bytes: weights.iter().map(|w| w.bytes).fold(0, u64::saturating_add),
        weights,
        bytes_of_a_token: header.bytes_of_a_token(),
        bytes_of_a_position: (model.as_ref())
            .and_then(|model| model.cached_elements()?.checked_mul(2)),
        architecture: model.as_ref().map(|m| m.architecture.clone()),
        name: model.as_ref().and_then(|m| m.name.clone()),
        layers: model.as_ref().and_then(|m| m.layers),
        width: model.as_ref().and_then(|m| m.width),
        heads: model.as_ref().and_then(|m| m.heads),
        key_heads: model.as_ref().and_then(|m| m.key_heads),
        experts: model.as_ref().and_then(|m| m.experts),
        experts_used: model.as_ref().and_then(|m| m.experts_used),
        context_positions: model.as_ref().and_then(|m| m.context),
        tokenizer: model.as_ref().and_then(|m| m.tokenizer.clone()),
        pre_tokenizer: model.as_ref().and_then(|m| m.pre_tokenizer.clone()),
        vocabulary: model.as_ref().and_then(|m| m.vocabulary),
        chat_template: model.is_some_and(|m| m.has_chat_template),
    })
}

fn read(path: &Path) -> Outcome<Header> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?.len(), file)));
    let (len, file) = opened.map_err(|e| of_file(path, e))?;
    Header::read(BufReader::new(file), len).map_err(|e| of_file(path, e))
}

fn of_file(path: &Path, error: impl std::fmt::Display) -> crate::failure::Failure {
    bad(format!("'{}': {error}", path.display()))
}

fn text(facts: &Facts) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<11} {value}");
    };
    let known = |value: Option<u64>| value.map_or_else(|| "?".into(), |n| n.to_string());
    let shown = |name: &Option<String>| name.as_deref().map_or_else(|| "?".into(), names::shown);
    line("model", facts.model.clone());
    if facts.files > 1 {
        line("files", facts.files.to_string());
    }
    if let Some(name) = &facts.name {
        line("name", names::shown(name));
    }
    line(
        "graph",
        format!(
            "{}, {:.1} million parameters, {} layers, width {}, {} heads, {} of keys and values",
            shown(&facts.architecture),
            facts.parameters as f64 / 1e6,
            known(facts.layers),
            known(facts.width),
            known(facts.heads),
            known(facts.key_heads),
        ),
    );
    let kinds = facts.weights.iter();
    let kinds: Vec<_> = kinds
        .map(|w| format!("{} {} in {} tensors", Bytes(w.bytes), w.kind, w.tensors))
        .collect();
    line(
        "weights",
        format!("{}: {}", Bytes(facts.weight_bytes), kinds.join(", ")),
    );
    if let Some(experts) = facts.experts {
        let used = known(facts.experts_used);
        line(
            "experts",
            format!("{experts} in a layer, a token is given to {used}"),
        );
    }
    line(
        "a token",
        format!("needs {} of them", Bytes(facts.bytes_of_a_token)),
    );
    if let Some(bytes) = facts.bytes_of_a_position {
        line(
            "a position",
            format!("of context takes {} in half floats", Bytes(bytes)),
        );
    }
    line(
        "context",
        format!("{} positions", known(facts.context_positions)),
    );
    line(
        "tokenizer",
        format!(
            "{}, {}, {} tokens{}",
            shown(&facts.tokenizer),
            shown(&facts.pre_tokenizer),
            known(facts.vocabulary),
            if facts.chat_template {
                ", a template of chats"
            } else {
                ""
            }
        ),
    );
    let runs =
        (facts.architecture.as_deref()).is_some_and(|name| neap_llm::ARCHITECTURES.contains(&name));
    line(
        "",
        match runs {
            true => "neap chat and neap generate run it; neap plan says how fast".into(),
            false => "its architecture does not run yet".into(),
        },
    );
    text
}
