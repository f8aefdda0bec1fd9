//! Memory of the host that the device copies from and to: pages of this process, so that storage reads straight to them.

use crate::error::VulkanError;
use crate::gpu::Gpu;
use crate::imports::{Found, Import};
use neap_runtime::MemoryRange;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

/// Storage and imports want whole pages; some devices import larger ones.
const LEAST_ALIGN: usize = 64 << 10;

pub(crate) struct Pinned {
    /// Goes before the memory under it.
    import: Option<Import>,
    start: *mut u8,
    layout: Layout,
}

// SAFETY: the memory belongs to this value alone.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Pinned, VulkanError> {
        let too_much = || VulkanError::NoDevice(format!("the host has not {bytes} bytes for it"));
        let align = LEAST_ALIGN.max(gpu.limits.import_align as usize);
        let whole = usize::try_from(bytes)
            .ok()
            .and_then(|n| n.checked_next_multiple_of(align));
        let layout = whole.and_then(|n| Layout::from_size_align(n.max(align), align).ok());
        let layout = layout.ok_or_else(too_much)?;
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        if start.is_null() {
            return Err(too_much());
        }
        let mut pinned = Pinned {
            import: None,
            start,
            layout,
        };
        // SAFETY: the memory is this value's; it is written so that all of it is charged from now on.
        unsafe { start.write_bytes(0, layout.size()) };
        // SAFETY: whole pages of this process, which outlive the import.
        pinned.import = Some(unsafe { Import::for_copies(gpu, start, layout.size() as u64) }?);
        Ok(pinned)
    }

    pub(crate) fn range(&self) -> MemoryRange {
        MemoryRange {
            start: self.start,
            bytes: self.layout.size() as u64,
        }
    }

    pub(crate) fn find(&self, start: usize, bytes: u64) -> Option<Found> {
        self.import.as_ref()?.find(start, bytes)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.import = None;
        // SAFETY: it was allocated so.
        unsafe { dealloc(self.start, self.layout) };
    }
}
