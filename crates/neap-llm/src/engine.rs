//! `Engine`: a model in a memory budget. It takes rows of sequences and gives their logits.

use crate::cache::{BLOCK_POSITIONS, CacheType};
use crate::experts::ExpertCache;
use crate::memory::{Ledger, Memory};
use crate::pass::{Pass, Row, Sink};
use crate::plan::{Rates, experts_ns, pass_ns, plan, workload};
use crate::rotary::Frequencies;
use crate::scratch::Scratch;
use crate::sequence::{Cache, Sequence, Shape, TAKE_BACK};
use crate::{Error, Model, Result};
use neap_blocks::widen_row;
use neap_kernels::simd::Isa;
use neap_plan::{Checked, ExecutionPlan, Workload};
use neap_planner::transition;
use neap_runtime::{CancelToken, RuntimeError, WeightStream};
use neap_store::{AlignedBuf, IoMode, RangeRead, open_joined};
use neaptide::{Embedded, Host};
use std::path::Path;
use std::sync::Arc;

/// How a model is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Of the whole process; `None`: as much as the model takes.
    pub memory_budget: Option<u64>,
    /// Positions that all sequences have together.
    pub context: usize,
    /// Most sequences at once. Layers with a window keep windows of so many, in place of the whole context.
    pub sequences: usize,
    pub cache: CacheType,
    /// The calling thread included; at least 1.
    pub threads: usize,
    /// Most rows of a chunk; the budget may allow fewer.
    pub chunk: usize,
    pub io: IoMode,
    pub host: Arc<dyn Host>,
    /// What the caller is yet to allocate within the same budget.
    pub reserved_bytes: u64,
    pub rates: Rates,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            memory_budget: None,
            context: 2048,
            sequences: usize::MAX,
            cache: CacheType::default(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            chunk: 256,
            io: IoMode::Auto,
            host: Arc::new(Embedded),
            reserved_bytes: 0,
            rates: Rates::default(),
        }
    }
}

/// Tokens that follow a sequence's last position.
pub struct Tokens<'a> {
    pub sequence: &'a mut Sequence,
    pub tokens: &'a [u32],
    /// The last so many are asked for their logits.
    pub wanted: usize,
}

impl Tokens<'_> {
    /// The position of the first that is asked for its logits.
    fn wanted_from(&self) -> usize {
        self.sequence.len() + self.tokens.len().saturating_sub(self.wanted)
    }
}

/// Takes logits as they come: the index of the sequence in its batch, of its token, the first token of the slice of the vocabulary, and the slice.
pub type Logits<'a> = dyn FnMut(usize, usize, usize, &[f32]) + 'a;

/// Figures since a model was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    pub passes: u64,
    pub rows: u64,
    /// Weights read for passes, resident ones left out.
    pub loaded_bytes: u64,
    pub stall_ns: u64,
}

/// A model ready to compute.
pub struct Engine {
    model: Model,
    workload: Arc<Workload>,
    memory: Memory,
    rates: Rates,
    host: Arc<dyn Host>,
    stream: WeightStream,
    experts: Option<ExpertCache>,
    cache: Cache,
    frequencies: Frequencies,
    /// Frequencies are those of contexts beyond the trained one, where a model has others for them.
    is_long: bool,
    scratch: Scratch,
    /// Rows of the embedding as they are read.
    embedded: AlignedBuf,
    isa: Isa,
    products: neap_blocks::Isa,
    stats: Stats,
}

/// Rows of the embedding that are read at once.
const ROWS_AT_ONCE: usize = 32;

impl Engine {
    /// # Errors
    /// [`Error`] where the file is no model that runs, or the budget is too small: [`Error::Budget`] says what is enough.
    pub fn open(path: &Path, options: &Options) -> Result<Engine> {
        Engine::of(Model::open(path)?, options)
    }

