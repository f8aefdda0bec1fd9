//! Tokens that are found before all others, and those that end an answer.

use crate::file::{CONTROL, NORMAL, Pair, USER_DEFINED, open, texts};
use neap_tokenizer::{Special, Tokenizer};

/// `<|a|>` and `<|a|>b` are control tokens, `<t>` and `<t><t>` are defined.
fn tokenizer() -> Tokenizer {
    let tokens = [
        "<",
        "|",
        "a",
        ">",
        "b",
        "t",
        "<|a|>",
        "<|a|>b",
        "<t>",
        "<t><t>",
        "<|im_end|>",
        "</s>",
    ];
    let mut kinds = vec![NORMAL; tokens.len()];
    kinds[6..8].fill(CONTROL);
    kinds[8..10].fill(USER_DEFINED);
    open(&[
        ("model", Pair::Text("gpt2")),
        ("pre", Pair::Text("gpt-2")),
        ("tokens", texts(tokens)),
        ("token_type", Pair::Numbers(kinds)),
        ("merges", texts::<&str>([])),
        ("eos_token_id", Pair::Number(4)),
    ])
    .unwrap()
}

#[test]
fn control_tokens_are_found_in_templates_only() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.encode("a<|a|>a", Special::Parse), [2, 6, 2]);
    assert_eq!(
        tokenizer.encode("a<|a|>a", Special::AsText),
        [2, 0, 1, 2, 1, 3, 2]
    );
    assert!(tokenizer.is_control(6) && !tokenizer.is_control(8) && !tokenizer.is_control(2));
}

#[test]
fn the_longest_token_at_the_first_place_is_taken() {
    let tokenizer = tokenizer();
    assert_eq!(tokenizer.encode("<|a|>b<|a|>a", Special::Parse), [7, 6, 2]);
    assert_eq!(tokenizer.encode("<<t><t><t>", Special::AsText), [0, 9, 8]);
    assert_eq!(tokenizer.encode("<t><t", Special::Parse), [8, 0, 5]);
}

#[test]
fn answers_end_with_any_of_the_tokens_that_end_them() {
    let tokenizer = tokenizer();
    // The file calls it a normal token.
    assert!(tokenizer.is_end(10) && tokenizer.is_control(10));
    assert!(tokenizer.is_end(4));
    // This one is text.
    assert!(!tokenizer.is_end(11) && !tokenizer.is_control(11));
}

#[test]
fn ends_of_thoughts_are_no_ends_of_answers() {
    let names = ["<|end|>", "<|return|>", "<|call|>"];
    let ends = |names: &[&str]| {
        let tokenizer = open(&[
            ("model", Pair::Text("gpt2")),
            ("pre", Pair::Text("gpt-4o")),
            ("tokens", texts(names)),
            ("token_type", Pair::Numbers(vec![CONTROL; names.len()])),
            ("merges", texts::<&str>([])),
        ])
        .unwrap();
        (0..3).map(|id| tokenizer.is_end(id)).collect::<Vec<_>>()
    };
    assert_eq!(ends(&names), [false, true, true]);
    assert_eq!(ends(&names[..1]), [true, false, false]);
}
