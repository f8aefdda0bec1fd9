//! One pass of a chunk of rows through all layers: what happens between the products, and the products.
//!
//! ```text
//!   Query Key Value    norm ─► products            Output   heads' norms, rotation, cache, attention ─► product
//!   Gate Up            + what attention adds, norm ─► products        Down   gate · up ─► product
//!   ConvolutionIn Out  in place of these four ([`convolution`](crate::convolution))
//!   Router             + what attention adds, norm ─► product, then the experts that were chosen ([`mixture`](crate::mixture))
//!   Logits             + what the last layer adds, norm of the rows that are asked for ─► product, slice by slice
//! ```
//! Weights come part by part, in that order; what belongs before a matrix happens when its first part comes.

use crate::attention::{Head, Sight, attend};
use crate::disjoint::{Rows, for_rows};
use crate::experts::ExpertCache;
use crate::gated::gated;
use crate::model::{Matrix, Role};
use crate::plan::panel_rows;
use crate::rotary::Frequencies;
use crate::scratch::{LOGITS, Scratch};
use crate::sequence::{Cache, Sequence};
use crate::{Config, Error, Model};
use neap_blocks::{Activations, Output, product};
use neap_kernels::parallel::Parallel;
use neap_kernels::rows::{Input, rms_norm};
use neap_kernels::simd::{Isa, LANES};
use neap_runtime::{Computed, Part};
use std::sync::Mutex;

/// One position of a sequence in a chunk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Index into the chunk's sequences.
    pub sequence: usize,
    pub position: usize,
    pub wants_logits: bool,
}

/// Takes logits as they come: the row's index in the chunk, the first token of the slice, and the slice.
pub(crate) type Sink<'a> = dyn FnMut(usize, usize, &[f32]) + 'a;

/// A chunk on its way through the layers.
pub(crate) struct Pass<'a> {
    pub model: &'a Model,
    pub frequencies: &'a Frequencies,
    pub isa: Isa,
    pub products: neap_blocks::Isa,
    pub cache: &'a mut Cache,
    pub scratch: &'a mut Scratch,
    pub rows: &'a [Row],
    pub sequences: &'a [&'a Sequence],
    /// Indices of rows whose logits are asked for.
    pub wanted: &'a [usize],
    /// Of a mixture.
    pub experts: Option<&'a mut ExpertCache>,
    /// Why experts could not be had.
    pub failed: Option<Error>,
}

