//! How fast this machine computes with a model's weights and reads them: measured, for predictions.

use crate::plan::{Rates, panel_rows};
use crate::{Error, Matrix, Model, Result};
use neap_blocks::{Activations, Isa, Output, product, scratch_bytes};
use neap_kernels::parallel::Parallel;
use neap_store::probe;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

/// Weights that are computed with: more than caches hold.
const SAMPLE_BYTES: usize = 48 << 20;

/// Each type of weights is timed so often; the fastest counts, as others may use the machine.
const ROUNDS: usize = 3;

impl Rates {
    /// Reads about 20 MiB of the file and computes for some tens of milliseconds with weights of each of the model's types. Takes
    /// about 50 MiB of memory meanwhile.
    ///
    /// # Errors
    /// Where the file cannot be read so, or threads cannot be had.
    pub fn measure(model: &Model, threads: usize) -> Result<Rates> {
        Ok(Rates {
            drive_bytes_per_second: drive(model)?,
            weight_bytes_per_second: weights(model, threads)?,
        })
    }
}

/// Of the largest of its files: the first may have no weights.
fn drive(model: &Model) -> Result<f64> {
    let bytes = |path: &&PathBuf| path.metadata().map_or(0, |meta| meta.len());
    let largest = model.files.iter().max_by_key(bytes);
    Ok(probe(largest.map_or(model.path(), |path| path.as_path()))?.bytes_per_second)
}

/// Of all types, each by its share of the model.
fn weights(model: &Model, threads: usize) -> Result<f64> {
    let threads = threads.max(1);
    let pool = neap_runtime::Pool::new(threads)
        .map_err(|source| neap_runtime::RuntimeError::Threads { threads, source })?;
    let mut sample = vec![0u8; SAMPLE_BYTES];
    // Scales of any bytes would be huge; small integers of them are numbers.
    sample
        .iter_mut()
        .zip(0u32..)
        .for_each(|(b, i)| *b = (i % 29) as u8);
    let mut by_type: HashMap<_, (Matrix, u64)> = HashMap::new();
    for (matrix, count) in model.all_matrices() {
        let entry = by_type.entry(matrix.ty).or_insert((*matrix, 0));
        entry.1 += matrix.bytes() * count;
    }
    let (mut seconds, mut bytes) = (0.0, 0);
    for (matrix, of_type) in by_type.into_values() {
        let rate = rate_of(&matrix, &sample, &pool).ok_or_else(|| {
            Error::Unsupported("rows of its matrices are too long to be timed".into())
        })?;
        seconds += of_type as f64 / rate;
        bytes += of_type;
    }
    Ok(bytes as f64 / seconds)
}

/// `None` where a row is longer than the sample.
fn rate_of(matrix: &Matrix, sample: &[u8], pool: &neap_runtime::Pool) -> Option<f64> {
    let (k, row_bytes) = (matrix.k, matrix.row_bytes());
    let tasks = 8 * pool.workers();
    let step = panel_rows(matrix).max(16);
    let rows = sample.len() / row_bytes / tasks / step * step;
    if rows == 0 {
        return None;
    }
    let x: Vec<f32> = (0..k).map(|i| i as f32 / k as f32 - 0.5).collect();
    let mut fixed = vec![0; Activations::bytes(1, k)];
    let x = Activations::quantise(&x, 1, k, &mut fixed);
    let isa = Isa::detect();
    let workers: Vec<Mutex<(Vec<f32>, Vec<u8>)>> = (0..pool.workers())
        .map(|_| Mutex::new((vec![0.0; rows], vec![0; scratch_bytes(matrix.ty, k, 1)])))
        .collect();
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        pool.run(tasks, &|task, worker| {
            if let Ok(mut own) = workers[worker].lock() {
                let (y, scratch) = &mut *own;
                let weights = &sample[task * rows * row_bytes..][..rows * row_bytes];
                let mut y = Output::new(y, 1, rows, 0..rows);
                product(isa, matrix.ty, k, weights, &x, &mut y, scratch);
            }
        });
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Some((tasks * rows * row_bytes) as f64 / best)
}
