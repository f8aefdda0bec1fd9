//! Seeded tensor values, generated a chunk at a time.
//!
//! Each tensor draws from its own ChaCha8 stream, named by a hash of the tensor's name, so a
//! tensor's values depend on the seed and its name alone. Only exactly rounded operations are
//! used (no `exp`, no `ln`), so a file is the same bit for bit on every machine.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::graph::DType;

/// Values generated per step, save that a centred row is never split.
const CHUNK_ELEMENTS: usize = 64 * 1024;

/// A distribution of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Dist {
    /// Symmetric about `mean` with standard deviation `std` and bounded support (the sum of two
    /// uniform variables): what a normal distribution is used for here, at a fraction of its cost.
    Bell { mean: f32, std: f32 },
    /// Positive, within a factor `1 + spread` of `center` either way, symmetric in the logarithm.
    Ratio { center: f32, spread: f32 },
}

/// The rule by which a tensor gets its values.
#[derive(Clone, Debug)]
pub(crate) enum Init {
    /// Runs of values, each with its own distribution; lengths add up to the tensor's.
    Pieces(Vec<(usize, Dist)>),
    /// Rows of `row` values with standard deviation `std` whose sum is zero, so that a layer
    /// does not pass on the common mean of its inputs (which are mostly rectified, hence
    /// positive) and deep stacks keep telling inputs apart.
    CenteredRows {
        row: usize,
        std: f32,
    },
    F32(Vec<f32>),
    I64(Vec<i64>),
    /// Lower-triangular `n × n` booleans: position i sees positions ≤ i.
    CausalMask(usize),
}

impl Init {
    pub(crate) fn bell(elements: usize, mean: f32, std: f32) -> Init {
        Init::Pieces(vec![(elements, Dist::Bell { mean, std })])
    }

    pub(crate) fn dtype(&self) -> DType {
        match self {
            Init::Pieces(_) | Init::CenteredRows { .. } | Init::F32(_) => DType::F32,
            Init::I64(_) => DType::I64,
            Init::CausalMask(_) => DType::Bool,
        }
    }
}

