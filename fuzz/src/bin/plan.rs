//! A right plan with changes: the validator refuses it, or it is simulated to its end; and where the workload is
//! still the model's own, it is executed and gives the same bits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_fuzz::plans::{self, Subject};
use neap_fuzz::twist::twisted;
use std::cell::LazyCell;

thread_local! {
    static SUBJECTS: LazyCell<Vec<Subject>> = LazyCell::new(plans::subjects);
}

/// Which plan, whether the workload may change, and some changes.
fn seeds() -> Vec<Vec<u8>> {
    let subjects = SUBJECTS.with(|s| s.len()) as u8;
    let seed = |n: u8| vec![n / 2, n % 2, 3, n, 0, 1, 0, 17, 2, 40 + n];
    (0..2 * subjects).map(seed).collect()
}

fuzz_target!(
    init: neap_fuzz::offer_seeds(seeds),
    |data: &[u8]| {
        let [which, both, changes @ ..] = data else {
            return;
        };
        SUBJECTS.with(|subjects| {
            let subject = &subjects[usize::from(*which) % subjects.len()];
            let mut workload = subject.workload_json.clone();
            let mut plan = subject.plan_json.clone();
            let is_own = both % 2 == 0;
            if is_own {
                twisted(&mut [&mut plan], changes);
            } else {
                twisted(&mut [&mut plan, &mut workload], changes);
            }
            let (Ok(workload), Ok(plan)) = (
                serde_json::from_value(workload),
                serde_json::from_value(plan),
            ) else {
                return;
            };
            plans::check(&workload, &plan);
            if is_own {
                subject.execute(plan);
            }
        });
    }
);