impl Pass<'_> {
    /// Before the first part: angles of all rows.
    pub fn begin(&mut self) {
        let turns = &mut self.scratch.turns;
        for (row, at) in self.rows.iter().zip(0..) {
            self.frequencies
                .turn(row.position, false, &mut turns[0][at]);
            self.frequencies.turn(row.position, true, &mut turns[1][at]);
        }
    }

    /// Once for each part of the plan, in order.
    pub fn compute(
        &mut self,
        part: &Part<'_>,
        par: &dyn Parallel,
        sink: &mut Sink<'_>,
    ) -> Computed {
        let (layer, role, matrix) = self.model.matrices[part.step.index()];
        if part.panels.begin == 0 {
            self.enter(layer, role, par)?;
        }
        let first = part.panels.begin as usize * panel_rows(&matrix);
        if role == Role::Logits {
            self.logits(&matrix, first, part.weights, par, sink);
            return Ok(());
        }
        let config = &self.model.config;
        let rows = self.rows.len();
        let scratch = &mut *self.scratch;
        let (query, key, inner) = (config.query_width(), config.key_width(), config.inner_width);
        let (to, ld, column) = match role {
            Role::Query | Role::QueryKeyValue => (&mut scratch.qkv, query + 2 * key, 0),
            Role::ConvolutionIn => (&mut scratch.qkv, matrix.rows, 0),
            Role::Key => (&mut scratch.qkv, query + 2 * key, query),
            Role::Value => (&mut scratch.qkv, query + 2 * key, query + key),
            Role::Gate | Role::GateUp => (&mut scratch.inner, 2 * inner, 0),
            Role::Up => (&mut scratch.inner, 2 * inner, inner),
            Role::Router => (&mut scratch.mixture.scores, matrix.rows, 0),
            Role::Output | Role::ConvolutionOut | Role::Down | Role::Logits => {
                (&mut scratch.add, config.width, 0)
            }
        };
        let x = Activations::view(
            &scratch.input[..rows * matrix.k],
            rows,
            matrix.k,
            &scratch.fixed,
        );
        let count = part.weights.len() / matrix.row_bytes();
        let begin = column + first;
        let output = Output::new(to, rows, ld, begin..begin + count);
        let unpacked = (&mut scratch.unpacked[..], scratch.unpacked_bytes);
        multiply(
            self.products,
            &matrix,
            part.weights,
            &x,
            output,
            unpacked,
            par,
        );
        match role == Role::Router && first + count == matrix.rows {
            true => self.mix(layer, par),
            false => Ok(()),
        }
    }

    /// What comes before a matrix's product.
    fn enter(&mut self, layer: usize, role: Role, par: &dyn Parallel) -> Computed {
        let model = self.model;
        let vectors = model.layers.get(layer);
        match (role, vectors) {
            (Role::Query | Role::QueryKeyValue | Role::ConvolutionIn, Some(vectors)) => {
                if let Some(before) = layer.checked_sub(1).map(|l| &model.layers[l]) {
                    self.add(&[], &before.after_inner_norm, par)?;
                }
                self.norm(&vectors.attention_norm, par)?;
            }
            (Role::Output, Some(_)) => self.attention(layer, par)?,
            (Role::ConvolutionOut, Some(_)) => self.convolve(layer, par),
            (Role::Gate | Role::GateUp | Role::Router, Some(vectors)) => {
                self.add(&vectors.output_bias, &vectors.after_attention_norm, par)?;
                self.norm(&vectors.inner_norm, par)?;
            }
            (Role::Down, _) => self.activate(self.rows.len(), par),
            (Role::Logits, _) => self.last(par)?,
            _ => {}
        }
        Ok(())
    }

    /// Adds what a layer computed, normed where the model does that.
    fn add(&mut self, bias: &[f32], norm: &[f32], par: &dyn Parallel) -> Computed {
        let config = &self.model.config;
        let (rows, width) = (self.rows.len(), config.width);
        let Scratch { x, input, add, .. } = &mut *self.scratch;
        let add = &mut add[..rows * width];
        if !bias.is_empty() {
            add.chunks_exact_mut(width)
                .for_each(|row| row.iter_mut().zip(bias).for_each(|(y, b)| *y += b));
        }
        let add: &[f32] = if norm.is_empty() {
            add
        } else {
            let to = &mut input[..rows * width];
            normed(self.isa, par, config, norm, add, to)?;
            to
        };
        let scale = config.residual_scale;
        for (x, y) in x[..rows * width].iter_mut().zip(add) {
            *x += y * scale;
        }
        Ok(())
    }

    /// The norm of `x` becomes the next product's input.
    fn norm(&mut self, scale: &[f32], par: &dyn Parallel) -> Computed {
        let config = &self.model.config;
        let len = self.rows.len() * config.width;
        let Scratch { x, input, .. } = &mut *self.scratch;
        normed(self.isa, par, config, scale, &x[..len], &mut input[..len])?;
        self.fix(self.rows.len(), config.width, par);
        Ok(())
    }

    /// Turns the product's input, `[rows][k]`, into fixed point.
    pub(crate) fn fix(&mut self, rows: usize, k: usize, par: &dyn Parallel) {
        let Scratch { input, fixed, .. } = &mut *self.scratch;
        fix(&input[..rows * k], rows, k, fixed, par);
    }

    /// Queries, keys and values are complete: keys and values go to the cache, and the results of all heads become the next
    /// product's input.
    fn attention(&mut self, layer: usize, par: &dyn Parallel) -> Computed {
        self.complete_heads(layer, par)?;
        let config = &self.model.config;
        let (query, key) = (config.query_width(), config.key_width());
        let width = query + 2 * key;
        let Scratch { qkv, input, .. } = &mut *self.scratch;
        for (row, qkv) in self.rows.iter().zip(qkv.chunks_exact(width)) {
            let (sequence, kv) = (self.sequences[row.sequence], qkv[query..].split_at(key));
            self.cache.store(sequence, row.position, layer, kv);
        }
        let rows = self.rows.len();
        let window = config.window.filter(|_| config.is_windowed(layer));
        let heads = Rows::new(&mut input[..rows * query], config.head_width);
        let (cache, all_rows, isa) = (&*self.cache, self.rows, self.isa);
        let sequences = self.sequences;
        let per_kv = config.heads / config.kv_heads;
        let sinks = &self.model.layers[layer].sinks;
        // Late rows see most: they go first, so that no worker ends with the longest.
        par.run(rows * config.heads, &|task, _| {
            let task = rows * config.heads - 1 - task;
            let (row, head) = (task / config.heads, task % config.heads);
            let Row {
                sequence, position, ..
            } = all_rows[row];
            let at = row * width + head * config.head_width;
            let query = &qkv[at..][..config.head_width];
            let from = window.map_or(0, |window| (position + 1).saturating_sub(window));
            let mut head = Head {
                query,
                sink: sinks.get(head).copied(),
                // SAFETY: each task has its own head of its own row.
                out: unsafe { heads.take(task) },
                cache,
                sequence: sequences[sequence],
                layer,
                kv_head: head / per_kv,
                sight: Sight {
                    from,
                    to: position + 1,
                },
            };
            attend(isa, &mut head);
        });
        self.fix(rows, query, par);
        Ok(())
    }

    /// Biases, norms of heads, rotation, and the scale of scores.
    fn complete_heads(&mut self, layer: usize, par: &dyn Parallel) -> Computed {
        let model = self.model;
        let (config, vectors) = (&model.config, &model.layers[layer]);
        let (query, key) = (config.query_width(), config.key_width());
        let is_windowed = config.is_windowed(layer);
        let is_rotated = config.is_rotated(layer);
        let Scratch { qkv, turns, .. } = &mut *self.scratch;
        let turns = &turns[usize::from(is_windowed)];
        let qkv = &mut qkv[..self.rows.len() * (query + 2 * key)];
        for_rows(par, qkv, query + 2 * key, &|row, qkv| {
            let (q, kv) = qkv.split_at_mut(query);
            let (k, v) = kv.split_at_mut(key);
            let biases = [&vectors.query_bias, &vectors.key_bias, &vectors.value_bias];
            for (y, bias) in [&mut *q, &mut *k, &mut *v].into_iter().zip(biases) {
                y.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
            }
            norm_heads(q, &vectors.query_norm, config.epsilon);
            norm_heads(k, &vectors.key_norm, config.epsilon);
            if is_rotated {
                self.frequencies.rotate(q, config.head_width, &turns[row]);
                self.frequencies.rotate(k, config.head_width, &turns[row]);
            }
            q.iter_mut().for_each(|q| *q *= config.score_scale);
        });
        Ok(())
    }

    /// Gates and ups of the first rows become the next product's input.
    pub(crate) fn activate(&mut self, rows: usize, par: &dyn Parallel) {
        let config = &self.model.config;
        let inner = config.inner_width;
        let Scratch {
            input, inner: both, ..
        } = &mut *self.scratch;
        let (isa, both) = (self.isa, &*both);
        for_rows(par, &mut input[..rows * inner], inner, &|row, to| {
            let (gate, up) = both[row * 2 * inner..][..2 * inner].split_at(inner);
            gated(isa, config.activation, gate, up, to);
        });
        self.fix(rows, inner, par);
    }

    /// The last layer's result, of the rows that are asked for.
    fn last(&mut self, par: &dyn Parallel) -> Computed {
        let model = self.model;
        let width = model.config.width;
        if let Some(vectors) = model.layers.last() {
            self.add(&[], &vectors.after_inner_norm, par)?;
        }
        let wanted = self.wanted;
        let Scratch { x, add, input, .. } = &mut *self.scratch;
        for (row, to) in wanted.iter().zip(add.chunks_exact_mut(width)) {
            to.copy_from_slice(&x[row * width..][..width]);
        }
        let len = wanted.len() * width;
        let (from, to) = (&add[..len], &mut input[..len]);
        normed(self.isa, par, &model.config, &model.last_norm, from, to)?;
        self.fix(wanted.len(), width, par);
        Ok(())
    }

    /// Logits of some tokens for the rows that are asked for, in slices.
    fn logits(
        &mut self,
        matrix: &Matrix,
        first: usize,
        weights: &[u8],
        par: &dyn Parallel,
        sink: &mut Sink<'_>,
    ) {
        let (wanted, k) = (self.wanted.len(), matrix.k);
        if wanted == 0 {
            return;
        }
        let Scratch {
            input,
            fixed,
            logits,
            unpacked,
            unpacked_bytes,
            ..
        } = &mut *self.scratch;
        let x = Activations::view(&input[..wanted * k], wanted, k, fixed);
        let most = (LOGITS / wanted / LANES * LANES).max(LANES);
        let scale = self.model.config.logit_scale;
        for (index, weights) in weights.chunks(most * matrix.row_bytes()).enumerate() {
            let count = weights.len() / matrix.row_bytes();
            let y = &mut logits[..wanted * count];
            let output = Output::new(y, wanted, count, 0..count);
            let unpacked = (&mut unpacked[..], *unpacked_bytes);
            multiply(self.products, matrix, weights, &x, output, unpacked, par);
            if scale != 1.0 {
                y.iter_mut().for_each(|y| *y *= scale);
            }
            for (row, y) in self.wanted.iter().zip(y.chunks_exact(count)) {
                sink(*row, first + index * most, y);
            }
        }
    }
}

