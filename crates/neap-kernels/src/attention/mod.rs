//! Attention, `softmax(scale * Q·Kᵀ + mask) · V`, without ever holding the scores of a whole head.
//!
//! A task takes one head and a tile of queries. It walks over the keys in blocks (all of them at
//! once unless there are many); for each block it computes the tile's scores into scratch, turns
//! them into weights and adds their product with V to the output. With several blocks the
//! sums are rescaled when a larger score appears.
//!
//! ```text
//!             keys of a block
//!           ┌─────────────────┐
//!  queries  │ scores, scratch │ · V  ─► output rows
//!  of a tile└─────────────────┘
//! ```
//!
//! Tiles and blocks follow from the shape alone, and a row's arithmetic does not depend on its
//! tile, so results are the same for any number of workers.

mod product;
mod strip;
mod weigh;

use crate::error::{KernelError, check_len, checked_product};
use crate::parallel::Parallel;
use crate::reorder::transpose_tile;
use crate::share::{Dst, Src};
use crate::simd::{Isa, LANES};
use product::{Operands, product};
pub use strip::{KeyStrip, attention_strip, attention_strip_scratch_bytes, key_block};
use weigh::{Weighing, finish, weigh};

/// Elements from one batch, head or row to the next; the head dimension is contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strides {
    pub batch: usize,
    pub head: usize,
    pub row: usize,
}

/// How keys lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyLayout {
    /// `[kv_len][head_dim]`: a row is a key.
    Rows,
    /// `[head_dim][kv_len]`: a row holds one component of all keys.
    Transposed,
}

/// Values added to the scaled scores; a stride of 0 broadcasts.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    pub values: &'a [f32],
    /// Of batch, query head, query and key.
    pub strides: [usize; 4],
}

/// Sizes and options of one attention.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    pub batch: usize,
    pub heads_q: usize,
    /// Divides `heads_q`; query head `h` uses key and value head `h / (heads_q / heads_kv)`.
    pub heads_kv: usize,
    pub q_len: usize,
    pub kv_len: usize,
    /// Of queries and keys.
    pub head_dim: usize,
    /// Of values and outputs.
    pub v_dim: usize,
    pub scale: f32,
    /// Scores become `softcap * tanh(score / softcap)` before the mask; 0 leaves them alone.
    pub softcap: f32,
    /// Query `i` sees keys `0..=i + n` where this is `Some(n)`; all of them where it is `None`.
    pub causal: Option<usize>,
    /// Weights of a row that would be NaN are zeros.
    pub nan_is_zero: bool,
    pub mask: Option<Mask<'a>>,
    pub q: Strides,
    pub k: Strides,
    pub v: Strides,
    pub out: Strides,
    pub keys: KeyLayout,
}

/// Up to this many keys are one block.
const WHOLE_KEYS: usize = 1024;

/// Keys of a block where there are more.
const BLOCK_KEYS: usize = 512;

/// Floats of a tile's scores: they and the keys stay in a second-level cache.
const SCORE_FLOATS: usize = 24 * 1024;

/// Queries that a tile is a multiple of, for the micro-kernel's sake.
const ROWS: usize = 12;

/// Panels of 16 keys that are packed together.
const PACK_PANELS: usize = 4;

/// How a shape is cut; depends on nothing else.
#[derive(Clone, Copy)]
struct Cut {
    /// Queries of a tile.
    rows: usize,
    tiles: usize,
    /// Keys of a block.
    keys: usize,
    /// Floats from one row of scores to the next.
    score_row: usize,
    pack_floats: usize,
    score_floats: usize,
    tail_floats: usize,
}

