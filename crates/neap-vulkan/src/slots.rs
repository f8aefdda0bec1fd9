//! `Slots`: what a dispatch needs while the device has it, for so many at a time, made once.
//!
//! ```text
//!   slot    commands │ bindings │ 256 bytes of words │ a piece of memory for small operands from elsewhere
//!   value   n, which the timeline reaches when the slot is free again
//!   told    behind all slots: a word for each job that may find errors in its data
//!   input   on a card, behind those: a caller's tensor, while jobs read it
//! ```

use crate::dispatch::{Dispatch, Span};
use crate::error::{Tried, VulkanError};
use crate::gpu::Gpu;
use crate::imports::{Found, Imports};
use crate::kernel::Kernel;
use crate::timeline::Timeline;
use crate::words::{ASIDE_BYTES, PARAMS_BYTES};
use ash::vk;
use std::sync::Arc;

/// Most dispatches at a time.
pub(crate) const SLOTS: usize = 16;
/// Bindings of a dispatch: x, w, r, y, mask.
pub(crate) const OPERANDS: usize = 5;
/// So many dispatches are handed over together while the device is busy: each time costs some ten microseconds.
const BATCH: usize = 8;
const _: () = assert!(BATCH <= SLOTS);
/// Links that dispatches of a session follow.
const MOST_LINKS: usize = 2;
const SLOT_BYTES: usize = PARAMS_BYTES + ASIDE_BYTES;
/// Words for what jobs tell lie behind all slots, where any device binds them; one for each job that there may be.
const TOLD_AT: usize = SLOTS * SLOT_BYTES;
const TOLD_BYTES: usize = SLOTS * 4;

/// Where a card keeps a caller's tensor while jobs read it: to import that takes longer than to copy so much.
const INPUT_AT: usize = (TOLD_AT + TOLD_BYTES).next_multiple_of(256);
const INPUT_BYTES: usize = 1 << 20;

/// The word of a job that tells what is wrong with its data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Told(usize);

pub(crate) struct Slots {
    commands: vk::CommandPool,
    buffers: Vec<vk::CommandBuffer>,
    sets: vk::DescriptorPool,
    bindings: Vec<vk::DescriptorSet>,
    buffer: vk::Buffer,
    memory: vk::DeviceMemory,
    mapped: *mut u8,
    timeline: Arc<Timeline>,
    /// Of the last dispatch, and of the last one that the device has been handed.
    value: u64,
    submitted: u64,
    /// By slot, the last value of the batch that it is in, which alone is signalled.
    ends: [u64; SLOTS],
    /// What the timeline was last known to have reached.
    known: u64,
    /// Commands behind those of a batch: what it has written is seen by the host.
    to_host: vk::CommandBuffer,
    /// Of the last job that has one.
    told: Told,
    /// The caller's tensor that is kept, until nothing is in flight: its address and length.
    input: Option<(usize, usize)>,
    /// Of links, whose copies dispatches see.
    links: Vec<Arc<Timeline>>,
    gpu: Arc<Gpu>,
}

impl std::fmt::Debug for Slots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slots").field("value", &self.value).finish()
    }
}

// SAFETY: everything in it belongs to this value alone, the mapped memory included.
unsafe impl Send for Slots {}

impl Slots {
    pub(crate) fn new(gpu: Arc<Gpu>) -> Result<Slots, VulkanError> {
        let mut slots = Slots {
            commands: vk::CommandPool::null(),
            buffers: Vec::new(),
            sets: vk::DescriptorPool::null(),
            bindings: Vec::new(),
            buffer: vk::Buffer::null(),
            memory: vk::DeviceMemory::null(),
            mapped: std::ptr::null_mut(),
            timeline: Timeline::new(&gpu)?,
            value: 0,
            submitted: 0,
            ends: [0; SLOTS],
            known: 0,
            to_host: vk::CommandBuffer::null(),
            told: Told::default(),
            input: None,
            links: Vec::with_capacity(MOST_LINKS),
            gpu,
        };
        slots.make_commands()?;
        slots.record_to_host()?;
        slots.make_bindings()?;
        slots.make_memory()?;
        Ok(slots)
    }

