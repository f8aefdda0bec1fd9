//! An open device with its queue and pipelines.

use crate::block::Blocks;
use crate::card::{self, Heap};
use crate::choose::{Chosen, Transfers, choose};
use crate::error::{Tried, VulkanError};
use crate::instance::Instance;
use crate::kernel::{Kernel, Kernels};
use crate::limits::Limits;
use crate::steps::{Offer, kernels_of};
use crate::tiles::Way;
use ash::{ext::external_memory_host, ext::memory_budget, vk};
use neap_ir::Program;
use std::ffi::CStr;
use std::sync::{Arc, Mutex, PoisonError};

/// Memory of the device that the host sees as it is.
const OWN: vk::MemoryPropertyFlags = vk::MemoryPropertyFlags::from_raw(
    vk::MemoryPropertyFlags::DEVICE_LOCAL.as_raw()
        | vk::MemoryPropertyFlags::HOST_VISIBLE.as_raw()
        | vk::MemoryPropertyFlags::HOST_COHERENT.as_raw(),
);

/// Which device, and how it is used.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// As `vulkaninfo --summary` counts; by default the best one.
    pub number: Option<usize>,
    /// With the validation layer, which must be installed: [`Gpu::messages`] has what it says.
    pub validate: bool,
    /// Only the kernels of this program's steps are made, as each takes memory of the driver. Steps of others that need more
    /// go to the processor. `None`: all kernels.
    pub program: Option<Arc<Program>>,
    /// No kernels that take scratch are made: sessions compute by direct ones.
    pub exact: bool,
    /// On a driver that computes on the processor, with the kernels that others have; to compare.
    pub no_lanes: bool,
    /// Plans' memory is the device's own, and the host's memory is linked to it.
    pub own_memory: bool,
    /// The link as if it moved no more than so many bytes per second each way; for comparison.
    pub link_bytes_per_second: Option<f64>,
    /// As if the device had no more than these; where it has less, that.
    pub limits: Option<Limits>,
}

/// A Vulkan device, ready to compute. Sessions on it take turns.
pub struct Gpu {
    pub(crate) functions: ash::Device,
    pub(crate) import: external_memory_host::Device,
    physical: vk::PhysicalDevice,
    pub(crate) queue: vk::Queue,
    pub(crate) queue_family: u32,
    /// Where copies go, and the queue of that.
    pub(crate) transfer: Transfers,
    copies: vk::Queue,
    pub(crate) blocks: Blocks,
    own_memory: bool,
    pub(crate) link_bytes_per_second: Option<f64>,
    /// Of one allocation.
    most_allocation_bytes: u64,
    /// Of the device's memory before it was opened, where the driver tells what this process takes of it.
    heap_before: Option<Heap>,
    uuid: [u8; 16],
    pub(crate) memory_types: vk::PhysicalDeviceMemoryProperties,
    pub(crate) limits: Limits,
    pub(crate) bindings: vk::DescriptorSetLayout,
    pub(crate) layout: vk::PipelineLayout,
    pipelines: Vec<vk::Pipeline>,
    name: String,
    is_card: bool,
    kernels: Kernels,
    way: Way,
    /// Steps may have kernels that take scratch.
    scratch: bool,
    /// A queue is told by one thread at a time.
    turn: Mutex<()>,
    // Goes last.
    instance: Instance,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Gpu").field(&self.name).finish()
    }
}

