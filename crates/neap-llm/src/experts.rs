//! Experts in memory: slots of equal size that are filled when a token needs an expert, those that are needed most stay.
//!
//! ```text
//!   slots      │ layer 0, expert 7 │ layer 2, expert 1 │ on its way … │      as many as the budget has room for
//!   a slot     │ gate │ up │ down │ biases │      each a range of the file, in whole blocks
//! ```
//! A layer's experts are computed in the order of their numbers. While one is computed with, the next that are missing come. Who
//! gives way: an expert that this layer needs no more, of those the one that was needed least often, of those the one that was
//! longest ago.

use crate::Result;
use crate::model::{Expert, Matrix, Model};
use neap_plan::BLOCK_BYTES;
use neap_store::{AlignedBuf, LoadTag, Source, StoreError};
use std::time::{Duration, Instant};

/// One that is computed with, and one that comes meanwhile.
pub(crate) const LEAST_SLOTS: usize = 2;

/// Needs of all experts are halved after so many layers, so that old ones fade.
const FADE_LAYERS: u64 = 4096;

/// Pieces of an expert are told apart by their tags.
const MOST_PIECES: u64 = 8;

/// Drops the source first: that waits until the kernel leaves the slots alone.
pub(crate) struct ExpertCache {
    source: Box<dyn Source>,
    slots: Vec<Slot>,
    most_slots: usize,
    slot_bytes: usize,
    /// By layer and expert.
    known: Vec<Known>,
    /// Experts of a layer.
    count: usize,
    /// Layers that were computed; the one at work included.
    turn: u64,
    loaded_bytes: u64,
    waited: Duration,
}

struct Slot {
    memory: AlignedBuf,
    /// What it has, or what is on its way to it.
    has: Option<usize>,
    /// Pieces that are on their way.
    coming: usize,
    used: u64,
}

#[derive(Clone, Copy, Default)]
struct Known {
    slot: Option<u32>,
    /// How often it was needed; old needs fade.
    needs: u32,
    /// The turn of a layer that is yet to compute with it.
    wanted: u64,
}

/// Bytes of a slot that takes any expert.
pub(crate) fn slot_bytes(model: &Model) -> u64 {
    let bytes = |expert: &Expert| {
        expert
            .pieces()
            .map(|piece| place_bytes(piece.bytes()))
            .sum()
    };
    model.experts.iter().map(bytes).max().unwrap_or(0)
}

/// Whole blocks around a piece, wherever it begins.
fn place_bytes(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES) + BLOCK_BYTES
}

/// What an expert computes with, as it lies in the file.
pub(crate) struct Loaded<'a> {
    memory: &'a [u8],
    expert: &'a Expert,
    index: usize,
}

impl<'a> Loaded<'a> {
    /// Gate, up and down.
    pub fn matrices(&self) -> [&'a Matrix; 3] {
        self.expert.matrices.each_ref()
    }

    /// The bias of one of these.
    pub fn bias(&self, matrix: usize) -> Option<&'a Matrix> {
        self.expert.biases.as_ref().map(|biases| &biases[matrix])
    }

    /// A piece by its place among [`Expert::pieces`].
    pub fn piece(&self, wanted: usize) -> &'a [u8] {
        let mut place = 0;
        for piece in self.expert.pieces().take(wanted) {
            place += place_bytes(piece.bytes()) as usize;
        }
        let piece = self.expert.pieces().nth(wanted);
        piece.map_or(&[][..], |piece| {
            let skip = (piece.offset_of(self.index) % BLOCK_BYTES) as usize;
            &self.memory[place + skip..][..piece.bytes() as usize]
        })
    }
}

impl ExpertCache {
    /// Of a model with experts; slots take memory as they are filled.
    pub fn new(model: &Model, count: usize, most_slots: usize, source: Box<dyn Source>) -> Self {
        ExpertCache {
            source,
            slots: Vec::new(),
            most_slots,
            slot_bytes: slot_bytes(model) as usize,
            known: vec![Known::default(); model.experts.len() * count],
            count,
            turn: 0,
            loaded_bytes: 0,
            waited: Duration::ZERO,
        }
    }

