//! The budget of a process that runs a language model, added up.
//!
//! ```text
//!   budget = process            what the kernel charges when the model is opened
//!          + reserved           what opening and the caller are still to take
//!          + rows               memory between products, for a chunk
//!          + cache              blocks of positions that have been used, in stages
//!          + tables             page tables of all of it
//!          + weights            what the plan has: a ring, and residents
//!          + experts            of a mixture: as many as what is left has room for
//! ```
//! All that every token needs comes before experts, of which a token needs few.

use crate::cache::Layout;
use crate::engine::Options;
use crate::experts::{self, LEAST_SLOTS};
use crate::plan::{resident_room, smallest_room};
use crate::scratch::Scratch;
use crate::{Error, Model, Result};
use neap_plan::Workload;

/// Touched stack and kernel stack of one thread.
const THREAD_BYTES: u64 = 64 << 10;

/// What opening still allocates: plans, rings of requests, lists of a pass; and what the kernel charges in batches.
const FIXED_BYTES: u64 = 1 << 20;

/// A stage of the cache is at least this share of the blocks in use, so that plans change seldom.
const STAGE_SHARE: usize = 4;

/// Chunks of a prompt that are tried, largest first. Their memory is at most an eighth of what the process leaves.
const CHUNKS: [usize; 8] = [512, 256, 128, 64, 32, 16, 8, 4];

/// How a budget is divided, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Ledger {
    pub process_bytes: u64,
    pub reserved_bytes: u64,
    pub rows_bytes: u64,
    /// Of the blocks that have been used.
    pub cache_bytes: u64,
    /// If all positions of the context were used.
    pub whole_cache_bytes: u64,
    /// What is left for weights; at most what they take.
    pub weights_bytes: u64,
    pub all_weights_bytes: u64,
    /// The least budget for this context.
    pub smallest_bytes: u64,
}

/// What does not change while a model is open, and the stage of the cache.
pub(crate) struct Memory {
    budget_bytes: Option<u64>,
    process_bytes: u64,
    reserved_bytes: u64,
    rows_bytes: u64,
    block_bytes: u64,
    blocks: usize,
    context: usize,
    smallest_room: u64,
    /// In which all but experts stays.
    resident_room: u64,
    slot_bytes: u64,
    all_slots: u64,
    all_weights_bytes: u64,
    /// Most rows of a pass.
    pub chunk: usize,
    /// Blocks that memory has been set aside for.
    staged: usize,
}

impl Memory {
    pub fn new(
        model: &Model,
        workload: &Workload,
        options: &Options,
        layout: Layout,
    ) -> Result<Memory> {
        let threads = options.threads.max(1) as u64;
        options.host.trim();
        let blocks = options
            .context
            .max(1)
            .div_ceil(crate::cache::BLOCK_POSITIONS);
        let of_layer = model.config.experts.as_ref().map_or(0, |e| e.count);
        let (all_slots, slot_bytes) = (model.experts.len() * of_layer, experts::slot_bytes(model));
        let mut memory = Memory {
            budget_bytes: options.memory_budget,
            process_bytes: options.host.charged_bytes(),
            reserved_bytes: options.reserved_bytes + FIXED_BYTES + threads * THREAD_BYTES,
            rows_bytes: 0,
            block_bytes: layout.block_bytes() as u64,
            blocks,
            context: blocks * crate::cache::BLOCK_POSITIONS,
            smallest_room: smallest_room(workload) + LEAST_SLOTS.min(all_slots) as u64 * slot_bytes,
            resident_room: resident_room(workload),
            slot_bytes,
            all_slots: all_slots as u64,
            all_weights_bytes: model.matrix_bytes(),
            chunk: 0,
            staged: 0,
        };
        let rows_bytes = |rows| Scratch::bytes(model, rows, threads as usize);
        let least = CHUNKS[CHUNKS.len() - 1];
        for rows in CHUNKS
            .into_iter()
            .filter(|&r| r <= options.chunk.max(least))
        {
            memory.chunk = rows;
            memory.rows_bytes = rows_bytes(rows);
            let Some((left, budget)) = memory.left(0).zip(memory.budget_bytes) else {
                break;
            };
            let is_small = memory.rows_bytes <= (left + memory.rows_bytes) / 8;
            if is_small && memory.smallest_bytes() <= budget {
                break;
            }
        }
        match memory.budget_bytes {
            Some(budget) if budget < memory.smallest_bytes() => Err(memory.too_little()),
            _ => Ok(memory),
        }
    }

