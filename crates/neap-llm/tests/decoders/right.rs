//! Every architecture against the reference.

use crate::made::{ALL, tokens};
use crate::reference::Reference;
use neap_llm::{CacheType, Engine, Options, Tokens};
use neap_runtime::CancelToken;

/// Logits of all tokens, computed in one call.
pub fn logits(engine: &mut Engine, tokens: &[u32]) -> Vec<Vec<f32>> {
    let vocabulary = engine.model().config.vocabulary;
    let mut out = vec![vec![f32::NAN; vocabulary]; tokens.len()];
    let mut sequence = engine.begin();
    let mut batch = [Tokens {
        sequence: &mut sequence,
        tokens,
        wanted: tokens.len(),
    }];
    let computed = engine.forward(
        &mut batch,
        &CancelToken::new(),
        &mut |_, token, first, x| {
            out[token][first..][..x.len()].copy_from_slice(x);
        },
    );
    computed.expect("it computes");
    engine.end(sequence);
    out
}

#[test]
fn every_architecture_gives_what_plain_loops_give() {
    for made in ALL {
        let folder = tempfile::tempdir().expect("a folder");
        let path = made.file(&folder);
        let tokens = tokens(made, 150);
        let right = Reference::new(&made.bytes()).logits(&tokens);
        // A little is enough for a router to choose another expert.
        let is_mixture = made.experts[0] > 0;
        for (cache, most) in [
            (CacheType::F32, 3e-3),
            (CacheType::F16, 6e-3),
            (CacheType::Int8, 6e-2),
        ] {
            if is_mixture && cache != CacheType::F32 {
                continue;
            }
            let options = Options {
                context: 192,
                cache,
                threads: 2,
                ..Options::default()
            };
            let mut engine = Engine::open(&path, &options).expect("it opens");
            let found = logits(&mut engine, &tokens);
            let (mut error, mut largest) = (0.0f64, 0.0f64);
            for (found, right) in found.iter().flatten().zip(right.iter().flatten()) {
                error = error.max((f64::from(*found) - right).abs());
                largest = largest.max(right.abs());
                assert!(found.is_finite());
            }
            let relative = error / largest;
            assert!(
                relative < most,
                "{} with {cache:?}: off by {relative:e} of {largest}",
                made.name
            );
            println!("{} {cache:?} {relative:e} of {largest}", made.name);
        }
    }
}
