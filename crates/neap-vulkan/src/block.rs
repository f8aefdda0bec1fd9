//! Blocks of a card's own memory, mapped: one allocation and one buffer each.
//!
//! ```text
//!   card      │ block: work ··········· │ block: weights ····· │      jobs and copies use it by its buffer
//!   process   │ mapped ················ │ mapped ············· │      addresses of the plan; slow to read
//! ```

use crate::error::{Tried, VulkanError};
use crate::gpu::Gpu;
use crate::imports::Found;
use ash::vk;
use neap_runtime::MemoryRange;
use std::sync::{Arc, Mutex, PoisonError};

/// Tensors begin at multiples of this.
const ALIGN: usize = 64;

/// The blocks of a device that there are.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Known>);

#[derive(Default)]
struct Known {
    list: Vec<Mapped>,
    bytes: u64,
    peak_bytes: u64,
}

/// Where a block is.
#[derive(Debug, Clone, Copy)]
struct Mapped {
    start: usize,
    bytes: u64,
    buffer: vk::Buffer,
}

impl Blocks {
    /// Where the device finds a range that lies in a block.
    pub(crate) fn find(&self, start: usize, bytes: u64) -> Option<Found> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.list.iter().find_map(|block| {
            let offset = start.checked_sub(block.start)? as u64;
            (offset.checked_add(bytes)? <= block.bytes).then_some(Found {
                buffer: block.buffer,
                offset,
            })
        })
    }

    /// The most bytes that blocks took together.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.peak_bytes
    }

    /// From now on [`Blocks::peak_bytes`] counts.
    pub(crate) fn forget_peak(&self) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.peak_bytes = known.bytes;
    }

    fn add(&self, block: Mapped, taken_bytes: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.list.push(block);
        known.bytes += taken_bytes;
        known.peak_bytes = known.peak_bytes.max(known.bytes);
    }

    fn remove(&self, block: &Mapped, taken_bytes: u64) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.list.retain(|other| other.start != block.start);
        known.bytes -= taken_bytes;
    }
}

/// One block. It is gone when this is, so whoever names its memory to the device waits first.
pub(crate) struct Block {
    mapped: Mapped,
    start: *mut u8,
    /// With what the driver rounds up to.
    taken_bytes: u64,
    memory: vk::DeviceMemory,
    is_known: bool,
    gpu: Arc<Gpu>,
}

// SAFETY: it is memory of the process and of the device, without thread affinity.
unsafe impl Send for Block {}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Block").field(&self.mapped).finish()
    }
}

impl Block {
    /// Zeroed by the device itself, so that all of it is there.
    pub(crate) fn new(gpu: &Arc<Gpu>, bytes: u64) -> Result<Block, VulkanError> {
        let bytes = bytes.next_multiple_of(4);
        let mut block = Block {
            mapped: Mapped {
                start: 0,
                bytes,
                buffer: vk::Buffer::null(),
            },
            start: std::ptr::null_mut(),
            taken_bytes: 0,
            memory: vk::DeviceMemory::null(),
            is_known: false,
            gpu: gpu.clone(),
        };
        block.allocate()?;
        gpu.clear(block.mapped.buffer)?;
        gpu.blocks.add(block.mapped, block.taken_bytes);
        block.is_known = true;
        Ok(block)
    }

    fn allocate(&mut self) -> Result<(), VulkanError> {
        let gpu = &self.gpu;
        let families = [gpu.queue_family, gpu.transfer.family];
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default()
            .size(self.mapped.bytes)
            .usage(usage);
        let info = match families[0] == families[1] {
            true => info,
            false => info
                .sharing_mode(vk::SharingMode::CONCURRENT)
                .queue_family_indices(&families),
        };
        // SAFETY: what the information points to lives.
        unsafe {
            let buffer = gpu.functions.create_buffer(&info, None);
            self.mapped.buffer = buffer.tried("makes no buffer of its own memory")?;
            let needs = gpu
                .functions
                .get_buffer_memory_requirements(self.mapped.buffer);
            self.taken_bytes = needs.size;
            let ty = gpu.own_memory_type(needs.memory_type_bits, needs.size)?;
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(ty);
            let memory = gpu.functions.allocate_memory(&info, None);
            self.memory = memory.tried("has not so much memory of its own")?;
            let bound = gpu
                .functions
                .bind_buffer_memory(self.mapped.buffer, self.memory, 0);
            bound.tried("binds no memory")?;
            let none = vk::MemoryMapFlags::empty();
            let start = (gpu.functions).map_memory(self.memory, 0, vk::WHOLE_SIZE, none);
            self.start = start.tried("maps no memory of its own")?.cast();
        }
        self.mapped.start = self.start.addr();
        match self.mapped.start.is_multiple_of(ALIGN) {
            true => Ok(()),
            false => {
                let what = "its memory is mapped at an odd address";
                Err(VulkanError::NoDevice(format!("{}: {what}", gpu.name())))
            }
        }
    }
}

impl neap_runtime::Block for Block {
    fn range(&self) -> MemoryRange {
        MemoryRange {
            start: self.start,
            bytes: self.mapped.bytes,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.is_known {
            self.gpu.blocks.remove(&self.mapped, self.taken_bytes);
        }
        // SAFETY: nothing that names it is in flight. What was never made is null, which these take; freeing unmaps.
        unsafe {
            self.gpu.functions.destroy_buffer(self.mapped.buffer, None);
            self.gpu.functions.free_memory(self.memory, None);
        }
    }
}
