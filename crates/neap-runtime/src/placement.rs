//! From a plan's offsets to those of this crate's [`Arena`](crate::arena::Arena).
//!
//! ```text
//!   plan    │ activations, workspaces, loads │ resident │ prepared │      one block, bounds what is charged
//!                          │                      │   ┌──────┘
//!   arena   │ work ◄───────┘      ◄── prepared ───────┘    │ residents       where they are in the file, or packed
//!           0                                     RESIDENT_BASE
//! ```
//! A valid plan never uses a resident range for anything else, so what of a plan lies in one is a
//! weight of the file range that it holds, and can lie anywhere. Bytes charged stay the same.

use neap_plan::{BLOCK_BYTES, ByteRange, ExecutionPlan, Workload};

use crate::mapping::HUGE_PAGE_BYTES;
use crate::residents::Residents;

/// Offsets from here on are of resident weights: beyond any offset of a valid plan.
pub(crate) const RESIDENT_BASE: u64 = 1 << 46;

/// What of the arena a plan needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Bytes from offset 0 that runs overwrite: prepared panels, the last of them, once.
    pub work_bytes: u64,
    /// Whether nothing resident lay among those, so that all of them may be charged.
    pub dense: bool,
    /// All weights of the workload: the most that another plan keeps.
    pub weight_bytes: u64,
    pub residents: Residents,
    /// What computes use of them.
    pub uses: Vec<ResidentUse>,
}

/// A compute uses resident weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ResidentUse {
    /// Which, in the file.
    pub file: ByteRange,
    /// The compute's index in the run.
    pub compute: u32,
}

impl Placement {
    /// `plan` is valid for `workload`. Its computes' weights and prepared panels get offsets of this crate's arena.
    pub(crate) fn take_over(workload: &Workload, plan: &mut ExecutionPlan) -> Placement {
        let files: Vec<ByteRange> = plan.resident.iter().map(|r| r.file_range()).collect();
        let resident_bytes = files
            .iter()
            .map(|file| file.len())
            .fold(0, u64::saturating_add);
        let weight_bytes = room_bytes(workload).max(resident_bytes);
        let residents = Residents::new(files, weight_bytes);
        let mut ranges: Vec<_> = plan.resident.iter().collect();
        ranges.sort_unstable_by_key(|r| r.offset);
        let mut uses = Vec::new();
        let mut translate = |offset: &mut u64, file: ByteRange, compute: u32| {
            let after = ranges.partition_point(|r| r.offset <= *offset);
            if let Some(r) = after.checked_sub(1).map(|i| ranges[i])
                && *offset < r.offset + r.bytes
                && let Some(at) = residents.offset_of(r.file_offset + (*offset - r.offset))
            {
                *offset = RESIDENT_BASE + at;
                uses.push(ResidentUse { file, compute });
            }
        };
        let mut reads_rows = vec![false; workload.steps.len()];
        for (index, compute) in (0..).zip(&mut plan.computes) {
            let step = &workload.steps[compute.step.index()];
            let weights = &mut compute.weights;
            reads_rows[compute.step.index()] |= weights.table.is_none();
            if let (Some(offset), Some(panels)) = (&mut weights.panels, &step.panels) {
                translate(offset, panels.file_range(compute.panels), index);
            }
            for (offset, extent) in weights.extents.iter_mut().zip(&step.extents) {
                translate(offset, extent.file_range(), index);
            }
            if let (Some(offset), Some(table)) = (&mut weights.table, &step.rows) {
                translate(offset, table.file_range(), index);
            }
        }
        let buffers = plan.buffers.iter().zip(&workload.buffers);
        let buffers = buffers.map(|(&offset, b)| offset.saturating_add(b.bytes));
        let steps = workload.steps.iter().zip(&reads_rows);
        let workspaces = plan.workspaces.iter().zip(steps);
        let workspaces = workspaces
            .map(|(&offset, (s, &rows))| offset.saturating_add(s.workspace_rect_bytes(rows)));
        let loads = plan.loads.iter().map(|l| l.arena_range().end);
        let mut work_bytes = buffers.chain(workspaces).chain(loads).max().unwrap_or(0);
        for prepared in &mut plan.prepared {
            let bytes = workload.steps[prepared.step.index()].prepared_bytes();
            prepared.offset = work_bytes.next_multiple_of(BLOCK_BYTES);
            work_bytes = prepared.offset.saturating_add(bytes);
        }
        // Where the plan has room for it, in whole huge pages: drives read much faster into those.
        let large = work_bytes.next_multiple_of(HUGE_PAGE_BYTES);
        let work_bytes = if large.saturating_add(residents.bytes()) <= plan.arena_bytes {
            large
        } else {
            work_bytes.next_multiple_of(BLOCK_BYTES)
        };
        let charged_bytes = work_bytes.saturating_add(residents.bytes());
        Placement {
            work_bytes,
            dense: charged_bytes <= plan.arena_bytes.next_multiple_of(BLOCK_BYTES),
            weight_bytes,
            residents,
            uses,
        }
    }

    /// The most that is charged.
    pub(crate) fn bytes(&self) -> u64 {
        self.work_bytes.saturating_add(self.residents.bytes())
    }
}

/// For all weights of the workload at the offsets that they have in the file; or one after the other, where
/// they are far apart there.
fn room_bytes(workload: &Workload) -> u64 {
    let weights = workload.steps.iter().flat_map(|s| {
        let panels = s.panels.map(|p| p.file_range(p.all()));
        let extents = s.extents.iter().map(|e| e.file_range());
        let table = s.rows.map(|r| r.file_range());
        panels.into_iter().chain(extents).chain(table)
    });
    let (bytes, end) = weights.fold((0u64, 0), |(bytes, end), file: ByteRange| {
        let blocks = file.to_blocks();
        (bytes.saturating_add(blocks.len()), blocks.end.max(end))
    });
    if end / 2 <= bytes {
        bytes.max(end)
    } else {
        bytes
    }
}
