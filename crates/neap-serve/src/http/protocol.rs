//! How clients talk, and what their connections may keep.

use super::places::AT_THE_DOOR;

/// What a connection keeps of a request's head, at most.
pub const HEAD_BYTES: usize = 32 << 10;

/// The same at the door.
pub const DOOR_HEAD_BYTES: usize = 8 << 10;

/// What a client of gRPC may send before it is read.
pub const WINDOW_BYTES: u32 = 64 << 10;

/// How clients talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Http1,
    /// As gRPC does.
    Http2,
}

impl Protocol {
    /// For all connections of one address, those at the door too: their buffers, their tasks.
    pub fn connections_bytes(self, count: usize, tls_bytes: u64) -> u64 {
        let (own, at_the_door) = match self {
            Protocol::Http1 => (2 * HEAD_BYTES as u64, 2 * DOOR_HEAD_BYTES as u64),
            Protocol::Http2 => {
                let both = u64::from(WINDOW_BYTES) + HEAD_BYTES as u64;
                (both, both)
            }
        };
        let one = |buffers: u64| buffers + (16 << 10) + tls_bytes;
        count as u64 * one(own) + AT_THE_DOOR as u64 * one(at_the_door)
    }
}
