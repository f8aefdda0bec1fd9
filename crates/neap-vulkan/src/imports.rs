//! Memory that the device sees, found by address: imports of the host's memory, or blocks of its own.
//!
//! ```text
//!   memory     │░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░│
//!   imports    ├──── A ────┤
//!                    ├──── B ────┤                     each twice as long as they are apart:
//!                          ├──── C ────┤               what is no longer than that lies in one of them
//! ```

use crate::error::{Tried, VulkanError};
use crate::gpu::Gpu;
use ash::vk;
use std::sync::Arc;

/// One import, and a buffer over it.
pub(crate) struct Import {
    start: usize,
    bytes: u64,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    gpu: Arc<Gpu>,
}

/// Where the device finds memory of the host.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Found {
    pub buffer: vk::Buffer,
    pub offset: u64,
}

impl Import {
    /// For jobs.
    ///
    /// # Safety
    /// The range is memory of this process, in whole pages, and stays so while the import lives.
    unsafe fn new(gpu: &Arc<Gpu>, start: *mut u8, bytes: u64) -> Result<Import, VulkanError> {
        // SAFETY: passed on.
        unsafe { Import::with(gpu, start, bytes, vk::BufferUsageFlags::STORAGE_BUFFER) }
    }

    /// For copies.
    ///
    /// # Safety
    /// As [`Import::new`].
    pub(crate) unsafe fn for_copies(
        gpu: &Arc<Gpu>,
        start: *mut u8,
        bytes: u64,
    ) -> Result<Import, VulkanError> {
        let usage = vk::BufferUsageFlags::TRANSFER_SRC | vk::BufferUsageFlags::TRANSFER_DST;
        // SAFETY: passed on.
        unsafe { Import::with(gpu, start, bytes, usage) }
    }

    /// # Safety
    /// As [`Import::new`].
    unsafe fn with(
        gpu: &Arc<Gpu>,
        start: *mut u8,
        bytes: u64,
        usage: vk::BufferUsageFlags,
    ) -> Result<Import, VulkanError> {
        let host = vk::ExternalMemoryHandleTypeFlags::HOST_ALLOCATION_EXT;
        let pointer = start.cast();
        let mut properties = vk::MemoryHostPointerPropertiesEXT::default();
        let mut external = vk::ExternalMemoryBufferCreateInfo::default().handle_types(host);
        let info = vk::BufferCreateInfo::default()
            .size(bytes)
            .usage(usage)
            .push_next(&mut external);
        // SAFETY: what the information points to lives; the range is as the caller says.
        unsafe {
            let asked = (gpu.import.fp().get_memory_host_pointer_properties_ext)(
                gpu.functions.handle(),
                host,
                pointer,
                &mut properties,
            );
            asked.result().tried("imports no memory")?;
            let buffer = gpu.functions.create_buffer(&info, None);
            let mut import = Import {
                start: start.addr(),
                bytes,
                buffer: buffer.tried("makes no buffer")?,
                memory: vk::DeviceMemory::null(),
                gpu: gpu.clone(),
            };
            let needs = gpu.functions.get_buffer_memory_requirements(import.buffer);
            let allowed = properties.memory_type_bits & needs.memory_type_bits;
            let ty = gpu.memory_type(allowed);
            let ty = ty.ok_or_else(|| {
                let lacks = "the host's memory is not coherent for it";
                VulkanError::NoDevice(format!("{}: {lacks}", gpu.name()))
            })?;
            let mut from = vk::ImportMemoryHostPointerInfoEXT::default()
                .handle_type(host)
                .host_pointer(pointer);
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(bytes)
                .memory_type_index(ty)
                .push_next(&mut from);
            let memory = gpu.functions.allocate_memory(&info, None);
            import.memory = memory.tried("imports no memory")?;
            let bound = (gpu.functions).bind_buffer_memory(import.buffer, import.memory, 0);
            bound.tried("binds no memory")?;
            Ok(import)
        }
    }

