//! Cuts text into the words within which tokens are merged.
//!
//! Published tokenizers describe this by regular expressions with look-ahead. Here each is a function that tells how many bytes the
//! first word of a text has. No expression leaves a character out, so words follow each other without gaps.
//!
//! Source: the expressions in the published `tokenizer.json` of GPT-2, Llama 3, Qwen2, Qwen3.5, SmolLM, GPT-4o and Mistral's Tekken.

use crate::classes::{is_letter, is_lower, is_mark, is_newline, is_number, is_upper};

/// Bytes of the first word of a text that is not empty.
pub(crate) type Split = fn(&str) -> usize;

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
pub(crate) fn gpt2(text: &str) -> usize {
    gpt2_word(text, false)
}

/// As [`gpt2`], after each number is cut off as a word of its own.
pub(crate) fn single_digits(text: &str) -> usize {
    gpt2_word(text, true)
}

fn gpt2_word(text: &str, single_digits: bool) -> usize {
    let first = first(text);
    if single_digits && is_number(first) {
        return first.len_utf8();
    }
    if let Some(bytes) = contraction(text, false) {
        return bytes;
    }
    let space = usize::from(first == ' ');
    let rest = &text[space..];
    let is_apart = |c: char| single_digits && is_number(c);
    let word = match rest.chars().next() {
        Some(c) if is_apart(c) => 0,
        Some(c) if is_letter(c) => run(rest, is_letter),
        Some(c) if is_number(c) => run(rest, is_number),
        Some(_) => run(rest, is_other),
        None => 0,
    };
    if word > 0 {
        return space + word;
    }
    spaces(text, is_apart)
}

/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
pub(crate) fn llama3(text: &str) -> usize {
    contraction(text, true)
        .or_else(|| letters(text, is_letter))
        .or_else(|| numbers(text, 3))
        .or_else(|| others(text, is_other, is_newline))
        .unwrap_or_else(|| spaces_and_lines(text))
}

/// As [`llama3`], but numbers one by one.
pub(crate) fn qwen2(text: &str) -> usize {
    contraction(text, true)
        .or_else(|| letters(text, is_letter))
        .or_else(|| numbers(text, 1))
        .or_else(|| others(text, is_other, is_newline))
        .unwrap_or_else(|| spaces_and_lines(text))
}

/// As [`qwen2`], but marks belong to letters.
pub(crate) fn qwen35(text: &str) -> usize {
    let is_letter_or_mark = |c| is_letter(c) || is_mark(c);
    contraction(text, true)
        .or_else(|| letters(text, is_letter_or_mark))
        .or_else(|| numbers(text, 1))
        .or_else(|| others(text, |c| is_other(c) && !is_mark(c), is_newline))
        .unwrap_or_else(|| spaces_and_lines(text))
}

/// `PREFIX?UPPER*LOWER+(?i:'s|…)?|PREFIX?UPPER+LOWER*(?i:'s|…)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+`, where
/// PREFIX is `[^\r\n\p{L}\p{N}]`, UPPER is [`is_upper`] and LOWER is [`is_lower`].
pub(crate) fn gpt4o(text: &str) -> usize {
    if let Some(bytes) = cased(text) {
        return bytes + contraction(&text[bytes..], true).unwrap_or(0);
    }
    numbers(text, 3)
        .or_else(|| others(text, is_other, |c| is_newline(c) || c == '/'))
        .unwrap_or_else(|| spaces_and_lines(text))
}

/// As [`gpt4o`], without contractions, and numbers one by one.
pub(crate) fn tekken(text: &str) -> usize {
    cased(text)
        .or_else(|| numbers(text, 1))
        .or_else(|| others(text, is_other, |c| is_newline(c) || c == '/'))
        .unwrap_or_else(|| spaces_and_lines(text))
}

/// `[^\n]+|\n+`
pub(crate) fn lines(text: &str) -> usize {
    let is_end = first(text) == '\n';
    run(text, |c| (c == '\n') == is_end)
}

fn first(text: &str) -> char {
    text.chars().next().unwrap_or_default()
}

/// `[^\s\p{L}\p{N}]`
fn is_other(c: char) -> bool {
    !c.is_whitespace() && !is_letter(c) && !is_number(c)
}

