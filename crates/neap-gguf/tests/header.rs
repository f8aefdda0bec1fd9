//! Headers: written here byte by byte, read back, and damaged in every way.
#![forbid(unsafe_code)]

use neap_gguf::{ElementType, Error, Header, Kind, LanguageModel, Shards, Value, other_shards};
use proptest::prelude::*;
use std::io::Cursor;
use std::path::Path;

/// A file under construction.
#[derive(Default)]
struct File {
    pairs: u64,
    tensors: u64,
    body: Vec<u8>,
    shapes: Vec<u8>,
    weights: Vec<u8>,
}

fn text(to: &mut Vec<u8>, text: &str) {
    to.extend((text.len() as u64).to_le_bytes());
    to.extend(text.as_bytes());
}

impl File {
    fn pair(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        text(&mut self.body, key);
        self.body.extend(kind.to_le_bytes());
        self.body.extend(value);
        self.pairs += 1;
        self
    }

    fn number(self, key: &str, value: u32) -> Self {
        self.pair(key, 4, &value.to_le_bytes())
    }

    fn text(self, key: &str, value: &str) -> Self {
        let mut bytes = Vec::new();
        text(&mut bytes, value);
        self.pair(key, 8, &bytes)
    }

    fn texts(self, key: &str, values: &[&str]) -> Self {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((values.len() as u64).to_le_bytes());
        for value in values {
            text(&mut bytes, value);
        }
        self.pair(key, 9, &bytes)
    }

    fn tensor(mut self, name: &str, sizes: &[u64], kind: u32, bytes: usize) -> Self {
        text(&mut self.shapes, name);
        self.shapes.extend((sizes.len() as u32).to_le_bytes());
        for size in sizes {
            self.shapes.extend(size.to_le_bytes());
        }
        self.shapes.extend(kind.to_le_bytes());
        self.shapes
            .extend((self.weights.len() as u64).to_le_bytes());
        self.weights
            .resize((self.weights.len() + bytes).next_multiple_of(32), 7);
        self.tensors += 1;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(3u32.to_le_bytes());
        bytes.extend(self.tensors.to_le_bytes());
        bytes.extend(self.pairs.to_le_bytes());
        bytes.extend(&self.body);
        bytes.extend(&self.shapes);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes.extend(&self.weights);
        bytes
    }
}

fn small() -> File {
    File::default()
        .text("general.architecture", "llama")
        .number("llama.block_count", 30)
        .number("llama.embedding_length", 576)
        .number("llama.attention.head_count", 9)
        .number("llama.attention.head_count_kv", 3)
        .number("llama.context_length", 8192)
        .texts("tokenizer.ggml.tokens", &["a", "", "bc"])
        .text("tokenizer.ggml.model", "gpt2")
        .tensor("token_embd.weight", &[64, 3], 8, 2 * 34 * 3)
        .tensor("blk.0.attn_q.weight", &[256, 4], 12, 144 * 4)
        .tensor("output_norm.weight", &[64], 0, 256)
}

fn read(bytes: &[u8]) -> neap_gguf::Result<Header> {
    Header::read(Cursor::new(bytes), bytes.len() as u64)
}

#[test]
fn a_header_says_what_is_in_a_file_and_where() {
    let bytes = small().bytes();
    let header = read(&bytes).expect("a good file");
    let model = LanguageModel::of(&header).expect("an architecture");
    assert_eq!(
        (model.architecture.as_str(), model.layers),
        ("llama", Some(30))
    );
    assert_eq!(model.cached_elements(), Some(30 * 3 * (64 + 64)));
    assert_eq!(
        (model.vocabulary, model.has_chat_template),
        (Some(3), false)
    );
    let query = header.tensor("blk.0.attn_q.weight").expect("the tensor");
    assert_eq!(
        (query.kind, query.elements(), query.row_elements()),
        (Kind::Q4K, 1024, 256)
    );
    assert_eq!(
        query.range,
        header.weights_begin + 224..header.weights_begin + 224 + 576
    );
    // Without `output.weight` the table of tokens gives the logits, too.
    assert_eq!(header.bytes_of_a_token(), 204 + 576 + 256);
    assert_eq!(header.parameters(), 192 + 1024 + 64);
    let mut tokens = Vec::new();
    let array = header
        .get("tokenizer.ggml.tokens")
        .and_then(Value::as_array);
    let array = array.expect("an array");
    assert_eq!((array.element, array.len), (ElementType::Text, 3));
    let mut source = Cursor::new(&bytes);
    let each = |token: &[u8]| tokens.push(token.to_vec());
    array.texts(&mut source, each).expect("read again");
    assert_eq!(tokens, [b"a".to_vec(), Vec::new(), b"bc".to_vec()]);
    assert!(array.numbers(&mut source, |_| {}).is_err());
}