/// One product, its output rows cut among workers.
pub(crate) fn multiply(
    isa: neap_blocks::Isa,
    matrix: &Matrix,
    weights: &[u8],
    x: &Activations<'_>,
    output: Output<'_>,
    (unpacked, unpacked_bytes): (&mut [u8], usize),
    par: &dyn Parallel,
) {
    let row_bytes = matrix.row_bytes();
    let rows = weights.len() / row_bytes;
    // A few pieces for each worker, so that one that is interrupted does not keep all waiting.
    let pieces = (4 * par.workers()).min(rows.div_ceil(LANES)).max(1);
    let piece = rows.div_ceil(pieces).next_multiple_of(LANES);
    let mut outputs = Vec::with_capacity(pieces);
    let mut rest = output;
    for begin in (0..rows).step_by(piece) {
        let (mine, others) = rest.split_at(piece.min(rows - begin));
        outputs.push(Mutex::new(Some(mine)));
        rest = others;
    }
    let scratch = Rows::new(unpacked, unpacked_bytes.max(1));
    par.run(outputs.len(), &|task, worker| {
        let taken = outputs[task].lock().map(|mut output| output.take());
        if let Ok(Some(mut output)) = taken {
            let begin = task * piece;
            let end = (begin + piece).min(rows);
            let weights = &weights[begin * row_bytes..end * row_bytes];
            let scratch = match unpacked_bytes {
                0 => &mut [],
                // SAFETY: no two tasks run on one worker at a time.
                _ => unsafe { scratch.take(worker) },
            };
            product(isa, matrix.ty, matrix.k, weights, x, &mut output, scratch);
        }
    });
}

