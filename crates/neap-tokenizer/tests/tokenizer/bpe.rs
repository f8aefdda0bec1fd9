//! Byte-pair encoding, against merging one pair after another.

use crate::file::{ByteLevel, NAMES, Pair, open, texts};
use neap_tokenizer::Special;
use proptest::prelude::*;
use std::sync::LazyLock;

const TEXT: &str = "the cat and the other cat sat there, then they chatted: naïve façade, привет привет, 日本語 日本, \
    aaaa aaaaaaa aaa abababab bababa 1234 1212 hello hello hell yellow mellow  the  end";

static TRAINED: LazyLock<ByteLevel> = LazyLock::new(|| ByteLevel::trained(TEXT, 150));

proptest! {
    #[test]
    fn words_are_merged_as_the_definition_says(word in "[a-e]{0,30}|[helowyt]{1,12}|[а-япривет日本語]{0,9}") {
        let tokenizer = open(&TRAINED.pairs("gpt-2")).unwrap();
        prop_assert_eq!(tokenizer.encode(&word, Special::AsText), TRAINED.encode_word(&word));
    }

    #[test]
    fn pieces_of_a_text_are_its_bytes(text in ".{0,40}|[ theca\\n1]{0,40}") {
        for pre in ["gpt-2", "smollm", "llama-bpe", "qwen35", "gpt-4o", "tekken"] {
            let tokenizer = open(&TRAINED.pairs(pre)).unwrap();
            let ids = tokenizer.encode(&text, Special::AsText);
            let bytes: Vec<u8> = ids.iter().flat_map(|id| tokenizer.piece(*id).into_owned()).collect();
            // Qwen's text is brought into a normal form first.
            prop_assert!(bytes == text.as_bytes() || pre == "qwen35", "{}", pre);
        }
    }
}

#[test]
fn text_is_composed_where_the_publisher_does_so() {
    let tokenizer = open(&TRAINED.pairs("qwen2")).unwrap();
    assert_eq!(
        tokenizer.encode("nai\u{308}ve", Special::AsText),
        tokenizer.encode("naïve", Special::AsText)
    );
    let plain = open(&TRAINED.pairs("llama-bpe")).unwrap();
    assert_ne!(
        plain.encode("nai\u{308}ve", Special::AsText),
        plain.encode("naïve", Special::AsText)
    );
}

#[test]
fn a_long_word_takes_no_square_of_its_length() {
    let tokenizer = open(&TRAINED.pairs("gpt-2")).unwrap();
    let word = "a".repeat(1 << 18);
    let ids = tokenizer.encode(&word, Special::AsText);
    let bytes: usize = ids.iter().map(|id| tokenizer.piece(*id).len()).sum();
    assert_eq!(bytes, word.len());
}

/// Ids of Hugging Face's `tokenizers` 0.23.3 with the same vocabulary.
#[test]
fn whole_words_come_before_merges_where_the_publisher_says_so() {
    let tokens = ["a", "b", "c", "bc", "abc", "ab"];
    let pairs = |pre| {
        [
            ("model", Pair::Text("gpt2")),
            ("pre", Pair::Text(pre)),
            ("tokens", texts(tokens)),
            ("merges", texts(["b c", "a b"])),
        ]
    };
    let merged = open(&pairs("smaug-bpe")).unwrap();
    assert_eq!(merged.encode("abc", Special::AsText), [0, 3]);
    let whole = open(&pairs("llama-bpe")).unwrap();
    assert_eq!(whole.encode("abc", Special::AsText), [4]);
}

#[test]
fn prompts_begin_and_end_as_the_file_says() {
    let mut pairs = TRAINED.pairs("smollm");
    assert!(
        open(&pairs)
            .unwrap()
            .encode_prompt("", Special::Parse)
            .is_empty()
    );
    pairs.push(("add_bos_token", Pair::Flag(true)));
    pairs.push(("add_eos_token", Pair::Flag(true)));
    let tokenizer = open(&pairs).unwrap();
    assert_eq!(tokenizer.encode_prompt("", Special::Parse), [1, 2]);
    let named = format!("{}x{}", NAMES[1], NAMES[2]);
    assert_eq!(
        tokenizer.encode_prompt(&named, Special::Parse),
        [1, 3 + u32::from(b'x'), 2]
    );
    assert_eq!(tokenizer.bos(), Some(1));
    assert_eq!(tokenizer.eos(), Some(2));
}
