//! `Transition`: what becomes of resident weights when one plan follows another. Plain data, and its own validator.
//!
//! ```text
//!   in memory      │ w0 │ w1 │····│ w3 │        read under the plan before
//!   keeps            w0        ◄─── w3          stays; moves to its new place
//!   reads                 w2                    beside the next run, in the order in which computes need them
//!   under the plan │ w0 │ w3 │ w2 │             w1 is given up
//! ```

use serde::{Deserialize, Serialize};

use crate::{
    Area, ByteRange, ExecutionPlan, Place, ResidentLoad, Space, SpaceId, SpaceKind, Violation,
};

/// What a session has in memory that the next plan may go on with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Its spaces as they are in memory: a space may be larger than the plan in force asks for.
    pub spaces: Vec<Space>,
    /// The most memory that the plan in force is charged.
    pub memory_bytes: u64,
    /// Where the plan in force keeps resident weights, in order of the file.
    pub homes: Vec<Home>,
    /// What of the file has been read, of that: a set.
    pub read: Vec<ByteRange>,
}

/// A range of the packed file that lies in memory in one piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Home {
    pub file: ByteRange,
    pub at: Place,
}

/// How a session goes on with another plan: first `keeps`, one by one; then what nothing keeps is the kernel's; `reads`
/// come beside the plan's first run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// What of the file stays in memory, in an order in which no move overwrites what another has yet to move.
    pub keeps: Vec<Keep>,
    /// What of the plan's resident loads is not in memory, in their order.
    pub reads: Vec<ResidentLoad>,
}

/// Bytes of the packed file that stay in memory, at the same place or another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Keep {
    pub file_offset: u64,
    pub bytes: u64,
    pub from: Place,
    pub to: Place,
}

impl Held {
    /// Whether that space of resident weights, which lie at `homes` under the plan, is in memory and large enough
    /// for them; if not it is mapped anew.
    pub fn keeps(&self, plan: &ExecutionPlan, homes: &[Home], space: SpaceId) -> bool {
        let end = homes
            .iter()
            .map(Home::area)
            .filter(|area| area.space == space);
        let end = end.map(|area| area.range.end).max().unwrap_or(0);
        let mapped = self.spaces.get(space.index());
        plan.kind(space) == Some(SpaceKind::Resident)
            && mapped.is_some_and(|m| m.kind == SpaceKind::Resident && end <= m.bytes)
    }
}

impl Home {
    pub fn area(&self) -> Area {
        self.at.area(self.file.len())
    }

    /// Where a byte of the file lies, if it does.
    pub fn of_byte(homes: &[Home], file_offset: u64) -> Option<(Place, u64)> {
        let after = homes.partition_point(|h| h.file.begin <= file_offset);
        let home = homes[after.checked_sub(1)?];
        let at = home.at.checked_add(file_offset - home.file.begin)?;
        (file_offset < home.file.end).then_some((at, home.file.end))
    }

    /// Where a plan keeps resident weights, in order of the file; neighbours joined.
    pub fn all_of(resident: &[ResidentLoad]) -> Vec<Home> {
        let mut homes: Vec<Home> = Vec::with_capacity(resident.len());
        let parts = resident.iter().map(|r| Home {
            file: r.file_range(),
            at: r.to,
        });
        homes.extend(parts);
        homes.sort_unstable_by_key(|h| h.file.begin);
        homes.dedup_by(|next, last| {
            let is_next = next.file.begin == last.file.end
                && last.at.checked_add(last.file.len()) == Some(next.at);
            if is_next {
                last.file.end = next.file.end;
            }
            is_next
        });
        homes.shrink_to_fit();
        homes
    }
}

impl Keep {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.file_offset, self.bytes)
    }

    pub fn moves(&self) -> bool {
        self.from != self.to
    }
}

impl Transition {
    /// From nothing: all is read.
    pub fn opening(plan: &ExecutionPlan) -> Transition {
        Transition {
            keeps: Vec::new(),
            reads: plan.resident.clone(),
        }
    }

    pub fn kept_bytes(&self) -> u64 {
        self.keeps.iter().map(|k| k.bytes).sum()
    }

    pub fn read_bytes(&self) -> u64 {
        self.reads.iter().map(|r| r.bytes).sum()
    }
}

/// Whether `plan`, which is valid, finds all of its resident weights when `transition` is carried out on what is `held`;
/// and memory never exceeds what the larger of both plans is charged.
///
/// # Errors
/// [`Violation::Transition`], or [`Violation::Overlap`] where one move destroys what another needs.
pub fn validate_transition(
    held: &Held,
    plan: &ExecutionPlan,
    transition: &Transition,
) -> Result<(), Violation> {
    let bad = |why: String| Err(Violation::Transition(why));
    let homes = Home::all_of(&plan.resident);
    let lies_at = |homes: &[Home], file: ByteRange, at: Place| {
        let place = Home::of_byte(homes, file.begin);
        place.is_some_and(|(place, end)| place == at && file.end <= end)
    };
    for (i, keep) in transition.keeps.iter().enumerate() {
        let file = keep.file_range();
        let is_read = held.read.iter().any(|read| read.holds(file));
        if file.is_empty() || !is_read || !lies_at(&held.homes, file, keep.from) {
            return bad(format!("what keep {i} keeps is not in memory there"));
        }
        if !lies_at(&homes, file, keep.to) {
            return bad(format!("the plan wants what keep {i} keeps elsewhere"));
        }
        if ![keep.from, keep.to]
            .into_iter()
            .all(|at| held.keeps(plan, &homes, at.space))
        {
            return bad(format!("the space of keep {i} is mapped anew"));
        }
    }
    check_moves(&transition.keeps)?;
    check_memory(held, plan, transition)?;
    check_cover(plan, transition)
}

