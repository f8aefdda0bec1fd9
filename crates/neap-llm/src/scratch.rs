//! Memory between the products of a pass.

use crate::mixture::Choice;
use crate::model::Model;
use crate::rotary::Turn;
use neap_blocks::{Activations, scratch_bytes};
use neap_kernels::simd::LANES;

/// Logits that are in memory at once.
pub(crate) const LOGITS: usize = 64 << 10;

/// For chunks of at most so many rows.
pub(crate) struct Scratch {
    /// What layers add to, `[row][width]`.
    pub x: Vec<f32>,
    /// What a product reads, in `f32` and in fixed point.
    pub input: Vec<f32>,
    pub fixed: Vec<u8>,
    /// `[row][query | key | value]`, or what a convolution takes.
    pub qkv: Vec<f32>,
    /// `[row][gate | up]`
    pub inner: Vec<f32>,
    /// What a layer adds, `[row][width]`; norms of it, too.
    pub add: Vec<f32>,
    pub logits: Vec<f32>,
    /// For each worker.
    pub unpacked: Vec<u8>,
    pub unpacked_bytes: usize,
    pub turns: [Vec<Turn>; 2],
    pub mixture: Mixture,
}

/// Of a mixture's layer; empty in others.
#[derive(Default)]
pub(crate) struct Mixture {
    /// What experts read, `[row][width]`.
    pub normed: Vec<f32>,
    /// `[row][expert]`
    pub scores: Vec<f32>,
    /// What one expert gives, `[row that chose it][width]`.
    pub given: Vec<f32>,
    pub choices: Vec<Choice>,
}

impl Scratch {
    pub fn new(model: &Model, rows: usize, workers: usize) -> Scratch {
        let sizes = Sizes::of(model, rows);
        let config = &model.config;
        let of_mixture = |floats: usize| vec![0.0; rows * floats * usize::from(sizes.is_mixture)];
        Scratch {
            x: vec![0.0; rows * config.width],
            input: vec![0.0; rows * sizes.input],
            fixed: vec![0; Activations::bytes(rows, sizes.input)],
            qkv: vec![0.0; rows * sizes.qkv],
            inner: vec![0.0; rows * 2 * config.inner_width],
            add: vec![0.0; rows * config.width],
            logits: vec![0.0; LOGITS.max(rows * LANES)],
            unpacked: vec![0; workers * sizes.unpacked_bytes],
            unpacked_bytes: sizes.unpacked_bytes,
            turns: [vec![Turn::default(); rows], vec![Turn::default(); rows]],
            mixture: Mixture {
                normed: of_mixture(config.width),
                scores: vec![0.0; rows * sizes.experts],
                given: of_mixture(config.width),
                choices: Vec::with_capacity(rows * sizes.used),
            },
        }
    }

    /// What [`Scratch::new`] takes.
    pub fn bytes(model: &Model, rows: usize, workers: usize) -> u64 {
        let sizes = Sizes::of(model, rows);
        let config = &model.config;
        let of_mixture = 2 * config.width * usize::from(sizes.is_mixture) + sizes.experts;
        let floats = rows
            * (2 * config.width + sizes.input + sizes.qkv + 2 * config.inner_width + of_mixture)
            + LOGITS.max(rows * LANES)
            + 2 * rows * config.rotary.dims;
        let bytes = Activations::bytes(rows, sizes.input)
            + workers * sizes.unpacked_bytes
            + rows * sizes.used * size_of::<Choice>();
        (4 * floats + bytes) as u64
    }
}

struct Sizes {
    input: usize,
    qkv: usize,
    unpacked_bytes: usize,
    is_mixture: bool,
    experts: usize,
    used: usize,
}

impl Sizes {
    fn of(model: &Model, rows: usize) -> Sizes {
        let config = &model.config;
        let widths = [config.width, config.query_width(), config.inner_width];
        let unpacked = model
            .all_matrices()
            .map(|(m, _)| scratch_bytes(m.ty, m.k, rows));
        let experts = config.experts.as_ref();
        let of_convolution = config.convolution.as_ref().map_or(0, |_| 3 * config.width);
        Sizes {
            input: widths.into_iter().max().unwrap_or(0),
            qkv: (config.query_width() + 2 * config.key_width()).max(of_convolution),
            unpacked_bytes: unpacked.max().unwrap_or(0),
            is_mixture: experts.is_some(),
            experts: experts.map_or(0, |experts| experts.count),
            used: experts.map_or(0, |experts| experts.used),
        }
    }
}
