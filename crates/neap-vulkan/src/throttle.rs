//! A slower link than there is: copies are told to be complete no earlier than one of a given rate would end them.
//!
//! ```text
//!   copies       ├ t1 ┤├ t2 ┤
//!   as slow as   ├──── t1 ────┤├──── t2 ────┤      one after the other, each way by itself
//!   told                      ▲             ▲
//! ```

use std::collections::VecDeque;
use std::time::{Duration, Instant};

pub(crate) struct Throttle {
    bytes_per_second: f64,
    /// When the slow link is done with all copies to the device, and to the host.
    idle_at: [Instant; 2],
    /// Tickets that are not due yet, in order.
    due: VecDeque<(u64, Instant)>,
}

impl Throttle {
    /// With room for so many tickets.
    pub(crate) fn new(bytes_per_second: f64, tickets: usize) -> Throttle {
        Throttle {
            bytes_per_second,
            idle_at: [Instant::now(); 2],
            due: VecDeque::with_capacity(tickets),
        }
    }

    /// Copies of that ticket begin: so many bytes to the device and to the host.
    pub(crate) fn begin(&mut self, ticket: u64, bytes: [u64; 2]) {
        let now = Instant::now();
        for (idle_at, bytes) in self.idle_at.iter_mut().zip(bytes) {
            let taken = Duration::from_secs_f64(bytes as f64 / self.bytes_per_second);
            if bytes > 0 {
                *idle_at = now.max(*idle_at) + taken;
            }
        }
        let ends = (self.idle_at.iter().zip(bytes)).filter(|(_, bytes)| *bytes > 0);
        let end = ends.map(|(at, _)| *at).max().unwrap_or(now);
        // Tickets are told in order.
        let end = self.due.back().map_or(end, |(_, before)| end.max(*before));
        self.due.push_back((ticket, end));
    }

    /// Of what has really been reached, what the slow link has reached.
    pub(crate) fn reached(&mut self, reached: u64) -> u64 {
        let now = Instant::now();
        while let Some(&(ticket, due)) = self.due.front() {
            if due > now {
                return reached.min(ticket - 1);
            }
            self.due.pop_front();
        }
        reached
    }

    /// Sleeps until the ticket is due.
    pub(crate) fn wait(&self, ticket: u64) {
        let found = self.due.iter().find(|(known, _)| *known == ticket);
        if let Some((_, due)) = found {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_their_time_each_way() {
        let mut throttle = Throttle::new(1e6, 4);
        let begin = Instant::now();
        throttle.begin(1, [20_000, 0]);
        throttle.begin(2, [0, 20_000]);
        throttle.begin(3, [20_000, 0]);
        assert_eq!(throttle.reached(3), 0);
        throttle.wait(2);
        let both = begin.elapsed();
        assert!(both >= Duration::from_millis(20));
        assert!(throttle.reached(3) >= 2);
        throttle.wait(3);
        assert!(begin.elapsed() >= Duration::from_millis(40));
        assert_eq!(throttle.reached(2), 2);
        assert_eq!(throttle.reached(3), 3);
    }
}
