//! A small vocabulary of CLIP's kind.

use std::fmt::Write;

/// Words of the small vocabulary, beside all bytes.
const WORDS: [&str; 10] = [
    "a", "photo", "of", "the", "sea", "cat", "dog", "house", "red", "boat",
];

/// Tokens in the order of their ids, and merges: every byte, every byte at the end of a word, and what words are merged from.
pub(super) fn tokenizer() -> (Vec<String>, String) {
    let printed: Vec<u8> = (b'!'..=b'~')
        .chain(0xA1..=0xAC)
        .chain(0xAE..=0xFF)
        .collect();
    let hidden = (0..=255_u8).filter(|byte| !printed.contains(byte)).count() as u32;
    let letters = printed.iter().map(|byte| char::from(*byte));
    let letters: Vec<String> = letters
        .chain((256..256 + hidden).filter_map(char::from_u32))
        .map(String::from)
        .collect();
    let mut tokens = letters.clone();
    tokens.extend(letters.iter().map(|letter| format!("{letter}</w>")));
    let mut merges = String::from("#version: 0.2\n");
    for word in WORDS {
        let mut begun = String::new();
        for (at, letter) in word.char_indices() {
            let end = if at + 1 == word.len() { "</w>" } else { "" };
            let piece = format!("{letter}{end}");
            let merged = format!("{begun}{piece}");
            if !begun.is_empty() && !tokens.contains(&merged) {
                // Writing to a string cannot fail.
                let _ = writeln!(merges, "{begun} {piece}");
                tokens.push(merged.clone());
            }
            begun = merged;
        }
    }
    tokens.extend(["<|startoftext|>", "<|endoftext|>"].map(String::from));
    (tokens, merges)
}

pub(super) fn json(tokens: &[String]) -> String {
    let entries = tokens.iter().enumerate().map(|(id, token)| {
        let token = token.replace('\\', "\\\\").replace('"', "\\\"");
        format!("  \"{token}\": {id}")
    });
    format!("{{\n{}\n}}\n", entries.collect::<Vec<_>>().join(",\n"))
}
