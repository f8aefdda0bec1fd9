//! Layers with a window keep the window.

use crate::bits::{Process, model};
use crate::made::{Made, tokens};
use crate::right::logits;
use neap_llm::{Engine, Options, Sequence, Tokens};
use neap_runtime::CancelToken;
use std::sync::Arc;

const WINDOWED: [&str; 2] = ["gemma3", "gpt-oss"];

fn engine(path: &std::path::Path, sequences: usize, chunk: usize) -> Engine {
    let options = Options {
        host: Arc::new(Process),
        context: 2048,
        threads: 1,
        sequences,
        chunk,
        ..Options::default()
    };
    Engine::open(path, &options).expect("it opens")
}

/// Computes tokens; the logits of the last one.
fn run(engine: &mut Engine, made: &Made, sequence: &mut Sequence, tokens: &[u32]) -> Vec<f32> {
    let mut out = vec![0.0; made.vocabulary];
    let mut batch = [Tokens {
        sequence,
        tokens,
        wanted: 1,
    }];
    let computed = engine.forward(&mut batch, &CancelToken::new(), &mut |_, _, first, x| {
        out[first..][..x.len()].copy_from_slice(x);
    });
    computed.expect("it computes");
    out
}

#[test]
fn what_lies_behind_every_window_takes_no_memory_and_changes_no_bit() {
    for name in WINDOWED {
        let made = model(name);
        let folder = tempfile::tempdir().expect("a folder");
        let path = made.file(&folder);
        let text = tokens(made, 1500);
        let mut whole = engine(&path, usize::MAX, 512);
        let right = logits(&mut whole, &text);
        let mut rings = engine(&path, 2, 16);
        let [most, few] = [&whole, &rings].map(|engine| engine.ledger().whole_cache_bytes);
        assert!(few < most * 3 / 4, "{few} of {most}");
        let mut sequences = [rings.begin(), rings.begin()];
        for begin in (0..1000).step_by(100) {
            for sequence in &mut sequences {
                let found = run(&mut rings, made, sequence, &text[begin..begin + 100]);
                assert!(found == right[begin + 99], "{name} at {begin}");
            }
            let ledger = rings.ledger();
            assert!(ledger.cache_bytes <= ledger.whole_cache_bytes);
        }
        let [first, second] = sequences;
        rings.end(second);
        rings.end(first);
        assert_eq!(rings.free_positions(), rings.context());
    }
}

#[test]
fn a_text_is_cut_and_shared_where_its_windows_are_whole_and_begins_anew_elsewhere() {
    for name in WINDOWED {
        let made = model(name);
        let folder = tempfile::tempdir().expect("a folder");
        let path = made.file(&folder);
        let text = tokens(made, 900);
        let right = logits(&mut engine(&path, usize::MAX, 512), &text);
        let mut rings = engine(&path, 3, 32);
        let mut first = rings.begin();
        run(&mut rings, made, &mut first, &text[..800]);
        for len in [800, 790, 768, 740, 300, 64, 1, 0] {
            let mut fork = rings.fork(&first, len).expect("blocks");
            assert!([0, len].contains(&fork.len()), "{name}: {len}");
            assert!(fork.len() == len || len < 704, "{name}: {len}");
            let done = fork.len();
            let found = run(&mut rings, made, &mut fork, &text[done..850]);
            assert!(found == right[849], "{name}: {len}");
            rings.end(fork);
        }
        // What was wanted, and drafts in their place, may be taken back.
        let mut drafts = text[800..810].to_vec();
        drafts.extend([1, 2, 3, 4]);
        run(&mut rings, made, &mut first, &drafts);
        rings.truncate(&mut first, 810);
        assert_eq!(first.len(), 810);
        assert!(run(&mut rings, made, &mut first, &text[810..820]) == right[819]);
        let saved: Vec<Vec<u8>> = rings.cache_of(&first).map(<[u8]>::to_vec).collect();
        let mut blocks = saved.iter();
        let restored = rings.restore(820, &mut |to| {
            to.copy_from_slice(blocks.next().expect("as many blocks"));
            Ok(())
        });
        let mut restored = restored.expect("blocks");
        assert!(blocks.next().is_none());
        assert!(run(&mut rings, made, &mut restored, &text[820..]) == right[899]);
        rings.end(restored);
        rings.truncate(&mut first, 100);
        assert_eq!(first.len(), 0);
        assert!(run(&mut rings, made, &mut first, &text[..150]) == right[149]);
        rings.end(first);
        assert_eq!(rings.free_positions(), rings.context());
    }
}

#[test]
fn a_call_that_is_stopped_leaves_what_it_computed() {
    let made = model("gpt-oss");
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let text = tokens(made, 700);
    let right = logits(&mut engine(&path, usize::MAX, 512), &text);
    let mut rings = engine(&path, 1, 32);
    let mut sequence = rings.begin();
    let cancel = CancelToken::new();
    // Logits of the first wanted token stop the call; those before it are computed in whole chunks.
    let mut batch = [Tokens {
        sequence: &mut sequence,
        tokens: &text,
        wanted: 300,
    }];
    let stopped = rings.forward(&mut batch, &cancel, &mut |_, _, _, _| cancel.cancel());
    assert!(stopped.expect_err("stopped").is_cancelled());
    let done = sequence.len();
    assert!((0..=400).contains(&done), "{done}");
    assert!(run(&mut rings, made, &mut sequence, &text[done..]) == right[699]);
    rings.end(sequence);
}
