//! Whether a run makes way for a promised request that waits.
//!
//! ```text
//!   a run in a gap   │ step │ step │ step │ step ┊ what is left ┊
//!                                  ^ a promised request is released: may it wait for so long?   no: the run ends
//!                                                                                              yes: it goes on
//! ```
//! What keeps a promised request waiting is what is left of the run when the request is released, so a long run may go
//! on, too, if its end is near. A promised request that runs before its release is a run in a gap until then; from its release
//! on it is what it would be if it had begun at that time, but shorter. So it makes way for those that were released
//! before it only.
//!
//! Source: the proof in `neap_realtime::demand`, where a hold is counted from the last instant at which no job waits.

/// A run that began in a gap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InGap {
    pub began_ns: u64,
    /// The longest that it is taken to be, if anybody knows.
    pub bound_ns: Option<u64>,
    /// When it is released, if it is promised itself.
    pub released_ns: Option<u64>,
}

impl InGap {
    /// Whether it ends now. The first promised request that waits is released at `promised_ns`, and `room_ns` is the longest
    /// that such requests may be kept waiting.
    pub fn makes_way(&self, now_ns: u64, promised_ns: u64, room_ns: u64) -> bool {
        let own_ns = self.released_ns.unwrap_or(u64::MAX);
        if promised_ns > now_ns.min(own_ns) {
            return false;
        }
        match self.bound_ns {
            None => true,
            Some(bound_ns) => {
                let end_ns = self.began_ns.saturating_add(bound_ns);
                // One that is over its bound may take any time.
                now_ns > end_ns || end_ns.saturating_sub(promised_ns) > room_ns
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_run_counts() {
        let run = InGap {
            began_ns: 100,
            bound_ns: Some(50),
            released_ns: None,
        };
        assert!(!run.makes_way(120, 121, 0), "nobody waits yet");
        assert!(run.makes_way(120, 120, 29));
        assert!(!run.makes_way(120, 120, 30));
        // Later it is the same request that waits, for no longer.
        assert!(run.makes_way(149, 120, 29) && !run.makes_way(149, 120, 30));
        assert!(run.makes_way(151, 120, 1000), "it is over its bound");
        let unknown = InGap {
            bound_ns: None,
            ..run
        };
        assert!(unknown.makes_way(120, 120, 1000) && !unknown.makes_way(120, 121, 0));
    }

    #[test]
    fn one_that_is_promised_makes_way_for_those_before_it_only() {
        let run = InGap {
            began_ns: 100,
            bound_ns: Some(50),
            released_ns: Some(130),
        };
        assert!(run.makes_way(131, 130, 0));
        assert!(!run.makes_way(140, 131, 0));
        assert!(!run.makes_way(120, 130, 0));
    }
}
