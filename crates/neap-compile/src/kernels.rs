//! Which kernel computes each step.
//!
//! ```text
//!                      products    transforms         workspace
//!   direct             1           none               a little
//!   winograd F(2,3)    1 / 2.25    inputs, weights    a block of tiles, a few panels
//!   winograd F(4,3)    1 / 4       as above           as above; or wide: three such blocks, and weights transformed less often
//!   bf16               1 / 2       inputs, weights    inputs in 16 bits; only what the model has so
//! ```
//! Weights stay as they are packed: a panel is transformed as it is used, into workspace, so that a
//! streamed layer loads no more than its stored bytes. Where memory is left over, panels are kept transformed, *prepared*.

use neap_kernels::simd::Isa;
use neap_ops::{Choice, Kernel, KernelFacts, Tile, WeightForm};
use neap_plan::StepSpec;

/// Which kernels may be picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernels {
    /// One for each operator, the same under every budget.
    Direct,
    /// The one that is expected to be fastest, of those that can do with an arena of so many bytes.
    FastestWithin(u64),
}

impl Kernels {
    pub const FASTEST: Kernels = Kernels::FastestWithin(u64::MAX);

    /// Where memory does not matter.
    pub fn preferred(exact: bool) -> Kernels {
        if exact {
            Kernels::Direct
        } else {
            Kernels::FASTEST
        }
    }

    /// Bytes for workspace and weights of a step beside which so many bytes are live; `None` where
    /// only the direct kernel may be picked.
    pub(crate) fn room(self, live_bytes: u64) -> Option<u64> {
        match self {
            Kernels::Direct => None,
            Kernels::FastestWithin(arena_bytes) => Some(arena_bytes.saturating_sub(live_bytes)),
        }
    }
}

/// Products of tiles run at this share of the direct kernel's rate (measured, as what follows, over the
/// 3x3 layers of VGG-19, ResNets and YOLOv3).
const PRODUCT_EFFICIENCY: f64 = 0.9;

/// Operations in whose time one byte of transformed inputs is written and read again.
const FLOPS_PER_VALUE_BYTE: f64 = 4.2;

/// Operations in whose time one byte of weights is transformed (`winograd_bench` with 1 to 11 passes, AVX2).
const FLOPS_PER_TRANSFORMED_BYTE: f64 = 4.0;

/// Operations of the direct kernel in whose time a Winograd kernel computes a step, transforming its weights, which
/// are so many bytes as `f32`, in each of its passes.
pub(crate) fn flops_by(facts: &KernelFacts, tile: Tile, widened_bytes: u64) -> f64 {
    let each = widened_bytes as f64 * tile.points() as f64 / 9.0;
    let transformed = each * facts.raw.weight_passes as f64;
    facts.flops as f64 / PRODUCT_EFFICIENCY
        + transformed * FLOPS_PER_TRANSFORMED_BYTE
        + facts.raw.moved_slice_bytes as f64 * FLOPS_PER_VALUE_BYTE
}

/// Products of bfloat16 in pairs run at this multiple of the direct kernel's rate, their weights brought into pairs included
/// (`pairs_bench` of neap-kernels shows it).
const PAIRS_EFFICIENCY: f64 = 1.8;

/// Operations in whose time a byte of an input in pairs is made of floats.
const FLOPS_PER_ROUNDED_BYTE: f64 = 2.0;

/// Operations of the direct kernel in whose time that of pairs computes a step.
fn flops_of_pairs(facts: &KernelFacts) -> f64 {
    facts.flops as f64 / PAIRS_EFFICIENCY
        + facts.raw.moved_slice_bytes as f64 * FLOPS_PER_ROUNDED_BYTE
}

/// Operations in integers in whose time VNNI makes a result of its sum: 32 products. `integer_bench` of neap-kernels shows it in
/// layers of 64 to 2,304 k, and whole networks in integers take what this says.
const FLOPS_PER_RESULT: u64 = 64;

/// Operations of a layer in floats in whose time one in integers computes so many, with so many results: as `integer_bench` measures
/// with VNNI and with AMX. An estimate elsewhere. Calibrating measures it.
pub(crate) fn of_integers(flops: u64, results: u64, isa: Isa) -> u64 {
    match isa.name() {
        "amx" => flops / 7,
        "avx512" => flops.saturating_add(results.saturating_mul(FLOPS_PER_RESULT)) / 15 * 4,
        _ => flops,
    }
}

/// Operations in floats in whose time a weight in a block of 4 bits becomes a float: seven instructions for 16 of them.
const FLOPS_PER_WIDENED: u64 = 4;

/// Rows for which a task widens weights once, at the most.
const ROWS_PER_WIDENING: u64 = 256;

