//! Keys and values of positions that were computed: blocks of positions, which sequences take as they grow and give back.
//!
//! ```text
//!   pool        │ block 0 │ block 1 │ block 2 │ …           memory: touched as blocks are first used
//!   sequence A    0, 2                                      positions 0..64, 64..128
//!   a block       [layer][head of keys] { K [element][64] │ V [64][element] }
//! ```
//! Layers with a window have a pool of their own ([`Cache`](crate::sequence::Cache)). Keys lie transposed, so that a vector holds one element of sixteen positions. A block of a sequence never moves.

use crate::{Config, Error, Result};
use half::f16;
use neap_store::AlignedBuf;

/// Positions of a block.
pub const BLOCK_POSITIONS: usize = 64;

/// In which type keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum CacheType {
    F32,
    #[default]
    F16,
    /// With one scale for each position and head.
    Int8,
}

impl CacheType {
    pub const ALL: [CacheType; 3] = [CacheType::F32, CacheType::F16, CacheType::Int8];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            CacheType::F32 => "f32",
            CacheType::F16 => "f16",
            CacheType::Int8 => "int8",
        }
    }

    pub(crate) fn element_bytes(self) -> usize {
        match self {
            CacheType::F32 => 4,
            CacheType::F16 => 2,
            CacheType::Int8 => 1,
        }
    }

    /// Of one block of one head: scales of 64 positions.
    fn scale_bytes(self) -> usize {
        match self {
            CacheType::Int8 => BLOCK_POSITIONS * 4,
            CacheType::F32 | CacheType::F16 => 0,
        }
    }
}

impl std::str::FromStr for CacheType {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        let found = CacheType::ALL.into_iter().find(|ty| ty.name() == name);
        found.ok_or_else(|| format!("'{name}' is none of f32, f16 and int8"))
    }
}

/// Where things lie in a block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub ty: CacheType,
    pub head_width: usize,
    kv_heads: usize,
    layers: usize,
    /// Of what is no keys and values.
    other_bytes: usize,
}

impl Layout {
    /// Of so many layers.
    pub fn new(config: &Config, ty: CacheType, layers: usize) -> Layout {
        Layout {
            ty,
            head_width: config.head_width,
            kv_heads: config.kv_heads,
            layers,
            other_bytes: 0,
        }
    }

    /// Blocks of so many bytes without keys and values.
    pub fn of_bytes(config: &Config, ty: CacheType, bytes: usize) -> Layout {
        Layout {
            other_bytes: bytes,
            ..Layout::new(config, ty, 0)
        }
    }

    /// Keys or values of one head in one block: scales first, where there are any.
    fn half_bytes(self) -> usize {
        BLOCK_POSITIONS * self.head_width * self.ty.element_bytes() + self.ty.scale_bytes()
    }

    fn head_bytes(self) -> usize {
        2 * self.half_bytes()
    }

    pub fn block_bytes(self) -> usize {
        self.layers * self.kv_heads * self.head_bytes() + self.other_bytes
    }

    fn head_at(self, layer: usize, head: usize) -> usize {
        (layer * self.kv_heads + head) * self.head_bytes()
    }
}

/// One head's keys and values in one block.
#[derive(Clone, Copy)]
pub(crate) struct Page<'a> {
    pub key_scales: &'a [u8],
    pub keys: &'a [u8],
    pub value_scales: &'a [u8],
    pub values: &'a [u8],
}

/// Memory for blocks of positions.
pub(crate) struct Pool {
    layout: Layout,
    memory: AlignedBuf,
    blocks: usize,
    /// Blocks that nobody uses, and that were used before: taken first.
    free: Vec<u32>,
    /// Blocks from here on were never used.
    fresh: u32,
    /// By block, how many sequences have it.
    users: Vec<u32>,
}

impl Pool {
    /// Addresses for so many blocks; memory comes as they are used.
    pub fn new(layout: Layout, blocks: usize) -> Result<Pool> {
        Ok(Pool {
            layout,
            memory: AlignedBuf::zeroed(blocks * layout.block_bytes())?,
            blocks,
            free: Vec::with_capacity(blocks),
            fresh: 0,
            users: vec![0; blocks],
        })
    }

    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Blocks that have memory, in use or not.
    pub fn touched(&self) -> usize {
        self.fresh as usize
    }