    /// [`Engine::open`] of a model whose header was read.
    ///
    /// # Errors
    /// As [`Engine::open`].
    pub fn of(model: Model, options: &Options) -> Result<Engine> {
        let workload = Arc::new(workload(&model));
        let threads = options.threads.max(1);
        let Options {
            context, sequences, ..
        } = *options;
        let shape = Shape::new(&model.config, options.cache, context, sequences.max(1));
        let (source, verifier) = open_joined(&model.files, options.io)?;
        let of_experts = match &model.config.experts {
            Some(experts) => Some((experts.count, open_joined(&model.files, options.io)?.0)),
            None => None,
        };
        let threads_pool = neap_runtime::Pool::new(threads)
            .map_err(|source| RuntimeError::Threads { threads, source })?;
        let memory = Memory::new(&model, &workload, options, shape)?;
        let cache = Cache::new(&model.config, shape, memory.chunk)?;
        let scratch = Scratch::new(&model, memory.chunk, threads);
        let embedded = AlignedBuf::zeroed(ROWS_AT_ONCE * embedded_bytes(&model))?;
        let (room, slots) = memory.room(0);
        let experts =
            of_experts.map(|(count, source)| ExpertCache::new(&model, count, slots, source));
        let plan = plan(&workload, room, options.rates).map_err(|_| memory.too_little())?;
        let plan = checked(&workload, plan)?;
        let stream = WeightStream::open(plan, source, verifier, Arc::new(threads_pool))?;
        let is_long = context > model.config.rotary.short_context;
        let [short, long] = &model.rotary_factors;
        let is_long = is_long && short != long;
        let factors = if is_long { long } else { short };
        Ok(Engine {
            frequencies: Frequencies::new(&model.config, factors),
            is_long,
            workload,
            rates: options.rates,
            host: options.host.clone(),
            memory,
            stream,
            experts,
            cache,
            scratch,
            embedded,
            isa: Isa::detect(),
            products: neap_blocks::Isa::detect(),
            stats: Stats::default(),
            model,
        })
    }

    #[must_use]
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Positions that all sequences have together.
    #[must_use]
    pub fn context(&self) -> usize {
        self.cache.blocks() * BLOCK_POSITIONS
    }

    /// Positions that are left for more tokens and sequences.
    #[must_use]
    pub fn free_positions(&self) -> usize {
        (self.cache.blocks() - self.cache.in_use()) * BLOCK_POSITIONS
    }

    /// Most rows of one pass.
    #[must_use]
    pub fn chunk(&self) -> usize {
        self.memory.chunk
    }

    /// How the budget is divided.
    #[must_use]
    pub fn ledger(&self) -> Ledger {
        self.memory.ledger(self.cache.touched_bytes())
    }

    /// What a pass of one row is predicted to take, attention left out.
    #[must_use]
    pub fn predicted_ns(&self) -> u64 {
        let (room, slots) = self.memory.room(self.cache.touched_bytes());
        let planned = plan(&self.workload, room, self.rates);
        let of_plan = planned.map_or(0, |plan| pass_ns(&self.workload, &plan, self.rates));
        of_plan + experts_ns(&self.model, slots, self.rates)
    }

    #[must_use]
    pub fn stats(&self) -> Stats {
        let (bytes, waited) = self.experts.as_ref().map_or((0, 0), |experts| {
            (experts.loaded_bytes(), experts.waited().as_nanos() as u64)
        });
        Stats {
            loaded_bytes: self.stream.loaded_bytes() + bytes,
            stall_ns: self.stream.stall_ns() + waited,
            ..self.stats
        }
    }

    /// Waits until all weights that stay are in memory: the first pass does it by itself.
    ///
    /// # Errors
    /// Where they cannot be read.
    pub fn settle(&mut self) -> Result<()> {
        Ok(self.stream.settle()?)
    }

    /// A sequence without positions.
    #[must_use]
    pub fn begin(&self) -> Sequence {
        Sequence::default()
    }

