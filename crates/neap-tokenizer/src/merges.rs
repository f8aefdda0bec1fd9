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
        triples(&mut |left, _, _| {
            let count = &mut starts[left as usize + 2];
            *count = U24::new(count.get() + 1);
        })?;
        for at in 1..starts.len() {
            starts[at] = U24::new(starts[at].get() + starts[at - 1].get());
        }
        let none = Pair {
            right: U24::NONE,
            rank: U24::NONE,
        };
        let mut pairs = vec![none; count].into_boxed_slice();
        let mut merged = Vec::with_capacity(count);
        triples(&mut |left, right, id| {
            let place = &mut starts[left as usize + 1];
            // There are as many as were counted, unless the file changed meanwhile.
            if let Some(pair) = pairs.get_mut(place.at()) {
                *pair = Pair {
                    right: U24::new(right),
                    rank: U24::new(merged.len() as u32),
                };
                *place = U24::new(place.get() + 1);
                merged.push(U24::new(id));
            }
        })?;
        for left in 0..tokens {
            let group = starts[left].at()..starts[left + 1].at();
            pairs[group].sort_unstable_by_key(|pair| (pair.right.get(), pair.rank.get()));
        }
        Ok(Merges {
            starts,
            pairs,
            merged: Merged::new(merged),
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

impl Merged {
    fn new(ids: Vec<U24>) -> Self {
        let least: Box<[U24]> = ids
            .chunks(BLOCK)
            .map(|block| U24::new(block.iter().map(|id| id.get()).min().unwrap_or(0)))
            .collect();
        let more = ids.iter().enumerate();
        let more: Option<Box<[u8]>> = more
            .map(|(rank, id)| u8::try_from(id.get() - least[rank / BLOCK].get()).ok())
            .collect();
        match more {
            Some(more) => Merged::Ordered { least, more },
            None => Merged::Any(ids.into_boxed_slice()),
        }
    }

    fn get(&self, rank: usize) -> u32 {
        match self {
            Merged::Ordered { least, more } => least[rank / BLOCK].get() + u32::from(more[rank]),
            Merged::Any(ids) => ids[rank].get(),
        }
    }
}
