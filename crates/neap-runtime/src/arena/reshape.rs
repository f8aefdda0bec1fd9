//! From one plan to the next: what stays in memory of resident weights, and where it goes.

use super::{Arena, ArenaMap, Needs, end_of, fit, is_packed, weights, work};
use crate::mapping::Mapping;
use neap_plan::sets::set_of;
use neap_plan::{ByteRange, Keep, Space, SpaceId, SpaceKind};
use std::io;

impl Arena {
    /// Goes over to another plan's needs: what `keeps` keeps stays in memory, moved to its new places one by one; memory
    /// that the plan does not need is the kernel's. `keeps` is of a transition that
    /// [`neap_plan::validate_transition`] has accepted for what is held. Says how many bytes of
    /// resident weights went. After an error it is as it was, or not [`Arena::is_whole`].
    ///
    /// Never takes more than the larger of the two plans.
    ///
    /// # Safety
    /// Nothing reads or writes the arena, the storage device included.
    pub(crate) unsafe fn reshape(&mut self, needs: Needs, keeps: &[Keep]) -> io::Result<u64> {
        let old_bytes = self.held_bytes();
        // What may fail comes first; nothing of it is charged yet.
        let mut next = Vec::with_capacity(needs.spaces.len());
        for (id, space) in (0..).map(SpaceId).zip(&needs.spaces) {
            next.push(match space.kind {
                SpaceKind::Work if self.borrows_work => None,
                SpaceKind::Work => Some(work(space)?),
                SpaceKind::Resident if self.has_room(&needs, id) => None,
                SpaceKind::Resident => Some(weights(space, &needs.parts(id))?),
                SpaceKind::Spill | SpaceKind::Packed | SpaceKind::Host | SpaceKind::State => None,
            });
        }
        self.is_whole = false;
        for (id, mapping) in (0..).map(SpaceId).zip(&mut next) {
            if let (None, true) = (&mapping, self.has_room(&needs, id)) {
                *mapping = self.mappings[id.index()].take();
                if let Some(weights) = mapping {
                    grow(weights, &needs.parts(id), keeps.is_empty())?;
                }
            }
        }
        // The old work memory, and weights that are mapped anew, are the kernel's.
        self.mappings = next;
        (self.lent, self.is_lent) = (None, false);
        self.map = ArenaMap::of(&self.mappings);
        self.is_ready = false;
        for keep in keeps.iter().filter(|keep| keep.moves()) {
            // SAFETY: passed on.
            unsafe { self.move_bytes(keep)? };
        }
        for (id, space) in (0..).map(SpaceId).zip(&needs.spaces) {
            if let (SpaceKind::Resident, Some(weights)) =
                (space.kind, &mut self.mappings[id.index()])
            {
                let parts = needs.parts(id);
                fit(weights, end_of(&parts), &parts)?;
                if !is_packed(&parts) {
                    // SAFETY: passed on.
                    unsafe { weights.keep_only(&parts)? };
                }
            }
        }
        self.map = ArenaMap::of(&self.mappings);
        self.unlent = self.map.clone();
        self.spaces = needs.spaces;
        self.homes = needs.homes;
        self.memory_bytes = needs.memory_bytes;
        self.read = set_of(keeps.iter().map(Keep::file_range).collect());
        self.is_whole = true;
        Ok(old_bytes - self.held_bytes())
    }

    /// Whether a space of resident weights is in memory and large enough for another plan's.
    fn has_room(&self, needs: &Needs, id: SpaceId) -> bool {
        let is_resident = |spaces: &[Space]| {
            let space = spaces.get(id.index());
            space.is_some_and(|space| space.kind == SpaceKind::Resident)
        };
        let mapping = self.mappings.get(id.index()).and_then(Option::as_ref);
        is_resident(&self.spaces)
            && is_resident(&needs.spaces)
            && mapping.is_some_and(|m| end_of(&needs.parts(id)) <= m.reserved_bytes())
    }

    /// # Safety
    /// Nothing reads or writes the arena.
    unsafe fn move_bytes(&mut self, keep: &Keep) -> io::Result<()> {
        let places = [keep.from, keep.to].map(|at| self.map.at(at, keep.bytes));
        let [Some(from), Some(to)] = places else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        // SAFETY: both ranges lie in mappings, whose bytes are always initialised, and nobody
        // else uses them.
        unsafe { std::ptr::copy(from, to, keep.bytes as usize) };
        Ok(())
    }
}

/// Makes room for another plan's weights beside those that are here, which may be nothing.
fn grow(weights: &mut Mapping, parts: &[ByteRange], is_empty: bool) -> io::Result<()> {
    if is_empty {
        // So that it comes in huge pages.
        weights.resize(0, true)?;
    }
    // Both plans' weights must lie in it while they are moved.
    let both_bytes = end_of(parts).max(weights.len_bytes());
    fit(weights, both_bytes, parts)
}
