//! Shared weights that stay for part of a run.

use neap_plan::{
    BLOCK_BYTES, BufferId, BufferSpec, PanelSpec, StepRange, StepSpec, Workload, validate,
};
use neap_planner::{Strategy, plan, smallest_feasible_bytes, unlimited_high_water_bytes};
use neap_sim::CostProfile;

const MIB: u64 = 1 << 20;

/// Each group of weights is used by so many steps in a row, as in unrolled layers; each step reads the result of the
/// one before it.
fn groups(sizes: &[u64], uses: u32) -> Workload {
    let mut w = Workload::default();
    let mut file_offset = BLOCK_BYTES;
    for &bytes in sizes {
        for _ in 0..uses {
            let step = w.steps.len() as u32;
            w.buffers.push(BufferSpec {
                name: format!("x{step}"),
                bytes: 8192,
                align: 64,
                live: StepRange::new(step, step + 2),
                kept: false,
            });
            w.steps.push(StepSpec {
                name: format!("s{step}"),
                panels: Some(PanelSpec {
                    file_offset,
                    panel_bytes: 4096,
                    panels: (bytes / 4096) as u32,
                    granule: 1,
                }),
                flops: 10_000_000,
                touched_bytes: bytes,
                reads: step.checked_sub(1).map(BufferId).into_iter().collect(),
                writes: vec![BufferId(step)],
                ..StepSpec::default()
            });
        }
        file_offset += bytes;
    }
    let steps = w.steps.len() as u32;
    for buffer in &mut w.buffers {
        buffer.live.end = buffer.live.end.min(steps);
    }
    w
}

#[test]
fn each_group_is_read_once_where_one_of_them_fits() {
    let w = groups(&[MIB, MIB, MIB], 6);
    let costs = CostProfile::default();
    // Room for one group and a little; not for two.
    let found = plan(&w, MIB + MIB / 4, Strategy::Preload, &costs).unwrap();
    validate(&w, &found.plan).unwrap();
    // One may be resident, the others are read once each: not six times.
    let loaded = found.plan.loaded_bytes_per_run();
    assert!(loaded <= 3 * MIB, "{loaded}");
    // With what was there before, at least two groups were read in each of their steps.
    assert!(found.plan.resident_bytes() + loaded >= 3 * MIB);
}

#[test]
fn every_budget_has_a_valid_plan_and_more_memory_is_no_slower() {
    for (sizes, uses) in [
        (vec![MIB, 2 * MIB], 3),
        (vec![MIB / 2; 4], 2),
        (vec![3 * MIB, MIB / 4, MIB], 5),
    ] {
        let w = groups(&sizes, uses);
        let costs = CostProfile::default();
        let (smallest, all) = (smallest_feasible_bytes(&w), unlimited_high_water_bytes(&w));
        let mut before_ns = u64::MAX;
        for share in 0..=12 {
            let budget = smallest + (all - smallest) / 12 * share;
            let found = plan(&w, budget, Strategy::Preload, &costs).unwrap();
            let verdict = validate(&w, &found.plan).unwrap();
            assert!(verdict.high_water_bytes <= budget);
            // The search is content within half a percent.
            let latency_ns = neap_sim::predict(&w, &found.plan, &costs).latency_ns;
            assert!(
                latency_ns - latency_ns / 200 <= before_ns,
                "{sizes:?} at {share}"
            );
            before_ns = latency_ns;
        }
    }
}