impl Cut {
    /// Of an attention over so many keys.
    fn new(shape: &Attention<'_>, total_keys: usize) -> Option<Self> {
        let keys = key_block(total_keys).unwrap_or(total_keys);
        // One vector more, lest rows a power of two apart share a set of the cache.
        let score_row = keys.next_multiple_of(LANES) + LANES;
        let most = (SCORE_FLOATS / score_row).max(ROWS);
        let tiles = shape.q_len.div_ceil(most).max(1);
        let rows = (shape.q_len.div_ceil(tiles).max(1)).next_multiple_of(ROWS);
        Some(Cut {
            rows,
            tiles: shape.q_len.div_ceil(rows).max(1),
            keys,
            score_row,
            pack_floats: shape.head_dim.checked_mul(PACK_PANELS * LANES)?,
            score_floats: rows.checked_mul(score_row)?,
            tail_floats: if shape.v_dim.is_multiple_of(LANES) {
                0
            } else {
                keys * LANES
            },
        })
    }

    /// Packed keys, scores, the value tail, and each row's maximum and sum.
    fn floats(&self) -> Option<usize> {
        self.pack_floats
            .checked_add(self.score_floats)?
            .checked_add(self.tail_floats + 2 * self.rows)
    }
}

/// Bytes of scratch that [`attention`] needs for that many workers.
#[must_use]
pub fn attention_scratch_bytes(shape: &Attention<'_>, workers: usize) -> usize {
    scratch_bytes(shape, shape.kv_len, workers)
}

fn scratch_bytes(shape: &Attention<'_>, total_keys: usize, workers: usize) -> usize {
    Cut::new(shape, total_keys)
        .and_then(|cut| checked_product(&[cut.floats()?, workers, size_of::<f32>()]))
        .unwrap_or(usize::MAX)
}

/// Computes the attention. Rows that the mask leaves no key give NaN, as the formula does, unless NaN is to be zero.
///
/// `scratch` holds [`attention_scratch_bytes`] bytes, as floats.
///
/// # Errors
/// Buffers shorter than sizes and strides need, output rows that overlap, no keys, or query heads
/// that are no multiple of the key heads.
pub fn attention(
    isa: Isa,
    par: &dyn Parallel,
    shape: &Attention<'_>,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &mut [f32],
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    let all = KeyStrip {
        start: 0,
        total: shape.kv_len,
    };
    walk(isa, par, shape, all, [q, k, v], out, None, scratch)
}

/// Walks over some of the keys. What is known of each row before and after, its maximum and sum, is in `state`, or with the
/// worker's scratch where these are all keys.
fn walk(
    isa: Isa,
    par: &dyn Parallel,
    shape: &Attention<'_>,
    strip: KeyStrip,
    [q, k, v]: [&[f32]; 3],
    out: &mut [f32],
    state: Option<&mut [f32]>,
    scratch: &mut [f32],
) -> Result<(), KernelError> {
    check(shape, q, k, v, out)?;
    let cut = Cut::new(shape, strip.total).ok_or(KernelError::Invalid("a size overflows"))?;
    let floats = cut
        .floats()
        .ok_or(KernelError::Invalid("a size overflows"))?;
    check_len(
        "attention scratch",
        scratch.len(),
        checked_product(&[floats, par.workers()]),
    )?;
    let heads = shape.batch * shape.heads_q;
    if heads * shape.q_len * shape.v_dim == 0 {
        return Ok(());
    }
    let (q, k, v) = (Src::new(q), Src::new(k), Src::new(v));
    let (out, scratch) = (Dst::new(out), Dst::new(scratch));
    let state = state.map(Dst::new);
    let shared = shape.heads_q / shape.heads_kv;
    par.run(heads * cut.tiles, &|task, worker| {
        let (head, tile) = (task / cut.tiles, task % cut.tiles);
        let (image, head) = (head / shape.heads_q, head % shape.heads_q);
        let first = tile * cut.rows;
        let at = |s: Strides, head: usize| image * s.batch + head * s.head;
        // SAFETY: `check` compared the buffers with sizes and strides; output rows of different
        // tasks are apart; each worker has its own part of the scratch.
        unsafe {
            let job = Tile {
                isa,
                shape,
                strip,
                cut,
                image,
                head,
                first,
                rows: cut.rows.min(shape.q_len - first),
                q: q.at(at(shape.q, head) + first * shape.q.row),
                k: k.at(at(shape.k, head / shared)),
                v: v.at(at(shape.v, head / shared)),
                out: out.at(at(shape.out, head) + first * shape.out.row),
                pack: scratch.at(worker * floats),
                state: state.map(|state| state.at(2 * (task / cut.tiles) * shape.q_len + first)),
            };
            job.run();
        }
    });
    Ok(())
}

