//! SentencePiece and WordPiece.

use crate::file::{BYTE, CONTROL, NORMAL, Pair, UNKNOWN, USER_DEFINED, open, texts};
use neap_tokenizer::Special;
use proptest::prelude::*;

/// Merges to the token with the best score, and of equals at the first place; each try looks at all pairs.
fn merge_by_score(tokens: &[(&str, f32)], text: &str) -> Vec<String> {
    let mut parts: Vec<String> = text.chars().map(String::from).collect();
    loop {
        let score = |at: usize| {
            let both = format!("{}{}", parts[at], parts[at + 1]);
            tokens
                .iter()
                .find(|(token, _)| *token == both)
                .map(|(_, score)| *score)
        };
        let pairs = (0..parts.len().saturating_sub(1)).filter_map(|at| Some((at, score(at)?)));
        // Of equals `max_by` takes the last.
        let best = pairs.rev().max_by(|a, b| a.1.total_cmp(&b.1));
        let Some((at, _)) = best else { return parts };
        let right = parts.remove(at + 1);
        parts[at] += &right;
    }
}

const SCORED: [(&str, f32); 16] = [
    ("▁", -1.0),
    ("a", -2.0),
    ("b", -3.0),
    ("c", -4.0),
    ("é", -5.0),
    ("ab", -6.0),
    ("▁a", -6.0),
    ("bc", -5.5),
    ("abc", -9.0),
    ("aa", -7.0),
    ("aaa", -6.5),
    ("▁ab", -10.0),
    ("ca", -6.0),
    ("▁▁", -8.0),
    ("cab", 0.5),
    ("éa", -0.0),
];

/// `<unk>`, `<s>`, `</s>`, some bytes, and scored tokens.
fn scored(extra: &[(&'static str, f32)], spaces_first: bool) -> Vec<(&'static str, Pair)> {
    let names = ["<unk>", "<s>", "</s>", "<0xE6>", "<0x97>", "<0xA5>"];
    let scored: Vec<_> = SCORED.iter().chain(extra).collect();
    let mut kinds = vec![UNKNOWN, CONTROL, CONTROL, BYTE, BYTE, BYTE];
    kinds.resize(names.len() + scored.len(), NORMAL);
    let scores = [0.0; 6]
        .into_iter()
        .chain(scored.iter().map(|(_, score)| *score));
    vec![
        ("model", Pair::Text("llama")),
        ("scores", Pair::Floats(scores.collect())),
        (
            "tokens",
            texts(names.iter().chain(scored.iter().map(|(text, _)| text))),
        ),
        ("token_type", Pair::Numbers(kinds)),
        ("add_space_prefix", Pair::Flag(spaces_first)),
    ]
}

proptest! {
    #[test]
    fn characters_are_merged_by_score(text in "[abcé ]{0,40}", spaces_first: bool, across: bool) {
        // With a token that has a space inside, words cannot be cut apart.
        let extra: &[(&str, f32)] = if across { &[("b▁", -3.5), ("b▁a", -2.5)] } else { &[] };
        let tokenizer = open(&scored(extra, spaces_first)).unwrap();
        let all: Vec<_> = SCORED.iter().chain(extra).copied().collect();
        let spaced = text.replace(' ', "▁");
        let begin = if spaces_first && !text.is_empty() { "▁" } else { "" };
        let expected: Vec<u32> = merge_by_score(&all, &format!("{begin}{spaced}"))
            .iter()
            .map(|part| 6 + all.iter().position(|(token, _)| token == part).unwrap() as u32)
            .collect();
        prop_assert_eq!(tokenizer.encode(&text, Special::AsText), expected.clone());
        // The sign for a space is one.
        prop_assert_eq!(tokenizer.encode(&spaced, Special::AsText), expected);
    }
}

#[test]
fn characters_without_a_token_are_bytes_or_unknown() {
    let tokenizer = open(&scored(&[], false)).unwrap();
    assert_eq!(tokenizer.encode("a日a", Special::AsText), [7, 3, 4, 5, 7]);
    // Not all of its bytes have tokens.
    assert_eq!(tokenizer.encode("a本本a", Special::AsText), [7, 0, 7]);
    assert_eq!(&*tokenizer.piece(3), b"\xE6");
    assert_eq!(&*tokenizer.piece(12), b" a");
    assert_eq!(tokenizer.encode_prompt("a", Special::AsText), [1, 7]);
}

/// Tokens of a unigram model, with a table of characters that makes `Ａ` an `a`.
pub fn unigram(merges_spaces: bool) -> Vec<(&'static str, Pair)> {
    let tokens = [
        "<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁a", "aba", "▁ab", "ba",
    ];
    let mut kinds = vec![NORMAL; tokens.len()];
    kinds[..3].copy_from_slice(&[CONTROL, CONTROL, UNKNOWN]);
    kinds[10] = USER_DEFINED;
    let scores = vec![0.0, 0.0, 0.0, -2.0, -3.0, -3.5, -4.0, -3.1, -5.2, -5.0, 0.0];
    // A double array that has the bytes EF BC A1 only, and their replacement at 0.
    let mut trie = vec![0u32; 512];
    let unit = |offset: usize, label: usize, is_last: bool| {
        (offset as u32) << 10 | u32::from(is_last) << 8 | label as u32
    };
    trie[0] = unit(1, 0, false);
    trie[1 ^ 0xEF] = unit((1 ^ 0xEF) ^ 2, 0xEF, false);
    trie[2 ^ 0xBC] = unit((2 ^ 0xBC) ^ 4, 0xBC, false);
    trie[4 ^ 0xA1] = unit((4 ^ 0xA1) ^ 300, 0xA1, true);
    trie[300] = 1 << 31;
    let mut map = (trie.len() as u32 * 4).to_le_bytes().to_vec();
    map.extend(trie.iter().flat_map(|unit| unit.to_le_bytes()));
    map.extend(b"a\0");
    vec![
        ("model", Pair::Text("t5")),
        ("tokens", texts(tokens)),
        ("scores", Pair::Floats(scores)),
        ("token_type", Pair::Numbers(kinds)),
        ("precompiled_charsmap", Pair::Bytes(map)),
        ("remove_extra_whitespaces", Pair::Flag(merges_spaces)),
    ]
}

/// The best sum of scores of all ways to cut a text.
fn best(tokens: &[(u32, &str, f64)], text: &str) -> (f64, Vec<u32>) {
    let mut found = (
        if text.is_empty() {
            0.0
        } else {
            f64::NEG_INFINITY
        },
        Vec::new(),
    );
    for (id, token, score) in tokens {
        if let Some(rest) = text.strip_prefix(token) {
            let (rest_score, ids) = best(tokens, rest);
            if score + rest_score > found.0 {
                found = (score + rest_score, [&[*id], &*ids].concat());
            }
        }
    }
    found
}

proptest! {
    #[test]
    fn scores_add_up_to_the_most(text in "[abＡ]{0,12}") {
        let tokenizer = open(&unigram(true)).unwrap();
        let tokens = [(3, " ", -2.0), (4, "a", -3.0), (5, "b", -3.5), (6, "ab", -4.0), (7, " a", -3.1), (8, "aba", -5.2), (9, " ab", -5.0),
            (10, "ba", 0.0)];
        let tokens = tokens.map(|(id, token, score): (u32, &str, f32)| (id, token, f64::from(score)));
        let mut ids = tokenizer.encode(&text, Special::AsText);
        // Defined tokens are found before, and the parts beside them begin with a space each.
        let parts: Vec<&str> = text.split("ba").collect();
        let mut expected = Vec::new();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                expected.push(10);
            }
            if !part.is_empty() {
                expected.extend(best(&tokens, &format!(" {}", part.replace('Ａ', "a"))).1);
            }
        }
        let score = |ids: &mut Vec<u32>| -> f64 {
            let of = |id: &u32| tokens.iter().find(|token| token.0 == *id).map_or(0.0, |token| token.2);
            ids.iter().map(of).sum()
        };
        prop_assert!((score(&mut ids) - score(&mut expected)).abs() < 1e-9, "{:?} {:?}", ids, expected);
        let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.piece(*id).into_owned()).collect();
        let spelt: Vec<u8> = expected.iter().flat_map(|id| tokenizer.piece(*id).into_owned()).collect();
        prop_assert_eq!(bytes, spelt);
    }
}

