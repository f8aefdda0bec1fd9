//! What files call the ways to prepare text.

use crate::split::{self, Split};

/// What is done with text before tokens are merged.
#[derive(Debug)]
pub(crate) struct Pre {
    names: &'static [&'static str],
    pub split: Split,
    /// Text is brought into normal form C.
    pub composes: bool,
    /// A word that is a token is that token, whatever merges say.
    pub whole_words: bool,
    /// Prompts begin with a token, unless the file says otherwise.
    pub adds_bos: bool,
}

const PLAIN: Pre = Pre {
    names: &[],
    split: split::gpt2,
    composes: false,
    whole_words: false,
    adds_bos: false,
};

const ALL: &[Pre] = &[
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "exaone4",
            "modern-bert",
            "granite-docling",
        ],
        ..PLAIN
    },
    Pre {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        split: split::single_digits,
        ..PLAIN
    },
    Pre {
        names: &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
        ],
        split: split::llama3,
        whole_words: true,
        adds_bos: true,
        ..PLAIN
    },
    Pre {
        names: &["smaug-bpe", "dbrx", "glm4", "chatglm-bpe"],
        split: split::llama3,
        ..PLAIN
    },
    Pre {
        names: &["qwen2"],
        split: split::qwen2,
        composes: true,
        ..PLAIN
    },
    Pre {
        names: &[
            "deepseek-r1-qwen",
            "megrez",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        split: split::qwen2,
        ..PLAIN
    },
    Pre {
        names: &["qwen35"],
        split: split::qwen35,
        composes: true,
        ..PLAIN
    },
    Pre {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2"],
        split: split::gpt4o,
        ..PLAIN
    },
    Pre {
        names: &["tekken"],
        split: split::tekken,
        whole_words: true,
        adds_bos: true,
        ..PLAIN
    },
];

/// Of vocabularies whose tokens are text rather than bytes.
pub(crate) const LINES: Pre = Pre {
    split: split::lines,
    adds_bos: true,
    ..PLAIN
};

impl Pre {
    pub fn named(name: &str) -> Option<&'static Pre> {
        ALL.iter().find(|pre| pre.names.contains(&name))
    }
}
