//! The budget of a process that runs a language model, added up.
//!
//! ```text
//!   budget = process            what the kernel charges when the model is opened
//!          + reserved           what opening and the caller are still to take
//!          + rows               memory between products, for a chunk
//!          + cache              what of it has been used, in stages
//!          + tables             page tables of all of it
//!          + weights            what the plan has: a ring, and residents
//!          + experts            of a mixture: as many as what is left has room for
//! ```
//! All that every token needs comes before experts, of which a token needs few.

use crate::engine::Options;
use crate::experts::{self, LEAST_SLOTS};
use crate::plan::{resident_room, smallest_room};
use crate::scratch::Scratch;
use crate::sequence::Shape;
use crate::{Error, Model, Result};
use neap_plan::Workload;

/// Touched stack and kernel stack of one thread.
const THREAD_BYTES: u64 = 64 << 10;

/// What opening still allocates: plans, rings of requests, lists of a pass; and what the kernel charges in batches.
const FIXED_BYTES: u64 = 1 << 20;

/// A stage of the cache is at least this share of what is in use, so that plans change seldom.
const STAGE_SHARE: u64 = 4;

/// Chunks of a prompt that are tried, largest first. Their memory is at most an eighth of what the process leaves.
const CHUNKS: [usize; 8] = [512, 256, 128, 64, 32, 16, 8, 4];

/// How a budget is divided, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub struct Ledger {
    pub process_bytes: u64,
    pub reserved_bytes: u64,
    pub rows_bytes: u64,
    /// Of what has been used.
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
    /// With all of the context in use.
    cache_bytes: u64,
    context: usize,
    smallest_room: u64,
    /// In which all but experts stays.
    resident_room: u64,
    slot_bytes: u64,
    all_slots: u64,
    all_weights_bytes: u64,
    /// Most rows of a pass.
    pub chunk: usize,
    /// Of the cache, what memory has been set aside for.
    staged_bytes: u64,
}

impl Memory {
    pub fn new(
        model: &Model,
        workload: &Workload,
        options: &Options,
        shape: Shape,
    ) -> Result<Memory> {
        let threads = options.threads.max(1) as u64;
        options.host.trim();
        let of_layer = model.config.experts.as_ref().map_or(0, |e| e.count);
        let (all_slots, slot_bytes) = (model.experts.len() * of_layer, experts::slot_bytes(model));
        let mut memory = Memory {
            budget_bytes: options.memory_budget,
            process_bytes: options.host.charged_bytes(),
            reserved_bytes: options.reserved_bytes + FIXED_BYTES + threads * THREAD_BYTES,
            rows_bytes: 0,
            cache_bytes: 0,
            context: shape.blocks * crate::cache::BLOCK_POSITIONS,
            smallest_room: smallest_room(workload) + LEAST_SLOTS.min(all_slots) as u64 * slot_bytes,
            resident_room: resident_room(workload),
            slot_bytes,
            all_slots: all_slots as u64,
            all_weights_bytes: model.matrix_bytes(),
            chunk: 0,
            staged_bytes: 0,
        };
        let rows_bytes = |rows| Scratch::bytes(model, rows, threads as usize);
        let least = CHUNKS[CHUNKS.len() - 1];
        for rows in CHUNKS
            .into_iter()
            .filter(|&r| r <= options.chunk.max(least))
        {
            memory.chunk = rows;
            memory.rows_bytes = rows_bytes(rows);
            memory.cache_bytes = shape.bytes(rows);
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

    /// With all of the context in use.
    pub fn smallest_bytes(&self) -> u64 {
        let base = self.process_bytes + self.reserved_bytes + self.rows_bytes;
        let whole = base + self.cache_bytes + self.smallest_room;
        whole + tables(self.cache_bytes + self.smallest_room)
    }

    /// What a budget leaves for weights beside so much of the cache; `None` without a budget.
    fn left(&self, cache_bytes: u64) -> Option<u64> {
        let budget = self.budget_bytes?;
        let taken = self.process_bytes + self.reserved_bytes + self.rows_bytes;
        let left = budget.saturating_sub(taken + cache_bytes);
        Some(left.saturating_sub(tables(left)))
    }

    /// Room for weights with the stage that holds so much of the cache: of the plan, and slots of experts.
    pub fn room(&self, cache_bytes: u64) -> (u64, usize) {
        let Some(left) = self.left(cache_bytes.max(self.staged_bytes)) else {
            return (u64::MAX, self.all_slots as usize);
        };
        let least = self.all_slots.min(LEAST_SLOTS as u64);
        let spare = left.saturating_sub(self.resident_room) / self.slot_bytes.max(1);
        let slots = spare.clamp(least, self.all_slots);
        (left.saturating_sub(slots * self.slot_bytes), slots as usize)
    }

    fn weights(&self, cache_bytes: u64) -> u64 {
        let (room, slots) = self.room(cache_bytes);
        let experts = slots as u64 * self.slot_bytes;
        room.saturating_add(experts).min(self.all_weights_bytes)
    }

    /// Whether more must be set aside before so much of the cache has memory.
    pub fn must_grow(&self, cache_bytes: u64) -> bool {
        cache_bytes > self.staged_bytes && self.budget_bytes.is_some()
    }

    pub fn grow(&mut self, cache_bytes: u64) {
        let staged = cache_bytes + cache_bytes.div_ceil(STAGE_SHARE);
        self.staged_bytes = staged.min(self.cache_bytes);
    }

    pub fn ledger(&self, cache_bytes: u64) -> Ledger {
        Ledger {
            process_bytes: self.process_bytes,
            reserved_bytes: self.reserved_bytes,
            rows_bytes: self.rows_bytes,
            cache_bytes: cache_bytes.max(self.staged_bytes),
            whole_cache_bytes: self.cache_bytes,
            weights_bytes: self.weights(cache_bytes),
            all_weights_bytes: self.all_weights_bytes,
            smallest_bytes: self.smallest_bytes(),
        }
    }
}

/// Page tables of so much memory, and those above them.
fn tables(bytes: u64) -> u64 {
    bytes / 512 + (32 << 10)
}
