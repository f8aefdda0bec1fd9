//! `Workload`: what must be planned. Steps in schedule order, their weights as file ranges, and
//! activation buffers with live ranges. No operators: lowering knows them, planning need not.

use serde::{Deserialize, Serialize};

use crate::{BLOCK_BYTES, BufferId, ByteRange, KernelId, PanelRange, StepRange, WORKSPACE_ALIGN};

/// One network at fixed shapes, in schedule order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Names the lowered graph and its packed weights; a plan for another digest is refused.
    pub digest: String,
    pub steps: Vec<StepSpec>,
    pub buffers: Vec<BufferSpec>,
    /// Small constants, always in memory outside the arena; reported, not planned.
    pub constants_bytes: u64,
    /// Buffers that survive runs, in order: a run finds in them what the run before left. Each takes whole blocks, at a
    /// multiple of them, and lives in all steps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub states: Vec<BufferId>,
}

/// One step of the schedule: an operator (or a fused group) that runs start to end.
///
/// Its weights come in three kinds, of which it may have any:
///
/// ```text
///   panels    ▤▤▤▤▤▤▤▤   sliceable: any contiguous run of panels may be computed alone
///   extents   ███ ██     needed whole, each on its own, for every slice of the step
///   rows      ▒▒▒▒▒▒▒▒   a table of which few rows are needed: loaded whole, or read by the step itself
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepSpec {
    pub name: String,
    /// Scratch while the step computes; live from the first to the last of its slices.
    pub workspace_bytes: u64,
    pub flops: u64,
    /// Bytes read and written by the whole step (activations and weights): the memory side of its cost.
    pub touched_bytes: u64,
    /// Bytes moved once more in each slice: what a kernel works out from the step's inputs, for the panels
    /// of one slice.
    pub slice_touched_bytes: u64,
    pub panels: Option<PanelSpec>,
    pub extents: Vec<Extent>,
    pub rows: Option<RowTable>,
    /// Which of its kernels computes the step; flops, bytes and workspace are this kernel's.
    pub kernel: KernelId,
    /// Bytes of one panel in the form in which the kernel takes it, where that is not the stored one: made of
    /// each panel when it is first used, and kept in memory of its own ([`crate::ExecutionPlan::prepared`]).
    /// 0: panels are used as they are stored.
    #[serde(default, skip_serializing_if = "is_zero_bytes")]
    pub prepared_panel_bytes: u64,
    /// Buffers that the step reads and writes. One that no step of the workload lists is in use by every
    /// step of its live range, and never leaves the arena meanwhile.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<BufferId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<BufferId>,
}

/// Sliceable weights. Panel `p` is the `panel_bytes` bytes at `file_offset + p * panel_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PanelSpec {
    pub file_offset: u64,
    pub panel_bytes: u64,
    pub panels: u32,
    /// A slice of a multiple of `granule` panels runs at full speed; any other is legal, and slower.
    pub granule: u32,
}

/// Weights needed whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub file_offset: u64,
    pub bytes: u64,
}

/// A table (an embedding) of which a run needs few rows. The planner chooses: load it whole like an
/// extent, or let the step read the rows it needs from storage into `rows_workspace_bytes` extra bytes
/// behind its workspace (see [`StepSpec::workspace_rect_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RowTable {
    pub file_offset: u64,
    pub bytes: u64,
    pub rows_workspace_bytes: u64,
}

/// One activation buffer. Aliasing is already resolved: in-place results, reshapes and parts of a
/// concatenation share one buffer.
///
/// Graph inputs live from step 0. Graph outputs live to `steps.len()`: they are taken out after the last
/// step and before any load that waits for the next run ([`crate::AfterCompute::START`]).
///
/// A plan may take a buffer out of the arena between two steps that use it ([`crate::Store`]).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferSpec {
    pub name: String,
    pub bytes: u64,
    /// Power of two, at most [`BLOCK_BYTES`].
    pub align: u64,
    pub live: StepRange,
    /// Wanted after the run, though it is no output; it lives to `steps.len()`, but may then be in the
    /// spill file instead of the arena.
    #[serde(default)]
    pub kept: bool,
}

impl PanelSpec {
    /// File bytes of a panel range.
    pub fn file_range(&self, panels: PanelRange) -> ByteRange {
        let at = |p: u32| {
            self.file_offset
                .saturating_add(self.panel_bytes.saturating_mul(u64::from(p)))
        };
        ByteRange::new(at(panels.begin), at(panels.end))
    }

    pub fn all(&self) -> PanelRange {
        PanelRange::new(0, self.panels)
    }
}

impl Extent {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.file_offset, self.bytes)
    }
}

impl RowTable {
    pub fn file_range(&self) -> ByteRange {
        ByteRange::at(self.file_offset, self.bytes)
    }
}

impl StepSpec {
    /// Bytes of the step's workspace rectangle.
    ///
    /// ```text
    ///   rows_from_storage = false   |workspace_bytes|
    ///   rows_from_storage = true    |workspace_bytes ··|rows_workspace_bytes|     second part block-aligned
    /// ```
    pub fn workspace_rect_bytes(&self, rows_from_storage: bool) -> u64 {
        match (&self.rows, rows_from_storage) {
            (Some(rows), true) => self
                .rows_workspace_offset()
                .saturating_add(rows.rows_workspace_bytes),
            _ => self.workspace_bytes,
        }
    }

    /// Where the rows lie, from the start of the workspace.
    pub fn rows_workspace_offset(&self) -> u64 {
        self.workspace_bytes
            .div_ceil(BLOCK_BYTES)
            .saturating_mul(BLOCK_BYTES)
    }

    /// Alignment of the workspace's offset in the arena.
    pub fn workspace_align(&self, rows_from_storage: bool) -> u64 {
        if rows_from_storage && self.rows.is_some() {
            BLOCK_BYTES
        } else {
            WORKSPACE_ALIGN
        }
    }

    /// Bytes of all panels in the form that the kernel takes; 0 where that is the stored one.
    pub fn prepared_bytes(&self) -> u64 {
        let panels = self.panels.map_or(0, |p| u64::from(p.panels));
        self.prepared_panel_bytes.saturating_mul(panels)
    }

    /// Bytes of all weights as they are stored, tables included, without block rounding.
    pub fn weight_bytes(&self) -> u64 {
        let panels = self.panels.map_or(0, |p| p.file_range(p.all()).len());
        let extents = self
            .extents
            .iter()
            .map(|e| e.bytes)
            .fold(0, u64::saturating_add);
        panels
            .saturating_add(extents)
            .saturating_add(self.rows.map_or(0, |r| r.bytes))
    }
}

impl Workload {
    pub fn weight_bytes(&self) -> u64 {
        self.steps
            .iter()
            .map(StepSpec::weight_bytes)
            .fold(0, u64::saturating_add)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero_bytes(bytes: &u64) -> bool {
    *bytes == 0
}