impl Gpu {
    /// Loads Vulkan, opens the device, and makes every pipeline.
    ///
    /// # Errors
    /// [`VulkanError`] in one line where there is no such device, or it lacks something.
    pub fn open(options: &Options) -> Result<Arc<Gpu>, VulkanError> {
        let instance = Instance::new(options.validate)?;
        let chosen = choose(&instance, options.number)?;
        let transfer = match options.own_memory {
            true => chosen.transfer,
            false => Transfers {
                family: chosen.queue_family,
                index: 0,
            },
        };
        // A processor tells what the whole machine takes.
        let tells_budget = options.own_memory && chosen.tells_budget && !chosen.is_cpu;
        // SAFETY: the device is one of the instance's.
        let memory_types =
            unsafe { (instance.raw).get_physical_device_memory_properties(chosen.raw) };
        let heap_before = own_heap(&memory_types)
            .filter(|_| tells_budget)
            .map(|heap| heap_of(&instance, chosen.raw, heap));
        let functions = device(&instance, &chosen, transfer, tells_budget)?;
        let own = Limits {
            allocation_bytes: chosen.allocation_bytes,
            binding_bytes: u64::from(chosen.limits.max_storage_buffer_range),
            binding_align: (chosen.limits.min_storage_buffer_offset_alignment).max(16),
            import_align: chosen.import_align.max(4096),
            groups: chosen.limits.max_compute_work_group_count,
        };
        // SAFETY: the device is one of the instance's, and the queue was asked for.
        let (queue, copies) = unsafe {
            let copies = functions.get_device_queue(transfer.family, transfer.index);
            let queue = functions.get_device_queue(chosen.queue_family, 0);
            (queue, copies)
        };
        let way = match chosen.is_cpu && chosen.lanes_tell && !options.no_lanes {
            true => Way::Lanes,
            false => Way::of_workgroup(chosen.workgroup, chosen.processors),
        };
        let mut gpu = Gpu {
            import: external_memory_host::Device::new(&instance.raw, &functions),
            functions,
            physical: chosen.raw,
            queue,
            queue_family: chosen.queue_family,
            transfer,
            copies,
            blocks: Blocks::default(),
            own_memory: options.own_memory,
            link_bytes_per_second: options.link_bytes_per_second,
            most_allocation_bytes: chosen.allocation_bytes,
            heap_before,
            uuid: chosen.uuid,
            memory_types,
            limits: options.limits.map_or(own, |limits| limits.least(own)),
            bindings: vk::DescriptorSetLayout::null(),
            layout: vk::PipelineLayout::null(),
            pipelines: Vec::with_capacity(Kernel::ALL.len()),
            name: chosen.name,
            is_card: chosen.is_card,
            kernels: Kernels::all(way),
            way,
            scratch: !options.exact,
            turn: Mutex::new(()),
            instance,
        };
        gpu.make_layout()?;
        if let Some(program) = &options.program {
            gpu.kernels = kernels_of(program, gpu.offer());
        }
        for kernel in Kernel::ALL {
            let pipeline = match gpu.has(kernel) {
                true => gpu.pipeline_of(kernel)?,
                false => vk::Pipeline::null(),
            };
            gpu.pipelines.push(pipeline);
        }
        Ok(Arc::new(gpu))
    }

    /// As the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has memory of its own, beside the host's.
    pub fn is_card(&self) -> bool {
        self.is_card
    }

    /// Whether some convolutions are computed by Winograd where there is scratch.
    pub fn has_winograd(&self) -> bool {
        self.scratch && self.way == Way::Lanes
    }

    /// What validation has said so far; always nothing without it.
    pub fn messages(&self) -> Vec<String> {
        self.instance.messages()
    }