    /// Bytes read since it was made.
    pub fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes
    }

    /// Time in which computing waited.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Another number of slots from now on, between two passes: those that are needed least go.
    ///
    /// # Errors
    /// Storage has failed for good.
    pub fn resize(&mut self, most_slots: usize) -> Result<()> {
        self.source.drain()?;
        self.forget_unfinished();
        self.most_slots = most_slots;
        while self.slots.len() > most_slots {
            let Some(slot) = self.victim(true) else {
                break;
            };
            self.empty(slot);
            self.slots.swap_remove(slot);
            if let Some(moved) = self.slots.get(slot).and_then(|moved| moved.has) {
                self.known[moved].slot = Some(slot as u32);
            }
        }
        Ok(())
    }

    /// A layer needs these experts, in this order.
    pub fn need(&mut self, layer: usize, experts: &[usize]) {
        self.turn += 1;
        for &expert in experts {
            let known = &mut self.known[layer * self.count + expert];
            known.needs += 1;
            known.wanted = self.turn;
        }
        if self.turn.is_multiple_of(FADE_LAYERS) {
            self.known.iter_mut().for_each(|known| known.needs /= 2);
        }
    }

    /// The first of the experts that a layer still needs, when it has arrived. The others come meanwhile, as far as there is room.
    ///
    /// # Errors
    /// Of storage; what was on its way is lost then.
    pub fn first<'a>(
        &'a mut self,
        layer: usize,
        of: &'a Expert,
        experts: &[usize],
    ) -> Result<Loaded<'a>> {
        let index = experts[0];
        let slot = self.bring(layer, of, experts);
        let slot = slot.inspect_err(|_| {
            // Where storage has failed for good, slots stay as they are until the source is dropped.
            if self.source.drain().is_ok() {
                self.forget_unfinished();
            }
        })?;
        self.known[layer * self.count + index].wanted = 0;
        self.slots[slot].used = self.turn;
        Ok(Loaded {
            memory: &self.slots[slot].memory,
            expert: of,
            index,
        })
    }

    /// Gets the first of these experts, and begins to load the others.
    fn bring(&mut self, layer: usize, of: &Expert, experts: &[usize]) -> Result<usize> {
        self.collect(false)?;
        let first = layer * self.count + experts[0];
        for &expert in experts {
            let id = layer * self.count + expert;
            if self.known[id].slot.is_some() {
                continue;
            }
            // What comes early displaces nothing that this layer needs; the first one must come.
            let room = match self.room(false)? {
                None if id == first => self.room(true)?,
                room => room,
            };
            let Some(slot) = room else { break };
            self.submit(slot, id, of, expert)?;
        }
        self.source.flush();
        loop {
            let slot = self.known[first].slot.map(|slot| slot as usize);
            let slot = slot.ok_or(StoreError::NothingInFlight)?;
            if self.slots[slot].coming == 0 {
                return Ok(slot);
            }
            self.wait()?;
        }
    }

    /// A slot to fill; one that the layer at work needs later only if it must be.
    fn room(&mut self, must: bool) -> Result<Option<usize>> {
        if self.slots.len() < self.most_slots {
            self.slots.push(Slot {
                memory: AlignedBuf::zeroed(self.slot_bytes)?,
                has: None,
                coming: 0,
                used: 0,
            });
            return Ok(Some(self.slots.len() - 1));
        }
        let victim = self.victim(must);
        if let Some(slot) = victim {
            self.empty(slot);
        }
        Ok(victim)
    }

    /// The slot whose expert may best be spared.
    fn victim(&self, must: bool) -> Option<usize> {
        let is_wanted = |slot: &Slot| {
            slot.has
                .is_some_and(|id| self.known[id].wanted == self.turn)
        };
        let worth = |slot: &Slot| (slot.has.map_or(0, |id| self.known[id].needs), slot.used);
        let slots = self.slots.iter().enumerate();
        slots
            .filter(|(_, slot)| slot.coming == 0 && (must || !is_wanted(slot)))
            .min_by_key(|(_, slot)| worth(slot))
            .map(|(slot, _)| slot)
    }

    fn empty(&mut self, slot: usize) {
        if let Some(id) = self.slots[slot].has.take() {
            self.known[id].slot = None;
        }
    }

    fn submit(&mut self, slot: usize, id: usize, of: &Expert, index: usize) -> Result<()> {
        self.known[id].slot = Some(slot as u32);
        let start = self.slots[slot].memory.as_mut_ptr();
        self.slots[slot].has = Some(id);
        // All of them before the first: a slot that an error leaves half filled must not seem whole.
        self.slots[slot].coming = of.pieces().count();
        let mut place = 0;
        for (number, piece) in of.pieces().enumerate() {
            let offset = piece.offset_of(index);
            let begin = offset / BLOCK_BYTES * BLOCK_BYTES;
            let end = (offset + piece.bytes()).next_multiple_of(BLOCK_BYTES);
            let tag = LoadTag(slot as u64 * MOST_PIECES + number as u64);
            let (to, bytes) = (start.wrapping_add(place), (end - begin) as usize);
            // SAFETY: each piece has its own place in the slot, which nobody reads before all of its pieces have arrived, and
            // which is dropped after the source.
            while let Err(full) = unsafe { self.source.submit(tag, begin, to, bytes) } {
                match full {
                    StoreError::TooManyLoads { .. } if self.source.in_flight() > 0 => {
                        self.wait()?
                    }
                    other => return Err(other.into()),
                }
            }
            self.loaded_bytes += end - begin;
            place += place_bytes(piece.bytes()) as usize;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<()> {
        let begin = Instant::now();
        let collected = self.collect(true);
        self.waited += begin.elapsed();
        collected
    }

    fn collect(&mut self, wait: bool) -> Result<()> {
        let slots = &mut self.slots;
        let polled = self.source.poll(wait, &mut |tag| {
            slots[(tag.0 / MOST_PIECES) as usize].coming -= 1;
        });
        Ok(polled?)
    }

    /// After an error, with nothing in flight: slots that were not filled have nothing.
    fn forget_unfinished(&mut self) {
        for slot in 0..self.slots.len() {
            if std::mem::take(&mut self.slots[slot].coming) > 0 {
                self.empty(slot);
            }
        }
    }
}