    /// Blocks that sequences have.
    pub fn in_use(&self) -> usize {
        self.fresh as usize - self.free.len()
    }

    /// Most blocks that there can be.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// How many blocks more would be touched to have that many new ones.
    pub fn fresh_for(&self, blocks: usize) -> usize {
        blocks.saturating_sub(self.free.len())
    }

    pub fn take(&mut self) -> Result<u32> {
        let block = match self.free.pop() {
            Some(block) => block,
            None if (self.fresh as usize) < self.blocks => {
                self.fresh += 1;
                self.fresh - 1
            }
            None => {
                return Err(Error::CacheFull {
                    blocks: self.blocks,
                });
            }
        };
        self.users[block as usize] = 1;
        Ok(block)
    }

    /// Another sequence has it, too.
    pub fn share(&mut self, block: u32) {
        self.users[block as usize] += 1;
    }

    pub fn give_back(&mut self, block: u32) {
        let users = &mut self.users[block as usize];
        *users -= 1;
        if *users == 0 {
            self.free.push(block);
        }
    }

    /// The first positions of a block become another's.
    pub fn copy(&mut self, from: u32, to: u32) {
        let bytes = self.layout.block_bytes();
        let from = from as usize * bytes;
        self.memory
            .copy_within(from..from + bytes, to as usize * bytes);
    }

    /// The bytes of a block: for files.
    pub fn bytes(&self, block: u32) -> &[u8] {
        let bytes = self.layout.block_bytes();
        &self.memory[block as usize * bytes..][..bytes]
    }

    pub fn bytes_mut(&mut self, block: u32) -> &mut [u8] {
        let bytes = self.layout.block_bytes();
        &mut self.memory[block as usize * bytes..][..bytes]
    }

    pub fn page(&self, block: u32, layer: usize, head: usize) -> Page<'_> {
        let layout = self.layout;
        let at = block as usize * layout.block_bytes() + layout.head_at(layer, head);
        let (keys, values) = self.memory[at..][..layout.head_bytes()].split_at(layout.half_bytes());
        let (key_scales, keys) = keys.split_at(layout.ty.scale_bytes());
        let (value_scales, values) = values.split_at(layout.ty.scale_bytes());
        Page {
            key_scales,
            keys,
            value_scales,
            values,
        }
    }

    /// Keeps one position's key and value of all heads of a layer; `[head][element]` each.
    pub fn store(&mut self, block: u32, slot: usize, layer: usize, key: &[f32], value: &[f32]) {
        let layout = self.layout;
        let heads = key.chunks_exact(layout.head_width);
        for (head, (key, value)) in heads.zip(value.chunks_exact(layout.head_width)).enumerate() {
            let at = block as usize * layout.block_bytes() + layout.head_at(layer, head);
            let bytes = &mut self.memory[at..][..layout.head_bytes()];
            let (keys, values) = bytes.split_at_mut(layout.half_bytes());
            put(layout, keys, slot, key, (1, BLOCK_POSITIONS));
            put(layout, values, slot, value, (layout.head_width, 1));
        }
    }
}

/// Writes a head's vector to its slot: `strides` are from slot to slot, and from element to element.
fn put(layout: Layout, half: &mut [u8], slot: usize, x: &[f32], strides: (usize, usize)) {
    let (scales, elements) = half.split_at_mut(layout.ty.scale_bytes());
    let at = |i: usize| slot * strides.0 + i * strides.1;
    match layout.ty {
        CacheType::F32 => {
            for (i, x) in x.iter().enumerate() {
                elements[4 * at(i)..][..4].copy_from_slice(&x.to_le_bytes());
            }
        }
        CacheType::F16 => {
            for (i, x) in x.iter().enumerate() {
                elements[2 * at(i)..][..2].copy_from_slice(&f16::from_f32(*x).to_le_bytes());
            }
        }
        CacheType::Int8 => {
            let most = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            // What is no number stays none, as its scale.
            let is_number = x.iter().all(|x| x.is_finite());
            let scale = if is_number { most / 127.0 } else { f32::NAN };
            let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
            scales[4 * slot..][..4].copy_from_slice(&scale.to_le_bytes());
            for (i, x) in x.iter().enumerate() {
                let step = (x * inverse).round_ties_even().clamp(-127.0, 127.0);
                elements[at(i)] = (step as i8).cast_unsigned();
            }
        }
    }
}
