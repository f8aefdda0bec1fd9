//! The arena: the memory spaces of a plan, in which a session's activations, workspaces and weights live.

mod reshape;
#[cfg(test)]
mod tests;

use crate::device::MemoryRange;
use crate::mapping::{Addresses, HUGE_PAGE_BYTES, Mapping};
use crate::own_memory::{Block, OwnMemory};
use neap_plan::sets::{bytes_of, set_of};
use neap_plan::{ByteRange, ExecutionPlan, Held, Home, Place, Space, SpaceId, SpaceKind};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

/// One mapping for each space that takes memory:
///
/// ```text
///   kind      work                               resident
///   offset    0 …                                0 …
///   memory    │░│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│         │▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓│░│
///                            2 MiB boundary ^    ^ 2 MiB boundary         ▓ huge pages
/// ```
/// So the small pages that a size brings which is no multiple of 2 MiB lie where loads go less often: at the
/// low offsets, where activations are. Where memory allows they are neighbours in physical memory, too. Work is
/// worthless between runs and mapped anew for each plan; residents begin at the same address under every plan.
///
/// It hands out addresses, not references: parts of it are written by the storage device while
/// others are read and written by kernels. Who holds an address vouches for the access; that the
/// parts in use at one time are disjoint is what [`neap_plan::validate`] proves of a plan.
#[derive(Debug)]
pub(crate) struct Arena {
    spaces: Vec<Space>,
    /// By space; none for files.
    mappings: Vec<Option<Mapping>>,
    /// The same of a device's own memory: instead of mappings, for good.
    blocks: Vec<Option<Box<dyn Block>>>,
    map: ArenaMap,
    /// Work memory is lent by whoever shares it, for a run at a time.
    borrows_work: bool,
    is_lent: bool,
    /// The last that was lent, with the map that it is in.
    lent: Option<(Addresses, ArenaMap)>,
    /// Without it.
    unlent: ArenaMap,
    /// Where resident weights lie, and what of the file is here of them, as a set.
    homes: Vec<Home>,
    read: Vec<ByteRange>,
    /// The most that is charged.
    memory_bytes: u64,
    /// Whether work may be written since it was mapped or given back.
    is_ready: bool,
    /// No change of plans was left half done.
    is_whole: bool,
}

/// What a plan needs of an arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Needs {
    pub spaces: Vec<Space>,
    pub homes: Vec<Home>,
    pub memory_bytes: u64,
}

impl Needs {
    /// `plan` is valid.
    pub(crate) fn of(plan: &ExecutionPlan) -> Needs {
        Needs {
            spaces: plan.spaces.clone(),
            homes: Home::all_of(&plan.resident),
            memory_bytes: plan.memory_bytes(),
        }
    }

    /// The parts of a space that resident weights fill, as a set.
    fn parts(&self, space: SpaceId) -> Vec<ByteRange> {
        parts(&self.homes, space)
    }
}

/// Tells addresses in an arena, which must live, as it is, for as long as they are used.
#[derive(Clone, Debug)]
pub(crate) struct ArenaMap(Arc<[Option<Addresses>]>);

impl ArenaMap {
    /// Address of `bytes` at a place; `None` when that leaves the arena.
    pub(crate) fn at(&self, at: Place, bytes: u64) -> Option<*mut u8> {
        let memory = *self.0.get(at.space.index())?;
        memory?.at(at.offset, bytes)
    }

    fn of(mappings: &[Option<Mapping>]) -> ArenaMap {
        let addresses = mappings.iter().map(|m| m.as_ref().map(Mapping::addresses));
        ArenaMap(addresses.collect())
    }
}

impl Arena {
    /// Nothing is charged yet.
    pub(crate) fn new(needs: Needs) -> io::Result<Arena> {
        Arena::with(needs, false)
    }

    /// One whose work memory is lent to it ([`Arena::lend`]).
    pub(crate) fn borrowing(needs: Needs) -> io::Result<Arena> {
        Arena::with(needs, true)
    }