/// Operations of a layer of weights in blocks that are not rounded to them, with so many rows of results.
pub(crate) fn of_blocks(flops: u64, rows: u64) -> u64 {
    // Twice the weights for each row.
    let weights = flops / 2 / rows.max(1);
    let times = rows.div_ceil(ROWS_PER_WIDENING);
    flops.saturating_add(weights.saturating_mul(times * FLOPS_PER_WIDENED))
}

/// The same of rows that are rounded, times weights in blocks of 32.
pub(crate) fn of_rounded(flops: u64, isa: Isa) -> u64 {
    match isa.name() {
        "amx" | "avx512" => flops / 5 * 2,
        "avx2" => flops / 3 * 2,
        _ => flops,
    }
}

/// A kernel must promise to be this much faster than the direct one: the promise is an estimate.
const GAIN: f64 = 1.3;

/// The step with the kernel that promises to be fastest within `room_bytes`.
pub(crate) fn fastest(direct: StepSpec, facts: &[KernelFacts], room_bytes: u64) -> StepSpec {
    let mut best = direct.clone();
    let mut least = direct.flops as f64 / GAIN;
    let Some(panels) = direct.panels else {
        return best;
    };
    for facts in facts {
        // As many are transformed in whatever format they are stored.
        let widened_bytes = (facts.raw.panel_bytes as u64).saturating_mul(panels.panels.into());
        let flops = match (facts.kernel, facts.kernel.tile()) {
            (_, Some(tile)) => flops_by(facts, tile, widened_bytes),
            (Kernel::Pairs, _) => flops_of_pairs(facts),
            _ => continue,
        };
        let workspace_bytes = facts.raw.slice_workspace_bytes(panels.panels as usize) as u64;
        if workspace_bytes.saturating_add(panels.panel_bytes) > room_bytes {
            continue;
        }
        if flops < least {
            least = flops;
            let choice = Choice {
                kernel: facts.kernel,
                weights: WeightForm::Raw,
            };
            best = StepSpec {
                workspace_bytes,
                flops: flops as u64,
                slice_touched_bytes: facts.raw.moved_slice_bytes,
                kernel: choice.into(),
                ..direct.clone()
            };
        }
    }
    best
}

/// A step that a Winograd kernel computes, with its panels prepared; `None` where it cannot have them so in the
/// workspace that it has.
pub(crate) fn prepared(stored: &StepSpec, facts: &[KernelFacts]) -> Option<StepSpec> {
    let panels = stored.panels?;
    let choice = Choice::try_from(stored.kernel).ok()?;
    let facts = facts.iter().find(|f| f.kernel == choice.kernel)?;
    let form = facts.prepared.as_ref()?;
    let workspace_bytes = form.slice_workspace_bytes(panels.panels as usize) as u64;
    if choice.weights != WeightForm::Raw || workspace_bytes > stored.workspace_bytes {
        return None;
    }
    let flops = facts.flops as f64 / PRODUCT_EFFICIENCY
        + form.moved_slice_bytes as f64 * FLOPS_PER_VALUE_BYTE;
    let prepared = StepSpec {
        flops: flops as u64,
        slice_touched_bytes: form.moved_slice_bytes,
        kernel: Choice {
            kernel: facts.kernel,
            weights: WeightForm::Prepared,
        }
        .into(),
        prepared_panel_bytes: form.panel_bytes as u64,
        ..stored.clone()
    };
    let stored_bytes = panels.file_range(panels.all()).len();
    let touched_bytes = stored.touched_bytes.saturating_sub(stored_bytes);
    Some(StepSpec {
        touched_bytes: touched_bytes.saturating_add(prepared.prepared_bytes()),
        ..prepared
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_weights_counts_most_for_few_rows() {
        let weights = 2048 * 2048;
        let flops = |rows| of_blocks(2 * weights * rows, rows) / (2 * weights * rows);
        assert_eq!(flops(1), 3, "four for each weight, beside two");
        assert_eq!(flops(128), 1);
        assert_eq!(
            of_blocks(2 * weights * 512, 512),
            2 * weights * 512 + 8 * weights,
            "widened by two tasks"
        );
        assert_eq!(of_blocks(0, 0), 0);
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn results_of_short_sums_cost_as_much_as_their_products() {
        let Some(isa) = Isa::by_name("avx512") else {
            return neap_testing::absent("there is no AVX-512");
        };
        let per_result = |k: u64| of_integers(2 * k * 900, 900, isa) / 900;
        assert_eq!(per_result(32), 2 * per_result(0));
        assert!(per_result(1024) * 3 < 2 * 1024);
    }
}