#[test]
fn spaces_are_merged_where_the_file_says_so() {
    let merged = open(&unigram(true)).unwrap();
    assert_eq!(merged.encode("  a  a ", Special::AsText), [7, 7]);
    let kept = open(&unigram(false)).unwrap();
    assert_eq!(kept.encode("  a", Special::AsText), [3, 3, 7]);
    // One token for what is unknown, and the end that the model expects.
    assert_eq!(
        merged.encode_prompt("a日本b", Special::AsText),
        [7, 2, 5, 1]
    );
}

fn word_pieces(tokens: &[&'static str]) -> neap_tokenizer::Tokenizer {
    let mut kinds = vec![NORMAL; tokens.len()];
    kinds[..3].copy_from_slice(&[UNKNOWN, CONTROL, CONTROL]);
    open(&[
        ("model", Pair::Text("bert")),
        ("tokens", texts(tokens)),
        ("token_type", Pair::Numbers(kinds)),
        ("unknown_token_id", Pair::Number(0)),
        ("bos_token_id", Pair::Number(1)),
        ("seperator_token_id", Pair::Number(2)),
    ])
    .unwrap()
}

#[test]
fn words_are_cut_into_the_longest_pieces() {
    let tokens = [
        "[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁!", "▁cafe", "▁日", "▁a", "affable",
    ];
    let tokenizer = word_pieces(&tokens);
    assert_eq!(
        tokenizer.encode("UNAFFABLE! Café 日日a\u{200D}\t", Special::AsText),
        [3, 10, 6, 7, 8, 8, 9]
    );
    assert_eq!(tokenizer.encode("unaffx un", Special::AsText), [0, 3]);
    assert_eq!(tokenizer.encode(&"a".repeat(101), Special::AsText), [0]);
    assert_eq!(tokenizer.encode_prompt("un", Special::AsText), [1, 3, 2]);
    assert!(!tokenizer.is_end(2));
    assert_eq!(tokenizer.encode("[SEP]a", Special::Parse), [2, 9]);
}

#[test]
fn capitals_stay_where_the_vocabulary_has_them() {
    let tokenizer = word_pieces(&["[UNK]", "[CLS]", "[SEP]", "▁A", "▁a", "▁é"]);
    assert_eq!(tokenizer.encode("A a é", Special::AsText), [3, 4, 5]);
}