    pub(crate) fn find(&self, start: usize, bytes: u64) -> Option<Found> {
        let offset = start.checked_sub(self.start)? as u64;
        (offset.checked_add(bytes)? <= self.bytes).then_some(Found {
            buffer: self.buffer,
            offset,
        })
    }
}

impl Drop for Import {
    fn drop(&mut self) {
        // SAFETY: the device is done with it: whoever holds imports waits for that.
        unsafe {
            self.gpu.functions.destroy_buffer(self.buffer, None);
            self.gpu.functions.free_memory(self.memory, None);
        }
    }
}

/// The memory of a plan, and of callers while jobs read it.
#[derive(Default)]
pub(crate) struct Imports {
    /// By address.
    standing: Vec<Import>,
    /// Until nothing is in flight.
    passing: Vec<Import>,
    /// The plan's memory is blocks of the device.
    has_blocks: bool,
}

impl Imports {
    /// # Safety
    /// The range stays memory of this process until [`Imports::clear`].
    pub(crate) unsafe fn add(
        &mut self,
        gpu: &Arc<Gpu>,
        start: *mut u8,
        bytes: u64,
    ) -> Result<(), VulkanError> {
        if gpu.blocks.find(start.addr(), bytes).is_some() {
            // Its own.
            self.has_blocks = true;
            return Ok(());
        }
        let align = gpu.limits.import_align;
        if !(start.addr() as u64).is_multiple_of(align) || !bytes.is_multiple_of(align) {
            return Err(VulkanError::NoDevice(format!(
                "{} imports memory in pieces of {align} bytes, which the plan's is not",
                gpu.name()
            )));
        }
        let stride = gpu.limits.import_stride().max(align);
        let mut offset = 0;
        while offset < bytes {
            let len = (2 * stride).min(bytes - offset);
            // SAFETY: passed on.
            let import = unsafe { Import::new(gpu, start.wrapping_add(offset as usize), len) }?;
            let at = (self.standing).partition_point(|other| other.start < import.start);
            self.standing.insert(at, import);
            if offset + len == bytes {
                break;
            }
            offset += stride;
        }
        Ok(())
    }

    /// Where a range of at most the limits' operand is; a range that is nobody's is imported for a while.
    ///
    /// # Safety
    /// The range stays memory of this process until [`Imports::pass`].
    pub(crate) unsafe fn find(
        &mut self,
        gpu: &Arc<Gpu>,
        start: *const u8,
        bytes: u64,
    ) -> Result<Found, VulkanError> {
        let at = start.addr();
        if let Some(found) = self.standing(gpu, at, bytes) {
            return Ok(found);
        }
        if let Some(found) = (self.passing.iter()).find_map(|i| i.find(at, bytes)) {
            return Ok(found);
        }
        let align = gpu.limits.import_align as usize;
        let before = at % align;
        let len = (before + bytes as usize).next_multiple_of(align);
        let first = start.wrapping_sub(before).cast_mut();
        // SAFETY: passed on; the pages around a range are there with it.
        let import = unsafe { Import::new(gpu, first, len as u64) }?;
        let found = import.find(at, bytes);
        self.passing.push(import);
        found.ok_or_else(|| VulkanError::NoDevice("an import is too small".into()))
    }

    /// The same of the plan's memory.
    pub(crate) fn standing(&self, gpu: &Gpu, start: usize, bytes: u64) -> Option<Found> {
        if self.has_blocks {
            return gpu.blocks.find(start, bytes);
        }
        let behind = (self.standing).partition_point(|import| import.start <= start);
        let near = self.standing[..behind].iter().rev().take(2);
        { near }.find_map(|import| import.find(start, bytes))
    }

    /// Nothing is in flight: what was imported for a while goes.
    pub(crate) fn pass(&mut self) {
        self.passing.clear();
    }

    /// Nothing is in flight: everything goes.
    pub(crate) fn clear(&mut self) {
        self.standing.clear();
        self.passing.clear();
        self.has_blocks = false;
    }
}
