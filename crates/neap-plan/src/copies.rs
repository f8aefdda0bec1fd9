//! Copies of the packed file in the host's memory, for plans whose other memory is a device's.

use crate::{ByteRange, ExecutionPlan, Load, Place, SpaceKind};
use serde::{Deserialize, Serialize};

/// Whole blocks of the packed file that stay in a space of [`SpaceKind::Host`] from when they were first read. A load
/// of just these blocks moves them from there. Copies may share a block, as loads of neighbours do, and each has its own.
///
/// ```text
///   packed file   │ w0 │ w1 │ w2 │ w3 │                 a run loads w0, w1, w2, w3:
///   host          │ w1 │ w3 │                            w0 and w2 from storage, through the host
///   device        │····│ ◄── loads                       w1 and w3 from the host, by the link alone
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCopy {
    pub from: Place,
    pub bytes: u64,
    pub to: Place,
}

impl HostCopy {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.from.offset, self.bytes)
    }
}

impl ExecutionPlan {
    /// The copy that a load moves its bytes from, by its index in [`ExecutionPlan::copies`] of a valid plan.
    pub fn copy_of(&self, load: &Load) -> Option<usize> {
        if self.copies.is_empty() || self.kind(load.from.space) != Some(SpaceKind::Packed) {
            return None;
        }
        let wanted = (load.from.offset, load.bytes);
        let key = |copy: &HostCopy| (copy.from.offset, copy.bytes);
        self.copies.binary_search_by_key(&wanted, key).ok()
    }

    /// Memory of the host that copies take, all of it charged.
    pub fn copied_bytes(&self) -> u64 {
        let host = self.spaces.iter().filter(|s| s.kind == SpaceKind::Host);
        host.map(|s| s.bytes).fold(0, u64::saturating_add)
    }

    /// Memory of the host beside a device's: copies, and activations that left the device. All of it is charged.
    pub fn host_bytes(&self) -> u64 {
        let spilled = if self.spills_to_host {
            self.spill_bytes()
        } else {
            0
        };
        self.copied_bytes().saturating_add(spilled)
    }

    /// Whether a load comes from the host's memory by a device's link alone, in all runs but the first.
    pub fn is_from_host(&self, load: &Load) -> bool {
        let is_spilled = self.kind(load.from.space) == Some(SpaceKind::Spill);
        is_spilled && self.spills_to_host || self.copy_of(load).is_some()
    }

    /// What a run's loads move from copies, once these are there.
    pub fn loaded_from_copies_per_run(&self) -> u64 {
        let loads = self
            .loads
            .iter()
            .filter(|load| self.copy_of(load).is_some());
        loads.map(|load| load.bytes).fold(0, u64::saturating_add)
    }
}
