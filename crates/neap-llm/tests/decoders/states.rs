//! States of a fixed size: where a text can be cut and shared, and what a call that fails leaves.

use crate::bits::{Process, model};
use crate::made::tokens;
use crate::right::logits;
use neap_llm::{Engine, Options, Tokens};
use neap_runtime::CancelToken;
use std::sync::Arc;

struct Bench {
    engine: Engine,
    text: Vec<u32>,
    right: Vec<Vec<f32>>,
    _folder: tempfile::TempDir,
}

fn bench(chunk: usize) -> Bench {
    let made = model("lfm2");
    let folder = tempfile::tempdir().expect("a folder");
    let path = made.file(&folder);
    let options = Options {
        host: Arc::new(Process),
        context: 1024,
        threads: 1,
        sequences: 3,
        chunk,
        ..Options::default()
    };
    let mut engine = Engine::open(&path, &options).expect("it opens");
    let text = tokens(made, 200);
    Bench {
        right: logits(&mut engine, &text),
        engine,
        text,
        _folder: folder,
    }
}

impl Bench {
    /// Goes on to the text's first `end` tokens, and checks the last `wanted` results.
    fn go_on(&mut self, sequence: &mut neap_llm::Sequence, end: usize, wanted: usize) {
        let begin = sequence.len();
        let (text, right) = (&self.text[begin..end], &self.right);
        let mut found = vec![vec![0.0; right[0].len()]; text.len()];
        let mut batch = [Tokens {
            sequence,
            tokens: text,
            wanted,
        }];
        let computed =
            self.engine
                .forward(&mut batch, &CancelToken::new(), &mut |_, t, first, x| {
                    found[t][first..][..x.len()].copy_from_slice(x);
                });
        computed.expect("it computes");
        for t in text.len() - wanted..text.len() {
            assert!(found[t] == right[begin + t], "{}", begin + t);
        }
    }
}

#[test]
fn a_text_ends_where_its_state_is_known() {
    for chunk in [8, 64, 256] {
        let mut bench = bench(chunk);
        let mut first = bench.engine.begin();
        bench.go_on(&mut first, 100, 1);
        // Nine tokens, eight of which were drafted.
        bench.go_on(&mut first, 109, 9);
        bench.engine.truncate(&mut first, 104);
        assert_eq!(first.len(), 100);
        bench.go_on(&mut first, 120, 17);
        assert_eq!(first.len(), 120);
        for (len, ends) in [(120, 120), (119, 103), (103, 103), (102, 0), (0, 0)] {
            let mut fork = bench.engine.fork(&first, len).expect("blocks");
            assert_eq!(fork.len(), ends);
            bench.go_on(&mut fork, 150, 3);
            bench.engine.end(fork);
        }
        bench.go_on(&mut first, 121, 1);
        let saved: Vec<Vec<u8>> = (bench.engine.cache_of(&first))
            .map(<[u8]>::to_vec)
            .collect();
        let mut blocks = saved.iter();
        let restored = bench.engine.restore(121, &mut |to| {
            to.copy_from_slice(blocks.next().expect("as many blocks"));
            Ok(())
        });
        let mut restored = restored.expect("blocks");
        assert!(blocks.next().is_none());
        bench.go_on(&mut restored, 160, 20);
        bench.engine.end(restored);
        bench.engine.truncate(&mut first, 50);
        assert_eq!(first.len(), 0);
        bench.go_on(&mut first, 200, 1);
        bench.engine.end(first);
        assert_eq!(bench.engine.free_positions(), bench.engine.context());
    }
}

#[test]
fn a_call_that_is_stopped_changes_no_state() {
    for (chunk, wanted, least) in [(256, 40, 0), (16, 40, 150), (16, 150, 42)] {
        let mut bench = bench(chunk);
        let mut sequence = bench.engine.begin();
        bench.go_on(&mut sequence, 10, 1);
        let cancel = CancelToken::new();
        let mut batch = [Tokens {
            sequence: &mut sequence,
            tokens: &bench.text[10..],
            wanted,
        }];
        let stopped = bench
            .engine
            .forward(&mut batch, &cancel, &mut |_, _, _, _| cancel.cancel());
        // In one chunk all is computed before anybody may stop it.
        if chunk == 16 {
            assert!(stopped.expect_err("stopped").is_cancelled());
            assert!(sequence.len() >= least && sequence.len() <= 200 - wanted);
        }
        bench.engine.truncate(&mut sequence, 190);
        bench.go_on(&mut sequence, 200, 1);
        bench.engine.end(sequence);
    }
}
