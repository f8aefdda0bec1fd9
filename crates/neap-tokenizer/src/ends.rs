//! Tokens after which an answer is over.

use crate::vocabulary::Kind;

/// Texts of tokens that end an answer, or a turn, or a file in code models, in the vocabularies that are around. Files name one of
/// them as the end, or two, while models give others as well.
const TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|tool_response>",
    "<eos>",
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<fim-pad>",
    "<fim_pad>",
    "<PAD>",
    "[PAD]",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<fim-repo>",
    "<REPO>",
    "<reponame>",
    "<|file_sep|>",
];

/// Collects the ids of tokens that end an answer.
#[derive(Default)]
pub(crate) struct Ends {
    found: Vec<(u32, &'static str)>,
}

impl Ends {
    /// Looks at a token, and tells what it is for. Names in bars are never text, whatever the file says; others may be, as `</s>` of
    /// HTML is in many vocabularies.
    pub fn notice(&mut self, id: u32, kind: Kind, text: &[u8]) -> Kind {
        let is_name = text.starts_with(b"<|") || kind != Kind::Normal;
        match TEXTS.iter().find(|end| is_name && end.as_bytes() == text) {
            Some(end) => {
                self.found.push((id, *end));
                Kind::Control
            }
            None => kind,
        }
    }

    /// All ids, with those that the file names.
    pub fn finish(mut self, named: impl Iterator<Item = u32>) -> Box<[u32]> {
        let has = |text| self.found.iter().any(|(_, end)| *end == text);
        // Such models end a thought with <|end|>, and go on.
        let is_inner_end =
            has("<|return|>") && has("<|call|>") || has("<|calls|>") && has("<|flush|>");
        let is_inner_s = has("<|tool_response>");
        self.found.retain(|(_, text)| match *text {
            "<|end|>" => !is_inner_end,
            "</s>" => !is_inner_s,
            _ => true,
        });
        let mut ids: Vec<u32> = self
            .found
            .into_iter()
            .map(|(id, _)| id)
            .chain(named)
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids.into_boxed_slice()
    }
}
