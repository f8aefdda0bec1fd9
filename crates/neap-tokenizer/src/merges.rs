//! Which pairs of tokens become one, and in which order: six bytes a pair, and about one for what it becomes.

use crate::packed::U24;

#[derive(Debug)]
pub(crate) struct Merges {
    /// `pairs[starts[left]..starts[left + 1]]` begin with the token `left`.
    starts: Box<[U24]>,
    pairs: Box<[Pair]>,
    merged: Merged,
}

/// Sorted by `right` among those with the same left token.
#[derive(Debug, Clone, Copy)]
struct Pair {
    right: U24,
    rank: U24,
}

/// What pairs become, by rank.
#[derive(Debug)]
enum Merged {
    /// Vocabularies that were made by merging have their tokens in the order of merges, or nearly so.
    Ordered {
        /// The least id of each block of ranks, and what ids have more than it.
        least: Box<[U24]>,
        more: Box<[u8]>,
    },
    Any(Box<[U24]>),
}

const BLOCK: usize = 32;

impl Merges {
    /// Takes triples of ids (left, right, merged) in the order of ranks, which `triples` yields each time it is called. All ids
    /// are below `tokens`; there are fewer than 2^24 - 1 triples.
    pub fn new<E>(
        tokens: usize,
        count: usize,
        mut triples: impl FnMut(&mut dyn FnMut(u32, u32, u32)) -> Result<(), E>,
    ) -> Result<Self, E> {
        // Counts two places further than where they will stand: placing moves each by one, and the last is the whole.
        let mut starts = vec![U24::new(0); tokens + 2].into_boxed_slice();
        let mut ranges = Ranges::default();
        triples(&mut |left, _, id| {
            let count = &mut starts[left as usize + 2];
            *count = U24::new(count.get() + 1);
            ranges.push(id);
        })?;
        for at in 1..starts.len() {
            starts[at] = U24::new(starts[at].get() + starts[at - 1].get());
        }
        let none = Pair {
            right: U24::NONE,
            rank: U24::NONE,
        };
        let mut pairs = vec![none; count].into_boxed_slice();
        let mut merged = Merged::new(ranges, count);
        let mut rank = 0;
        triples(&mut |left, right, id| {
            let place = &mut starts[left as usize + 1];
            // There are as many as were counted, unless the file changed meanwhile.
            if let Some(pair) = pairs.get_mut(place.at()) {
                *pair = Pair {
                    right: U24::new(right),
                    rank: U24::new(rank),
                };
                *place = U24::new(place.get() + 1);
                merged.set(rank as usize, id);
                rank += 1;
            }
        })?;
        for left in 0..tokens {
            let group = starts[left].at()..starts[left + 1].at();
            pairs[group].sort_unstable_by_key(|pair| (pair.right.get(), pair.rank.get()));
        }
        Ok(Merges {
            starts,
            pairs,
            merged,
        })
    }

    /// The rank of a pair and the token that it becomes. Of pairs that were given twice the first rank counts.
    pub fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let left = left as usize;
        let group = self.starts[left].at()..self.starts[left + 1].at();
        let group = &self.pairs[group];
        let pair = group.get(group.partition_point(|pair| pair.right.get() < right))?;
        (pair.right.get() == right).then(|| (pair.rank.get(), self.merged.get(pair.rank.at())))
    }

    pub fn memory_bytes(&self) -> usize {
        let merged = match &self.merged {
            Merged::Ordered { least, more } => size_of_val(&**least) + more.len(),
            Merged::Any(ids) => size_of_val(&**ids),
        };
        size_of_val(&*self.starts) + size_of_val(&*self.pairs) + merged
    }
}

/// The least and the greatest id of each block.
#[derive(Default)]
struct Ranges {
    least: Vec<U24>,
    most: Vec<U24>,
    ids: usize,
}

impl Ranges {
    fn push(&mut self, id: u32) {
        if self.ids.is_multiple_of(BLOCK) {
            self.least.push(U24::new(id));
            self.most.push(U24::new(id));
        }
        self.ids += 1;
        if let (Some(least), Some(most)) = (self.least.last_mut(), self.most.last_mut()) {
            *least = U24::new(least.get().min(id));
            *most = U24::new(most.get().max(id));
        }
    }
}

impl Merged {
    /// With room for so many ids.
    fn new(ranges: Ranges, count: usize) -> Self {
        let mut blocks = ranges.least.iter().zip(&ranges.most);
        if blocks.all(|(least, most)| most.get() - least.get() <= u32::from(u8::MAX)) {
            Merged::Ordered {
                least: ranges.least.into_boxed_slice(),
                more: vec![0; count].into_boxed_slice(),
            }
        } else {
            Merged::Any(vec![U24::NONE; count].into_boxed_slice())
        }
    }

    fn set(&mut self, rank: usize, id: u32) {
        match self {
            // Within the range, unless the file changed meanwhile.
            Merged::Ordered { least, more } => {
                more[rank] = id.wrapping_sub(least[rank / BLOCK].get()) as u8
            }
            Merged::Any(ids) => ids[rank] = U24::new(id),
        }
    }

    fn get(&self, rank: usize) -> u32 {
        match self {
            Merged::Ordered { least, more } => least[rank / BLOCK].get() + u32::from(more[rank]),
            Merged::Any(ids) => ids[rank].get(),
        }
    }
}
