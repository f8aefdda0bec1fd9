//! What passes through connections, counted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::Poll;

/// Of all addresses together, since the server began.
#[derive(Debug, Default)]
pub struct Traffic {
    pub received_bytes: AtomicU64,
    pub sent_bytes: AtomicU64,
    /// Connections that came.
    pub accepted: AtomicU64,
    /// Those that found no place but at the door.
    pub turned_away: AtomicU64,
    /// Those that were closed for others, as nothing was asked on them.
    pub given_up: AtomicU64,
    /// Those that were closed because nothing was asked on them for too long, or an answer was not taken.
    pub timed_out: AtomicU64,
    /// Those that are open.
    pub open: AtomicU64,
}

impl Traffic {
    pub fn note_sent(&self, sent: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = sent {
            self.sent_bytes.fetch_add(*bytes as u64, Relaxed);
        }
    }
}