/// Row by row, side by side.
fn fix(input: &[f32], rows: usize, k: usize, fixed: &mut [u8], par: &dyn Parallel) {
    let all = Activations::bytes(rows, k);
    if rows < 8 {
        let _ = Activations::quantise(input, rows, k, &mut fixed[..all]);
        return;
    }
    // The spans of a row are whole words, so rows follow each other wherever the first begins.
    let skip = fixed.as_ptr().align_offset(4);
    let row_bytes = Activations::bytes(1, k) - 3;
    let spans = &mut fixed[skip..][..rows * row_bytes];
    for_rows(par, spans, row_bytes, &|row, to| {
        let _ = Activations::quantise(&input[row * k..][..k], 1, k, to);
    });
}

fn normed(
    isa: Isa,
    par: &dyn Parallel,
    config: &Config,
    scale: &[f32],
    from: &[f32],
    to: &mut [f32],
) -> Computed {
    let rows = from.len() / config.width;
    let (width, epsilon) = (config.width, config.epsilon);
    let from = Input::From(from);
    rms_norm(isa, par, rows, width, epsilon, Some(scale), from, to).map_err(|e| e.to_string())
}

/// RMS norm of each head, where the model has it.
fn norm_heads(heads: &mut [f32], scale: &[f32], epsilon: f32) {
    if scale.is_empty() {
        return;
    }
    for head in heads.chunks_exact_mut(scale.len()) {
        let squares: f64 = head.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
        let mean = squares / head.len() as f64;
        let inverse = (1.0 / (mean + f64::from(epsilon)).sqrt()) as f32;
        for (x, scale) in head.iter_mut().zip(scale) {
            *x *= inverse * scale;
        }
    }
}
