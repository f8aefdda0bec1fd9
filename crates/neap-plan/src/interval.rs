//! Typed ids and half-open intervals.

use serde::{Deserialize, Serialize};

use crate::BLOCK_BYTES;

/// Index into [`crate::Workload::steps`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StepId(pub u32);

/// Which of its kernels computes a step. Opaque here: it is for whoever makes workloads and whoever runs them.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct KernelId(pub u16);

/// Index into [`crate::Workload::buffers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BufferId(pub u32);

impl KernelId {
    /// The kernel that every step has.
    pub const DIRECT: KernelId = KernelId(0);
}

impl StepId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl BufferId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Steps `begin..end`: for a buffer, from the first step that writes it to one past the last that reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct StepRange {
    pub begin: u32,
    pub end: u32,
}

impl StepRange {
    pub fn new(begin: u32, end: u32) -> Self {
        Self { begin, end }
    }

    pub fn is_empty(self) -> bool {
        self.begin >= self.end
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.begin.max(other.begin) < self.end.min(other.end)
    }

    pub fn contains(self, step: u32) -> bool {
        self.begin <= step && step < self.end
    }
}

/// Panels `begin..end` of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PanelRange {
    pub begin: u32,
    pub end: u32,
}

impl PanelRange {
    pub fn new(begin: u32, end: u32) -> Self {
        Self { begin, end }
    }

    /// The range of a step without sliceable weights.
    pub const NONE: PanelRange = PanelRange { begin: 0, end: 0 };

    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.begin)
    }

    pub fn is_empty(self) -> bool {
        self.begin >= self.end
    }
}

/// Bytes `begin..end` of a file or of the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ByteRange {
    pub begin: u64,
    pub end: u64,
}

impl ByteRange {
    pub fn new(begin: u64, end: u64) -> Self {
        Self { begin, end }
    }

    /// `len` bytes from `begin`; saturates, so that hostile numbers give a range nothing can hold.
    pub fn at(begin: u64, len: u64) -> Self {
        Self {
            begin,
            end: begin.saturating_add(len),
        }
    }

    pub fn len(self) -> u64 {
        self.end.saturating_sub(self.begin)
    }

    pub fn is_empty(self) -> bool {
        self.begin >= self.end
    }

    pub fn overlaps(self, other: Self) -> bool {
        self.begin.max(other.begin) < self.end.min(other.end)
    }

    pub fn holds(self, other: Self) -> bool {
        self.begin <= other.begin && other.end <= self.end
    }

    /// The smallest range of whole blocks that holds this one.
    ///
    /// ```text
    ///   file   |  4096  |  4096  |  4096  |
    ///   wanted      ████████████
    ///   blocks  ░░░░████████████░░
    /// ```
    pub fn to_blocks(self) -> Self {
        Self {
            begin: self.begin / BLOCK_BYTES * BLOCK_BYTES,
            end: self.end.div_ceil(BLOCK_BYTES).saturating_mul(BLOCK_BYTES),
        }
    }
}
