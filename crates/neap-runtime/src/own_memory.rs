//! Devices that have memory of their own: blocks of it, in which a plan's spaces lie, and links to the host's memory.
//!
//! ```text
//!   storage ──► pinned memory of the host ──link──► block of the device ◄── jobs
//!               (a ring of slots)          ◄─link──
//! ```

use crate::device::MemoryRange;

/// Memory of a device, mapped here: an address in it is one of this process too, though it may be slow to use.
/// It is zeroed when it is new.
pub trait Block: std::fmt::Debug + Send {
    fn range(&self) -> MemoryRange;
}

/// So many bytes from one place to another, one of which is in a device's block and the other in memory that the link has
/// pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    pub from: *const u8,
    pub to: *mut u8,
    pub bytes: u64,
}

/// Copies between memory of the host and a device's blocks, beside what the device computes.
pub trait Link: Send {
    /// Zeroed memory of the host, in whole pages, that copies may name for as long as the link lives.
    ///
    /// # Errors
    /// Why it cannot be had.
    fn pin(&mut self, bytes: u64) -> Result<MemoryRange, String>;

    /// Starts these copies behind those before, and says by what ticket they are known. Tickets count upwards from 1.
    ///
    /// # Errors
    /// Why the device takes no copies; nothing was started.
    ///
    /// # Safety
    /// Nothing else writes what is copied, nor uses where it is copied to, until the ticket is reached or the link is dropped.
    /// Both stay where they are until then.
    unsafe fn copy(&mut self, transfers: &[Transfer]) -> Result<u64, String>;

    /// Copies of this ticket and all before are complete: jobs that are submitted from now on see them.
    ///
    /// # Errors
    /// Why that will never be known.
    fn reached(&mut self) -> Result<u64, String>;

    /// Waits until the ticket is reached.
    ///
    /// # Errors
    /// As [`Link::reached`].
    fn wait(&mut self, ticket: u64) -> Result<(), String>;
}

/// Makes blocks and links.
pub trait OwnMemory {
    /// # Errors
    /// Why the device has no such block, in one line.
    fn block(&mut self, bytes: u64) -> Result<Box<dyn Block>, String>;

    /// # Errors
    /// Why there is no link, in one line.
    fn link(&mut self) -> Result<Box<dyn Link>, String>;
}

/// The memory of a device, as an [`Accelerator`](crate::Accelerator) tells it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OwnMemoryFigures {
    /// Taken before any block, as measured: code, queues and tables of the driver. 0 where the device does not tell.
    pub reserve_bytes: u64,
    /// The most that blocks may have together.
    pub most_bytes: u64,
    /// The most that blocks have had so far.
    pub peak_bytes: u64,
}
