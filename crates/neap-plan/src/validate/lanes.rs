//! What waits for what: every dependency well-formed, and none in a circle.
//!
//! Each lane goes in order, so a circle shows in prefixes: an action waits for the first so many of another
//! lane, and none of those may wait for the action itself or for what comes after it in its lane.

use crate::{ExecutionPlan as Plan, SpaceKind, Violation};

/// Loads and stores in a form that can always make progress.
pub(super) fn check_dependencies(plan: &Plan) -> Result<(), Violation> {
    let n = plan.computes.len();
    let stores = plan.stores.len();
    // stores_after[k] = most computes that any of the first k stores waits for.
    let mut stores_after = vec![0usize; stores + 1];
    for (store, s) in plan.stores.iter().enumerate() {
        let after = s.after as usize;
        if after == 0 || after > n {
            let why = format!("it waits for {after} of {n} computes");
            return Err(Violation::Store { store, why });
        }
        stores_after[store + 1] = stores_after[store].max(after);
    }
    // need_up_to[c] = most loads needed by any of the first c computes.
    let mut need_up_to = vec![(0u32, 0usize); n + 1];
    for (compute, c) in plan.computes.iter().enumerate() {
        need_up_to[compute + 1] = need_up_to[compute].max((c.needs, compute));
        let waits_for = stores_after.get(c.stores as usize);
        if waits_for.is_none_or(|&after| after > compute) {
            return Err(Violation::StoreNeeded {
                what: format!("compute {compute}"),
                stores: c.stores,
            });
        }
    }
    for (load, l) in plan.loads.iter().enumerate() {
        let Some(&stores_after) = stores_after.get(l.stores as usize) else {
            return Err(Violation::StoreNeeded {
                what: format!("load {load}"),
                stores: l.stores,
            });
        };
        let why = match (l.after.run_back, l.after.computes as usize) {
            (0, c) if c <= n => {
                let (needs, compute) = need_up_to[c.max(stores_after)];
                if needs as usize > load {
                    return Err(Violation::Deadlock {
                        load,
                        compute,
                        needs,
                    });
                }
                continue;
            }
            (1, _) if plan.kind(l.from.space) == Some(SpaceKind::Spill) => {
                "it reads what its own run stores, and may start in the run before".into()
            }
            (1, c) if c < n => continue,
            (0 | 1, c) => format!("it waits for {c} of {n} computes"),
            (back, _) => format!("it waits for a run {back} back"),
        };
        return Err(Violation::Dependency { load, why });
    }
    Ok(())
}
