//! The cache as sequences see it: what a layer sees of all positions, or of a window, which moves along.
//!
//! ```text
//!   layers that see everything   │ 0 │ 1 │ 2 │ 3 │ 4 │ 5 │      blocks of 64 positions
//!   layers with a window                     │ 3 │ 4 │ 5 │      what lies behind every window is given back
//! ```
//! So a sequence can be cut or shared only where the windows of its next position are whole. Rows whose logits were asked for may
//! be cut off, up to [`TAKE_BACK`] of them.
//!
//! Layers with a convolution have a state, of a fixed size, which cannot go back. It is kept at the sequence's end and before the
//! first row whose logits were asked for. A pass writes states of its own, so one that fails changes none.

use crate::cache::{BLOCK_POSITIONS, CacheType, Layout, Page, Pool};
use crate::{Config, Error, Result};
use std::ops::Range;

/// Positions that may be cut off at the end whatever windows there are.
pub const TAKE_BACK: usize = 256;

/// Layers that see everything, and those with a window.
const KINDS: usize = 2;
const WINDOWED: usize = 1;

/// States that a pass writes: before the first row whose logits are asked for, and at the end.
const MOST_COMING: usize = 2;

/// One text as it grows; given back with [`Engine::end`](crate::Engine::end).
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Sequence {
    lists: [List; KINDS],
    /// Where states are known, and the blocks they are in.
    states: Vec<(usize, u32)>,
    /// Those that a pass writes.
    pub(crate) coming: Vec<(usize, u32)>,
    len: usize,
}

/// Blocks of one kind of layers.
#[derive(Debug, Default, PartialEq, Eq)]
struct List {
    /// Blocks before were given back.
    first: usize,
    blocks: Vec<u32>,
}

impl List {
    fn end(&self) -> usize {
        self.first + self.blocks.len()
    }
}

impl Sequence {
    /// Positions that were computed.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Positions that were computed since.
    pub(crate) fn grow(&mut self, positions: usize) {
        self.len += positions;
    }
}

/// How large a cache is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    layouts: [Layout; KINDS],
    state: Layout,
    /// Of all positions.
    pub blocks: usize,
    /// That there are at once.
    sequences: usize,
    window: usize,
}

impl Shape {
    pub fn new(config: &Config, ty: CacheType, context: usize, sequences: usize) -> Shape {
        let windowed = (0..config.layers)
            .filter(|&l| config.is_windowed(l))
            .count();
        let convolution = config.convolution.as_ref();
        let is_one = |layer: &usize| config.is_convolution(*layer);
        let convolutions = (0..config.layers).filter(is_one).count();
        let floats = convolution.map_or(0, |c| convolutions * c.state_elements(config.width));
        let of = |layers| Layout::new(config, ty, layers);
        Shape {
            layouts: [of(config.layers - windowed - convolutions), of(windowed)],
            state: Layout::of_bytes(config, ty, 4 * floats),
            blocks: context.max(1).div_ceil(BLOCK_POSITIONS),
            sequences,
            window: match windowed {
                0 => usize::MAX,
                _ => config.window.unwrap_or(usize::MAX),
            },
        }
    }

    /// Blocks of each kind, with chunks of so many rows.
    fn counts(&self, chunk: usize) -> [usize; KINDS] {
        let positions = self.window.saturating_add(TAKE_BACK + chunk);
        let of_window = positions.div_ceil(BLOCK_POSITIONS) + 1;
        let windows = of_window.saturating_mul(self.sequences);
        [self.blocks, windows.min(self.blocks)]
    }

    /// Of states: the one that a pass begins with, and those that it writes. A sequence has a block of positions at least.
    fn states(&self) -> usize {
        (1 + MOST_COMING) * self.sequences.min(self.blocks)
    }

    /// If all of it is in use.
    pub fn bytes(&self, chunk: usize) -> u64 {
        let counts = self.counts(chunk).into_iter().zip(self.layouts);
        let counts = counts.chain([(self.states(), self.state)]);
        counts
            .map(|(count, layout)| (count * layout.block_bytes()) as u64)
            .sum()
    }
}

/// Memory for keys and values of all sequences.
pub(crate) struct Cache {
    shape: Shape,
    pools: [Pool; KINDS],
    states: Pool,
    /// By layer: its kind, and its place among those of its kind. Convolutions are counted as a kind of their own.
    places: Vec<(usize, usize)>,
    /// Bytes of the state of one layer.
    state_bytes: usize,
}