    /// What dispatches may count with.
    pub(crate) fn offer(&self) -> Offer<'_> {
        Offer {
            limits: &self.limits,
            kernels: self.kernels,
            way: self.way,
            scratch: self.scratch,
        }
    }

    /// Whether there is such a pipeline.
    pub(crate) fn has(&self, kernel: Kernel) -> bool {
        self.kernels.has(kernel)
    }

    pub(crate) fn pipeline(&self, kernel: Kernel) -> vk::Pipeline {
        self.pipelines[kernel as usize]
    }

    /// Whether plans' memory is the device's own.
    pub(crate) fn has_own_memory(&self) -> bool {
        self.own_memory
    }

    /// Whether callers' tensors are copied while jobs read them.
    pub(crate) fn keeps_inputs(&self) -> bool {
        self.own_memory && self.way != Way::Lanes
    }

    pub(crate) fn submit(&self, info: &vk::SubmitInfo) -> Result<(), VulkanError> {
        self.submit_to(self.queue, info)
    }

    pub(crate) fn submit_copies(&self, info: &vk::SubmitInfo) -> Result<(), VulkanError> {
        self.submit_to(self.copies, info)
    }

    fn submit_to(&self, queue: vk::Queue, info: &vk::SubmitInfo) -> Result<(), VulkanError> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: what the information points to lives, and no other thread uses the queue meanwhile.
        let submitted =
            unsafe { (self.functions).queue_submit(queue, &[*info], vk::Fence::null()) };
        submitted.tried("takes no work")
    }

    /// Zeroes a buffer on the queue for copies, and waits.
    pub(crate) fn clear(&self, buffer: vk::Buffer) -> Result<(), VulkanError> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(self.transfer.family);
        // SAFETY: what the information points to lives, and the pool goes when nothing of it is in flight any more.
        unsafe {
            let pool = self.functions.create_command_pool(&info, None);
            let pool = pool.tried("makes no commands")?;
            let cleared = self.clear_with(pool, buffer);
            self.functions.destroy_command_pool(pool, None);
            cleared
        }
    }

    /// # Safety
    /// The pool is of the queue for copies; the buffer is in no use.
    unsafe fn clear_with(
        &self,
        pool: vk::CommandPool,
        buffer: vk::Buffer,
    ) -> Result<(), VulkanError> {
        let info = vk::CommandBufferAllocateInfo::default()
            .command_pool(pool)
            .level(vk::CommandBufferLevel::PRIMARY)
            .command_buffer_count(1);
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let after = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE)];
        let (copies, host) = (
            vk::PipelineStageFlags::TRANSFER,
            vk::PipelineStageFlags::HOST,
        );
        let none = vk::DependencyFlags::empty();
        // SAFETY: what the information points to lives until the queue has done it.
        unsafe {
            let buffers = self.functions.allocate_command_buffers(&info);
            let buffers = buffers.tried("makes no commands")?;
            let begun = self.functions.begin_command_buffer(buffers[0], &begin);
            begun.tried("takes no commands")?;
            (self.functions).cmd_fill_buffer(buffers[0], buffer, 0, vk::WHOLE_SIZE, 0);
            (self.functions).cmd_pipeline_barrier(buffers[0], copies, host, none, &after, &[], &[]);
            let ended = self.functions.end_command_buffer(buffers[0]);
            ended.tried("takes no commands")?;
            self.submit_copies(&vk::SubmitInfo::default().command_buffers(&buffers))?;
            let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
            let idle = self.functions.queue_wait_idle(self.copies);
            idle.tried("has not so much memory of its own")
        }
    }

    /// What this process takes of the device's memory; 0 where the driver does not tell.
    pub(crate) fn taken_bytes(&self) -> u64 {
        let (Some(heap), Some(before)) = (self.own_heap(), self.heap_before) else {
            return 0;
        };
        let now = heap_of(&self.instance, self.physical, heap);
        card::taken_bytes(self.uuid, before, now)
    }

    fn own_heap(&self) -> Option<u32> {
        own_heap(&self.memory_types)
    }

    /// The most that blocks of its own memory may have together: of one heap, and of two allocations.
    pub(crate) fn own_bytes(&self) -> u64 {
        let heap = self.own_heap();
        heap.map_or(0, |heap| self.memory_types.memory_heaps[heap as usize].size)
    }

    /// The type of memory for a block of so many bytes, or why there is none.
    pub(crate) fn own_memory_type(&self, allowed: u32, bytes: u64) -> Result<u32, VulkanError> {
        let lacks = |what: String| Err(VulkanError::NoDevice(format!("{} {what}", self.name)));
        let Some(heap) = self.own_heap() else {
            return lacks("has no memory of its own that the host can map".into());
        };
        let heap_bytes = self.memory_types.memory_heaps[heap as usize].size;
        if bytes > heap_bytes {
            return lacks(format!(
                "has {heap_bytes} bytes of its own that the host can map, and {bytes} are asked for at once"
            ));
        }
        if bytes > self.most_allocation_bytes {
            return lacks(format!(
                "gives at most {} bytes of its memory at once, and {bytes} are asked for",
                self.most_allocation_bytes
            ));
        }
        let types = self.memory_types.memory_types_as_slice();
        let fits = |(i, ty): &(u32, &vk::MemoryType)| {
            allowed & (1 << i) != 0 && ty.heap_index == heap && ty.property_flags.contains(OWN)
        };
        match (0..).zip(types).find(fits) {
            Some((ty, _)) => Ok(ty),
            None => lacks("maps none of its own memory for tensors".into()),
        }
    }

    /// A type of memory among `allowed` that the host sees as it is, cached if there is such.
    pub(crate) fn memory_type(&self, allowed: u32) -> Option<u32> {
        let coherent =
            vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let cached = coherent | vk::MemoryPropertyFlags::HOST_CACHED;
        let types = self.memory_types.memory_types_as_slice();
        let with = |flags| {
            (0..).zip(types).find_map(|(i, ty): (u32, _)| {
                (allowed & (1 << i) != 0 && ty.property_flags.contains(flags)).then_some(i)
            })
        };
        with(cached).or_else(|| with(coherent))
    }

    /// The same for the words of dispatches: in the device's own memory where plans are.
    pub(crate) fn words_memory_type(&self, allowed: u32) -> Option<u32> {
        let types = (0..).zip(self.memory_types.memory_types_as_slice());
        let own = { types }.find(|(i, ty): &(u32, &vk::MemoryType)| {
            allowed & (1 << i) != 0 && ty.property_flags.contains(OWN)
        });
        let own = own.filter(|_| self.own_memory).map(|(i, _)| i);
        own.or_else(|| self.memory_type(allowed))
    }

    fn make_layout(&mut self) -> Result<(), VulkanError> {
        let binding = |(number, ty)| {
            vk::DescriptorSetLayoutBinding::default()
                .binding(number)
                .descriptor_type(ty)
                .descriptor_count(1)
                .stage_flags(vk::ShaderStageFlags::COMPUTE)
        };
        let storage = vk::DescriptorType::STORAGE_BUFFER;
        let bindings = [
            (0, vk::DescriptorType::UNIFORM_BUFFER),
            (1, storage),
            (2, storage),
            (3, storage),
            (4, storage),
            (5, storage),
        ]
        .map(binding);
        let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
        // SAFETY: what the information points to lives.
        let set = unsafe { self.functions.create_descriptor_set_layout(&info, None) };
        self.bindings = set.tried("makes no layout")?;
        let sets = [self.bindings];
        let info = vk::PipelineLayoutCreateInfo::default().set_layouts(&sets);
        // SAFETY: as above.
        let layout = unsafe { self.functions.create_pipeline_layout(&info, None) };
        self.layout = layout.tried("makes no layout")?;
        Ok(())
    }

    fn pipeline_of(&self, kernel: Kernel) -> Result<vk::Pipeline, VulkanError> {
        const MAIN: &CStr = c"main";
        let words: Vec<u32> = (kernel.spirv().chunks_exact(4))
            .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        let info = vk::ShaderModuleCreateInfo::default().code(&words);
        // SAFETY: valid SPIR-V from the build, and what the information points to lives. The module may go when
        // the pipeline is made.
        unsafe {
            let module = self.functions.create_shader_module(&info, None);
            let module = module.tried("takes no kernel")?;
            let stage = vk::PipelineShaderStageCreateInfo::default()
                .stage(vk::ShaderStageFlags::COMPUTE)
                .module(module)
                .name(MAIN);
            let info = vk::ComputePipelineCreateInfo::default()
                .stage(stage)
                .layout(self.layout);
            let made =
                self.functions
                    .create_compute_pipelines(vk::PipelineCache::null(), &[info], None);
            self.functions.destroy_shader_module(module, None);
            let made = made.map_err(|(_, result)| result);
            Ok(made.tried("compiles no kernel")?[0])
        }
    }
}

