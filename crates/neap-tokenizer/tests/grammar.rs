//! Constrained answers: what is allowed, what is forced, and what the tree of tokens takes.
#![cfg(feature = "grammar")]

#[path = "tokenizer/file.rs"]
#[expect(dead_code, reason = "some of it is for other tests")]
mod file;

use file::ByteLevel;
use neap_testing::{Counting, kept_bytes};
use neap_tokenizer::grammar::{Constraint, Grammars, Rule};
use neap_tokenizer::sample::{Row, Sampler, Sampling};
use neap_tokenizer::{Special, Tokenizer};
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const SCHEMA: &str = r#"{"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"], "additionalProperties": false}"#;

fn tokenizer() -> Arc<Tokenizer> {
    let trained = ByteLevel::trained(
        r#"{"name": "nana", "age": 12} {"name": "age", "page": "na"}"#,
        40,
    );
    Arc::new(file::open(&trained.pairs("gpt-2")).unwrap())
}

/// Random logits, of which the constraint lets some pass.
fn answer(tokenizer: &Tokenizer, constraint: &mut Constraint, seed: u64) -> String {
    let mut sampler = Sampler::new(Sampling {
        temperature: 1.0,
        seed,
        ..Sampling::default()
    });
    let mut bytes = Vec::new();
    let mut state = seed;
    for _ in 0..200 {
        let allowed = constraint.allowed().unwrap();
        let logits: Vec<f32> = (0..tokenizer.len())
            .map(|_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (state >> 40) as f32 / 1e6
            })
            .collect();
        let mut row = Row::default();
        sampler.begin(&mut row, &[]);
        row.offer_allowed(0, &logits, |id| allowed.has(id));
        let id = sampler.choose(&mut row).unwrap().id;
        if tokenizer.is_end(id) {
            break;
        }
        constraint.accept(id).unwrap();
        bytes.extend_from_slice(&tokenizer.piece(id));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

// One test, as all of the process is counted.
#[test]
fn answers_follow_their_rule() {
    let tokenizer = tokenizer();
    let mut made = None;
    let kept = kept_bytes(|| made = Some(Grammars::new(Arc::clone(&tokenizer)).unwrap()));
    let grammars = made.unwrap();
    let told = grammars.memory_bytes() as u64;
    assert!(
        kept >= told && kept < told + (64 << 10),
        "{kept} bytes, {told} told"
    );

    for seed in 0..20 {
        let mut constraint = grammars.constraint(Rule::JsonSchema(SCHEMA)).unwrap();
        let text = answer(&tokenizer, &mut constraint, seed);
        let value: serde_json::Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert!(
            value["name"].as_str().unwrap().chars().count() <= 8,
            "{text}"
        );
        assert!(value["age"].as_u64().unwrap() <= 99, "{text}");
    }

    let mut constraint = grammars.constraint(Rule::Regex("(yes|no)!")).unwrap();
    let id = |text: &str| tokenizer.encode(text, Special::AsText)[0];
    let allowed = constraint.allowed().unwrap();
    assert!(
        allowed.has(id("y"))
            && allowed.has(id("n"))
            && !allowed.has(id("o"))
            && !allowed.has(u32::MAX)
    );
    assert!(constraint.accept(id("o")).is_err());

    let mut constraint = grammars
        .constraint(Rule::Lark("start: \"yes\" | \"no\""))
        .unwrap();
    assert!(constraint.forced().is_empty());
    constraint.accept(id("y")).unwrap();
    let forced: Vec<u8> = constraint
        .forced()
        .iter()
        .flat_map(|id| tokenizer.piece(*id).into_owned())
        .collect();
    assert_eq!(forced, b"es");
    constraint.take_back(1).unwrap();
    assert!(constraint.allowed().unwrap().has(id("n")));

    for rule in [
        Rule::JsonSchema("{"),
        Rule::JsonSchema(r#"{"type": "nothing"}"#),
        Rule::Lark("start: x"),
        Rule::Regex("("),
    ] {
        let error = grammars.constraint(rule).err().unwrap().to_string();
        assert!(
            error.starts_with("the grammar cannot be used: ") && !error.contains('\n'),
            "{error}"
        );
    }
}