/// No keep is overwritten by a move that comes before it is where it belongs, nor by any afterwards.
fn check_moves(keeps: &[Keep]) -> Result<(), Violation> {
    // Places by address: of a keep that has yet to move its old one, else the new one. Each is in the way of others.
    let mut places: Vec<(Area, usize)> = Vec::with_capacity(keeps.len());
    places.extend((0..).zip(keeps).map(|(i, k)| (k.from.area(k.bytes), i)));
    places.sort_unstable_by_key(|(area, _)| (area.space, area.range.begin));
    let mut at: Vec<usize> = vec![0; keeps.len()];
    for (rank, &(_, keep)) in places.iter().enumerate() {
        at[keep] = rank;
    }
    let overlap = |a: usize, b: usize| Violation::Overlap {
        a: format!("keep {a}"),
        b: format!("what keep {b} moves"),
        time: 0,
    };
    let meeting = places.windows(2).find(|p| p[0].0.overlaps(p[1].0));
    if let Some(pair) = meeting {
        return Err(overlap(pair[0].1, pair[1].1));
    }
    // Those that have yet to move lie where they did, in order of address: a move may meet one of them only if it is
    // listed before this one. New places are apart from each other, as a plan keeps them so.
    for (i, keep) in keeps.iter().enumerate().filter(|(_, k)| k.moves()) {
        let to = keep.to.area(keep.bytes);
        let first = places.partition_point(|(area, _)| {
            (area.space, area.range.end) <= (to.space, to.range.begin)
        });
        let met = places[first..].iter();
        let mut met = met.take_while(|(area, _)| area.overlaps(to));
        let is_there = |&(_, other): &(Area, usize)| other > i || !keeps[other].moves();
        if let Some(&(_, other)) = met.find(|&&place| place.1 != i && is_there(&place)) {
            return Err(overlap(other, i));
        }
    }
    Ok(())
}

/// While weights move, the places of both plans are charged, and nothing else is.
fn check_memory(
    held: &Held,
    plan: &ExecutionPlan,
    transition: &Transition,
) -> Result<(), Violation> {
    if !transition.keeps.iter().any(Keep::moves) {
        return Ok(());
    }
    let old = held.homes.iter().map(Home::area);
    let new = transition.keeps.iter().map(|k| k.to.area(k.bytes));
    let mut areas: Vec<Area> = old.chain(new).collect();
    areas.sort_unstable_by_key(|area| (area.space, area.range.begin));
    let mut bytes = 0;
    let mut end = (SpaceId::default(), 0);
    for area in areas {
        if end.0 != area.space {
            end = (area.space, 0);
        }
        bytes += area.range.end.saturating_sub(area.range.begin.max(end.1));
        end.1 = end.1.max(area.range.end);
    }
    let most_bytes = held.memory_bytes.max(plan.memory_bytes());
    match bytes <= most_bytes {
        true => Ok(()),
        false => Err(Violation::Transition(format!(
            "while weights move they take {bytes} bytes, of {most_bytes}"
        ))),
    }
}

/// Each resident byte is kept or read, once; reads go where the plan says, in its order.
fn check_cover(plan: &ExecutionPlan, transition: &Transition) -> Result<(), Violation> {
    let bad = |why: String| Err(Violation::Transition(why));
    let mut load = 0;
    let mut loads = plan.resident.iter();
    let mut current = loads.next();
    let mut parts: Vec<ByteRange> = transition.keeps.iter().map(Keep::file_range).collect();
    for (i, read) in transition.reads.iter().enumerate() {
        let file = read.file_range();
        // The same load as that of the read before, or one after it.
        while current.is_some_and(|of| !of.file_range().holds(file)) {
            current = loads.next();
            load += 1;
        }
        let Some(of) = current else {
            return bad(format!("read {i} is of no resident load, or out of order"));
        };
        let at = of.to.checked_add(file.begin - of.from.offset);
        let in_blocks = file == file.to_blocks() && !file.is_empty();
        if at != Some(read.to) || read.from.space != of.from.space || read.first > of.first {
            return bad(format!("read {i} differs from resident load {load}"));
        }
        if !in_blocks {
            return bad(format!("read {i} is not of whole blocks"));
        }
        parts.push(file);
    }
    parts.sort_unstable_by_key(|part| part.begin);
    let covered: u64 = parts.iter().map(|part| part.len()).sum();
    let overlap = parts.windows(2).any(|pair| pair[0].overlaps(pair[1]));
    // All parts are of resident loads, which are disjoint: none is missing if there are as many bytes.
    if overlap || covered != plan.resident_bytes() {
        return bad("not every resident byte is kept or read once".into());
    }
    Ok(())
}
