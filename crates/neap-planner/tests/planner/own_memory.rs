//! Plans for a device with memory of its own: valid, without gaps, and faster for each byte that the host keeps.

use crate::shapes;
use neap_plan::{ExecutionPlan, HostCopy, SpaceKind, Violation, Workload, validate};
use neap_planner::{Planner, Strategy, with_copies, with_packed_residents};
use neap_sim::{CostProfile, predict};

fn costs() -> CostProfile {
    CostProfile {
        storage_bytes_per_second: 1e9,
        link_bytes_per_second: 8e9,
        ..CostProfile::default()
    }
}

/// Where a quarter of what could be taken beyond the least is there.
fn plan(w: &Workload) -> ExecutionPlan {
    let planner = Planner::new(w);
    let least = planner.smallest_feasible_bytes();
    let most = planner.unlimited_high_water_bytes();
    let budget = least + (most - least) / 4;
    planner
        .plan(budget, Strategy::Preload, &costs())
        .unwrap()
        .plan
}

#[test]
fn residents_lie_side_by_side() {
    let mut had_gaps = false;
    for (name, w) in shapes::all() {
        for share in [1, 2, 3, 4] {
            let planner = Planner::new(&w);
            let (least, most) = (
                planner.smallest_feasible_bytes(),
                planner.unlimited_high_water_bytes(),
            );
            let budget = least + (most - least) / 4 * share;
            let plan = planner
                .plan(budget, Strategy::Preload, &costs())
                .unwrap()
                .plan;
            let end = |p: &ExecutionPlan| {
                let ends = p.resident.iter().map(|r| r.area().range.end);
                ends.max().unwrap_or(0)
            };
            let packed = with_packed_residents(&plan);
            had_gaps |= end(&plan) > plan.resident_bytes();
            assert_eq!(end(&packed), packed.resident_bytes(), "{name}");
            let (before, after) = (validate(&w, &plan).unwrap(), validate(&w, &packed).unwrap());
            assert_eq!(before, after, "{name}");
        }
    }
    assert!(had_gaps, "nothing was packed");
}

#[test]
fn what_the_host_keeps_is_loaded_faster() {
    for (name, w) in shapes::all() {
        let plan = with_packed_residents(&plan(&w));
        let loaded = plan.loaded_bytes_per_run();
        let mut last_ns = predict(&w, &plan, &costs()).latency_ns;
        let first_ns = last_ns;
        for quarter in 0..=4 {
            let room = loaded * quarter / 4;
            let copying = with_copies(&w, &plan, &costs(), room);
            validate(&w, &copying).unwrap();
            assert!(copying.copied_bytes() <= room, "{name}");
            let from_copies = copying.loaded_from_copies_per_run();
            assert!(from_copies >= copying.copied_bytes(), "{name}");
            let ns = predict(&w, &copying, &costs()).latency_ns;
            assert!(ns <= last_ns + last_ns / 50, "{name}: {ns} after {last_ns}");
            last_ns = ns;
        }
        assert!(loaded == 0 || last_ns < first_ns, "{name}: no faster");
    }
}

#[test]
fn copies_that_make_no_sense_are_refused() {
    let (_, w) = shapes::all().remove(0);
    let plan = with_packed_residents(&plan(&w));
    let good = with_copies(&w, &plan, &costs(), u64::MAX / 2);
    assert!(good.copies.len() > 2);
    let bad = |change: &dyn Fn(&mut ExecutionPlan)| {
        let mut plan = good.clone();
        change(&mut plan);
        validate(&w, &plan).expect_err("refused")
    };
    let twice: Violation = bad(&|p| p.copies[1] = p.copies[0]);
    assert!(matches!(twice, Violation::Copy { .. }), "{twice}");
    let swapped = bad(&|p| p.copies.swap(0, 1));
    assert!(matches!(swapped, Violation::Copy { .. }), "{swapped}");
    let overlap = bad(&|p| p.copies[1].to = p.copies[0].to);
    assert!(matches!(overlap, Violation::Overlap { .. }), "{overlap}");
    let odd = bad(&|p| p.copies[0].to.offset += 1);
    assert!(matches!(odd, Violation::Misaligned { .. }), "{odd}");
    let outside = bad(&|p| {
        let host = p.spaces.iter_mut().find(|s| s.kind == SpaceKind::Host);
        host.expect("a space").bytes -= 4096;
    });
    assert!(
        matches!(outside, Violation::OutsideSpace { .. }),
        "{outside}"
    );
    let elsewhere = bad(&|p| {
        let HostCopy { from, .. } = p.copies[0];
        p.copies[0].to = from;
    });
    assert!(
        matches!(elsewhere, Violation::WrongSpace { .. }),
        "{elsewhere}"
    );
}