    fn make_commands(&mut self) -> Result<(), VulkanError> {
        let functions = &self.gpu.functions;
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(self.gpu.queue_family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: what the information points to lives, here and below.
        unsafe {
            let pool = functions.create_command_pool(&info, None);
            self.commands = pool.tried("makes no commands")?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(self.commands)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(SLOTS as u32 + 1);
            let buffers = functions.allocate_command_buffers(&info);
            self.buffers = buffers.tried("makes no commands")?;
        }
        self.to_host = self.buffers.pop().unwrap_or_default();
        Ok(())
    }

    fn record_to_host(&self) -> Result<(), VulkanError> {
        let functions = &self.gpu.functions;
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::SIMULTANEOUS_USE);
        let after = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE)];
        let (shaders, host) = (
            vk::PipelineStageFlags::COMPUTE_SHADER,
            vk::PipelineStageFlags::HOST,
        );
        let none = vk::DependencyFlags::empty();
        // SAFETY: these commands were never in flight, and what is recorded lives.
        unsafe {
            let begun = functions.begin_command_buffer(self.to_host, &begin);
            begun.tried("takes no commands")?;
            functions.cmd_pipeline_barrier(self.to_host, shaders, host, none, &after, &[], &[]);
            let ended = functions.end_command_buffer(self.to_host);
            ended.tried("takes no commands")
        }
    }

    fn make_bindings(&mut self) -> Result<(), VulkanError> {
        let functions = &self.gpu.functions;
        let sizes = [
            (vk::DescriptorType::UNIFORM_BUFFER, SLOTS),
            (vk::DescriptorType::STORAGE_BUFFER, OPERANDS * SLOTS),
        ]
        .map(|(ty, count)| {
            vk::DescriptorPoolSize::default()
                .ty(ty)
                .descriptor_count(count as u32)
        });
        let info = vk::DescriptorPoolCreateInfo::default()
            .max_sets(SLOTS as u32)
            .pool_sizes(&sizes);
        let layouts = [self.gpu.bindings; SLOTS];
        // SAFETY: what the information points to lives.
        unsafe {
            let pool = functions.create_descriptor_pool(&info, None);
            self.sets = pool.tried("makes no bindings")?;
            let info = vk::DescriptorSetAllocateInfo::default()
                .descriptor_pool(self.sets)
                .set_layouts(&layouts);
            let sets = functions.allocate_descriptor_sets(&info);
            self.bindings = sets.tried("makes no bindings")?;
        }
        Ok(())
    }

    fn make_memory(&mut self) -> Result<(), VulkanError> {
        let functions = &self.gpu.functions;
        let inputs = usize::from(self.gpu.keeps_inputs()) * INPUT_BYTES;
        let bytes = (INPUT_AT + inputs) as u64;
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER | vk::BufferUsageFlags::UNIFORM_BUFFER;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: what the information points to lives.
        unsafe {
            let buffer = functions.create_buffer(&info, None);
            self.buffer = buffer.tried("makes no buffer")?;
            let needs = functions.get_buffer_memory_requirements(self.buffer);
            let ty = self.gpu.words_memory_type(needs.memory_type_bits);
            let ty = ty.ok_or_else(|| VulkanError::NoDevice("no memory is shared".into()))?;
            let info = vk::MemoryAllocateInfo::default()
                .allocation_size(needs.size)
                .memory_type_index(ty);
            let memory = functions.allocate_memory(&info, None);
            self.memory = memory.tried("has no memory")?;
            let bound = functions.bind_buffer_memory(self.buffer, self.memory, 0);
            bound.tried("binds no memory")?;
            let mapped =
                functions.map_memory(self.memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty());
            self.mapped = mapped.tried("maps no memory")?.cast();
            // So that all of it is charged from the beginning.
            self.mapped.write_bytes(0, bytes as usize);
        }
        Ok(())
    }

    /// The value that the timeline reaches when all dispatches so far are complete.
    pub(crate) fn last(&self) -> u64 {
        self.value
    }

    /// The value that the timeline has reached.
    pub(crate) fn reached(&mut self) -> Result<u64, VulkanError> {
        self.known = self.timeline.reached()?;
        Ok(self.known)
    }

    pub(crate) fn wait_for(&mut self, value: u64) -> Result<(), VulkanError> {
        if value > self.submitted {
            self.flush()?;
        }
        if value > self.known {
            let end = self.ends[(value % SLOTS as u64) as usize];
            self.timeline.wait_for(end)?;
            self.known = end;
        }
        Ok(())
    }

    pub(crate) fn timeline(&self) -> Arc<Timeline> {
        self.timeline.clone()
    }

    /// The next job may find errors in its data: where its dispatches say so. At most [`SLOTS`] such jobs are not reported.
    pub(crate) fn begin_telling(&mut self) -> Told {
        self.told = Told((self.told.0 + 1) % SLOTS);
        // SAFETY: the word is mapped, and the job that had it was reported.
        unsafe { self.word(self.told).write_volatile(0) };
        self.told
    }

    /// Whether a job that is complete has found one.
    pub(crate) fn has_told(&self, told: Told) -> bool {
        // SAFETY: the word is mapped, and the device has written it for the last time.
        unsafe { self.word(told).read_volatile() != 0 }
    }

    fn word(&self, Told(index): Told) -> *mut u32 {
        self.mapped.wrapping_add(TOLD_AT + index * 4).cast()
    }

    /// From now on dispatches see what the link has copied when they are queued.
    ///
    /// # Errors
    /// [`VulkanError::NoDevice`] for more links than there is room for.
    pub(crate) fn follow(&mut self, link: Arc<Timeline>) -> Result<(), VulkanError> {
        if self.links.len() == MOST_LINKS {
            return Err(VulkanError::NoDevice("a session has too many links".into()));
        }
        self.links.push(link);
        Ok(())
    }

    /// Queues a dispatch behind those before. The device has it when a batch is full, when it has nothing else, or when it is waited for.
    ///
    /// # Safety
    /// The memory that it names is as [`neap_runtime::Device::submit`] asks, until the timeline has reached
    /// [`Slots::last`].
    pub(crate) unsafe fn dispatch(
        &mut self,
        dispatch: &Dispatch,
        imports: &mut Imports,
    ) -> Result<(), VulkanError> {
        let next = self.value + 1;
        let slot = (next % SLOTS as u64) as usize;
        if let Some(before) = next.checked_sub(SLOTS as u64) {
            self.wait_for(before)?;
        }
        // SAFETY: passed on.
        unsafe { self.bind(slot, dispatch, imports)? };
        self.record(slot, dispatch)?;
        self.value = next;
        let waiting = self.value - self.submitted;
        match waiting >= BATCH as u64 || self.known >= self.submitted {
            true => self.flush(),
            false => Ok(()),
        }
    }

    /// # Safety
    /// As [`Slots::dispatch`], and the slot is free.
    unsafe fn bind(
        &mut self,
        slot: usize,
        dispatch: &Dispatch,
        imports: &mut Imports,
    ) -> Result<(), VulkanError> {
        let params_at = slot * SLOT_BYTES;
        let mut aside_at = params_at + PARAMS_BYTES;
        let [x, w, r] = dispatch.reads;
        let mut found = [Binding::default(); OPERANDS];
        let spans = [x, w, r, Some(dispatch.writes), dispatch.mask];
        // Tables first: they have room beside the words, and are written again when the next job is listed.
        for i in [1, 0, 2, 3, 4] {
            let Some(span) = &spans[i] else {
                continue;
            };
            let element_bytes = dispatch.kernel.element_bytes()[i];
            // SAFETY: passed on.
            let at = unsafe { self.locate(span, i == 3, &mut aside_at, slot, imports)? };
            found[i] = Binding::of(at, span.bytes, element_bytes, &self.gpu)?;
        }
        if dispatch.kernel.tells() {
            found[4] = Binding {
                buffer: self.buffer,
                offset: TOLD_AT as u64,
                bytes: TOLD_BYTES as u64,
                first: self.told.0 as u32,
            };
        }
        // What is absent is not looked at, but something must be bound.
        let there = found[3];
        let found = found.map(|b| if b.bytes == 0 { there } else { b });
        // SAFETY: the slot is free, its memory is mapped.
        let params =
            unsafe { std::slice::from_raw_parts_mut(self.mapped.add(params_at), PARAMS_BYTES) };
        dispatch.words.write(found.map(|b| b.first), params);
        self.update(slot, found);
        Ok(())
    }

    /// Nothing is in flight: callers' tensors may change.
    pub(crate) fn pass(&mut self) {
        self.input = None;
    }

    /// A copy of what a caller has, where there is room for it.
    ///
    /// # Safety
    /// The span is readable, and does not change until [`Slots::pass`].
    unsafe fn keep(&mut self, span: &Span) -> Option<Found> {
        let (start, bytes) = (span.start.addr(), span.bytes as usize);
        if self.input.is_none() && self.gpu.keeps_inputs() && bytes <= INPUT_BYTES {
            // SAFETY: the room is mapped, and nothing in flight reads it, as there was no tensor in it.
            unsafe {
                let to = self.mapped.add(INPUT_AT);
                std::ptr::copy_nonoverlapping(span.start, to, bytes);
            }
            self.input = Some((start, bytes));
        }
        let (first, len) = self.input?;
        let skip = start.checked_sub(first)?;
        (skip.checked_add(bytes)? <= len).then_some(Found {
            buffer: self.buffer,
            offset: (INPUT_AT + skip) as u64,
        })
    }

    /// # Safety
    /// As [`Slots::dispatch`].
    unsafe fn locate(
        &mut self,
        span: &Span,
        is_written: bool,
        aside_at: &mut usize,
        slot: usize,
        imports: &mut Imports,
    ) -> Result<Found, VulkanError> {
        let (start, bytes) = (span.start.addr(), span.bytes);
        if let Some(found) = imports.standing(&self.gpu, start, bytes) {
            return Ok(found);
        }
        let end = aside_at.checked_add(bytes as usize);
        let has_room = end.is_some_and(|end| end <= (slot + 1) * SLOT_BYTES);
        if has_room && !is_written {
            // SAFETY: the slot is free, and the piece lies in it; the span is readable.
            unsafe {
                let to = self.mapped.add(*aside_at);
                std::ptr::copy_nonoverlapping(span.start, to, bytes as usize);
            }
            let found = Found {
                buffer: self.buffer,
                offset: *aside_at as u64,
            };
            *aside_at = (*aside_at + bytes as usize).next_multiple_of(256);
            return Ok(found);
        }
        // SAFETY: passed on.
        if let (false, Some(found)) = (is_written, unsafe { self.keep(span) }) {
            return Ok(found);
        }
        // SAFETY: passed on.
        unsafe { imports.find(&self.gpu, span.start, bytes) }
    }

    fn update(&self, slot: usize, found: [Binding; OPERANDS]) {
        let set = self.bindings[slot];
        let info = |buffer, offset, bytes| {
            vk::DescriptorBufferInfo::default()
                .buffer(buffer)
                .offset(offset)
                .range(bytes)
        };
        let params = [info(
            self.buffer,
            (slot * SLOT_BYTES) as u64,
            PARAMS_BYTES as u64,
        )];
        let operands = found.map(|b| info(b.buffer, b.offset, b.bytes));
        let write = |number, ty| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(number)
                .descriptor_type(ty)
        };
        let writes = [
            write(0, vk::DescriptorType::UNIFORM_BUFFER).buffer_info(&params),
            write(1, vk::DescriptorType::STORAGE_BUFFER).buffer_info(&operands),
        ];
        let [params, mut operands] = writes;
        // Bindings 1 to 5, one after the other.
        operands.descriptor_count = OPERANDS as u32;
        // SAFETY: the slot is free, so nothing uses its bindings; what is written lives.
        unsafe { (self.gpu.functions).update_descriptor_sets(&[params, operands], &[]) };
    }

    fn record(&self, slot: usize, dispatch: &Dispatch) -> Result<(), VulkanError> {
        let functions = &self.gpu.functions;
        let commands = self.buffers[slot];
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let shaders = vk::PipelineStageFlags::COMPUTE_SHADER;
        let both = vk::AccessFlags::SHADER_READ | vk::AccessFlags::SHADER_WRITE;
        // What dispatches before have written is seen.
        let before = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::SHADER_WRITE)
            .dst_access_mask(both)];
        let none = vk::DependencyFlags::empty();
        let [x, y, z] = dispatch.groups;
        let sets = [self.bindings[slot]];
        // SAFETY: the slot is free, and what is recorded lives.
        unsafe {
            let begun = functions.begin_command_buffer(commands, &begin);
            begun.tried("takes no commands")?;
            functions.cmd_pipeline_barrier(commands, shaders, shaders, none, &before, &[], &[]);
            functions.cmd_bind_pipeline(
                commands,
                vk::PipelineBindPoint::COMPUTE,
                self.gpu.pipeline(dispatch.kernel),
            );
            functions.cmd_bind_descriptor_sets(
                commands,
                vk::PipelineBindPoint::COMPUTE,
                self.gpu.layout,
                0,
                &sets,
                &[],
            );
            functions.cmd_dispatch(commands, x, y, z);
            let ended = functions.end_command_buffer(commands);
            ended.tried("takes no commands")
        }
    }

    /// Hands over what was recorded.
    fn flush(&mut self) -> Result<(), VulkanError> {
        if self.submitted == self.value {
            return Ok(());
        }
        let (values, semaphores) = ([self.value], [self.timeline.raw()]);
        let mut commands = [vk::CommandBuffer::null(); SLOTS + 1];
        let count = (self.value - self.submitted) as usize;
        for (to, value) in commands.iter_mut().zip(self.submitted + 1..=self.value) {
            let slot = (value % SLOTS as u64) as usize;
            *to = self.buffers[slot];
            self.ends[slot] = self.value;
        }
        commands[count] = self.to_host;
        let commands = &commands[..=count];
        // What links have reached: that takes no time, and makes what they copied visible.
        let stages = [vk::PipelineStageFlags::COMPUTE_SHADER; MOST_LINKS];
        let mut links = [vk::Semaphore::null(); MOST_LINKS];
        let mut reached = [0; MOST_LINKS];
        for (i, link) in self.links.iter().enumerate() {
            (links[i], reached[i]) = (link.raw(), link.reached()?);
        }
        let count = self.links.len();
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&reached[..count])
            .signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(&links[..count])
            .wait_dst_stage_mask(&stages[..count])
            .command_buffers(commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        self.gpu.submit(&info)?;
        self.submitted = self.value;
        Ok(())
    }

    /// Dispatches every kernel over nothing, so that whatever the driver makes at the first use is there.
    pub(crate) fn use_all(&mut self) -> Result<(), VulkanError> {
        let gpu = self.gpu.clone();
        let nothing = Span {
            start: self.mapped.cast_const(),
            bytes: 0,
        };
        for kernel in Kernel::ALL.into_iter().filter(|&kernel| gpu.has(kernel)) {
            let next = self.value + 1;
            let slot = (next % SLOTS as u64) as usize;
            let dispatch = Dispatch {
                kernel,
                words: crate::words::Words::new(&[0; 40]),
                groups: [1; 3],
                reads: [None; 3],
                writes: nothing,
                mask: None,
            };
            let own = Binding {
                buffer: self.buffer,
                offset: (slot * SLOT_BYTES + PARAMS_BYTES) as u64,
                bytes: ASIDE_BYTES as u64,
                first: 0,
            };
            self.update(slot, [own; OPERANDS]);
            self.record(slot, &dispatch)?;
            self.value = next;
            self.wait_for(next)?;
        }
        Ok(())
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        if self.submitted > 0 && self.timeline.wait_for(self.submitted).is_err() {
            // Lost: it may still use all of this.
            return;
        }
        let functions = &self.gpu.functions;
        // SAFETY: nothing is in flight. What was never made is null, which these take.
        unsafe {
            functions.destroy_buffer(self.buffer, None);
            functions.free_memory(self.memory, None);
            functions.destroy_descriptor_pool(self.sets, None);
            functions.destroy_command_pool(self.commands, None);
        }
    }
}

/// A range of a buffer, as shaders see it.
#[derive(Debug, Clone, Copy, Default)]
struct Binding {
    buffer: vk::Buffer,
    offset: u64,
    bytes: u64,
    /// The operand's first element.
    first: u32,
}

impl Binding {
    fn of(at: Found, bytes: u64, element_bytes: u32, gpu: &Gpu) -> Result<Binding, VulkanError> {
        let skip = at.offset % gpu.limits.binding_align;
        if !skip.is_multiple_of(u64::from(element_bytes)) {
            let what = "an operand is not aligned to 16 bytes";
            return Err(VulkanError::NoDevice(what.into()));
        }
        Ok(Binding {
            buffer: at.buffer,
            offset: at.offset - skip,
            bytes: bytes + skip,
            first: (skip / u64::from(element_bytes)) as u32,
        })
    }
}
