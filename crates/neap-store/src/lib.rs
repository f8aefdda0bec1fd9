//! The packed model file and the sources that read it with direct I/O.
//!
//! A `.neap` file is written once by [`PackWriter`] and opened by [`PackedFile`], which
//! checks its header and tables before anything in them is believed. Weights are then read
//! by a [`Source`] straight to the address where the plan wants them, past the page cache,
//! and checked by a [`Verifier`]. The format is described in `docs/neap-format.md`.
//!
//! ```
//! use neap_store::{BLOCK, IoMode, LoadTag, PackWriter, PackedFile, AlignedBuf};
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("m.neap");
//! let mut writer = PackWriter::create(&path)?;
//! let offset = writer.append(b"weights")?;
//! writer.finish(b"table of contents")?;
//!
//! let mut file = PackedFile::open(&path)?;
//! assert_eq!(file.toc(), b"table of contents");
//! let mut verifier = file.take_verifier()?;
//! let mut source = file.open_source(IoMode::Auto)?;
//! let mut arena = AlignedBuf::zeroed(BLOCK)?;
//! // SAFETY: `arena` is not touched until the load is reported done.
//! unsafe { source.submit(LoadTag(7), offset, arena.as_mut_ptr(), BLOCK)? };
//! source.poll(true, &mut |tag| assert_eq!(tag, LoadTag(7)))?;
//! verifier.verify(offset, &arena)?;
//! assert_eq!(&arena[..7], b"weights");
//! # Ok::<(), neap_store::StoreError>(())
//! ```
//!
//! Activations that leave memory for a while go to a [`Spill`] file and come back from it.
//!
//! All offsets are absolute byte offsets in the file. Loads start and end at multiples of
//! [`BLOCK`]; destinations are aligned to [`BLOCK`] too.

mod bandwidth;
mod block_reader;
mod buffer;
mod checksum;
mod data_reader;
mod direct;
mod empty;
mod error;
mod header;
mod identity;
mod joined;
mod load;
mod memory;
mod plain;
mod pread;
mod probe;
mod queue;
mod reader;
mod source;
mod spill;
mod spill_rates;
mod stamp;
mod stored_sums;
mod temporary;
mod throttle;
mod uring;
mod verify;
mod writer;

pub use bandwidth::{
    Bandwidth, LARGE_PAGE_BYTES, Reader as BandwidthReader, measure_bandwidth,
    measure_source_bandwidth,
};
pub use block_reader::BlockReader;
pub use buffer::AlignedBuf;
pub use data_reader::DataReader;
pub use direct::DirectFile;
pub use empty::EmptySource;
pub use error::StoreError;
pub use header::{FORMAT_VERSION, MAGIC};
pub use identity::{FileIdentity, Sighting};
pub use load::{LoadTag, RangeRead};
pub use memory::{Fault, FaultScript, MemoryModel, MemorySource, RandomFaults, VirtualClock};
pub use plain::{open_joined, open_plain};
pub use pread::{PreadConfig, PreadSource};
pub use probe::{Impression, PROBE_MEMORY_BYTES, probe};
pub use reader::PackedFile;
pub use source::{IoMode, Source, Spill, open_source};
pub use spill::open_spill;
pub use spill_rates::{SPILL_PROBE_BYTES, SpillRates, measure_spill};
pub use stamp::Stamp;
pub use stored_sums::StoredSums;
pub use throttle::ThrottledSource;
pub use uring::{UringConfig, UringSource};
pub use verify::Verifier;
pub use writer::PackWriter;

/// Unit of checksums, reads and the file's layout, in bytes.
pub const BLOCK: usize = 4096;

/// [`BLOCK`] as a file offset.
pub(crate) const BLOCK_U64: u64 = BLOCK as u64;

/// Whether `bytes`, a length, offset or address, is a multiple of [`BLOCK`].
pub(crate) fn is_whole_blocks(bytes: u64) -> bool {
    bytes & (BLOCK_U64 - 1) == 0
}

/// `bytes` rounded up to a whole number of blocks; `None` when that overflows.
pub(crate) fn round_up_to_block(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(BLOCK_U64)
}