/// Bytes of the characters that a text begins with.
fn run(text: &str, is: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is(c)).unwrap_or(text.len())
}

/// `'s|'t|'re|'ve|'m|'ll|'d`
fn contraction(text: &str, any_case: bool) -> Option<usize> {
    let rest = text.strip_prefix('\'')?;
    ["s", "t", "re", "ve", "m", "ll", "d"]
        .into_iter()
        .find_map(|ending| {
            let mut bytes = 1;
            let mut letters = rest.chars();
            for wanted in ending.chars() {
                let letter = letters.next()?;
                let folded = match letter {
                    // The long s: its capital letter is S.
                    'ſ' if any_case => 's',
                    _ if any_case => letter.to_ascii_lowercase(),
                    _ => letter,
                };
                if folded != wanted {
                    return None;
                }
                bytes += letter.len_utf8();
            }
            Some(bytes)
        })
}

/// May stand before letters: `[^\r\n\p{L}\p{N}]`
fn prefix(text: &str) -> usize {
    let c = first(text);
    if is_newline(c) || is_letter(c) || is_number(c) {
        0
    } else {
        c.len_utf8()
    }
}

/// `[^\r\n\p{L}\p{N}]?LETTER+`
fn letters(text: &str, is_letter: impl Fn(char) -> bool) -> Option<usize> {
    let prefix = prefix(text);
    let after = run(&text[prefix..], &is_letter);
    if after > 0 {
        return Some(prefix + after);
    }
    Some(run(text, is_letter)).filter(|bytes| *bytes > 0)
}

/// `PREFIX?UPPER*LOWER+|PREFIX?UPPER+LOWER*`
fn cased(text: &str) -> Option<usize> {
    let prefix = prefix(text);
    let with = |prefix: usize, cased: fn(&str) -> Option<usize>| {
        cased(&text[prefix..]).map(|bytes| prefix + bytes)
    };
    with(prefix, capitalised)
        .or_else(|| with(0, capitalised))
        .or_else(|| with(prefix, capitals))
        .or_else(|| with(0, capitals))
}

/// `UPPER*LOWER+`: capitals give back as many characters as it takes to have one that may be lower.
fn capitalised(text: &str) -> Option<usize> {
    let upper = run(text, is_upper);
    let lower = run(&text[upper..], is_lower);
    if lower > 0 {
        return Some(upper + lower);
    }
    let last = text[..upper].char_indices().rfind(|(_, c)| is_lower(*c));
    last.map(|(at, c)| at + c.len_utf8())
}

/// `UPPER+LOWER*`
fn capitals(text: &str) -> Option<usize> {
    let upper = run(text, is_upper);
    (upper > 0).then(|| upper + run(&text[upper..], is_lower))
}

/// `\p{N}{1,MOST}`
fn numbers(text: &str, most: usize) -> Option<usize> {
    let digits = text.chars().take(most).take_while(|c| is_number(*c));
    Some(digits.map(char::len_utf8).sum()).filter(|bytes| *bytes > 0)
}

/// ` ?OTHER+END*`
fn others(
    text: &str,
    is_other: impl Fn(char) -> bool,
    is_end: impl Fn(char) -> bool,
) -> Option<usize> {
    let space = usize::from(text.starts_with(' '));
    let others = run(&text[space..], is_other);
    (others > 0).then(|| space + others + run(&text[space + others..], is_end))
}

/// `\s*[\r\n]+|\s+(?!\S)|\s+`
fn spaces_and_lines(text: &str) -> usize {
    let all = &text[..run(text, char::is_whitespace)];
    match all.rfind(is_newline) {
        Some(last) => last + 1,
        None => spaces(text, |_| false),
    }
}

/// `\s+(?!\S)|\s+`: all white space but the last of it, if a word follows. `is_end` tells what is not seen as a word.
fn spaces(text: &str, is_end: impl Fn(char) -> bool) -> usize {
    let bytes = run(text, char::is_whitespace);
    let all = &text[..bytes];
    let is_before_word = text[bytes..].chars().next().is_some_and(|c| !is_end(c));
    match all.char_indices().next_back() {
        Some((last, _)) if is_before_word && last > 0 => last,
        Some(_) => bytes,
        // Not white space: a character that no class above has. There is none.
        None => first(text).len_utf8(),
    }
}

#[cfg(test)]
mod tests;
