//! Where a session's memory is, and how files come to it: the host's, lent, or a device's own.

use super::{BackingStore, States};
use crate::RuntimeError;
use crate::arena::{Arena, Needs};
use crate::device::Device;
use crate::host_spill::HostSpill;
use crate::load_lane::Intake;
use crate::own_memory::OwnMemory;
use crate::staged::{SLOTS, Staged, StagedSpill};
use neap_plan::ExecutionPlan;
use neap_store::{Source, Spill, Verifier};

pub(super) struct Memory {
    pub arena: Arena,
    pub source: Intake,
    pub verifier: Verifier,
    pub spill: Option<Box<dyn Spill>>,
}

/// What a plan may store: in the file that there is, or in as much of the host's memory as it asks for.
pub(super) fn spill_room_bytes(plan: &ExecutionPlan, storage: &BackingStore) -> u64 {
    match (plan.spills_to_host, &storage.spill) {
        (true, _) => plan.spill_bytes(),
        (false, Some(spill)) => spill.len_bytes(),
        (false, None) => 0,
    }
}

impl Memory {
    /// For a valid plan.
    pub fn of(
        device: &mut dyn Device,
        is_shared: bool,
        plan: &ExecutionPlan,
        states: &States,
        storage: BackingStore,
    ) -> Result<Memory, RuntimeError> {
        let BackingStore {
            source,
            verifier,
            spill,
        } = storage;
        let name = device.name();
        if let (Some(own), false) = (device.own_memory(), is_shared) {
            if !states.is_empty() {
                return Err(RuntimeError::Mismatch {
                    what: "plan",
                    reason: "a device's own memory keeps no states".into(),
                });
            }
            let memory = on_device(own, plan, source, verifier, spill);
            return memory.map_err(|reason| RuntimeError::Device {
                device: name,
                reason,
            });
        }
        if plan.host_bytes() > 0 {
            return Err(RuntimeError::Mismatch {
                what: "plan",
                reason:
                    "it keeps something in the host's memory, for a device with memory of its own"
                        .into(),
            });
        }
        let needs = Needs::of(plan);
        let bytes = needs.memory_bytes;
        let arena = match is_shared {
            false => Arena::new(needs),
            true => Arena::borrowing(needs),
        };
        Ok(Memory {
            arena: arena.map_err(|source| RuntimeError::Arena { bytes, source })?,
            source: Intake::Straight(source),
            verifier,
            spill,
        })
    }
}

fn on_device(
    own: &mut dyn OwnMemory,
    plan: &ExecutionPlan,
    source: Box<dyn Source>,
    verifier: Verifier,
    spill: Option<Box<dyn Spill>>,
) -> Result<Memory, String> {
    let mut staged = Staged::new(source, own.link()?, SLOTS)?;
    staged.keep(&plan.copies, plan.copied_bytes())?;
    let spill: Option<Box<dyn Spill>> = match (plan.spills_to_host, spill) {
        (true, _) => Some(Box::new(HostSpill::new(own.link()?, plan.spill_bytes())?)),
        (false, Some(spill)) => Some(Box::new(StagedSpill::new(spill, own.link()?)?)),
        (false, None) => None,
    };
    Ok(Memory {
        arena: Arena::on_device(Needs::of(plan), own)?,
        source: Intake::Staged(Box::new(staged)),
        verifier,
        spill,
    })
}