#[test]
fn a_token_needs_the_experts_that_it_is_given_to() {
    let file = small()
        .number("llama.expert_count", 4)
        .number("llama.expert_used_count", 3)
        .tensor("blk.0.ffn_up_exps.weight", &[64, 3, 4], 8, 4 * 204);
    let header = read(&file.bytes()).expect("a good file");
    let model = LanguageModel::of(&header).expect("an architecture");
    assert_eq!((model.experts, model.experts_used), (Some(4), Some(3)));
    assert_eq!(header.bytes_of_a_token(), 204 + 576 + 256 + 3 * 204);
}

#[test]
fn a_table_of_tokens_beside_logits_of_their_own_is_read_by_row() {
    let file = small().tensor("output.weight", &[64, 3], 8, 204);
    let header = read(&file.bytes()).expect("a good file");
    assert_eq!(header.bytes_of_a_token(), 204 + 576 + 256);
}

#[test]
fn files_that_contradict_themselves_are_refused_in_a_line() {
    let cases: [(Vec<u8>, &str); 9] = [
        (b"PK\x03\x04 something else".to_vec(), "not a GGUF file"),
        (Vec::new(), "not a GGUF file"),
        (
            [b"GGUF".as_slice(), &2u32.to_le_bytes(), &[0; 16]].concat(),
            "GGUF version 2 is not supported: only version 3, little-endian",
        ),
        (
            small().number("llama.block_count", 1).bytes(),
            "damaged GGUF file: two values of 'llama.block_count'",
        ),
        (
            small().number("general.alignment", 24).bytes(),
            "damaged GGUF file: general.alignment is not a power of two",
        ),
        (
            small().tensor("x", &[33, 2], 8, 68).bytes(),
            "damaged GGUF file: tensor 'x' has sizes [33, 2], which are not rows of Q8_0",
        ),
        (
            small().tensor("x", &[1 << 40, 1 << 40], 0, 4).bytes(),
            "damaged GGUF file: tensor 'x' has sizes [1099511627776, 1099511627776], which are not rows of F32",
        ),
        (
            small().tensor("x", &[4096], 0, 4).bytes(),
            "damaged GGUF file: it ends before tensor 'x' does",
        ),
        (
            small().tensor("x", &[32], 77, 4).bytes(),
            "tensor 'x' has type 77, which is not known",
        ),
    ];
    for (bytes, expected) in cases {
        assert_eq!(read(&bytes).unwrap_err().to_string(), expected);
    }
}

#[test]
fn counts_that_a_file_cannot_hold_take_no_memory() {
    for at in [8, 16] {
        let mut bytes = small().bytes();
        bytes[at..at + 8].copy_from_slice(&(u64::MAX / 20).to_le_bytes());
        assert!(matches!(read(&bytes), Err(Error::Damaged(_))));
    }
}

#[test]
fn parts_of_a_model_name_each_other() {
    let of = |index: u32, count: u32| {
        let file = small()
            .number("split.no", index)
            .number("split.count", count);
        Shards::of(&read(&file.bytes()).expect("a good file"))
    };
    assert_eq!(of(0, 0).expect("whole").count, 1);
    assert!(of(3, 3).is_err());
    let second = of(1, 3).expect("a part");
    let others = other_shards(Path::new("d/m-00002-of-00003.gguf"), second).expect("names");
    assert_eq!(
        others,
        ["d/m-00001-of-00003.gguf", "d/m-00003-of-00003.gguf"].map(Path::new)
    );
    assert!(other_shards(Path::new("d/m.gguf"), second).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Whatever the bytes: a header whose tensors lie in the file, or an error.
    #[test]
    fn damaged_files_are_headers_or_errors(places in prop::collection::vec((0usize..2048, any::<u8>()), 1..6), cut in 0usize..4096) {
        let mut bytes = small().bytes();
        for (at, byte) in places {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        bytes.truncate(cut.max(24));
        if let Ok(header) = read(&bytes) {
            for tensor in &header.tensors {
                prop_assert!(tensor.range.end <= bytes.len() as u64);
                prop_assert_eq!(tensor.kind.bytes_of(tensor.elements()), Some(tensor.range.end - tensor.range.start));
            }
            for (_, value) in &header.pairs {
                if let Value::Array(array) = value {
                    let _ = array.texts(&mut Cursor::new(&bytes), |_| {});
                    let _ = array.numbers(&mut Cursor::new(&bytes), |_| {});
                }
            }
            let _ = (LanguageModel::of(&header), Shards::of(&header), header.kinds(), header.bytes_of_a_token());
        }
    }
}
