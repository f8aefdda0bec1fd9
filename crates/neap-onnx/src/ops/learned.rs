//! Classical models: n-grams, and the operators of the domain ai.onnx.ml that tensors go through.

use super::{classical, encoders, svm, trees};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::learned::{Gram, TfIdf, Weighting};
use neap_ir::{Op, ValueId};

/// Of classical models.
pub(super) const DOMAIN: &str = "ai.onnx.ml";

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "TfIdfVectorizer" => one(tf_idf(c)),
        _ => return None,
    })
}

pub(super) fn lower_classical(c: &mut Ctx, op: &str) -> Option<Outputs> {
    let families = [classical::lower, encoders::lower, svm::lower, trees::lower];
    families.into_iter().find_map(|family| family(c, op))
}

fn tf_idf(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let x = c.input(0)?;
    let missing = |name: &str| c.bad(format!("attribute '{name}' is missing"));
    let Some(pool) = c.ints("pool_int64s")? else {
        return Err(c.unsupported("n-grams of strings"));
    };
    let weighting = match c.string("mode", "")? {
        "TF" => Weighting::Tf,
        "IDF" => Weighting::Idf,
        "TFIDF" => Weighting::TfIdf,
        _ => return Err(c.bad("attribute 'mode' is unknown or missing")),
    };
    let size = |name: &str| {
        let value = c.optional_int(name)?.ok_or_else(|| missing(name))?;
        c.checked_size(name, value)
    };
    let lengths = (size("min_gram_length")?, size("max_gram_length")?);
    let starts = c.sizes("ngram_counts")?;
    let starts = starts.ok_or_else(|| missing("ngram_counts"))?;
    let places = c.sizes("ngram_indexes")?;
    let places = places.ok_or_else(|| missing("ngram_indexes"))?;
    let weights = c.floats("weights")?;
    let weights = weights.unwrap_or_else(|| vec![1.0; places.len()]);
    let mut grams = Vec::new();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(pool.len());
        let items = pool.get(start..end);
        let items = items.filter(|items| items.len().is_multiple_of(i + 1));
        let items = items.ok_or_else(|| c.bad("its ngram_counts do not fit its pool"))?;
        for gram in items.chunks_exact(i + 1) {
            let at = grams.len();
            let place = places.get(at).copied().filter(|&p| p <= 1 << 30);
            let (Some(place), Some(&weight)) = (place, weights.get(at)) else {
                return Err(c.bad("its ngram_indexes or weights do not fit its pool"));
            };
            grams.push(Gram {
                items: gram.to_vec(),
                place,
                weight,
            });
        }
    }
    if lengths.0 == 0 || lengths.0 > lengths.1 || places.len() != grams.len() {
        return Err(c.bad("its n-grams or their lengths do not fit"));
    }
    grams.sort_by(|a, b| a.items.cmp(&b.items));
    if grams.windows(2).any(|pair| pair[0].items == pair[1].items) {
        return Err(c.unsupported("an n-gram that is listed twice"));
    }
    let attrs = TfIdf {
        weighting,
        lengths,
        max_skip: size("max_skip_count")?,
        grams,
        width: places.iter().max().map_or(0, |&most| most + 1),
    };
    c.emit(Op::TfIdf(Box::new(attrs)), &[x])
}
