//! `VulkanLink`: copies between the host's pinned memory and blocks, on a queue of their own where the device has one.
//!
//! ```text
//!   copies    ├ t1 ─┤├ t2 ─┤   ├ t3 ─┤            ▲ jobs after this see t1 and t2: the queue of jobs waits for
//!   jobs           ▲├ j1 ──┤├ j2 ────┤              what the link has reached, which takes no time
//! ```

use crate::error::{Tried, VulkanError};
use crate::gpu::Gpu;
use crate::imports::Found;
use crate::pinned::Pinned;
use crate::throttle::Throttle;
use crate::timeline::Timeline;
use ash::vk;
use neap_runtime::{Link, MemoryRange, Transfer};
use std::sync::Arc;

/// Groups of copies on their way at once.
const COMMANDS: u64 = 16;

pub(crate) struct VulkanLink {
    pool: vk::CommandPool,
    commands: Vec<vk::CommandBuffer>,
    timeline: Arc<Timeline>,
    /// Of the last group of copies.
    value: u64,
    /// What jobs have written is seen by copies after it.
    jobs: Option<Arc<Timeline>>,
    pinned: Vec<Pinned>,
    throttle: Option<Throttle>,
    gpu: Arc<Gpu>,
}

impl VulkanLink {
    /// Copies see what the jobs on that timeline have written.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        jobs: Option<Arc<Timeline>>,
    ) -> Result<VulkanLink, VulkanError> {
        let mut link = VulkanLink {
            pool: vk::CommandPool::null(),
            commands: Vec::new(),
            timeline: Timeline::new(gpu)?,
            value: 0,
            jobs,
            pinned: Vec::new(),
            throttle: (gpu.link_bytes_per_second)
                .map(|rate| Throttle::new(rate, 2 * COMMANDS as usize)),
            gpu: gpu.clone(),
        };
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(gpu.transfer.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: what the information points to lives.
        unsafe {
            let pool = gpu.functions.create_command_pool(&info, None);
            link.pool = pool.tried("makes no commands")?;
            let info = vk::CommandBufferAllocateInfo::default()
                .command_pool(link.pool)
                .level(vk::CommandBufferLevel::PRIMARY)
                .command_buffer_count(COMMANDS as u32);
            let commands = gpu.functions.allocate_command_buffers(&info);
            link.commands = commands.tried("makes no commands")?;
        }
        Ok(link)
    }

    pub(crate) fn timeline(&self) -> Arc<Timeline> {
        self.timeline.clone()
    }

    fn locate(&self, start: *const u8, bytes: u64) -> Result<Found, VulkanError> {
        let at = start.addr();
        let pinned = self.pinned.iter().find_map(|p| p.find(at, bytes));
        let found = pinned.or_else(|| self.gpu.blocks.find(at, bytes));
        found.ok_or_else(|| VulkanError::NoDevice("a copy of memory that it does not know".into()))
    }

    fn record(
        &self,
        commands: vk::CommandBuffer,
        transfers: &[Transfer],
    ) -> Result<(), VulkanError> {
        let functions = &self.gpu.functions;
        let begin = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        let copies = vk::PipelineStageFlags::TRANSFER;
        let both = vk::AccessFlags::TRANSFER_READ | vk::AccessFlags::TRANSFER_WRITE;
        let before = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(both)];
        let after = [vk::MemoryBarrier::default()
            .src_access_mask(vk::AccessFlags::TRANSFER_WRITE)
            .dst_access_mask(vk::AccessFlags::HOST_READ | vk::AccessFlags::HOST_WRITE)];
        let (none, host) = (vk::DependencyFlags::empty(), vk::PipelineStageFlags::HOST);
        // SAFETY: these commands are not in flight, and what is recorded lives.
        unsafe {
            let begun = functions.begin_command_buffer(commands, &begin);
            begun.tried("takes no commands")?;
            functions.cmd_pipeline_barrier(commands, copies, copies, none, &before, &[], &[]);
            for transfer in transfers {
                let from = self.locate(transfer.from, transfer.bytes)?;
                let to = self.locate(transfer.to, transfer.bytes)?;
                let region = [vk::BufferCopy::default()
                    .src_offset(from.offset)
                    .dst_offset(to.offset)
                    .size(transfer.bytes)];
                functions.cmd_copy_buffer(commands, from.buffer, to.buffer, &region);
            }
            functions.cmd_pipeline_barrier(commands, copies, host, none, &after, &[], &[]);
            let ended = functions.end_command_buffer(commands);
            ended.tried("takes no commands")
        }
    }

    /// The last group of copies takes as long as on the link that is asked for.
    fn slow_down(&mut self, transfers: &[Transfer]) {
        let Some(throttle) = &mut self.throttle else {
            return;
        };
        let mut bytes = [0; 2];
        for transfer in transfers {
            let at = transfer.to.addr();
            let is_host = self
                .pinned
                .iter()
                .any(|p| p.find(at, transfer.bytes).is_some());
            bytes[usize::from(is_host)] += transfer.bytes;
        }
        throttle.begin(self.value, bytes);
    }

    fn start(&mut self, transfers: &[Transfer]) -> Result<u64, VulkanError> {
        let next = self.value + 1;
        let commands = self.commands[(next % COMMANDS) as usize];
        if let Some(before) = next.checked_sub(COMMANDS) {
            self.timeline.wait_for(before)?;
        }
        self.record(commands, transfers)?;
        // What jobs have reached: that takes no time, and makes what they wrote visible.
        let (jobs, reached, count) = match &self.jobs {
            Some(jobs) => (jobs.raw(), jobs.reached()?, 1),
            None => (vk::Semaphore::null(), 0, 0),
        };
        let (waits, reached) = ([jobs], [reached]);
        let (values, semaphores) = ([next], [self.timeline.raw()]);
        let stages = [vk::PipelineStageFlags::TRANSFER];
        let buffers = [commands];
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&reached[..count])
            .signal_semaphore_values(&values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(&waits[..count])
            .wait_dst_stage_mask(&stages[..count])
            .command_buffers(&buffers)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        self.gpu.submit_copies(&info)?;
        self.value = next;
        self.slow_down(transfers);
        Ok(next)
    }
}

impl Link for VulkanLink {
    fn pin(&mut self, bytes: u64) -> Result<MemoryRange, String> {
        let pinned = Pinned::new(&self.gpu, bytes).map_err(|e| e.to_string())?;
        let range = pinned.range();
        self.pinned.push(pinned);
        Ok(range)
    }

    unsafe fn copy(&mut self, transfers: &[Transfer]) -> Result<u64, String> {
        self.start(transfers).map_err(|e| e.to_string())
    }

    fn reached(&mut self) -> Result<u64, String> {
        let reached = self.timeline.reached().map_err(|e| e.to_string())?;
        Ok(match &mut self.throttle {
            Some(throttle) => throttle.reached(reached),
            None => reached,
        })
    }

    fn wait(&mut self, ticket: u64) -> Result<(), String> {
        self.timeline.wait_for(ticket).map_err(|e| e.to_string())?;
        if let Some(throttle) = &self.throttle {
            throttle.wait(ticket);
        }
        Ok(())
    }
}

impl Drop for VulkanLink {
    fn drop(&mut self) {
        if self.value > 0 && self.timeline.wait_for(self.value).is_err() {
            // Lost: it may still use all of this.
            std::mem::forget(std::mem::take(&mut self.pinned));
            return;
        }
        // SAFETY: nothing is in flight. What was never made is null, which this takes.
        unsafe { (self.gpu.functions).destroy_command_pool(self.pool, None) };
    }
}