    /// A sequence that begins as another's first positions, whose cache it shares: as many of these as layers with windows or states
    /// can go on from.
    ///
    /// # Errors
    /// [`Error::CacheFull`]: the last block is shared in part, so it is copied.
    pub fn fork(&mut self, sequence: &Sequence, len: usize) -> Result<Sequence> {
        let len = self.cache.end_within(sequence, len.min(sequence.len()));
        if !len.is_multiple_of(BLOCK_POSITIONS) {
            self.prepare(self.cache.bytes_with_copies())?;
        }
        self.cache.fork(sequence, len)
    }

    /// Forgets positions from `len` on, and more where layers with windows or states cannot go on from there. Of the last call's
    /// tokens that were wanted, windows let any be forgotten, up to [`TAKE_BACK`]; states let all of them.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        if len < sequence.len() {
            self.cache.truncate(sequence, len);
        }
    }

    /// What must agree for a sequence's cache to be of use, beside the model's bytes: how it is computed, and the type of the cache.
    #[must_use]
    pub fn cache_key(&self) -> String {
        let positions = match self.is_long {
            true => "long",
            false => "short",
        };
        format!(
            "cache {}, version {}, {positions} context, {:?} {:?}",
            self.cache.ty().name(),
            env!("CARGO_PKG_VERSION"),
            self.isa,
            self.products,
        )
    }

    /// The sequence's blocks, for a file: each at most [`Engine::cache_block_bytes`] long.
    pub fn cache_of<'a>(&'a self, sequence: &'a Sequence) -> impl Iterator<Item = &'a [u8]> {
        self.cache.bytes_of(sequence)
    }

    #[must_use]
    pub fn cache_block_bytes(&self) -> usize {
        self.cache.block_bytes()
    }

    /// A sequence of so many positions whose blocks `fill` writes, one after the other, as [`Engine::cache_of`] gave them. They are
    /// of an engine with the same [`Engine::cache_key`].
    ///
    /// # Errors
    /// [`Error::CacheFull`], or what `fill` says; nothing is taken then.
    pub fn restore(
        &mut self,
        len: usize,
        fill: &mut dyn FnMut(&mut [u8]) -> std::io::Result<()>,
    ) -> Result<Sequence> {
        if len > self.free_positions() {
            return Err(self.cache.full());
        }
        self.prepare(self.cache.bytes_with_blank(len))?;
        let sequence = self.cache.blank(len)?;
        if let Err(source) = self.cache.fill(&sequence, fill) {
            self.end(sequence);
            return Err(Error::File {
                path: self.model.path().to_owned(),
                source,
            });
        }
        Ok(sequence)
    }

    /// Gives a sequence's memory to others.
    pub fn end(&mut self, mut sequence: Sequence) {
        self.cache.truncate(&mut sequence, 0);
    }

    /// Computes tokens of some sequences, in one pass for each chunk of rows. `logits` is told those that are wanted, in slices of the vocabulary:
    /// the index of the sequence, of its token, the first token of the slice, and the slice.
    ///
    /// # Errors
    /// [`Error`]; the sequences then have what whole chunks computed, but not what was wanted.
    pub fn forward(
        &mut self,
        batch: &mut [Tokens<'_>],
        cancel: &CancelToken,
        logits: &mut Logits<'_>,
    ) -> Result<()> {
        self.check(batch)?;
        self.check_room(batch)?;
        // (sequence, token's index) of every row, in order.
        let all: Vec<(usize, usize)> = (0..)
            .zip(batch.iter())
            .flat_map(|(s, tokens)| (0..tokens.tokens.len()).map(move |t| (s, t)))
            .collect();
        let (mut done, mut failed) = (0, None);
        for chunk in all.chunks(self.memory.chunk) {
            failed = self.pass(batch, chunk, cancel, logits).err();
            if failed.is_some() {
                break;
            }
            done += chunk.len();
            for rows in chunk.chunk_by(|a, b| a.0 == b.0) {
                let tokens = &mut batch[rows[0].0];
                let wanted_from = tokens.wanted_from();
                self.cache.keep_coming(tokens.sequence, wanted_from);
            }
        }
        let Some(failed) = failed else {
            for tokens in batch {
                tokens.sequence.grow(tokens.tokens.len());
            }
            return Ok(());
        };
        for (index, tokens) in batch.iter_mut().enumerate() {
            let computed = all[..done].iter().filter(|(s, _)| *s == index).count();
            let unwanted = tokens.tokens.len().saturating_sub(tokens.wanted);
            tokens.sequence.grow(computed.min(unwanted));
            let len = tokens.sequence.len();
            self.cache.truncate(tokens.sequence, len);
        }
        Err(failed)
    }

    fn check(&self, batch: &[Tokens<'_>]) -> Result<()> {
        let vocabulary = self.model.config.vocabulary;
        let mut tokens = batch.iter().flat_map(|tokens| tokens.tokens);
        match tokens.find(|&&token| token as usize >= vocabulary) {
            None => Ok(()),
            Some(&token) => Err(Error::Token { token, vocabulary }),
        }
    }

    /// Whether there are positions for all rows of the batch.
    fn check_room(&self, batch: &[Tokens<'_>]) -> Result<()> {
        let mut more = 0;
        for tokens in batch {
            let end = tokens.sequence.len() + tokens.tokens.len();
            if end > self.context() {
                return Err(Error::Context {
                    positions: end,
                    context: self.context(),
                });
            }
            more += self.cache.needs(tokens.sequence, end);
        }
        match more > self.cache.blocks() - self.cache.in_use() {
            true => Err(self.cache.full()),
            false => Ok(()),
        }
    }

    /// Blocks for a chunk's rows, and memory for them. What lies behind all windows is given back first.
    fn make_room(&mut self, batch: &mut [Tokens<'_>], chunk: &[(usize, usize)]) -> Result<()> {
        for rows in chunk.chunk_by(|a, b| a.0 == b.0) {
            let (index, first) = rows[0];
            let wanted_from = batch[index].wanted_from();
            let sequence = &mut *batch[index].sequence;
            let begin = sequence.len() + first;
            let may_return_to = wanted_from.max(begin.saturating_sub(TAKE_BACK));
            self.cache.release(sequence, begin.min(may_return_to));
            let end = begin + rows.len();
            self.prepare(self.cache.bytes_with_all(sequence, end))?;
            self.cache.take(sequence, end)?;
            (self.cache).take_states(sequence, begin..end, wanted_from)?;
        }
        Ok(())
    }

    /// Before the cache has so much memory: weights that were resident make room.
    fn prepare(&mut self, cache_bytes: u64) -> Result<()> {
        if !self.memory.must_grow(cache_bytes) {
            return Ok(());
        }
        self.memory.grow(cache_bytes);
        self.replan()
    }

    /// Another budget from now on, between two passes: weights that were resident go, or more become resident. What was computed
    /// stays, and results have the same bits.
    ///
    /// # Errors
    /// [`Error::Budget`] where it is too small for the whole context: the old one stays in force.
    pub fn set_budget(&mut self, memory_budget: Option<u64>) -> Result<()> {
        let before = self.memory.budget(memory_budget)?;
        let planned = self.replan();
        if planned.is_err() {
            self.memory.budget(before)?;
        }
        planned
    }

    /// The plan for the room that there is now; what is in memory and stays is not read again.
    fn replan(&mut self) -> Result<()> {
        // Planning takes some memory for a moment: the ring's, whose loads begin anew in any case.
        self.stream.rest();
        let (room, slots) = self.memory.room(self.cache.touched_bytes());
        let next = plan(&self.workload, room, self.rates);
        let next = next.map_err(|_| self.memory.too_little())?;
        let next = checked(&self.workload, next)?;
        if let Some(experts) = &mut self.experts {
            experts.resize(slots)?;
        }
        let held = self.stream.held()?;
        let change = transition(&held, next.plan());
        self.host.trim();
        Ok(self.stream.replace(next, &change)?)
    }

    fn pass(
        &mut self,
        batch: &mut [Tokens<'_>],
        chunk: &[(usize, usize)],
        cancel: &CancelToken,
        logits: &mut Logits<'_>,
    ) -> Result<()> {
        self.make_room(batch, chunk)?;
        let batch = &*batch;
        let tokens = chunk.iter().map(|&(s, t)| batch[s].tokens[t]);
        self.embed(tokens)?;
        let rows = chunk.iter().map(|&(s, t)| Row {
            sequence: s,
            position: batch[s].sequence.len() + t,
            wants_logits: t + batch[s].wanted >= batch[s].tokens.len(),
        });
        let rows: Vec<Row> = rows.collect();
        let wanted = (0..rows.len()).filter(|&row| rows[row].wants_logits);
        let wanted: Vec<usize> = wanted.collect();
        let sequences: Vec<&Sequence> = batch.iter().map(|t| &*t.sequence).collect();
        let mut pass = Pass {
            model: &self.model,
            frequencies: &self.frequencies,
            isa: self.isa,
            products: self.products,
            cache: &mut self.cache,
            scratch: &mut self.scratch,
            rows: &rows,
            sequences: &sequences,
            wanted: &wanted,
            experts: self.experts.as_mut(),
            failed: None,
        };
        pass.begin();
        let mut sink = |row: usize, first: usize, values: &[f32]| {
            let (sequence, token) = chunk[row];
            logits(sequence, token, first, values);
        };
        let sink: &mut Sink<'_> = &mut sink;
        let passed = self
            .stream
            .pass(cancel, &mut |part, par| pass.compute(&part, par, sink));
        if let Some(failed) = pass.failed {
            return Err(failed);
        }
        passed?;
        self.stats.passes += 1;
        self.stats.rows += rows.len() as u64;
        Ok(())
    }

    /// The tokens' rows of the embedding, read from the file, are the layers' first input.
    fn embed(&mut self, tokens: impl Iterator<Item = u32>) -> Result<()> {
        let matrix = self.model.embedding;
        let (row_bytes, width) = (matrix.row_bytes(), self.model.config.width);
        let place_bytes = embedded_bytes(&self.model);
        let tokens: Vec<u32> = tokens.collect();
        let scale = self.model.config.embedding_scale;
        for (index, tokens) in tokens.chunks(ROWS_AT_ONCE).enumerate() {
            let first = |token: u32| matrix.offset + u64::from(token) * row_bytes as u64;
            let start = self.embedded.as_mut_ptr();
            let reads = tokens.iter().enumerate().map(|(i, &token)| {
                let begin = first(token) / BLOCK * BLOCK;
                let end = (first(token) + row_bytes as u64).next_multiple_of(BLOCK);
                RangeRead {
                    file_offset: begin,
                    dst: start.wrapping_add(i * place_bytes),
                    len_bytes: (end - begin) as usize,
                }
            });
            let reads: Vec<RangeRead> = reads.collect();
            // SAFETY: each range has its own place in the buffer, which is this call's alone. Where storage breaks for good,
            // the stream is dropped first, as it is declared first.
            unsafe { self.stream.read_ranges(&reads)? };
            for (i, &token) in tokens.iter().enumerate() {
                let at = i * place_bytes + (first(token) % BLOCK) as usize;
                let row = index * ROWS_AT_ONCE + i;
                let x = &mut self.scratch.x[row * width..][..width];
                widen_row(matrix.ty, &self.embedded[at..][..row_bytes], x);
                if scale != 1.0 {
                    x.iter_mut().for_each(|x| *x *= scale);
                }
            }
        }
        Ok(())
    }
}

fn checked(workload: &Arc<Workload>, plan: ExecutionPlan) -> Result<Checked> {
    let checked = Checked::new(workload.clone(), plan).map_err(RuntimeError::from)?;
    Ok(checked)
}

const BLOCK: u64 = neap_plan::BLOCK_BYTES;

/// Whole blocks around a row of the embedding, wherever it begins.
fn embedded_bytes(model: &Model) -> usize {
    model.embedding.row_bytes().next_multiple_of(BLOCK as usize) + BLOCK as usize
}
