//! The same bits whatever the budget, chunk, batch, threads and prefix.

use crate::made::{ALL, Made, tokens};
use crate::right::logits;
use neap_llm::{CacheType, Engine, Error, Options, Tokens};
use neap_runtime::CancelToken;

/// A process that takes the same in every test.
#[derive(Debug)]
pub struct Process;

impl neaptide::Host for Process {
    fn charged_bytes(&self) -> u64 {
        5 << 20
    }
}

fn options() -> Options {
    Options {
        host: std::sync::Arc::new(Process),
        context: 256,
        threads: 1,
        ..Options::default()
    }
}

fn bits(logits: &[Vec<f32>]) -> Vec<u32> {
    logits.iter().flatten().map(|x| x.to_bits()).collect()
}

pub fn model(name: &str) -> &'static Made {
    ALL.iter().find(|made| made.name == name).expect("a model")
}

#[test]
fn budgets_chunks_and_threads_do_not_change_a_bit() {
    for made in ALL {
        let folder = tempfile::tempdir().expect("a folder");
        let path = made.file(&folder);
        let tokens = tokens(made, 100);
        let mut whole = Engine::open(&path, &options()).expect("it opens");
        let right = bits(&logits(&mut whole, &tokens));
        let smallest = whole.ledger().smallest_bytes;
        for (more, chunk, threads) in [
            (1 << 18, 1, 1),
            (1 << 19, 7, 2),
            (1 << 20, 64, 3),
            (1 << 26, 512, 2),
        ] {
            let options = Options {
                memory_budget: Some(smallest + more),
                chunk,
                threads,
                ..options()
            };
            let mut engine = Engine::open(&path, &options).expect("it opens");
            assert!(
                bits(&logits(&mut engine, &tokens)) == right,
                "{} at {more}, {chunk}, {threads}",
                made.name
            );
            let ledger = engine.ledger();
            assert!(ledger.weights_bytes > 0);
        }
    }
}

#[test]
fn sequences_side_by_side_get_what_each_gets_alone() {
    for name in ["llama", "qwen3moe", "gpt-oss", "lfm2"] {
        side_by_side(model(name));
    }
}

fn side_by_side(made: &Made) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let mut engine = Engine::open(
        &path,
        &Options {
            context: 1024,
            ..options()
        },
    )
    .expect("it opens");
    let texts: Vec<Vec<u32>> = (1..6)
        .map(|i| tokens(made, 90)[i * 3..][..i * 13].to_vec())
        .collect();
    let alone: Vec<Vec<Vec<f32>>> = texts.iter().map(|text| logits(&mut engine, text)).collect();
    let mut sequences: Vec<_> = texts.iter().map(|_| engine.begin()).collect();
    // First a different part of each, then the rest of all.
    let mut found: Vec<Vec<Vec<f32>>> = texts
        .iter()
        .map(|t| vec![vec![0.0; made.vocabulary]; t.len()])
        .collect();
    let mut done: Vec<usize> = vec![0; texts.len()];
    for round in 0..3 {
        let ends: Vec<usize> = (0..texts.len())
            .map(|i| {
                if round == 2 {
                    texts[i].len()
                } else {
                    texts[i].len() * (i + round) / 8
                }
            })
            .collect();
        let mut batch: Vec<Tokens<'_>> = sequences
            .iter_mut()
            .enumerate()
            .map(|(i, sequence)| Tokens {
                sequence,
                tokens: &texts[i][done[i].min(ends[i])..ends[i]],
                wanted: texts[i].len(),
            })
            .collect();
        let begins = done.clone();
        let computed = engine.forward(&mut batch, &CancelToken::new(), &mut |s, t, first, x| {
            found[s][begins[s] + t][first..][..x.len()].copy_from_slice(x);
        });
        computed.expect("it computes");
        for i in 0..texts.len() {
            done[i] = done[i].max(ends[i]);
        }
    }
    for (found, alone) in found.iter().zip(&alone) {
        assert!(bits(found) == bits(alone));
    }
    sequences.into_iter().for_each(|s| engine.end(s));
    assert_eq!(engine.free_positions(), engine.context());
}

