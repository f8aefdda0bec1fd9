//! Sums of fractions, rounded up, so that "at most 1" is never claimed wrongly.

/// A sum of fractions in units of 2⁻⁶⁴, each rounded up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(u128);

impl Share {
    pub const ONE: Share = Share(1 << 64);

    /// `part / whole`; `whole` is not 0.
    pub fn of(part: u64, whole: u64) -> Share {
        Share((u128::from(part) << 64).div_ceil(u128::from(whole)))
    }

    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Share::ONE.0 as f64
    }
}

impl std::ops::Add for Share {
    type Output = Share;

    fn add(self, other: Share) -> Share {
        Share(self.0.saturating_add(other.0))
    }
}

impl std::iter::Sum for Share {
    fn sum<I: Iterator<Item = Share>>(shares: I) -> Share {
        shares.fold(Share::default(), |sum, share| sum + share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_never_too_small() {
        let thirds: Share = [Share::of(1, 3); 3].into_iter().sum();
        assert!(thirds > Share::ONE && thirds.as_f64() < 1.0 + 1e-15);
        let halves: Share = [Share::of(1, 2); 2].into_iter().sum();
        assert_eq!(halves, Share::ONE);
    }
}
