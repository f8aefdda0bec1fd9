//! From a plan's offsets to those of this crate's [`Arena`](crate::arena::Arena).
//!
//! ```text
//!   plan    │ activations, workspaces, loads │ resident │          one block, bounds what is charged
//!                          │                      │
//!   arena   │ work ◄───────┘           │   ...    │ residents       each weight at its place in the file
//!           0                                     RESIDENT_BASE
//! ```
//! A valid plan never uses a resident range for anything else, so what of a plan lies in one is a
//! weight of the file range that it holds, and can lie anywhere. Bytes charged stay the same.

use neap_plan::{BLOCK_BYTES, ByteRange, ExecutionPlan, Workload};

use crate::ranges::{bytes_of, set_of};

/// Offsets from here on are file offsets of resident weights: beyond any offset of a valid plan.
pub(crate) const RESIDENT_BASE: u64 = 1 << 46;

/// What of the arena a plan needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Placement {
    /// Bytes from offset 0 that are overwritten in each run.
    pub work_bytes: u64,
    /// Whether nothing resident lay among those, so that all of them may be charged.
    pub dense: bool,
    /// File range of all weights, in whole blocks.
    pub span: ByteRange,
    /// File ranges that stay in memory, as a set.
    pub resident: Vec<ByteRange>,
}

impl Placement {
    /// `plan` is valid for `workload`. Its computes' weights get offsets of this crate's arena.
    pub(crate) fn take_over(workload: &Workload, plan: &mut ExecutionPlan) -> Placement {
        let resident = set_of(plan.resident.iter().map(|r| r.file_range()).collect());
        let span = span(workload, &resident);
        let mut ranges: Vec<_> = plan.resident.iter().collect();
        ranges.sort_unstable_by_key(|r| r.offset);
        let translate = |offset: &mut u64| {
            let after = ranges.partition_point(|r| r.offset <= *offset);
            if let Some(r) = after.checked_sub(1).map(|i| ranges[i])
                && *offset < r.offset + r.bytes
            {
                *offset = RESIDENT_BASE + r.file_offset + (*offset - r.offset);
            }
        };
        let mut reads_rows = vec![false; workload.steps.len()];
        for compute in &mut plan.computes {
            let weights = &mut compute.weights;
            reads_rows[compute.step.index()] |= weights.table.is_none();
            let all = weights.panels.iter_mut();
            let all = all.chain(&mut weights.extents).chain(&mut weights.table);
            all.for_each(translate);
        }
        let buffers = plan.buffers.iter().zip(&workload.buffers);
        let buffers = buffers.map(|(&offset, b)| offset.saturating_add(b.bytes));
        let steps = workload.steps.iter().zip(&reads_rows);
        let workspaces = plan.workspaces.iter().zip(steps);
        let workspaces = workspaces
            .map(|(&offset, (s, &rows))| offset.saturating_add(s.workspace_rect_bytes(rows)));
        let loads = plan.loads.iter().map(|l| l.arena_range().end);
        let work_bytes = buffers.chain(workspaces).chain(loads).max().unwrap_or(0);
        let work_bytes = work_bytes.next_multiple_of(BLOCK_BYTES);
        let charged_bytes = work_bytes.saturating_add(bytes_of(&resident));
        Placement {
            work_bytes,
            dense: charged_bytes <= plan.arena_bytes.next_multiple_of(BLOCK_BYTES),
            span,
            resident,
        }
    }
}

/// All weights of the workload, whatever a plan keeps of them, so that the next plan's fit too.
fn span(workload: &Workload, resident: &[ByteRange]) -> ByteRange {
    let weights = workload.steps.iter().flat_map(|s| {
        let panels = s.panels.map(|p| p.file_range(p.all()));
        let extents = s.extents.iter().map(|e| e.file_range());
        let table = s.rows.map(|r| r.file_range());
        panels.into_iter().chain(extents).chain(table)
    });
    let hull = weights.chain(resident.iter().copied());
    let hull = hull.reduce(|a, b| ByteRange::new(a.begin.min(b.begin), a.end.max(b.end)));
    hull.map_or(ByteRange::new(0, 0), |hull| {
        ByteRange::new(
            hull.begin / BLOCK_BYTES * BLOCK_BYTES,
            hull.end.next_multiple_of(BLOCK_BYTES),
        )
    })
}