/// One head's tile of queries; pointers are to its first elements.
struct Tile<'a> {
    isa: Isa,
    shape: &'a Attention<'a>,
    strip: KeyStrip,
    cut: Cut,
    image: usize,
    head: usize,
    first: usize,
    rows: usize,
    q: *const f32,
    k: *const f32,
    v: *const f32,
    out: *mut f32,
    /// This worker's scratch: packed keys first.
    pack: *mut f32,
    /// Maxima of the head's rows, then their sums, from the tile's first row on.
    state: Option<*mut f32>,
}

impl Tile<'_> {
    /// # Safety
    /// The pointers reach as far as shape, strides and cut say.
    unsafe fn run(&self) {
        let (shape, cut) = (self.shape, &self.cut);
        // SAFETY: the parts of the scratch follow one another as `Cut::floats` adds them up.
        let (scores, tail, stats) = unsafe {
            let scores = self.pack.add(cut.pack_floats);
            let tail = scores.add(cut.score_floats);
            (scores, tail, tail.add(cut.tail_floats))
        };
        // SAFETY: the state has two floats for each query, the scratch two for each row of the tile.
        let (maxima, sums) = unsafe {
            match self.state {
                Some(state) => (state, state.add(shape.q_len)),
                None => (stats, stats.add(cut.rows)),
            }
        };
        // Keys beyond what the tile's last query sees need no work.
        let last = self.first + self.rows - 1;
        let seen = shape.causal.map_or(shape.kv_len, |n| {
            shape.kv_len.min(last.saturating_add(n) + 1)
        });
        for start in (0..seen).step_by(cut.keys) {
            let keys = cut.keys.min(seen - start);
            // SAFETY: the block lies among the keys; the caller vouches for the rest.
            unsafe {
                self.scores(start, keys, scores);
                let weighing = Weighing {
                    rows: self.rows,
                    keys,
                    score_row: cut.score_row,
                    scale: shape.scale,
                    softcap: shape.softcap,
                    // Row r of the tile sees `seen_first + r` keys of this block.
                    seen_first: shape
                        .causal
                        .map(|n| (self.first.saturating_add(n) + 1) as isize - start as isize),
                    mask: shape.mask.map(|mask| {
                        let [batch, head, query, key] = mask.strides;
                        let at = self.image * batch
                            + self.head * head
                            + self.first * query
                            + start * key;
                        (mask.values.as_ptr().add(at), query, key)
                    }),
                    first_block: self.strip.start + start == 0,
                    v_dim: shape.v_dim,
                    out_row: shape.out.row,
                };
                weigh(self.isa, &weighing, scores, maxima, sums, self.out);
                self.values(start, keys, scores, tail);
            }
        }
        if !self.strip.is_last(shape.kv_len) {
            return;
        }
        let (rows, out_row) = (self.rows, shape.out.row);
        // SAFETY: as above; each row has a sum.
        unsafe {
            if shape.nan_is_zero {
                self.without_nan(sums);
            }
            finish(self.isa, rows, shape.v_dim, out_row, sums, self.out);
        }
    }

    /// Rows whose weights do not add up to a number become the product of zeros with the values: zeros, and NaN in columns
    /// where a value is none. The other rows' weights have the largest, which is 1, among them.
    ///
    /// # Safety
    /// As [`Tile::run`]; `sums` has one for each row.
    unsafe fn without_nan(&self, sums: *mut f32) {
        let shape = self.shape;
        for row in 0..self.rows {
            // SAFETY: the caller vouches for sums, values and output rows.
            unsafe {
                let sum = &mut *sums.add(row);
                if *sum > 0.0 {
                    continue;
                }
                *sum = 1.0;
                let out = self.out.add(row * shape.out.row);
                let out = std::slice::from_raw_parts_mut(out, shape.v_dim);
                out.fill(0.0);
                for key in 0..shape.kv_len {
                    let values = self.v.add(key * shape.v.row);
                    let values = std::slice::from_raw_parts(values, shape.v_dim);
                    for (to, value) in out.iter_mut().zip(values) {
                        *to += 0.0 * value;
                    }
                }
            }
        }
    }

    /// Products of the tile's queries with keys `start..start + keys`.
    ///
    /// # Safety
    /// As [`Tile::run`].
    unsafe fn scores(&self, start: usize, keys: usize, scores: *mut f32) {
        let shape = self.shape;
        let panels = keys.div_ceil(LANES);
        let mut panel = 0;
        while panel < panels {
            let at = start + panel * LANES;
            let direct = shape.keys == KeyLayout::Transposed && keys >= (panel + 1) * LANES;
            // Along the diagonal narrower strips waste less.
            let most = if shape.causal.is_some() {
                PACK_PANELS / 2
            } else {
                PACK_PANELS
            };
            let mut count = most.min(panels - panel);
            if direct {
                count = count.min(keys / LANES - panel);
            }
            // Queries before this one see none of these keys.
            let skipped = match shape.causal {
                Some(n) => {
                    at.saturating_sub(self.first.saturating_add(n))
                        .min(self.rows)
                        / ROWS
                        * ROWS
                }
                None => 0,
            };
            // SAFETY: the panels lie among the keys or are packed into scratch of that size.
            unsafe {
                let (b, b_row, b_panel) = if direct {
                    (self.k.add(at), shape.k.row, LANES)
                } else {
                    for i in 0..count {
                        let real = (keys - (panel + i) * LANES).min(LANES);
                        self.pack_keys(
                            at + i * LANES,
                            real,
                            self.pack.add(i * shape.head_dim * LANES),
                        );
                    }
                    (self.pack.cast_const(), LANES, shape.head_dim * LANES)
                };
                product(
                    self.isa,
                    &Operands {
                        a: self.q.add(skipped * shape.q.row),
                        a_row: shape.q.row,
                        b,
                        b_row,
                        b_panel,
                        c: scores.add(skipped * self.cut.score_row + panel * LANES),
                        c_row: self.cut.score_row,
                        rows: self.rows - skipped,
                        k: shape.head_dim,
                        k_growth: None,
                        panels: count,
                        last_lanes: LANES,
                        accumulate: false,
                    },
                );
            }
            panel += count;
        }
    }

    /// Keys `at..at + real` as a panel `[head_dim][16]`, zero in missing lanes.
    ///
    /// # Safety
    /// As [`Tile::run`].
    unsafe fn pack_keys(&self, at: usize, real: usize, to: *mut f32) {
        let dim = self.shape.head_dim;
        let row = self.shape.k.row;
        // SAFETY: the caller vouches for the keys; the panel holds `head_dim` vectors.
        unsafe {
            if real < LANES {
                std::ptr::write_bytes(to, 0, dim * LANES);
            }
            match self.shape.keys {
                KeyLayout::Rows => {
                    for d in (0..dim).step_by(LANES) {
                        let cols = (dim - d).min(LANES);
                        let from = self.k.add(at * row + d);
                        transpose_tile(self.isa, from, row, to.add(d * LANES), LANES, real, cols);
                    }
                }
                KeyLayout::Transposed => {
                    for d in 0..dim {
                        let from = self.k.add(d * row + at);
                        std::ptr::copy_nonoverlapping(from, to.add(d * LANES), real);
                    }
                }
            }
        }
    }

    /// Adds the product of the block's weights with its values to the output rows.
    ///
    /// # Safety
    /// As [`Tile::run`].
    unsafe fn values(&self, start: usize, keys: usize, scores: *const f32, tail: *mut f32) {
        let shape = self.shape;
        let whole = shape.v_dim / LANES;
        let rest = shape.v_dim % LANES;
        // SAFETY: the caller vouches for values and output; the tail holds `keys` vectors.
        unsafe {
            let values = self.v.add(start * shape.v.row);
            let operands = Operands {
                a: scores,
                a_row: self.cut.score_row,
                b: values,
                b_row: shape.v.row,
                b_panel: LANES,
                c: self.out,
                c_row: shape.out.row,
                rows: self.rows,
                k: keys,
                // Later queries see more keys; weights beyond are zero.
                k_growth: shape
                    .causal
                    .map(|n| (self.first.saturating_add(n) + 1) as isize - start as isize),
                panels: whole,
                last_lanes: LANES,
                accumulate: true,
            };
            if whole > 0 {
                product(self.isa, &operands);
            }
            if rest > 0 {
                for key in 0..keys {
                    let from = values.add(key * shape.v.row + whole * LANES);
                    let to = tail.add(key * LANES);
                    std::ptr::copy_nonoverlapping(from, to, rest);
                    std::ptr::write_bytes(to.add(rest), 0, LANES - rest);
                }
                let c = self.out.add(whole * LANES);
                let b = tail.cast_const();
                product(
                    self.isa,
                    &Operands {
                        b,
                        b_row: LANES,
                        c,
                        panels: 1,
                        last_lanes: rest,
                        ..operands
                    },
                );
            }
        }
    }
}

