//! Spaces: the memories and files that a plan uses. An address is a space and an offset in it.

use serde::{Deserialize, Serialize};

use crate::{BLOCK_BYTES, ByteRange};

/// Index into [`crate::ExecutionPlan::spaces`].
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct SpaceId(pub u8);

/// Memory or a file with one range of addresses, `0..bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    pub name: String,
    pub kind: SpaceKind,
    /// Size of its range of addresses.
    pub bytes: u64,
    /// Its first byte lies at a multiple of this, a power of two.
    pub align: u64,
}

/// What may lie in a space, and what of it is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpaceKind {
    /// Memory that runs overwrite. All of it is charged. Its contents mean nothing from plan to plan.
    Work,
    /// Memory of which each byte holds the same byte of the packed file for as long as the plan is in force.
    /// Only what resident loads fill is charged; it may stay in memory when another plan follows.
    Resident,
    /// A temporary file that activations are stored in.
    Spill,
    /// The packed model, which is only read.
    Packed,
    /// Memory of the host, where the plan's other memory is a device's: it holds copies of parts of the packed file. All of it
    /// is charged to the host.
    Host,
    /// A file that holds what survives runs while its memory is given back.
    State,
}

/// An address.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Place {
    pub space: SpaceId,
    pub offset: u64,
}

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Area {
    pub space: SpaceId,
    pub range: ByteRange,
}

impl SpaceId {
    /// The spaces of [`Space::of_host`]. Who reads a plan asks it for the kind of a space instead.
    pub const WORK: SpaceId = SpaceId(0);
    pub const RESIDENT: SpaceId = SpaceId(1);
    pub const PACKED: SpaceId = SpaceId(2);
    pub const SPILL: SpaceId = SpaceId(3);

    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl Space {
    /// The spaces of a machine with one memory and one drive, by [`SpaceId::WORK`] and so on, of these sizes.
    pub fn of_host(
        work_bytes: u64,
        resident_bytes: u64,
        packed_bytes: u64,
        spill_bytes: u64,
    ) -> Vec<Space> {
        let space = |name: &str, kind, bytes| Space {
            name: name.to_owned(),
            kind,
            bytes,
            align: BLOCK_BYTES,
        };
        vec![
            space("work", SpaceKind::Work, work_bytes),
            space("weights", SpaceKind::Resident, resident_bytes),
            space("packed", SpaceKind::Packed, packed_bytes),
            space("spill", SpaceKind::Spill, spill_bytes),
        ]
    }
}

impl Place {
    pub fn new(space: SpaceId, offset: u64) -> Place {
        Place { space, offset }
    }

    pub fn work(offset: u64) -> Place {
        Place::new(SpaceId::WORK, offset)
    }

    pub fn resident(offset: u64) -> Place {
        Place::new(SpaceId::RESIDENT, offset)
    }

    pub fn packed(offset: u64) -> Place {
        Place::new(SpaceId::PACKED, offset)
    }

    pub fn spill(offset: u64) -> Place {
        Place::new(SpaceId::SPILL, offset)
    }

    /// `bytes` from here on.
    pub fn area(self, bytes: u64) -> Area {
        Area {
            space: self.space,
            range: ByteRange::at(self.offset, bytes),
        }
    }

    /// So many bytes further; `None` past the last address that there can be.
    pub fn checked_add(self, bytes: u64) -> Option<Place> {
        let offset = self.offset.checked_add(bytes)?;
        Some(Place { offset, ..self })
    }
}

impl Area {
    pub fn overlaps(self, other: Area) -> bool {
        self.space == other.space && self.range.overlaps(other.range)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "offset {} of space {}", self.offset, self.space.0)
    }
}