/// The largest heap of a device's own memory that the host can map.
fn own_heap(types: &vk::PhysicalDeviceMemoryProperties) -> Option<u32> {
    let own = types.memory_types_as_slice().iter();
    let own = own.filter(|ty| ty.property_flags.contains(OWN));
    own.map(|ty| ty.heap_index)
        .max_by_key(|&heap| types.memory_heaps[heap as usize].size)
}

/// Of a device that tells.
fn heap_of(instance: &Instance, device: vk::PhysicalDevice, heap: u32) -> Heap {
    let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
    let mut all = vk::PhysicalDeviceMemoryProperties2::default().push_next(&mut budget);
    // SAFETY: the device is one of the instance's; what is filled lives.
    unsafe { (instance.raw).get_physical_device_memory_properties2(device, &mut all) };
    Heap {
        budget_bytes: budget.heap_budget[heap as usize],
        usage_bytes: budget.heap_usage[heap as usize],
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: everything that was made with it is gone, as that keeps it alive.
        unsafe {
            for &pipeline in &self.pipelines {
                self.functions.destroy_pipeline(pipeline, None);
            }
            self.functions.destroy_pipeline_layout(self.layout, None);
            self.functions
                .destroy_descriptor_set_layout(self.bindings, None);
            self.functions.destroy_device(None);
        }
    }
}

fn device(
    instance: &Instance,
    chosen: &Chosen,
    transfer: Transfers,
    tells_budget: bool,
) -> Result<ash::Device, VulkanError> {
    let priorities = [1.0; 2];
    let compute = chosen.queue_family;
    let queues_of = |family: u32, count: u32| {
        vk::DeviceQueueCreateInfo::default()
            .queue_family_index(family)
            .queue_priorities(&priorities[..count as usize])
    };
    let queues = match transfer.family == compute {
        true => vec![queues_of(compute, transfer.index + 1)],
        false => vec![queues_of(compute, 1), queues_of(transfer.family, 1)],
    };
    let mut extensions = vec![external_memory_host::NAME.as_ptr()];
    extensions.extend(tells_budget.then_some(memory_budget::NAME.as_ptr()));
    let mut timeline =
        vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
    let info = vk::DeviceCreateInfo::default()
        .queue_create_infos(&queues)
        .enabled_extension_names(&extensions)
        .push_next(&mut timeline);
    // SAFETY: what the information points to lives.
    let device = unsafe { instance.raw.create_device(chosen.raw, &info, None) };
    device.tried("cannot be opened")
}
