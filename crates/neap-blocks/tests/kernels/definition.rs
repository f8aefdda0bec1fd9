//! The definition of the crate's documentation once more, in plain numbers: of a type without minima, of one with them, and of one with
//! two groups a span.

use crate::random::{Random, Scales};
use crate::{bits, results};
use neap_blocks::{BlockType, Isa};

/// A span of weights: a scale, integers and a minimum for each group.
struct Span {
    groups: Vec<(f32, Vec<i64>, Option<f32>)>,
}

fn half(b: &[u8]) -> f32 {
    let mut value = [0.0];
    neap_gguf::dequantize(neap_gguf::Kind::F16, &b[..2], &mut value).expect("floats");
    value[0]
}

fn spans(ty: BlockType, row: &[u8]) -> Vec<Span> {
    let mut spans = Vec::new();
    for b in row.chunks_exact(ty.block_bytes()) {
        match ty {
            BlockType::Q8_0 => {
                let w = b[2..].iter().map(|&q| i64::from(q.cast_signed()));
                let groups = vec![(half(b), w.collect(), None)];
                spans.push(Span { groups });
            }
            BlockType::Q4_1 => {
                let nibble = |i: usize| i64::from(b[4 + i % 16] >> (i / 16 * 4) & 15);
                let w = (0..32).map(nibble);
                let groups = vec![(half(b), w.collect(), Some(half(&b[2..])))];
                spans.push(Span { groups });
            }
            BlockType::Q6K => {
                let weight = |i: usize| {
                    let low = b[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
                    let high = b[128 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
                    i64::from(low | high << 4) - 32
                };
                for span in 0..8 {
                    let group = |g: usize| {
                        let scale = f32::from(b[192 + g].cast_signed()) * half(&b[208..]);
                        (scale, (16 * g..16 * g + 16).map(weight).collect(), None)
                    };
                    let groups = vec![group(2 * span), group(2 * span + 1)];
                    spans.push(Span { groups });
                }
            }
            other => unreachable!("{other:?}"),
        }
    }
    spans
}

fn by_definition(x: &[f32], spans: &[Span]) -> f32 {
    let mut sum = 0f32;
    for (x, span) in x.chunks(32).zip(spans) {
        let m = x.iter().fold(0f32, |m, x| m.max(x.abs()));
        let unit = m / 16256.0;
        let q: Vec<i64> = x
            .iter()
            .map(|x| (x * (16256.0 / m)).round_ties_even() as i64)
            .collect();
        let parts = q.chunks(32 / span.groups.len());
        let mut v = 0f32;
        for (i, ((a, w, _), q)) in span.groups.iter().zip(parts.clone()).enumerate() {
            let s: i64 = q.iter().zip(w).map(|(q, w)| q * w).sum();
            v = if i == 0 {
                s as f32 * a
            } else {
                (s as f32).mul_add(*a, v)
            };
        }
        for ((_, _, b), q) in span.groups.iter().zip(parts) {
            if let Some(b) = b {
                v = (q.iter().sum::<i64>() as f32).mul_add(*b, v);
            }
        }
        sum = v.mul_add(unit, sum);
    }
    sum
}

#[test]
fn results_are_those_of_the_definition() {
    let mut random = Random(8);
    for ty in [BlockType::Q8_0, BlockType::Q4_1, BlockType::Q6K] {
        for scales in [Scales::Usual, Scales::Extreme] {
            let (k, rows, columns) = (768, 3, 19);
            let x = random.activations(rows * k);
            let weights = random.blocks(ty, k, columns, scales);
            let unpacked: Vec<_> = weights
                .chunks_exact(ty.row_bytes(k))
                .map(|row| spans(ty, row))
                .collect();
            let right: Vec<f32> = x
                .chunks(k)
                .flat_map(|x| unpacked.iter().map(|row| by_definition(x, row)))
                .collect();
            for isa in Isa::available() {
                let y = results(isa, ty, k, &weights, &x);
                assert_eq!(bits(&y), bits(&right), "{} {ty:?} {scales:?}", isa.name());
            }
        }
    }
}
