//! What a header says of a language model: its sizes, and what a token and a position cost.

use crate::{Header, Kind, Value};
use std::collections::BTreeMap;

/// A language model's sizes. What the file does not say is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct LanguageModel {
    /// `llama`, `qwen2`, `gemma3`, …
    pub architecture: String,
    pub name: Option<String>,
    pub layers: Option<u64>,
    pub width: Option<u64>,
    pub heads: Option<u64>,
    /// Heads of keys and values: fewer than `heads` where several share one.
    pub key_heads: Option<u64>,
    /// Elements of a key, and of a value, of one head.
    pub key_width: Option<u64>,
    pub value_width: Option<u64>,
    /// Of each layer, and how many of them a token is given to.
    pub experts: Option<u64>,
    pub experts_used: Option<u64>,
    /// Positions that the model was trained for.
    pub context: Option<u64>,
    /// `gpt2`, `llama`, `bert`, …, and how text is cut before it.
    pub tokenizer: Option<String>,
    pub pre_tokenizer: Option<String>,
    pub vocabulary: Option<u64>,
    pub has_chat_template: bool,
}

/// Names of the tables that are read by row: a token needs one of it.
const BY_ROW: [&str; 3] = [
    "token_embd.weight",
    "per_layer_token_embd.weight",
    "position_embd.weight",
];
const OUTPUT: &str = "output.weight";
/// What names of tensors have that hold all experts of a layer.
const OF_EXPERTS: &str = "_exps.";

impl LanguageModel {
    /// `None` for files that name no architecture.
    #[must_use]
    pub fn of(header: &Header) -> Option<Self> {
        let text = |key: &str| header.get(key).and_then(Value::as_text).map(str::to_owned);
        let architecture = text("general.architecture")?;
        let number = |key: &str| {
            let value = header.get(&format!("{architecture}.{key}"));
            value.and_then(Value::as_u64)
        };
        let (width, heads) = (number("embedding_length"), number("attention.head_count"));
        let head_width = width
            .zip(heads)
            .and_then(|(width, heads)| width.checked_div(heads));
        let tokens = header
            .get("tokenizer.ggml.tokens")
            .and_then(Value::as_array);
        Some(LanguageModel {
            name: text("general.name"),
            layers: number("block_count"),
            width,
            heads,
            key_heads: number("attention.head_count_kv").or(heads),
            key_width: number("attention.key_length").or(head_width),
            value_width: number("attention.value_length").or(head_width),
            experts: number("expert_count").filter(|&count| count > 0),
            experts_used: number("expert_used_count"),
            context: number("context_length"),
            tokenizer: text("tokenizer.ggml.model"),
            pre_tokenizer: text("tokenizer.ggml.pre"),
            vocabulary: tokens.map(|array| array.len),
            has_chat_template: header.get("tokenizer.chat_template").is_some(),
            architecture,
        })
    }

    /// Elements that attention keeps of each position, in all layers together.
    #[must_use]
    pub fn cached_elements(&self) -> Option<u64> {
        let of_head = self.key_width?.checked_add(self.value_width?)?;
        self.layers?
            .checked_mul(self.key_heads?)?
            .checked_mul(of_head)
    }
}

impl Header {
    /// Elements of all tensors.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        let elements = self.tensors.iter().map(|tensor| tensor.elements());
        elements.fold(0, u64::saturating_add)
    }

    /// Tensors and bytes of each type.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<Kind, (usize, u64)> {
        let mut kinds = BTreeMap::new();
        for tensor in &self.tensors {
            let (tensors, bytes) = kinds.entry(tensor.kind).or_insert((0, 0u64));
            *tensors += 1;
            *bytes = bytes.saturating_add(tensor.range.end - tensor.range.start);
        }
        kinds
    }

    /// Bytes of weights that a token needs: all but tables that are read by row, and of experts as many as it is given to. A table
    /// that gives the logits as well is needed whole.
    #[must_use]
    pub fn bytes_of_a_token(&self) -> u64 {
        let is_tied = self.tensor(OUTPUT).is_none();
        let needed = self.tensors.iter().filter(|tensor| {
            let by_row = BY_ROW.iter().position(|name| *name == tensor.name);
            by_row.is_none() || by_row == Some(0) && is_tied
        });
        let model = LanguageModel::of(self);
        let experts = model.and_then(|model| model.experts.zip(model.experts_used));
        let bytes = needed.map(|tensor| {
            let bytes = tensor.range.end - tensor.range.start;
            match experts {
                Some((count, used)) if tensor.name.contains(OF_EXPERTS) => {
                    (bytes / count).saturating_mul(used).min(bytes)
                }
                _ => bytes,
            }
        });
        bytes.fold(0, u64::saturating_add)
    }
}
