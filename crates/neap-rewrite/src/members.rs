//! `Members`: the values of a class, and which of them may be where and when another value is.

use neap_ir::ValueId;
use std::collections::{BTreeMap, BTreeSet};

/// Fewer are looked through.
const FEW: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub value: ValueId,
    /// Relative to the class's root value; may be negative.
    pub offset: i64,
    pub bytes: i64,
    /// The node after which nobody reads it.
    pub last: usize,
}

#[derive(Default)]
pub(crate) struct Members {
    all: Vec<Member>,
    index: Option<Index>,
}

/// Places in `all`.
#[derive(Default)]
struct Index {
    by_last: BTreeSet<(usize, usize)>,
    /// By size, as a power of two, and offset: what lies at a place begins at most its size before it.
    by_place: BTreeMap<u32, BTreeSet<(i64, usize)>>,
}

impl Index {
    fn add(&mut self, at: usize, member: &Member) {
        self.by_last.insert((member.last, at));
        let level = level(member.bytes);
        let places = self.by_place.entry(level).or_default();
        places.insert((member.offset, at));
    }

    /// Those that some step reads from `def` on, or those near `begin..end`: whichever are fewer.
    fn near(&self, begin: i64, end: i64, def: usize) -> Vec<usize> {
        let mut by_last = self.by_last.range((def, 0)..);
        let levels = self.by_place.iter();
        let mut by_place = levels.flat_map(|(&level, places)| {
            let from = begin.saturating_sub(1i64 << (level + 1).min(62));
            places.range((from, 0)..(end, 0))
        });
        let (mut later, mut nearer) = (Vec::new(), Vec::new());
        loop {
            match by_last.next() {
                Some(&(_, at)) => later.push(at),
                None => return later,
            }
            match by_place.next() {
                Some(&(_, at)) => nearer.push(at),
                None => return nearer,
            }
        }
    }
}

fn level(bytes: i64) -> u32 {
    bytes.max(1).ilog2()
}

impl Members {
    pub fn of(member: Member) -> Members {
        Members {
            all: vec![member],
            index: None,
        }
    }

    pub fn push(&mut self, member: Member) {
        self.all.push(member);
        match &mut self.index {
            Some(index) => index.add(self.all.len() - 1, &member),
            None if self.all.len() > FEW => {
                let mut index = Index::default();
                for (at, member) in self.all.iter().enumerate() {
                    index.add(at, member);
                }
                self.index = Some(index);
            }
            None => {}
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = &Member> {
        self.all.iter()
    }

    /// All that lie in part in `begin..end` and are read from node `def` on, and perhaps others.
    pub fn near(&self, begin: i64, end: i64, def: usize) -> impl Iterator<Item = &Member> {
        let places = match &self.index {
            Some(index) => index.near(begin, end, def),
            None => (0..self.all.len()).collect(),
        };
        places.into_iter().map(|at| &self.all[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(i: usize, offset: i64, bytes: i64, last: usize) -> Member {
        Member {
            value: ValueId(i as u32),
            offset,
            bytes,
            last,
        }
    }

    #[test]
    fn all_that_may_clash_are_found() {
        let mut state = 7u64;
        let mut random = |most: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % most
        };
        let mut members = Members::default();
        for i in 0..500 {
            let bytes = 1 << random(9) | random(4) as i64;
            members.push(member(
                i,
                random(3000) as i64 - 500,
                bytes,
                random(100) as usize,
            ));
            let (begin, def) = (random(3000) as i64 - 500, random(100) as usize);
            let end = begin + 1 + random(300) as i64;
            let found: Vec<&Member> = members.near(begin, end, def).collect();
            let clashes =
                |m: &&Member| m.offset < end && begin < m.offset + m.bytes && m.last >= def;
            assert!(members.iter().filter(clashes).all(|m| found.contains(&m)));
        }
    }

    #[test]
    fn few_are_looked_at_in_chains_and_in_lists() {
        let (mut chain, mut list) = (Members::default(), Members::default());
        list.push(member(0, 0, 64 << 20, 20_000));
        for i in 0..20_000 {
            let looked_at =
                |members: &Members, offset| members.near(offset, offset + 64, i).count();
            assert!(looked_at(&chain, 0) <= FEW);
            chain.push(member(i, 0, 64, i + 1));
            let offset = 64 * i as i64;
            assert!(looked_at(&list, offset) <= FEW);
            list.push(member(i, offset, 64, 20_000));
        }
    }
}
