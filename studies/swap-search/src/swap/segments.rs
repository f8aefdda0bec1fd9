//! All of memory as a list of segments in order of address, each of which holds one tensor or is free.

use std::ops::{Index, IndexMut};

use super::After;

pub const NOBODY: u32 = u32::MAX;
/// No segment.
pub const END: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub struct Segment {
    pub begin: u64,
    pub end: u64,
    /// The tensor that lies there, or [`NOBODY`].
    pub owner: u32,
    /// Since when it is free.
    pub after: After,
    /// Segments below and above.
    pub below: u32,
    pub above: u32,
    /// Index in [`Segments::free`], where it is free.
    pub free_at: u32,
    /// The last choice in which the place that starts here was priced.
    pub tried_in: u64,
    /// The last choice in which the segment was priced, and that price.
    pub priced_in: u64,
    pub cost: f64,
    pub is_late: bool,
}

/// Where a tensor may go.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub offset: u64,
    /// The segment that holds `offset`.
    pub segment: u32,
}

#[derive(Default)]
pub struct Segments {
    all: Vec<Segment>,
    /// Entries of `all` that are not in use.
    unused: Vec<u32>,
    lowest: u32,
    /// Those that are free, in no order.
    pub free: Vec<u32>,
    /// By tensor, where it lies.
    segment_of: Vec<u32>,
}

impl Index<u32> for Segments {
    type Output = Segment;

    fn index(&self, segment: u32) -> &Segment {
        &self.all[segment as usize]
    }
}

impl IndexMut<u32> for Segments {
    fn index_mut(&mut self, segment: u32) -> &mut Segment {
        &mut self.all[segment as usize]
    }
}

impl Segments {
    /// Everything is free, but for the tensors of `initial`, with their offsets and what they take.
    pub fn reset(&mut self, capacity_bytes: u64, tensors: usize, initial: &mut [(u64, u64, u32)]) {
        self.all.clear();
        self.unused.clear();
        self.free.clear();
        self.segment_of.clear();
        self.segment_of.resize(tensors, END);
        let mut segment = self.insert(Segment {
            begin: 0,
            end: capacity_bytes,
            owner: NOBODY,
            after: After::default(),
            below: END,
            above: END,
            free_at: END,
            tried_in: 0,
            priced_in: 0,
            cost: 0.0,
            is_late: false,
        });
        self.lowest = segment;
        initial.sort_unstable();
        for &mut (offset, takes, tensor) in initial {
            if takes > 0 {
                // The last segment is the free rest.
                self.occupy(Place { offset, segment }, takes, tensor);
                let own = self.segment_of[tensor as usize];
                segment = self[own].above;
            }
        }
    }

    /// The segment in which a tensor lies, or [`END`].
    pub fn segment_of(&self, tensor: u32) -> u32 {
        self.segment_of[tensor as usize]
    }

    /// Takes a place in which nobody lies: since when it is free.
    pub fn occupy(&mut self, place: Place, bytes: u64, owner: u32) -> After {
        if bytes == 0 {
            return After::default();
        }
        let (begin, end) = (place.offset, place.offset + bytes);
        let left = self[place.segment];
        let mut right = left;
        let mut after = left.after;
        let mut at = place.segment;
        while right.end < end {
            self.release(at);
            at = right.above;
            right = self[at];
            after = after.and(right.after);
        }
        self.release(at);
        let mut below = left.below;
        if left.begin < begin {
            below = self.insert_above(below, Segment { end: begin, ..left });
        }
        let own = Segment {
            begin,
            end,
            owner,
            after,
            ..left
        };
        below = self.insert_above(below, own);
        self.segment_of[owner as usize] = below;
        if right.end > end {
            let rest = Segment {
                begin: end,
                ..right
            };
            below = self.insert_above(below, rest);
        }
        self.link(below, right.above);
        after
    }

    /// The place that begins at an offset.
    pub fn at(&self, offset: u64) -> Place {
        let mut segment = self.lowest;
        while self[segment].end <= offset && self[segment].above != END {
            segment = self[segment].above;
        }
        Place { offset, segment }
    }

    /// The place that begins where a tensor ends.
    pub fn above(&self, tensor: u32) -> Place {
        let own = &self[self.segment_of(tensor)];
        Place {
            offset: own.end,
            segment: own.above,
        }
    }

    /// The tensor is gone.
    pub fn free(&mut self, tensor: u32, after: After) {
        let at = std::mem::replace(&mut self.segment_of[tensor as usize], END);
        if at == END {
            return;
        }
        self.vacate(at, after);
        let is_same = |s: u32| {
            s != END && {
                let s = &self[s];
                s.owner == NOBODY && s.after == after
            }
        };
        let Segment { below, above, .. } = self[at];
        let (joins_below, joins_above) = (is_same(below), is_same(above));
        if joins_above {
            self.join(at, above);
        }
        if joins_below {
            self.join(below, at);
        }
    }

    /// Joins a segment with the one above it.
    fn join(&mut self, low: u32, high: u32) {
        let Segment { end, above, .. } = self[high];
        self.release(high);
        self[low].end = end;
        self.link(low, above);
    }

    /// Whoever lay there is gone.
    pub fn vacate(&mut self, at: u32, after: After) {
        let free_at = self.free.len() as u32;
        self.free.push(at);
        let segment = &mut self[at];
        segment.owner = NOBODY;
        segment.after = after;
        segment.free_at = free_at;
    }

    fn insert_above(&mut self, below: u32, segment: Segment) -> u32 {
        let at = self.insert(segment);
        self.link(below, at);
        at
    }

    fn link(&mut self, low: u32, high: u32) {
        if low == END {
            self.lowest = high;
        } else {
            self[low].above = high;
        }
        if high != END {
            self[high].below = low;
        }
    }

    fn insert(&mut self, segment: Segment) -> u32 {
        let at = self.unused.pop().unwrap_or(self.all.len() as u32);
        let segment = Segment {
            tried_in: 0,
            priced_in: 0,
            ..segment
        };
        match self.all.get_mut(at as usize) {
            Some(old) => *old = segment,
            None => self.all.push(segment),
        }
        if segment.owner == NOBODY {
            self.vacate(at, segment.after);
        }
        at
    }

    /// The segment is no more.
    fn release(&mut self, at: u32) {
        let Segment { owner, free_at, .. } = self[at];
        if owner == NOBODY {
            self.free.swap_remove(free_at as usize);
            if let Some(&moved) = self.free.get(free_at as usize) {
                self[moved].free_at = free_at;
            }
        }
        self.unused.push(at);
    }

    /// The next segment up, or down from the top.
    pub fn onward(&self, from_top: bool, at: u32) -> u32 {
        let segment = &self[at];
        if from_top {
            segment.below
        } else {
            segment.above
        }
    }

    /// Bytes from the start of one segment to the far end of another.
    pub fn reach(&self, from_top: bool, first: u32, last: u32) -> u64 {
        let (first, last) = (&self[first], &self[last]);
        match from_top {
            true => first.end - last.begin,
            false => last.end - first.begin,
        }
    }

    /// Bytes from the start of one segment to that of a later one.
    pub fn distance(&self, from_top: bool, first: u32, later: u32) -> u64 {
        let (first, later) = (&self[first], &self[later]);
        match from_top {
            true => first.end - later.end,
            false => later.begin - first.begin,
        }
    }
}
