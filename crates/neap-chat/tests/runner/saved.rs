//! Texts that are saved and go on in another runner.

use super::{Model, alone};
use neap_chat::{CacheType, LoadError, Prompt, Request, Runner};
use serde_json::json;

fn request(text: &str) -> Request {
    Request {
        max_tokens: Some(8),
        ignore_end: true,
        ..Request::new(Prompt::Text(text.into()))
    }
}

fn saved(runner: &mut Runner) -> Vec<u8> {
    let mut bytes = Vec::new();
    runner.save(&mut bytes, json!({"a": [1, "b"]})).unwrap();
    bytes
}

#[test]
fn a_text_goes_on_in_another_runner() {
    let model = Model::new();
    let long = "once upon a time ".repeat(12);
    for cache in CacheType::ALL {
        let mut first = model.open(512, |options| options.engine.cache = cache);
        assert!(!first.has_finished());
        alone(&mut first, request(&long));
        let bytes = saved(&mut first);
        let mut next = model.open(1024, |options| {
            options.engine.cache = cache;
            options.engine.threads = 2;
        });
        let note = next.load(&mut &bytes[..]).unwrap();
        assert_eq!(note, json!({"a": [1, "b"]}));
        let more = request(&format!("{long}and"));
        let answer = alone(&mut next, more.clone());
        assert_eq!(answer.end.unwrap().1.cached_tokens, long.len());
        assert_eq!(answer.text, alone(&mut first, more).text);
    }
}

#[test]
fn what_does_not_fit_is_not_taken() {
    let model = Model::new();
    let mut runner = model.open(512, |_| {});
    let mut empty = Vec::new();
    assert!(runner.save(&mut empty, json!(null)).is_err());
    alone(&mut runner, request(&"0123456789".repeat(20)));
    let bytes = saved(&mut runner);
    let free = |runner: &mut Runner| runner.ledger();
    let mut other = model.open(512, |options| options.engine.cache = CacheType::Int8);
    let refused = other.load(&mut &bytes[..]).unwrap_err();
    assert!(matches!(refused, LoadError::Differs { .. }), "{refused}");
    let mut short = model.open(128, |_| {});
    let refused = short.load(&mut &bytes[..]).unwrap_err();
    assert!(
        matches!(
            refused,
            LoadError::TooLong {
                positions: 207,
                context: 128
            }
        ),
        "{refused}"
    );
    let mut fresh = model.open(512, |_| {});
    let before = free(&mut fresh);
    for at in (0..bytes.len())
        .step_by(211)
        .chain(bytes.len() - 40..bytes.len())
    {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        assert!(fresh.load(&mut &damaged[..]).is_err(), "byte {at}");
        assert!(fresh.load(&mut &bytes[..at]).is_err(), "cut at {at}");
    }
    let longer = [&bytes[..], b"\n"].concat();
    assert!(matches!(
        fresh.load(&mut &longer[..]),
        Err(LoadError::Damaged)
    ));
    assert!(!fresh.has_finished());
    assert_eq!(free(&mut fresh).smallest_bytes, before.smallest_bytes);
    fresh.load(&mut &bytes[..]).unwrap();
    assert!(fresh.has_finished());
}