fn check(
    shape: &Attention<'_>,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    out: &[f32],
) -> Result<(), KernelError> {
    if shape.heads_kv == 0 || !shape.heads_q.is_multiple_of(shape.heads_kv) {
        return Err(KernelError::Invalid(
            "query heads are no multiple of the key heads",
        ));
    }
    if shape.kv_len == 0 || shape.head_dim == 0 {
        return Err(KernelError::Invalid("attention over no keys"));
    }
    let &Attention {
        batch,
        heads_q,
        heads_kv,
        q_len,
        kv_len,
        head_dim,
        v_dim,
        ..
    } = shape;
    let span = |dims: &[(usize, usize)]| -> Option<usize> {
        let mut last = 0usize;
        for &(count, stride) in dims {
            if count == 0 {
                return Some(0);
            }
            last = last.checked_add((count - 1).checked_mul(stride)?)?;
        }
        last.checked_add(1)
    };
    let rows = |s: Strides, heads: usize, rows: usize, cols: usize| {
        span(&[(batch, s.batch), (heads, s.head), (rows, s.row), (cols, 1)])
    };
    check_len("queries", q.len(), rows(shape.q, heads_q, q_len, head_dim))?;
    let keys = match shape.keys {
        KeyLayout::Rows => rows(shape.k, heads_kv, kv_len, head_dim),
        KeyLayout::Transposed => rows(shape.k, heads_kv, head_dim, kv_len),
    };
    check_len("keys", k.len(), keys)?;
    check_len("values", v.len(), rows(shape.v, heads_kv, kv_len, v_dim))?;
    check_len(
        "attention output",
        out.len(),
        rows(shape.out, heads_q, q_len, v_dim),
    )?;
    if let Some(mask) = &shape.mask {
        let [b, h, r, c] = mask.strides;
        let needed = span(&[(batch, b), (heads_q, h), (q_len, r), (kv_len, c)]);
        check_len("attention mask", mask.values.len(), needed)?;
    }
    // Output rows must be apart: sorted by stride, each dimension steps over all smaller ones.
    let mut dims = [
        (shape.out.row, q_len),
        (shape.out.head, heads_q),
        (shape.out.batch, batch),
    ];
    dims.sort_unstable();
    let mut extent = v_dim;
    for (stride, count) in dims {
        if count > 1 {
            if stride < extent {
                return Err(KernelError::Invalid("attention output rows overlap"));
            }
            extent += (count - 1) * stride;
        }
    }
    Ok(())
}
