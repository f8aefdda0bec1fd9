//! Drafts by a look into the text: what followed the last tokens before may follow again.

/// Longest match that is looked for.
const MOST_MATCH: usize = 16;

/// Shortest match that is worth a draft, after one that was right and at most.
const LEAST_MATCH: usize = 3;
const MOST_LEAST_MATCH: usize = 12;

/// How long a match must be for one text: longer after drafts that were wrong.
#[derive(Debug, Clone)]
pub(crate) struct Gate {
    least: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Gate { least: LEAST_MATCH }
    }
}

impl Gate {
    /// At most `most` tokens that may follow the text.
    pub fn draft<'a>(&self, text: &'a [u32], most: usize) -> &'a [u32] {
        let Some((end, length)) = longest_match(text).filter(|(_, l)| *l >= self.least) else {
            return &[];
        };
        let trust = 2 * (length - LEAST_MATCH + 1);
        let count = most.min(trust).min(text.len() - end);
        &text[end..][..count]
    }

    /// How many of the drafted tokens were right.
    pub fn learn(&mut self, drafted: usize, right: usize) {
        if drafted == 0 {
            return;
        }
        self.least = match right {
            0 => (self.least + 2).min(MOST_LEAST_MATCH),
            right if right == drafted => LEAST_MATCH,
            _ => self.least,
        };
    }
}

/// Where the longest earlier occurrence of the text's end ends, and its length; of equals the last.
fn longest_match(text: &[u32]) -> Option<(usize, usize)> {
    let last = text.last()?;
    let mut best = None;
    for end in (1..text.len()).rev() {
        if text[end - 1] != *last {
            continue;
        }
        let pairs = text[..end].iter().rev().zip(text.iter().rev());
        let length = pairs.take(MOST_MATCH).take_while(|(a, b)| a == b).count();
        if best.is_none_or(|(_, most)| length > most) {
            best = Some((end, length));
        }
        if length == MOST_MATCH {
            break;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_match_drafts_what_followed_it() {
        let gate = Gate::default();
        // 1 2 3 was followed by 4 5, and the later 2 3 by 9.
        assert_eq!(gate.draft(&[1, 2, 3, 4, 5, 2, 3, 9, 1, 2, 3], 8), [4, 5]);
        assert_eq!(gate.draft(&[1, 2, 3, 4, 5, 2, 3, 9, 1, 2, 3], 1), [4]);
        assert!(gate.draft(&[2, 3, 4, 2, 3], 8).is_empty());
        assert!(gate.draft(&[], 8).is_empty());
        // A loop drafts itself.
        assert_eq!(gate.draft(&[7, 7, 7, 7, 7], 8), [7]);
    }

    #[test]
    fn wrong_drafts_need_longer_matches() {
        let mut gate = Gate::default();
        let text = [1, 2, 3, 4, 1, 2, 3];
        gate.learn(2, 0);
        assert!(gate.draft(&text, 8).is_empty());
        gate.learn(0, 0);
        assert!(gate.draft(&text, 8).is_empty());
        gate.learn(2, 2);
        assert_eq!(gate.draft(&text, 2), [4, 1]);
    }
}