    /// Another budget from now on; gives the one before.
    pub fn budget(&mut self, budget_bytes: Option<u64>) -> Result<Option<u64>> {
        let before = std::mem::replace(&mut self.budget_bytes, budget_bytes);
        match budget_bytes {
            Some(budget) if budget < self.smallest_bytes() => {
                let refused = self.too_little();
                self.budget_bytes = before;
                Err(refused)
            }
            _ => Ok(before),
        }
    }

    /// The error of a budget that does not hold a plan.
    pub fn too_little(&self) -> Error {
        Error::Budget {
            budget_bytes: self.budget_bytes.unwrap_or(u64::MAX),
            smallest_bytes: self.smallest_bytes(),
            context: self.context,
        }
    }

    /// With all blocks in use.
    pub fn smallest_bytes(&self) -> u64 {
        let base = self.process_bytes + self.reserved_bytes + self.rows_bytes;
        let whole = base + self.blocks as u64 * self.block_bytes + self.smallest_room;
        whole + tables(self.blocks as u64 * self.block_bytes + self.smallest_room)
    }

    /// What a budget leaves for weights and the cache with so many blocks in use; `None` without a budget.
    fn left(&self, blocks: usize) -> Option<u64> {
        let budget = self.budget_bytes?;
        let taken = self.process_bytes + self.reserved_bytes + self.rows_bytes;
        let left = budget.saturating_sub(taken + blocks as u64 * self.block_bytes);
        Some(left.saturating_sub(tables(left)))
    }

    /// Room for weights with the stage that holds so many blocks: of the plan, and slots of experts.
    pub fn room(&self, blocks: usize) -> (u64, usize) {
        let Some(left) = self.left(blocks.max(self.staged)) else {
            return (u64::MAX, self.all_slots as usize);
        };
        let least = self.all_slots.min(LEAST_SLOTS as u64);
        let spare = left.saturating_sub(self.resident_room) / self.slot_bytes.max(1);
        let slots = spare.clamp(least, self.all_slots);
        (left.saturating_sub(slots * self.slot_bytes), slots as usize)
    }

    fn weights(&self, blocks: usize) -> u64 {
        let (room, slots) = self.room(blocks);
        let experts = slots as u64 * self.slot_bytes;
        room.saturating_add(experts).min(self.all_weights_bytes)
    }

    /// Whether more must be set aside before so many blocks have memory.
    pub fn must_grow(&self, blocks: usize) -> bool {
        blocks > self.staged && self.budget_bytes.is_some()
    }

    pub fn grow(&mut self, blocks: usize, most: usize) {
        self.staged = (blocks + blocks.div_ceil(STAGE_SHARE)).min(most);
    }

    pub fn ledger(&self, blocks: usize) -> Ledger {
        Ledger {
            process_bytes: self.process_bytes,
            reserved_bytes: self.reserved_bytes,
            rows_bytes: self.rows_bytes,
            cache_bytes: blocks.max(self.staged) as u64 * self.block_bytes,
            whole_cache_bytes: self.blocks as u64 * self.block_bytes,
            weights_bytes: self.weights(blocks),
            all_weights_bytes: self.all_weights_bytes,
            smallest_bytes: self.smallest_bytes(),
        }
    }
}

/// Page tables of so much memory, and those above them.
fn tables(bytes: u64) -> u64 {
    bytes / 512 + (32 << 10)
}
