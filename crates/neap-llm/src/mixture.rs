//! Mixtures: the router's scores choose experts for each row, and what these give is added up by weight.
//!
//! ```text
//!   scores of a row ─► its best experts and their weights
//!   for each expert that any row chose, in the order of their numbers:
//!       its rows ─► gate, up ─► gate · up ─► down ─► add[row] += weight · result
//! ```
//! A row's sum has the same order whatever rows are beside it, so it has the same bits.

use crate::Experts;
use crate::disjoint::for_rows;
use crate::experts::{ExpertCache, Loaded};
use crate::model::Matrix;
use crate::pass::{Pass, multiply};
use neap_blocks::{Activations, Output, widen_row};
use neap_kernels::parallel::Parallel;
use neap_runtime::Computed;

/// A row is given to an expert.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Choice {
    expert: u32,
    row: u32,
    weight: f32,
}

/// Places of an expert's pieces.
const GATE: usize = 0;
const UP: usize = 1;
const DOWN: usize = 2;
/// Biases follow, in the same order.
const BIASES: usize = 3;

impl Pass<'_> {
    /// The router's scores are complete: what the chosen experts give becomes what the layer adds.
    pub(crate) fn mix(&mut self, layer: usize, par: &dyn Parallel) -> Computed {
        let Some(cache) = self.experts.take() else {
            return Err("a mixture without memory for experts".into());
        };
        let mut choices = std::mem::take(&mut self.scratch.mixture.choices);
        let mixed = self.mix_choices(layer, cache, &mut choices, par);
        self.scratch.mixture.choices = choices;
        self.experts = Some(cache);
        mixed.map_err(|error| {
            let line = error.to_string();
            self.failed = Some(error);
            line
        })
    }

    fn mix_choices(
        &mut self,
        layer: usize,
        cache: &mut ExpertCache,
        choices: &mut Vec<Choice>,
        par: &dyn Parallel,
    ) -> crate::Result<()> {
        let model = self.model;
        let len = self.rows.len() * model.config.width;
        self.choose(layer, choices);
        let scratch = &mut *self.scratch;
        scratch.mixture.normed[..len].copy_from_slice(&scratch.input[..len]);
        scratch.add[..len].fill(0.0);
        let mut experts: Vec<usize> = choices.iter().map(|c| c.expert as usize).collect();
        experts.dedup();
        cache.need(layer, &experts);
        let of_experts = choices.chunk_by(|a, b| a.expert == b.expert);
        for (at, rows) in of_experts.enumerate() {
            let loaded = cache.first(layer, &model.experts[layer], &experts[at..])?;
            self.give(&loaded, rows, par);
        }
        Ok(())
    }

    /// Of all rows, in the order of experts and rows.
    fn choose(&mut self, layer: usize, choices: &mut Vec<Choice>) {
        let model = self.model;
        choices.clear();
        let Some(experts) = &model.config.experts else {
            return;
        };
        let bias = &model.layers[layer].router_bias;
        let scores = &mut self.scratch.mixture.scores[..self.rows.len() * experts.count];
        for (row, scores) in (0..).zip(scores.chunks_exact_mut(experts.count)) {
            scores.iter_mut().zip(bias).for_each(|(s, b)| *s += b);
            best(experts, scores, |expert, weight| {
                choices.push(Choice {
                    expert,
                    row,
                    weight,
                });
            });
        }
        choices.sort_unstable_by_key(|choice| (choice.expert, choice.row));
    }

    /// One expert with the rows that chose it.
    fn give(&mut self, loaded: &Loaded<'_>, rows: &[Choice], par: &dyn Parallel) {
        let (width, inner) = (self.model.config.width, self.model.config.inner_width);
        let [gate, up, down] = loaded.matrices();
        let scratch = &mut *self.scratch;
        let gathered = scratch.input.chunks_exact_mut(width);
        for (choice, to) in rows.iter().zip(gathered) {
            let from = choice.row as usize * width;
            to.copy_from_slice(&scratch.mixture.normed[from..][..width]);
        }
        self.fix(rows.len(), width, par);
        for (matrix, piece, column) in [(gate, GATE, 0), (up, UP, inner)] {
            let weights = loaded.piece(piece);
            self.expert_product(matrix, weights, rows.len(), To::Inner(column), par);
            let both = &mut self.scratch.inner[..rows.len() * 2 * inner];
            add_bias(loaded, piece, par, both, 2 * inner, column);
        }
        self.activate(rows.len(), par);
        let weights = loaded.piece(DOWN);
        self.expert_product(down, weights, rows.len(), To::Given, par);
        let scratch = &mut *self.scratch;
        let given = &mut scratch.mixture.given[..rows.len() * width];
        add_bias(loaded, DOWN, par, given, width, 0);
        for (choice, given) in rows.iter().zip(given.chunks_exact(width)) {
            let sums = &mut scratch.add[choice.row as usize * width..][..width];
            for (sum, given) in sums.iter_mut().zip(given) {
                *sum = choice.weight.mul_add(*given, *sum);
            }
        }
    }

    fn expert_product(
        &mut self,
        matrix: &Matrix,
        weights: &[u8],
        rows: usize,
        to: To,
        par: &dyn Parallel,
    ) {
        let scratch = &mut *self.scratch;
        let (y, ld, column) = match to {
            To::Inner(column) => {
                let ld = 2 * self.model.config.inner_width;
                (&mut scratch.inner, ld, column)
            }
            To::Given => (&mut scratch.mixture.given, matrix.rows, 0),
        };
        let input = &scratch.input[..rows * matrix.k];
        let x = Activations::view(input, rows, matrix.k, &scratch.fixed);
        let output = Output::new(y, rows, ld, column..column + matrix.rows);
        let unpacked = (&mut scratch.unpacked[..], scratch.unpacked_bytes);
        multiply(self.products, matrix, weights, &x, output, unpacked, par);
    }
}

/// Where an expert's product goes.
enum To {
    /// To columns of gates and ups, from that one on.
    Inner(usize),
    Given,
}

/// Adds the bias of a matrix, if the model has biases, to columns of rows.
fn add_bias(
    loaded: &Loaded<'_>,
    piece: usize,
    par: &dyn Parallel,
    rows: &mut [f32],
    width: usize,
    column: usize,
) {
    let Some(matrix) = loaded.bias(piece) else {
        return;
    };
    let mut bias = vec![0.0; matrix.k];
    widen_row(matrix.ty, loaded.piece(BIASES + piece), &mut bias);
    for_rows(par, rows, width, &|_, row| {
        let row = &mut row[column..][..bias.len()];
        row.iter_mut().zip(&bias).for_each(|(y, b)| *y += b);
    });
}

/// The experts of a row and their weights. Of equal scores the first counts.
fn best(experts: &Experts, scores: &[f32], mut take: impl FnMut(u32, f32)) {
    let largest = scores.iter().fold(f32::NEG_INFINITY, |m, s| m.max(*s));
    let weight = |score: f32| f64::from(score - largest).exp();
    let mut chosen: Vec<(u32, f32)> = (0..).zip(scores.iter().copied()).collect();
    let by_score = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if experts.used < chosen.len() {
        chosen.select_nth_unstable_by(experts.used, by_score);
        chosen.truncate(experts.used);
    }
    chosen.sort_unstable_by_key(|(expert, _)| *expert);
    let sum: f64 = match experts.are_normed {
        true => chosen.iter().map(|(_, score)| weight(*score)).sum(),
        false => scores.iter().map(|score| weight(*score)).sum(),
    };
    for (expert, score) in chosen {
        take(expert, (weight(score) / sum) as f32 * experts.scale);
    }
}