impl Cache {
    /// Addresses for all of it; memory comes as it is used.
    pub fn new(config: &Config, shape: Shape, chunk: usize) -> Result<Cache> {
        let [whole, windows] = shape.counts(chunk);
        let [first, second] = shape.layouts;
        let mut counts = [0; KINDS + 1];
        let place = |layer| {
            let kind = match config.is_convolution(layer) {
                true => KINDS,
                false => usize::from(config.is_windowed(layer)),
            };
            counts[kind] += 1;
            (kind, counts[kind] - 1)
        };
        Ok(Cache {
            shape,
            pools: [Pool::new(first, whole)?, Pool::new(second, windows)?],
            states: Pool::new(shape.state, shape.states())?,
            places: (0..config.layers).map(place).collect(),
            state_bytes: (config.convolution.as_ref())
                .map_or(0, |c| 4 * c.state_elements(config.width)),
        })
    }

    /// Blocks of positions.
    pub fn blocks(&self) -> usize {
        self.pools[0].blocks()
    }

    /// Of these, how many sequences have.
    pub fn in_use(&self) -> usize {
        self.pools[0].in_use()
    }

    pub fn ty(&self) -> CacheType {
        self.pools[0].layout().ty
    }

    /// The most bytes of a block.
    pub fn block_bytes(&self) -> usize {
        let bytes = self.shape.layouts.map(Layout::block_bytes);
        let most = bytes.into_iter().max().unwrap_or(0);
        most.max(self.shape.state.block_bytes())
    }

    /// What has memory, in use or not.
    pub fn touched_bytes(&self) -> u64 {
        self.bytes_with([0; KINDS], 0)
    }

    /// What has memory once so many blocks of each kind, and so many states, were taken.
    fn bytes_with(&self, more: [usize; KINDS], states: usize) -> u64 {
        let pools = self.pools.iter().zip(more).chain([(&self.states, states)]);
        let pools = pools.map(|(pool, more)| {
            let touched = pool.touched() + pool.fresh_for(more);
            (touched.min(pool.blocks()) * pool.layout().block_bytes()) as u64
        });
        pools.sum()
    }

    /// The first block that a row at that position sees.
    fn first_seen(&self, kind: usize, position: usize) -> usize {
        match kind {
            WINDOWED => (position + 1).saturating_sub(self.shape.window) / BLOCK_POSITIONS,
            _ => 0,
        }
    }

    /// The last place up to `len` where it may end and go on from.
    pub fn end_within(&self, sequence: &Sequence, len: usize) -> usize {
        let len = match self.state_bytes {
            0 => len,
            _ => {
                let known = sequence.states.iter().map(|(position, _)| *position);
                known.filter(|position| *position <= len).max().unwrap_or(0)
            }
        };
        let mut lists = sequence.lists.iter().enumerate();
        match lists.all(|(kind, list)| list.first <= self.first_seen(kind, len)) {
            true => len,
            false => 0,
        }
    }

    /// Blocks of positions that it lacks for all before `end`.
    pub fn needs(&self, sequence: &Sequence, end: usize) -> usize {
        self.lacks(sequence, end)[0]
    }

    fn lacks(&self, sequence: &Sequence, end: usize) -> [usize; KINDS] {
        let end = end.div_ceil(BLOCK_POSITIONS);
        sequence
            .lists
            .each_ref()
            .map(|list| end.saturating_sub(list.end()))
    }

    /// Bytes once it has all of these.
    pub fn bytes_with_all(&self, sequence: &Sequence, end: usize) -> u64 {
        self.bytes_with(self.lacks(sequence, end), MOST_COMING)
    }

    /// Gives back what no row from `position` on sees.
    pub fn release(&mut self, sequence: &mut Sequence, position: usize) {
        for kind in 0..KINDS {
            let first = self.first_seen(kind, position);
            let list = &mut sequence.lists[kind];
            let behind = first.saturating_sub(list.first).min(list.blocks.len());
            list.blocks
                .drain(..behind)
                .for_each(|block| self.pools[kind].give_back(block));
            list.first += behind;
        }
    }

