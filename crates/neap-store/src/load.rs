//! What a load is called, and one read of a batch.

/// The caller's name for a load, given back when it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LoadTag(pub u64);

/// One read of a batch; offset, address and length are multiples of [`BLOCK`](crate::BLOCK).
#[derive(Clone, Copy, Debug)]
pub struct RangeRead {
    pub file_offset: u64,
    pub dst: *mut u8,
    pub len_bytes: usize,
}

// SAFETY: the address is only a number here; who writes through it is settled by the contract
// of `Source::read_ranges`.
unsafe impl Send for RangeRead {}
