//! Files that are not right.

use crate::file::{ByteLevel, Pair, gguf, open, texts};
use neap_gguf::Header;
use neap_tokenizer::Tokenizer;
use proptest::prelude::*;
use std::io::Cursor;
use std::sync::LazyLock;

fn refusal(pairs: &[(&str, Pair)]) -> String {
    open(pairs).unwrap_err().to_string()
}

#[test]
fn what_is_unknown_is_refused_by_its_name() {
    assert_eq!(
        refusal(&[]),
        "the file has no tokenizer: 'tokenizer.ggml.model' is missing"
    );
    assert_eq!(
        refusal(&[("model", Pair::Text("rwkv"))]),
        "tokenizer 'rwkv' is not supported"
    );
    let pre = [("model", Pair::Text("gpt2")), ("pre", Pair::Text("new"))];
    assert_eq!(refusal(&pre), "pre-tokenizer 'new' is not supported");
    let missing = "the file has no tokenizer: 'tokenizer.ggml.pre' is missing";
    assert_eq!(refusal(&pre[..1]), missing);
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let with = |merge: &'static str, kinds: Vec<i32>| {
        refusal(&[
            ("model", Pair::Text("gpt2")),
            ("pre", Pair::Text("gpt-2")),
            ("tokens", texts(["a", "b"])),
            ("token_type", Pair::Numbers(kinds)),
            ("merges", texts([merge])),
        ])
    };
    assert_eq!(
        with("a b", vec![1, 1]),
        "damaged tokenizer: the merge 'a b' is not of tokens"
    );
    assert_eq!(
        with("ab", vec![1, 1]),
        "damaged tokenizer: the merge 'ab' is not of tokens"
    );
    assert_eq!(
        with("a b", vec![1]),
        "damaged tokenizer: 2 tokens, but 'tokenizer.ggml.token_type' has 1 elements"
    );
}

static FILE: LazyLock<Vec<u8>> =
    LazyLock::new(|| gguf(&ByteLevel::trained("banana bandana", 9).pairs("llama-bpe")));
static PIECES: LazyLock<Vec<u8>> = LazyLock::new(|| gguf(&crate::pieces::unigram(true)));

proptest! {
    #[test]
    fn damaged_files_give_a_tokenizer_or_an_error(
        at in any::<prop::sample::Index>(), byte: u8, is_unigram: bool, text in ".{0,12}",
    ) {
        let mut file = if is_unigram { PIECES.clone() } else { FILE.clone() };
        let at = at.index(file.len());
        file[at] = byte;
        if let Ok(header) = Header::read(Cursor::new(&file), file.len() as u64)
            && let Ok(tokenizer) = Tokenizer::open(&header, Cursor::new(&file))
        {
            for id in tokenizer.encode_prompt(&text, neap_tokenizer::Special::Parse) {
                prop_assert!((id as usize) < tokenizer.len());
            }
        }
    }
}