    fn with(needs: Needs, borrows_work: bool) -> io::Result<Arena> {
        let spaces = (0..).map(SpaceId).zip(&needs.spaces);
        let mappings = spaces.map(|(id, space)| match space.kind {
            SpaceKind::Work if borrows_work => Ok(None),
            SpaceKind::Work => work(space).map(Some),
            SpaceKind::Resident => weights(space, &needs.parts(id)).map(Some),
            SpaceKind::Spill | SpaceKind::Packed | SpaceKind::Host | SpaceKind::State => Ok(None),
        });
        let mappings = mappings.collect::<io::Result<Vec<_>>>()?;
        let map = ArenaMap::of(&mappings);
        Ok(Arena {
            unlent: map.clone(),
            map,
            borrows_work,
            is_lent: false,
            lent: None,
            mappings,
            blocks: Vec::new(),
            spaces: needs.spaces,
            homes: needs.homes,
            read: Vec::new(),
            memory_bytes: needs.memory_bytes,
            is_ready: false,
            is_whole: true,
        })
    }

    /// One in a device's memory, for one plan.
    pub(crate) fn on_device(needs: Needs, device: &mut dyn OwnMemory) -> Result<Arena, String> {
        let mut blocks = Vec::with_capacity(needs.spaces.len());
        for (id, space) in (0..).map(SpaceId).zip(&needs.spaces) {
            let bytes = match space.kind {
                SpaceKind::Work => space.bytes,
                SpaceKind::Resident => end_of(&needs.parts(id)),
                SpaceKind::Spill | SpaceKind::Packed | SpaceKind::Host | SpaceKind::State => 0,
            };
            blocks.push(match bytes {
                0 => None,
                bytes => Some(device.block(bytes)?),
            });
        }
        let addresses = blocks.iter().map(|block: &Option<Box<dyn Block>>| {
            let range = block.as_ref()?.range();
            let start = NonNull::new(range.start)?;
            let bytes = range.bytes;
            Some(Addresses { start, bytes })
        });
        let map = ArenaMap(addresses.collect());
        Ok(Arena {
            unlent: map.clone(),
            map,
            borrows_work: false,
            is_lent: false,
            lent: None,
            mappings: needs.spaces.iter().map(|_| None).collect(),
            blocks,
            spaces: needs.spaces,
            homes: needs.homes,
            read: Vec::new(),
            memory_bytes: needs.memory_bytes,
            is_ready: false,
            is_whole: true,
        })
    }

    /// Whether it is as a plan wants it; if not, its contents mean nothing.
    pub(crate) fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// Bytes of work memory that are to be lent for a run; `None` if it has its own.
    pub(crate) fn borrowed_bytes(&self) -> Option<u64> {
        let work = self.spaces.iter().filter(|s| s.kind == SpaceKind::Work);
        self.borrows_work.then(|| work.map(|s| s.bytes).sum())
    }

    /// Whether runs have memory to write to.
    pub(crate) fn has_work(&self) -> bool {
        !self.borrows_work || self.is_lent
    }

    /// It has these addresses for work from now on, as many as [`Arena::borrowed_bytes`]; with `None`, none.
    pub(crate) fn lend(&mut self, work: Option<Addresses>) {
        self.is_lent = work.is_some();
        let known = self.lent.as_ref().filter(|(at, _)| Some(*at) == work);
        self.map = match (work, known) {
            (None, _) => self.unlent.clone(),
            (Some(_), Some((_, map))) => map.clone(),
            (Some(at), None) => {
                let map = self.map_with(at);
                self.lent = Some((at, map.clone()));
                map
            }
        };
    }

    /// Work spaces one after the other, beginning at that address.
    fn map_with(&self, work: Addresses) -> ArenaMap {
        let mut next = work;
        let spaces = self.spaces.iter().zip(&self.mappings);
        let addresses = spaces.map(|(space, mapping)| match space.kind {
            SpaceKind::Work => {
                let own = next.first(space.bytes);
                next = next.from(space.bytes);
                Some(own)
            }
            _ => mapping.as_ref().map(Mapping::addresses),
        });
        ArenaMap(addresses.collect())
    }

    /// Where it is, for whoever computes addresses while the arena itself is in use.
    pub(crate) fn map(&self) -> &ArenaMap {
        &self.map
    }

    /// What of it runs touch: work memory whole, and where resident weights lie.
    pub(crate) fn touched(&self) -> Vec<MemoryRange> {
        let blocks = self.blocks.iter().flatten();
        let mut all: Vec<MemoryRange> = blocks.map(|block| block.range()).collect();
        for (id, mapping) in (0..).map(SpaceId).zip(&self.mappings) {
            let Some(memory) = mapping.as_ref().map(Mapping::addresses) else {
                continue;
            };
            let whole = [ByteRange::new(0, memory.bytes)];
            let ranges = match self.spaces[id.index()].kind {
                SpaceKind::Resident => parts(&self.homes, id),
                _ => whole.to_vec(),
            };
            let in_use = ranges.iter().filter(|range| !range.is_empty());
            all.extend(in_use.filter_map(|range| {
                let start = memory.at(range.begin, range.len())?;
                let bytes = range.len();
                Some(MemoryRange { start, bytes })
            }));
        }
        all
    }