#[test]
fn prefixes_are_shared_and_forgotten() {
    let made = model("gemma3");
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    for cache in CacheType::ALL {
        let mut engine = Engine::open(
            &path,
            &Options {
                context: 1024,
                cache,
                ..options()
            },
        )
        .expect("it opens");
        let text = tokens(made, 150);
        let right = logits(&mut engine, &text);
        let run = |engine: &mut Engine, sequence: &mut _, tokens: &[u32]| -> Vec<f32> {
            let mut out = vec![0.0; made.vocabulary];
            let mut batch = [Tokens {
                sequence,
                tokens,
                wanted: 1,
            }];
            let computed =
                engine.forward(&mut batch, &CancelToken::new(), &mut |_, _, first, x| {
                    out[first..][..x.len()].copy_from_slice(x);
                });
            computed.expect("it computes");
            out
        };
        let mut first = engine.begin();
        run(&mut engine, &mut first, &text[..130]);
        for len in [130, 128, 100, 64, 1] {
            let mut fork = engine.fork(&first, len).expect("blocks");
            // Another continuation of the fork must not be seen by the first.
            run(&mut engine, &mut fork, &[3, 4, 5]);
            engine.truncate(&mut fork, len);
            assert_eq!(fork.len(), len);
            assert_eq!(run(&mut engine, &mut fork, &text[len..]), right[149]);
            engine.end(fork);
        }
        let saved: Vec<u8> = engine.cache_of(&first).flatten().copied().collect();
        let mut rest = &saved[..];
        let restored = engine.restore(130, &mut |block| {
            let (now, later) = rest.split_at(block.len());
            block.copy_from_slice(now);
            rest = later;
            Ok(())
        });
        let mut restored = restored.expect("blocks");
        assert_eq!(run(&mut engine, &mut restored, &text[130..]), right[149]);
        engine.end(restored);
        let failed = engine.restore(130, &mut |_| Err(std::io::ErrorKind::UnexpectedEof.into()));
        assert!(matches!(failed, Err(Error::File { .. })));
        engine.truncate(&mut first, 70);
        assert_eq!(run(&mut engine, &mut first, &text[70..150]), right[149]);
        engine.end(first);
        assert_eq!(engine.free_positions(), engine.context());
    }
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_changes() {
    let made = model("llama");
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let mut engine = Engine::open(&path, &options()).expect("it opens");
    let text = tokens(made, 300);
    let right = logits(&mut engine, &text[..100]);
    let mut sequence = engine.begin();
    let none = &mut |_: usize, _: usize, _: usize, _: &[f32]| {};
    let cancel = CancelToken::new();
    let mut feed = |engine: &mut Engine, sequence: &mut _, tokens: &[u32], cancel: &CancelToken| {
        engine.forward(
            &mut [Tokens {
                sequence,
                tokens,
                wanted: 0,
            }],
            cancel,
            none,
        )
    };
    feed(&mut engine, &mut sequence, &text[..60], &cancel).expect("it computes");
    let long = feed(&mut engine, &mut sequence, &text, &cancel);
    assert!(matches!(
        long,
        Err(Error::Context {
            positions: 360,
            context: 256
        })
    ));
    let strange = feed(
        &mut engine,
        &mut sequence,
        &[made.vocabulary as u32],
        &cancel,
    );
    assert!(matches!(strange, Err(Error::Token { .. })));
    let cancelled = CancelToken::new();
    cancelled.cancel();
    let ended = feed(&mut engine, &mut sequence, &text[60..90], &cancelled);
    assert!(ended.expect_err("cancelled").is_cancelled());
    assert_eq!(sequence.len(), 60);
    let mut other = engine.begin();
    let full = feed(&mut engine, &mut other, &text[..200], &cancel);
    assert!(matches!(full, Err(Error::CacheFull { .. })));
    engine.end(other);
    let mut out = vec![0.0; made.vocabulary];
    let mut batch = [Tokens {
        sequence: &mut sequence,
        tokens: &text[60..100],
        wanted: 1,
    }];
    let computed = engine.forward(&mut batch, &cancel, &mut |_, _, first, x| {
        out[first..][..x.len()].copy_from_slice(x);
    });
    computed.expect("it computes");
    assert_eq!(out, right[99]);
    engine.end(sequence);
}

#[test]
fn a_budget_may_halve_and_come_back_in_mid_answer() {
    for name in ["qwen2 of K blocks", "mixtral"] {
        halve_and_come_back(model(name));
    }
}

fn halve_and_come_back(made: &Made) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let text = tokens(made, 60);
    let mut engine = Engine::open(&path, &options()).expect("it opens");
    let right = logits(&mut engine, &text);
    let smallest = engine.ledger().smallest_bytes;
    let mut sequence = engine.begin();
    for (at, token) in text.iter().enumerate() {
        let budget = match at {
            10 => Some(Some(smallest + (64 << 10))),
            25 => Some(Some(smallest + (2 << 20))),
            35 => Some(Some(smallest)),
            45 => Some(None),
            _ => None,
        };
        if let Some(budget) = budget {
            engine.set_budget(budget).expect("enough");
        }
        if at == 30 {
            let refused = engine.set_budget(Some(smallest - 1));
            assert!(matches!(refused, Err(Error::Budget { .. })));
        }
        let mut out = vec![0.0; made.vocabulary];
        let mut batch = [Tokens {
            sequence: &mut sequence,
            tokens: &[*token],
            wanted: 1,
        }];
        let computed = engine.forward(&mut batch, &CancelToken::new(), &mut |_, _, first, x| {
            out[first..][..x.len()].copy_from_slice(x);
        });
        computed.expect("it computes");
        assert_eq!(out, right[at], "token {at}");
    }
    engine.end(sequence);
}