/// Generates the bytes of one tensor in order, handing them to `emit` in bounded pieces.
/// Stops early, returning false, when `emit` does.
pub(crate) fn generate(
    seed: u64,
    name: &str,
    elements: u64,
    init: &Init,
    emit: &mut dyn FnMut(Vec<u8>) -> bool,
) -> bool {
    let mut rng = stream(seed, name);
    match init {
        Init::Pieces(pieces) => {
            for &(len, dist) in pieces {
                let mut left = len;
                while left > 0 {
                    let count = left.min(CHUNK_ELEMENTS);
                    let mut bytes = random_bytes(&mut rng, count);
                    match dist {
                        Dist::Bell { mean, std } => map_f32(&mut bytes, |w| mean + bell(w) * std),
                        Dist::Ratio { center, spread } => map_f32(&mut bytes, |w| {
                            let up = 1.0 + spread * (w & 0xffff) as f32 / 65536.0;
                            let down = 1.0 + spread * (w >> 16) as f32 / 65536.0;
                            center * up / down
                        }),
                    }
                    left -= count;
                    if !emit(bytes) {
                        return false;
                    }
                }
            }
            true
        }
        Init::CenteredRows { row, std } => {
            let mut rows_left = elements / *row as u64;
            while rows_left > 0 {
                let rows = rows_left.min((CHUNK_ELEMENTS / row).max(1) as u64);
                let mut bytes = random_bytes(&mut rng, rows as usize * row);
                for values in bytes.chunks_exact_mut(row * 4) {
                    // Integers, so the sum is exact whatever order the compiler adds in.
                    let sum: i64 = values
                        .as_chunks::<4>()
                        .0
                        .iter()
                        .map(|&w| bell_steps(word(w)))
                        .sum();
                    let mean = (sum as f64 / *row as f64) as f32;
                    let scale = std * BELL_UNIT;
                    map_f32(values, |w| (bell_steps(w) as f32 - mean) * scale);
                }
                rows_left -= rows;
                if !emit(bytes) {
                    return false;
                }
            }
            true
        }
        Init::F32(values) => emit(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Init::I64(values) => emit(values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Init::CausalMask(n) => (0..*n).all(|i| emit((0..*n).map(|j| u8::from(j <= i)).collect())),
    }
}

/// Bell values are whole steps of this size, times the standard deviation: the sum of two
/// uniform 16-bit numbers has variance (2¹⁶)²/6 up to a relative 2⁻³².
const BELL_UNIT: f32 = 2.449_489_8 / 65536.0;

fn bell_steps(w: u32) -> i64 {
    i64::from((w & 0xffff) as i32 + (w >> 16) as i32 - 65535)
}

fn bell(w: u32) -> f32 {
    bell_steps(w) as f32 * BELL_UNIT
}

fn word(bytes: [u8; 4]) -> u32 {
    u32::from_le_bytes(bytes)
}

fn random_bytes(rng: &mut ChaCha8Rng, elements: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; elements * 4];
    rng.fill_bytes(&mut bytes);
    bytes
}

/// Turns random words into little-endian floats in place.
fn map_f32(bytes: &mut [u8], f: impl Fn(u32) -> f32) {
    for chunk in bytes.as_chunks_mut::<4>().0 {
        *chunk = f(word(*chunk)).to_le_bytes();
    }
}

fn stream(seed: u64, name: &str) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(b"neap-zoo");
    let mut rng = ChaCha8Rng::from_seed(key);
    // FNV-1a: short, stable, and collisions among a few hundred names are no worry.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    rng.set_stream(hash);
    rng
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floats(name: &str, seed: u64, elements: usize, init: &Init) -> Vec<f32> {
        let mut bytes = Vec::new();
        assert!(generate(seed, name, elements as u64, init, &mut |b| {
            bytes.extend(b);
            true
        }));
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&w| f32::from_le_bytes(w))
            .collect()
    }

    #[test]
    fn bell_has_the_asked_mean_and_deviation() {
        let n = 300_000;
        let v = floats("x", 1, n, &Init::bell(n, 0.5, 2.0));
        assert_eq!(v.len(), n);
        let mean = v.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
        let var = v
            .iter()
            .map(|&x| (f64::from(x) - mean).powi(2))
            .sum::<f64>()
            / n as f64;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((var.sqrt() - 2.0).abs() < 0.02, "{var}");
    }

    #[test]
    fn centred_rows_sum_to_nothing() {
        let v = floats(
            "x",
            1,
            300 * 70_001,
            &Init::CenteredRows {
                row: 70_001,
                std: 0.1,
            },
        );
        for row in v.chunks(70_001) {
            let sum: f64 = row.iter().map(|&x| f64::from(x)).sum();
            assert!(sum.abs() < 1e-3, "{sum}");
        }
    }

    #[test]
    fn ratio_stays_in_its_range() {
        let v = floats(
            "x",
            1,
            10_000,
            &Init::Pieces(vec![(
                10_000,
                Dist::Ratio {
                    center: 2.0,
                    spread: 0.5,
                },
            )]),
        );
        assert!(v.iter().all(|&x| (2.0 / 1.5..=3.0).contains(&x)));
        assert!(v.iter().any(|&x| x > 2.5) && v.iter().any(|&x| x < 1.5));
    }

    #[test]
    fn values_follow_from_seed_and_name_only() {
        let init = Init::bell(100, 0.0, 1.0);
        assert_eq!(floats("a", 1, 100, &init), floats("a", 1, 100, &init));
        assert_ne!(floats("a", 1, 100, &init), floats("b", 1, 100, &init));
        assert_ne!(floats("a", 1, 100, &init), floats("a", 2, 100, &init));
        // Chunking is invisible: a longer tensor starts with the same values.
        let long = floats(
            "a",
            1,
            CHUNK_ELEMENTS + 5,
            &Init::bell(CHUNK_ELEMENTS + 5, 0.0, 1.0),
        );
        assert_eq!(long[..100], floats("a", 1, 100, &init)[..]);
    }

    #[test]
    fn generation_stops_when_told() {
        let mut calls = 0;
        let n = 4 * CHUNK_ELEMENTS;
        assert!(!generate(
            1,
            "x",
            n as u64,
            &Init::bell(n, 0.0, 1.0),
            &mut |_| {
                calls += 1;
                false
            }
        ));
        assert_eq!(calls, 1);
    }
}