    /// The most that is charged.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }

    /// What another plan may go on with.
    pub(crate) fn held(&self) -> Held {
        let spaces = self.spaces.iter().zip(&self.mappings);
        let spaces = spaces.map(|(space, mapping)| Space {
            bytes: mapping
                .as_ref()
                .map_or(space.bytes, Mapping::reserved_bytes),
            ..space.clone()
        });
        Held {
            spaces: spaces.collect(),
            memory_bytes: self.memory_bytes,
            homes: self.homes.clone(),
            read: self.read.clone(),
        }
    }

    /// Bytes of resident weights that are here.
    pub(crate) fn held_bytes(&self) -> u64 {
        bytes_of(&self.read)
    }

    /// What the kernel charges for resident weights: also pages that a load touched before it arrived, and those that
    /// came with one in a huge page. `None` where it does not tell.
    pub(crate) fn residents_bytes(&self) -> Option<u64> {
        if !self.blocks.is_empty() {
            return None;
        }
        let spaces = self.spaces.iter().zip(&self.mappings);
        let weights = spaces.filter(|(space, _)| space.kind == SpaceKind::Resident);
        let charged = weights.filter_map(|(_, mapping)| mapping.as_ref());
        charged.map(|weights| weights.charged_bytes().ok()).sum()
    }

    /// The ranges of resident weights have been read and checked.
    pub(crate) fn hold(&mut self, ranges: impl IntoIterator<Item = ByteRange>) {
        self.read.extend(ranges);
        self.read = set_of(std::mem::take(&mut self.read));
    }

    /// Gives what runs overwrite back to the kernel; it comes again, zeroed, when it is touched.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn discard_work(&mut self) -> io::Result<()> {
        self.is_ready = false;
        for work in self.work() {
            // SAFETY: passed on.
            unsafe { work.discard()? };
        }
        Ok(())
    }

    fn work(&mut self) -> impl Iterator<Item = &mut Mapping> {
        let spaces = self.spaces.iter().zip(&mut self.mappings);
        let work = spaces.filter(|(space, _)| space.kind == SpaceKind::Work);
        work.filter_map(|(_, mapping)| mapping.as_mut())
    }

    /// Whether runs may write to it; if not, [`Arena::prepare`] comes first.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// Makes work ready to be written, beside resident weights of which `held_bytes` are in memory already.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn prepare(&mut self, held_bytes: u64) {
        // A huge page is charged for a moment, of which the plan is to have room.
        if held_bytes.saturating_add(HUGE_PAGE_BYTES) <= self.memory_bytes {
            for work in self.work() {
                // SAFETY: passed on.
                unsafe { work.join_head() };
            }
        }
        self.is_ready = true;
    }
}

fn parts(homes: &[Home], space: SpaceId) -> Vec<ByteRange> {
    let homes = homes.iter().map(Home::area);
    let homes = homes.filter(|area| area.space == space);
    set_of(homes.map(|area| area.range).collect())
}

fn end_of(parts: &[ByteRange]) -> u64 {
    parts.last().map_or(0, |part| part.end)
}

/// Whether there are no gaps.
fn is_packed(parts: &[ByteRange]) -> bool {
    end_of(parts) == bytes_of(parts)
}

/// Memory for what runs overwrite, its end at a boundary of huge pages.
fn work(space: &Space) -> io::Result<Mapping> {
    let mut work = Mapping::reserve(space.bytes, space.bytes)?;
    work.resize(space.bytes, true)?;
    Ok(work)
}

/// Memory for resident weights.
fn weights(space: &Space, parts: &[ByteRange]) -> io::Result<Mapping> {
    let mut weights = Mapping::reserve(space.bytes, 0)?;
    fit(&mut weights, end_of(parts), parts)?;
    Ok(weights)
}

/// Puts that much of `weights` in use, in huge pages as far as `parts` will fill them.
fn fit(weights: &mut Mapping, len_bytes: u64, parts: &[ByteRange]) -> io::Result<()> {
    let packed = is_packed(parts);
    weights.resize(len_bytes, packed)?;
    if !packed {
        weights.expect_only(parts);
    }
    Ok(())
}
