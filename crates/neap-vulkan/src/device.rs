//! `VulkanDevice`: jobs on the queue, and those without a kernel on the processor.

use crate::block::Block;
use crate::dispatch::{Dispatch, Panels, Span};
use crate::error::VulkanError;
use crate::gpu::Gpu;
use crate::imports::Imports;
use crate::link::VulkanLink;
use crate::operators::{Call, dispatches};
use crate::slots::{SLOTS, Slots, Told};
use crate::words::ASIDE_BYTES;
use neap_ops::OpError;
use neap_runtime::{Cpu, Device, Job, JobError, Link, Meanwhile, MemoryRange, OwnMemory};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

/// A device of one session.
pub struct VulkanDevice {
    // Waits for what is in flight, before imports go.
    slots: Slots,
    imports: Imports,
    gpu: Arc<Gpu>,
    cpu: Cpu,
    jobs: VecDeque<(u64, State)>,
    /// Of the job being submitted; empty in between, kept for its memory.
    dispatches: Vec<Dispatch>,
    /// Of the job being submitted.
    table: RefCell<Vec<u32>>,
    is_lost: bool,
    computed: Computed,
}

/// How many jobs were computed where.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Computed {
    pub here: u64,
    pub on_cpu: u64,
}

enum State {
    /// Complete when the timeline has reached the value. An operator whose data may be wrong says so then.
    Until {
        value: u64,
        told: Option<(Told, &'static str)>,
    },
    Ended(Result<(), JobError>),
}

// SAFETY: what is kept of dispatches between calls is nothing; everything else may go to another thread.
unsafe impl Send for VulkanDevice {}

impl VulkanDevice {
    /// `cpu` computes what has no kernel here.
    ///
    /// # Errors
    /// [`VulkanError`] when the device has no memory for what its queue needs.
    pub fn new(gpu: Arc<Gpu>, cpu: Cpu) -> Result<VulkanDevice, VulkanError> {
        let slots = Slots::new(gpu.clone())?;
        Ok(VulkanDevice::with(gpu, slots, cpu))
    }

    pub(crate) fn with(gpu: Arc<Gpu>, slots: Slots, cpu: Cpu) -> VulkanDevice {
        VulkanDevice {
            slots,
            imports: Imports::default(),
            gpu,
            cpu,
            jobs: VecDeque::with_capacity(SLOTS),
            dispatches: Vec::with_capacity(SLOTS),
            table: RefCell::new(Vec::with_capacity(ASIDE_BYTES / 4)),
            is_lost: false,
            computed: Computed::default(),
        }
    }

    /// Jobs computed on the device, and on the processor, so far.
    pub fn computed(&self) -> (u64, u64) {
        (self.computed.here, self.computed.on_cpu)
    }

    /// Queues the dispatches of a job, which have been listed.
    ///
    /// # Safety
    /// As [`Device::submit`].
    unsafe fn queue(&mut self, op: &'static str) -> Result<State, VulkanError> {
        let tells = self.dispatches.iter().any(|d| d.kernel.tells());
        let told = tells.then(|| (self.slots.begin_telling(), op));
        for dispatch in &self.dispatches {
            // SAFETY: passed on.
            unsafe { self.slots.dispatch(dispatch, &mut self.imports)? };
        }
        Ok(State::Until {
            value: self.slots.last(),
            told,
        })
    }

    /// Waits for all that is in flight.
    fn settle(&mut self) -> Result<(), VulkanError> {
        let settled = self.slots.wait_for(self.slots.last());
        self.is_lost |= settled.is_err();
        settled
    }

    /// Callers' memory is theirs again: nothing is in flight.
    fn pass(&mut self) {
        self.imports.pass();
        self.slots.pass();
    }

    /// # Safety
    /// As [`Device::submit`].
    unsafe fn compute_on_cpu(
        &mut self,
        number: u64,
        job: Job<'_>,
        meanwhile: Meanwhile<'_>,
    ) -> Result<(), JobError> {
        self.settle().map_err(failed)?;
        // SAFETY: passed on.
        unsafe { self.cpu.submit(number, job, meanwhile) };
        let mut ended = Ok(());
        self.cpu.poll(true, &mut |_, result| ended = result);
        ended
    }
}

fn failed(e: VulkanError) -> JobError {
    JobError::Device(e.to_string())
}

impl Device for VulkanDevice {
    fn name(&self) -> &'static str {
        "vulkan"
    }