    /// Blocks for all positions before `end`.
    ///
    /// # Errors
    /// [`Error::CacheFull`]; what was taken stays with the sequence.
    pub fn take(&mut self, sequence: &mut Sequence, end: usize) -> Result<()> {
        for (pool, list) in self.pools.iter_mut().zip(&mut sequence.lists) {
            while list.end() < end.div_ceil(BLOCK_POSITIONS) {
                list.blocks.push(pool.take()?);
            }
        }
        Ok(())
    }

    /// Blocks for the states of rows before `end`, of which those from `wanted_from` on are asked for their logits. Of the
    /// states before, those at the rows' begin and at the first wanted row stay.
    ///
    /// # Errors
    /// [`Error::CacheFull`]; what was taken is to be dropped.
    pub fn take_states(
        &mut self,
        sequence: &mut Sequence,
        rows: Range<usize>,
        wanted_from: usize,
    ) -> Result<()> {
        if self.state_bytes == 0 {
            return Ok(());
        }
        self.keep_states(sequence, |p| p == rows.start || p == wanted_from);
        let has_mark = rows.start < wanted_from && wanted_from < rows.end;
        for position in has_mark
            .then_some(wanted_from)
            .into_iter()
            .chain([rows.end])
        {
            sequence.coming.push((position, self.states.take()?));
        }
        Ok(())
    }

    /// What a pass wrote is known from now on.
    pub fn keep_coming(&mut self, sequence: &mut Sequence, wanted_from: usize) {
        let end = sequence.coming.last().map(|(position, _)| *position);
        sequence.states.append(&mut sequence.coming);
        self.keep_states(sequence, |p| p == wanted_from || Some(p) == end);
    }

    /// What a pass wrote in part is lost.
    pub fn drop_coming(&mut self, sequence: &mut Sequence) {
        for (_, state) in sequence.coming.drain(..) {
            self.states.give_back(state);
        }
    }

    fn keep_states(&mut self, sequence: &mut Sequence, is_kept: impl Fn(usize) -> bool) {
        sequence.states.retain(|(position, state)| {
            let stays = is_kept(*position);
            if !stays {
                self.states.give_back(*state);
            }
            stays
        });
    }

    /// A layer's state at a place where it is known; `None` at the beginning, where all is zero.
    pub fn state(&self, of: &Sequence, position: usize, layer: usize) -> Option<&[u8]> {
        let known = of.states.iter().find(|(at, _)| *at == position);
        known.map(|(_, state)| {
            let (_, place) = self.places[layer];
            &self.states.bytes(*state)[place * self.state_bytes..][..self.state_bytes]
        })
    }

    /// Where a pass writes a layer's state.
    pub fn state_mut(&mut self, state: u32, layer: usize) -> &mut [u8] {
        let (_, place) = self.places[layer];
        &mut self.states.bytes_mut(state)[place * self.state_bytes..][..self.state_bytes]
    }

    /// Forgets positions from `len` on, and those before up to where it may end.
    pub fn truncate(&mut self, sequence: &mut Sequence, len: usize) {
        let len = self.end_within(sequence, len);
        self.drop_coming(sequence);
        self.keep_states(sequence, |position| position <= len && position > 0);
        let keep = len.div_ceil(BLOCK_POSITIONS);
        for (pool, list) in self.pools.iter_mut().zip(&mut sequence.lists) {
            while list.end() > keep
                && let Some(block) = list.blocks.pop()
            {
                pool.give_back(block);
            }
            list.first = list.first.min(keep);
        }
        sequence.len = sequence.len.min(len);
    }

    /// Bytes once a copy of a block of each kind was taken.
    pub fn bytes_with_copies(&self) -> u64 {
        self.bytes_with([1; KINDS], 0)
    }

