//! How long a search may take: counted work, so that it is deterministic, and a question to the caller.

/// The question is asked about once per this much work: well under a millisecond.
const ASK_EVERY: u64 = 1 << 18;

/// A unit of work is about a nanosecond.
pub struct Effort<'a> {
    work_left: u64,
    until_asked: u64,
    stop: &'a mut dyn FnMut() -> bool,
}

impl<'a> Effort<'a> {
    /// At most `work`, and no longer than until `stop` says so.
    pub fn new(work: u64, stop: &'a mut dyn FnMut() -> bool) -> Self {
        Self {
            work_left: work,
            until_asked: 0,
            stop,
        }
    }

    /// Whether there is nothing left.
    pub fn spent(&self) -> bool {
        self.work_left == 0
    }

    /// Takes some work off; false when there is nothing left.
    pub fn take(&mut self, work: u64) -> bool {
        self.work_left = self.work_left.saturating_sub(work);
        if self.until_asked > work {
            self.until_asked -= work;
        } else {
            self.until_asked = ASK_EVERY;
            if (self.stop)() {
                self.work_left = 0;
            }
        }
        self.work_left > 0
    }

    /// Up to `work` of what is left, as an effort of its own; what it takes is taken off here, too.
    pub fn slice<T>(&mut self, work: u64, run: impl FnOnce(&mut Effort<'_>) -> T) -> T {
        let granted = work.min(self.work_left);
        let mut stopped = false;
        let outer = &mut *self.stop;
        let mut stop = || {
            stopped = outer();
            stopped
        };
        let mut slice = Effort {
            work_left: granted,
            until_asked: self.until_asked,
            stop: &mut stop,
        };
        let result = run(&mut slice);
        let (left, until_asked) = (slice.work_left, slice.until_asked);
        self.until_asked = until_asked;
        self.work_left = if stopped {
            0
        } else {
            self.work_left - granted + left
        };
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted_through_slices() {
        let mut never = || false;
        let mut effort = Effort::new(100, &mut never);
        assert!(effort.take(10));
        let spent = effort.slice(30, |slice| {
            assert!(slice.take(29));
            !slice.take(5)
        });
        assert!(spent);
        assert!(effort.take(59));
        assert!(!effort.spent() && !effort.take(1) && effort.spent());
    }

    #[test]
    fn being_stopped_in_a_slice_is_being_stopped() {
        let mut asked = 0;
        let mut stop = || {
            asked += 1;
            asked == 2
        };
        let mut effort = Effort::new(u64::MAX, &mut stop);
        effort.slice(u64::MAX, |slice| {
            assert!(slice.take(1));
            assert!(!slice.take(ASK_EVERY));
        });
        assert!(effort.spent());
    }
}