    fn most_in_flight(&self) -> usize {
        SLOTS
    }

    unsafe fn submit(&mut self, number: u64, job: Job<'_>, meanwhile: Meanwhile<'_>) {
        let call = Call {
            op: &job.node.op,
            inputs: job.inputs,
            outputs: job.outputs,
            panels: job.panels.as_ref().map(Panels::of),
            scratch: Some(Span {
                start: job.workspace.as_ptr(),
                bytes: job.workspace.len() as u64,
            }),
            limits: &self.gpu.limits,
            kernels: self.gpu.offer().kernels,
            way: self.gpu.offer().way,
            table: &self.table,
        };
        let is_here = dispatches(&call, job.choice, &mut self.dispatches).is_some();
        let state = if is_here {
            self.computed.here += 1;
            // SAFETY: passed on.
            match unsafe { self.queue(job.node.op.name()) } {
                Ok(state) => state,
                Err(e) => State::Ended(Err(failed(e))),
            }
        } else {
            self.computed.on_cpu += 1;
            // SAFETY: passed on.
            State::Ended(unsafe { self.compute_on_cpu(number, job, meanwhile) })
        };
        self.dispatches.clear();
        self.jobs.push_back((number, state));
    }

    fn poll(&mut self, wait: bool, done: &mut dyn FnMut(u64, Result<(), JobError>)) {
        if self.jobs.is_empty() {
            return;
        }
        let mut reached = self.slots.reached();
        if let (true, Ok(so_far), Some(&(_, State::Until { value, .. }))) =
            (wait, &reached, self.jobs.front())
            && *so_far < value
        {
            reached = (self.slots)
                .wait_for(value)
                .and_then(|()| self.slots.reached());
        }
        while let Some((number, state)) = self.jobs.pop_front() {
            let result = match (state, &reached) {
                (State::Ended(result), _) => result,
                (State::Until { value, told }, Ok(reached)) if value <= *reached => match told {
                    Some((told, op)) if self.slots.has_told(told) => {
                        Err(JobError::Op(OpError::index_out_of_range(op)))
                    }
                    _ => Ok(()),
                },
                (state @ State::Until { .. }, Ok(_)) => {
                    self.jobs.push_front((number, state));
                    break;
                }
                (State::Until { .. }, Err(e)) => {
                    self.is_lost = true;
                    Err(JobError::Device(e.to_string()))
                }
            };
            done(number, result);
        }
        if self.jobs.is_empty() && !self.is_lost {
            // Callers' memory is theirs again when the run is over.
            self.pass();
        }
    }

    fn drain(&mut self) -> bool {
        self.jobs.clear();
        let settled = self.settle().is_ok();
        if settled {
            self.pass();
        }
        settled && self.cpu.drain()
    }

    fn imports_memory(&self) -> bool {
        true
    }

    unsafe fn attach(&mut self, memory: &[MemoryRange]) -> Result<(), String> {
        self.settle().map_err(|e| e.to_string())?;
        self.imports.clear();
        self.slots.pass();
        for range in memory {
            // SAFETY: passed on.
            let added = unsafe { (self.imports).add(&self.gpu, range.start, range.bytes) };
            if let Err(e) = added {
                self.imports.clear();
                return Err(e.to_string());
            }
        }
        Ok(())
    }

    fn detach(&mut self) {
        if self.settle().is_ok() {
            self.slots.pass();
            self.imports.clear();
        }
    }

    fn own_memory(&mut self) -> Option<&mut dyn OwnMemory> {
        let has_own = self.gpu.has_own_memory();
        has_own.then_some(self as &mut dyn OwnMemory)
    }
}

impl OwnMemory for VulkanDevice {
    fn block(&mut self, bytes: u64) -> Result<Box<dyn neap_runtime::Block>, String> {
        match Block::new(&self.gpu, bytes) {
            Ok(block) => Ok(Box::new(block)),
            Err(e) => Err(e.to_string()),
        }
    }

    fn link(&mut self) -> Result<Box<dyn Link>, String> {
        let link = VulkanLink::new(&self.gpu, Some(self.slots.timeline()));
        let link = link.and_then(|link| {
            self.slots.follow(link.timeline())?;
            Ok(link)
        });
        match link {
            Ok(link) => Ok(Box::new(link)),
            Err(e) => Err(e.to_string()),
        }
    }
}
