//! From a model and room to a plan of its passes: which matrices are steps, what computing them costs, and where they lie.

use crate::{Expert, Matrix, Model};
use neap_plan::{ExecutionPlan, PanelSpec, StepSpec, Workload};
use neap_planner::{PlanError, resident_ring_bytes, ring, smallest_ring_bytes};
use neap_sim::{CostProfile, predict};

/// Rows of a panel: as many as kernels compute side by side, where the matrix has whole ones.
const PANEL_ROWS: usize = 16;

/// What computing and reading take, for plans and predictions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Bytes of weights that a pass of one row computes with in a second.
    pub weight_bytes_per_second: f64,
    pub drive_bytes_per_second: f64,
}

impl Default for Rates {
    /// Two threads of a small machine, and a fast drive: a ring for a faster one costs a slower one little.
    fn default() -> Self {
        Rates {
            weight_bytes_per_second: 16e9,
            drive_bytes_per_second: 4e9,
        }
    }
}

/// From the moment a read may start until it is known to be complete, beside moving its bytes: reads start and are noticed between
/// tasks of computes, and drives of virtual machines report late. A ring that is too short for it leaves the drive idle.
const REQUEST_LATENCY_NS: u64 = 400_000;

/// Steps are the model's matrices, in its order.
pub(crate) fn workload(model: &Model) -> Workload {
    let steps = model.matrices.iter().map(|(layer, role, matrix)| StepSpec {
        name: format!("{layer} {role:?}"),
        flops: 2 * (matrix.rows * matrix.k) as u64,
        touched_bytes: (matrix.rows * matrix.row_bytes()) as u64,
        panels: Some(panels(matrix)),
        ..StepSpec::default()
    });
    let steps: Vec<StepSpec> = steps.collect();
    Workload {
        digest: format!("{} {}", model.path().display(), model.matrix_bytes()),
        steps,
        ..Workload::default()
    }
}

fn panels(matrix: &Matrix) -> PanelSpec {
    let rows = panel_rows(matrix);
    PanelSpec {
        file_offset: matrix.offset,
        panel_bytes: (rows * matrix.row_bytes()) as u64,
        panels: (matrix.rows / rows) as u32,
        granule: 1,
    }
}

/// The largest power of two up to [`PANEL_ROWS`] that divides the rows.
pub(crate) fn panel_rows(matrix: &Matrix) -> usize {
    1 << matrix
        .rows
        .trailing_zeros()
        .min(PANEL_ROWS.trailing_zeros())
}

pub(crate) fn costs(workload: &Workload, rates: Rates) -> CostProfile {
    let ns = |step: &StepSpec| step.touched_bytes as f64 / rates.weight_bytes_per_second * 1e9;
    CostProfile {
        storage_bytes_per_second: rates.drive_bytes_per_second,
        request_latency_ns: REQUEST_LATENCY_NS,
        compute_overhead_ns: 3_000,
        slice_overhead_ns: 2_000,
        load_handling_ns: 4_000,
        load_handling_ns_per_byte: 0.0,
        step_ns: workload
            .steps
            .iter()
            .map(|s| ns(s).max(1.0) as u64)
            .collect(),
        ..CostProfile::default()
    }
}

/// The fastest plan within that room.
pub(crate) fn plan(
    workload: &Workload,
    room_bytes: u64,
    rates: Rates,
) -> Result<ExecutionPlan, PlanError> {
    ring(workload, room_bytes, &costs(workload, rates))
}

/// The smallest room that has a plan.
pub(crate) fn smallest_room(workload: &Workload) -> u64 {
    smallest_ring_bytes(workload)
}

/// The room in which all of it stays.
pub(crate) fn resident_room(workload: &Workload) -> u64 {
    resident_ring_bytes(workload)
}

/// Nanoseconds of a pass of one row, attention and experts left out.
pub(crate) fn pass_ns(workload: &Workload, plan: &ExecutionPlan, rates: Rates) -> u64 {
    predict(workload, plan, &costs(workload, rates)).latency_ns
}

/// Nanoseconds of the experts of one row with so many in memory, if all are chosen equally often.
pub(crate) fn experts_ns(model: &Model, slots: usize, rates: Rates) -> u64 {
    let Some(experts) = &model.config.experts else {
        return 0;
    };
    let of_layer = |expert: &Expert| expert.pieces().map(Matrix::bytes).sum::<u64>();
    let bytes: u64 = model.experts.iter().map(of_layer).sum();
    let bytes = bytes as f64 * experts.used as f64;
    let all = (model.experts.len() * experts.count).max(1);
    let missing = 1.0 - slots.min(all) as f64 / all as f64;
    let seconds =
        bytes / rates.weight_bytes_per_second + missing * bytes / rates.drive_bytes_per_second;
    (seconds * 1e9) as u64
}
