//! What a token reads of a mixture.

use crate::bits::model;
use crate::made::tokens;
use crate::right::logits;
use neap_llm::{Engine, Model, Options};
use std::sync::Arc;

const BLOCK: u64 = 4096;

/// The most that is read of a token's row of the embedding.
const EMBEDDED: u64 = 2 * BLOCK;

fn options(memory_budget: Option<u64>) -> Options {
    Options {
        memory_budget,
        context: 64,
        threads: 2,
        host: Arc::new(crate::bits::Process),
        ..Options::default()
    }
}

/// Most bytes that an expert of any layer is read in.
fn most_bytes(model: &Model) -> u64 {
    let of = |expert: &neap_llm::Expert| {
        let pieces = expert.pieces();
        pieces
            .map(|piece| piece.bytes().next_multiple_of(BLOCK) + BLOCK)
            .sum()
    };
    model.experts.iter().map(of).max().expect("layers")
}

#[test]
fn a_token_reads_the_experts_that_it_is_given_to_and_they_stay() {
    let made = model("olmoe");
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let mut engine = Engine::open(&path, &options(None)).expect("it opens");
    let most = most_bytes(engine.model());
    engine.settle().expect("it is read");
    assert_eq!(engine.stats().loaded_bytes, 0);
    let right = logits(&mut engine, &tokens(made, 1));
    let first = engine.stats().loaded_bytes;
    let [count, used] = made.experts;
    let given = (made.layers * used) as u64;
    let given = given * most + EMBEDDED;
    assert!(EMBEDDED < first && first <= given, "{first} of {given}");
    assert!(logits(&mut engine, &tokens(made, 1)) == right);
    assert!(engine.stats().loaded_bytes <= first + EMBEDDED);
    logits(&mut engine, &tokens(made, 60));
    let all = engine.stats().loaded_bytes;
    assert!(all <= (made.layers * count) as u64 * most + 62 * EMBEDDED);
    assert!(all > first + 61 * EMBEDDED);
}

#[test]
fn the_least_budget_reads_experts_again_and_more_keeps_those_needed_most() {
    let made = model("olmoe");
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let smallest = Engine::open(&path, &options(None)).expect("it opens");
    let most = most_bytes(smallest.model());
    let smallest = smallest.ledger().smallest_bytes;
    let tokens = tokens(made, 40);
    let read = |budget| {
        let mut engine = Engine::open(&path, &options(budget)).expect("it opens");
        for token in &tokens {
            logits(&mut engine, &[*token]);
        }
        engine.stats().loaded_bytes
    };
    // All but experts stays in memory in each of these, so what is read is experts.
    let model = Model::open(&path).expect("it opens");
    let dense: u64 = model.matrices.iter().map(|(_, _, m)| m.bytes()).sum();
    let base = smallest + dense;
    let reads = [Some(base), Some(base + 16 * most), None].map(read);
    assert!(reads[0] > reads[1] && reads[1] > reads[2], "{reads:?}");
}

#[test]
fn a_mixture_that_contradicts_itself_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.gguf");
    let of = |architecture: &'static str, experts| crate::made::Made {
        architecture,
        experts,
        ..*model("mixtral")
    };
    for (made, told) in [
        (of("llama", [4, 5]), "5 of 4 experts"),
        (of("qwen2", [4, 2]), "'qwen2' with experts"),
        (of("olmoe", [0, 0]), "expert_count"),
    ] {
        std::fs::write(&path, made.bytes()).expect("a temporary folder");
        let refused = Model::open(&path).expect_err("refused").to_string();
        assert!(refused.contains(told), "{refused}");
    }
}