    /// One that begins as another, which may end at `len`: whole blocks are shared, the last one is copied.
    ///
    /// # Errors
    /// [`Error::CacheFull`]; nothing is taken then.
    pub fn fork(&mut self, sequence: &Sequence, len: usize) -> Result<Sequence> {
        let mut fork = Sequence::default();
        if len == 0 {
            return Ok(fork);
        }
        for (position, state) in sequence.states.iter().filter(|(at, _)| *at == len) {
            self.states.share(*state);
            fork.states.push((*position, *state));
        }
        let whole = len / BLOCK_POSITIONS;
        for (kind, list) in sequence.lists.iter().enumerate() {
            let first = self.first_seen(kind, len).max(list.first);
            let to = &mut fork.lists[kind];
            to.first = first;
            for block in &list.blocks[first - list.first..whole - list.first] {
                self.pools[kind].share(*block);
                to.blocks.push(*block);
            }
        }
        fork.len = whole * BLOCK_POSITIONS;
        if fork.len < len {
            if let Err(full) = self.take(&mut fork, len) {
                self.truncate(&mut fork, 0);
                return Err(full);
            }
            for (kind, list) in sequence.lists.iter().enumerate() {
                if let (Some(from), Some(to)) = (
                    list.blocks.get(whole - list.first),
                    fork.lists[kind].blocks.last(),
                ) {
                    self.pools[kind].copy(*from, *to);
                }
            }
            fork.len = len;
        }
        Ok(fork)
    }

    /// The bytes of what its next position sees, for files.
    pub fn bytes_of<'a>(&'a self, sequence: &'a Sequence) -> impl Iterator<Item = &'a [u8]> {
        let kinds = sequence.lists.iter().zip(&self.pools).enumerate();
        let blocks = kinds.flat_map(move |(kind, (list, pool))| {
            let first = self.first_seen(kind, sequence.len).max(list.first);
            let blocks = list.blocks[first - list.first..].iter();
            let bytes = blocks.map(|&block| pool.bytes(block));
            bytes.filter(|bytes| !bytes.is_empty())
        });
        let at_end = move |(at, _): &&(usize, u32)| *at == sequence.len;
        let states = sequence.states.iter().filter(at_end);
        blocks.chain(states.map(|(_, state)| self.states.bytes(*state)))
    }

    /// A sequence of so many positions, as [`Cache::bytes_of`] gave them; nothing is written yet.
    ///
    /// # Errors
    /// [`Error::CacheFull`]; nothing is taken then.
    pub fn blank(&mut self, len: usize) -> Result<Sequence> {
        let mut sequence = Sequence::default();
        for kind in 0..KINDS {
            sequence.lists[kind].first = self.first_seen(kind, len);
        }
        if self.state_bytes > 0 && len > 0 {
            sequence.states.push((len, self.states.take()?));
        }
        if let Err(full) = self.take(&mut sequence, len) {
            self.truncate(&mut sequence, 0);
            return Err(full);
        }
        sequence.len = len;
        Ok(sequence)
    }

    /// Bytes once there is a sequence of so many positions more.
    pub fn bytes_with_blank(&self, len: usize) -> u64 {
        let end = len.div_ceil(BLOCK_POSITIONS);
        let blocks = [0, 1].map(|kind| end - self.first_seen(kind, len).min(end));
        self.bytes_with(blocks, 1)
    }

    /// Writes all of a sequence's blocks, in the order of [`Cache::bytes_of`].
    ///
    /// # Errors
    /// What `fill` says.
    pub fn fill(
        &mut self,
        sequence: &Sequence,
        fill: &mut dyn FnMut(&mut [u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        for (list, pool) in sequence.lists.iter().zip(&mut self.pools) {
            for block in &list.blocks {
                let bytes = pool.bytes_mut(*block);
                if !bytes.is_empty() {
                    fill(bytes)?;
                }
            }
        }
        for (_, state) in &sequence.states {
            fill(self.states.bytes_mut(*state))?;
        }
        Ok(())
    }

    /// Keeps a position's key and value of a layer.
    pub fn store(&mut self, of: &Sequence, position: usize, layer: usize, kv: (&[f32], &[f32])) {
        let (kind, place) = self.places[layer];
        let list = &of.lists[kind];
        let block = list.blocks[position / BLOCK_POSITIONS - list.first];
        let slot = position % BLOCK_POSITIONS;
        self.pools[kind].store(block, slot, place, kv.0, kv.1);
    }

    /// One head's keys and values of a layer in a block of a sequence.
    pub fn page(&self, of: &Sequence, block: usize, layer: usize, head: usize) -> Page<'_> {
        let (kind, place) = self.places[layer];
        let list = &of.lists[kind];
        self.pools[kind].page(list.blocks[block - list.first], place, head)
    }

    /// The error of a cache without room.
    pub fn full(&self) -> Error {
        Error::CacheFull {
            blocks: self.in_use(),
        }
    }
}
