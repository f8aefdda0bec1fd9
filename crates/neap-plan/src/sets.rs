//! Sets of bytes as sorted, disjoint ranges that do not touch.

use crate::ByteRange;

/// The set that covers exactly `ranges`, whatever their order.
pub fn set_of(mut ranges: Vec<ByteRange>) -> Vec<ByteRange> {
    ranges.retain(|r| !r.is_empty());
    ranges.sort_unstable_by_key(|r| r.begin);
    let mut set: Vec<ByteRange> = Vec::with_capacity(ranges.len());
    for r in ranges {
        match set.last_mut() {
            Some(last) if r.begin <= last.end => last.end = last.end.max(r.end),
            _ => set.push(r),
        }
    }
    set
}

/// What is in `a` and not in `b`.
pub fn difference(a: &[ByteRange], b: &[ByteRange]) -> Vec<ByteRange> {
    let mut out = Vec::new();
    let mut next = 0;
    for r in a {
        let mut begin = r.begin;
        while next < b.len() && b[next].end <= begin {
            next += 1;
        }
        for cut in b[next..].iter().take_while(|cut| cut.begin < r.end) {
            if begin < cut.begin {
                out.push(ByteRange::new(begin, cut.begin));
            }
            begin = begin.max(cut.end);
        }
        if begin < r.end {
            out.push(ByteRange::new(begin, r.end));
        }
    }
    out
}

pub fn bytes_of(set: &[ByteRange]) -> u64 {
    set.iter().map(|r| r.len()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(ranges: &[ByteRange]) -> Vec<bool> {
        let mut members = vec![false; 64];
        for r in ranges {
            members[r.begin as usize..r.end as usize].fill(true);
        }
        members
    }

    fn some_ranges() -> impl Strategy<Value = Vec<ByteRange>> {
        let range = (0u64..64, 0u64..9).prop_map(|(b, n)| ByteRange::new(b, (b + n).min(64)));
        prop::collection::vec(range, 0..12)
    }

    proptest! {
        #[test]
        fn as_sets_of_bytes(a in some_ranges(), b in some_ranges()) {
            let (set_a, set_b) = (set_of(a.clone()), set_of(b.clone()));
            prop_assert_eq!(members(&set_a), members(&a));
            let left = difference(&set_a, &set_b);
            for set in [&set_a, &set_b, &left] {
                prop_assert!(set.iter().all(|r| !r.is_empty()));
                prop_assert!(set.windows(2).all(|w| w[0].end < w[1].begin));
            }
            let expected: Vec<bool> = members(&a)
                .iter()
                .zip(members(&b))
                .map(|(a, b)| *a && !b)
                .collect();
            prop_assert_eq!(bytes_of(&left), expected.iter().filter(|m| **m).count() as u64);
            prop_assert_eq!(members(&left), expected);
        }
    }
}
