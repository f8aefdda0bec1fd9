//! Random graphs under random budgets: the same bits under every plan, and the right ones.

use crate::nets::{RandomNet, difference, evaluate};
use crate::sessions::{Packed, Setting, plain_setting, run, with_stored_constants};
use neap_planner::Strategy;
use neap_store::IoMode;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const GRAPHS: u64 = 250;

/// Plans tried for each graph beside the plain one.
const SETTINGS: usize = 5;

/// No more graphs are started after this long, so that a slow machine still ends in time.
const TIME: Duration = Duration::from_secs(50);

const MIN_GRAPHS: u64 = 20;

#[test]
fn same_bits_under_every_plan() {
    // One seed again: SEED=17 cargo test -p neaptide --test e2e same_bits
    let seeds = match std::env::var("SEED").map(|s| s.parse::<u64>()) {
        Ok(Ok(seed)) => seed..seed + 1,
        _ => 0..GRAPHS,
    };
    let started = Instant::now();
    let (mut done, mut met) = (0, Met::default());
    for seed in seeds {
        if started.elapsed() > TIME && done >= MIN_GRAPHS {
            eprintln!("stopped after {done} graphs: the time is up");
            break;
        }
        let checked = catch_unwind(AssertUnwindSafe(|| check(seed, &mut met)));
        if let Err(payload) = checked {
            eprintln!("the failing seed is {seed}");
            std::panic::resume_unwind(payload);
        }
        done += 1;
    }
    let enough =
        met.sliced_plans > 10 && met.streamed_plans > 20 && met.tables > 0 && met.banded_plans > 10;
    let found = (
        met.sliced_plans,
        met.streamed_plans,
        met.tables,
        met.banded_plans,
    );
    assert!(
        done < MIN_GRAPHS || enough,
        "too little was tested: {found:?}"
    );
}

/// What was met on the way: a test of nothing must fail.
#[derive(Default)]
struct Met {
    sliced_plans: usize,
    streamed_plans: usize,
    tables: usize,
    banded_plans: usize,
}

fn check(seed: u64, met: &mut Met) {
    let mut net = RandomNet::new(seed);
    let sources = tempfile::tempdir().expect("a temporary folder");
    let graph = with_stored_constants(&mut net, sources.path());
    let packed = Packed::new(graph);
    let inputs = [net.inputs(), net.inputs()];
    let mut plain = packed.open(&plain_setting(&packed)).expect("feasible");
    let expected = inputs.each_ref().map(|i| run(&mut plain, i).expect("runs"));
    for (inputs, expected) in inputs.iter().zip(&expected) {
        let off = difference(&evaluate(&net.net.graph, inputs), expected);
        assert!(off <= 1e-4, "off by {off} of the outputs' range");
    }
    for n in 0..SETTINGS {
        let setting = some_setting(&mut net, &packed, n);
        let Some(mut session) = packed.open(&setting) else {
            continue;
        };
        met.look(&packed, &setting);
        // Runs follow each other in all ways: the loads of one begin during the one before.
        for which in [0, 1, 1, 0] {
            let found =
                run(&mut session, &inputs[which]).unwrap_or_else(|e| panic!("{setting:?}: {e}"));
            assert!(found == expected[which], "other bits under {setting:?}");
        }
    }
}

impl Met {
    fn look(&mut self, packed: &Packed, setting: &Setting) {
        let workload = packed.workload(setting.threads, setting.banded);
        let plan = packed.plan(&workload, setting).expect("as before");
        self.sliced_plans += usize::from(plan.computes.len() > workload.steps.len());
        self.streamed_plans += usize::from(!plan.loads.is_empty());
        self.banded_plans += usize::from(setting.banded);
        self.tables += usize::from(workload.steps.iter().any(|s| s.rows.is_some()));
    }
}

/// The first is always the smallest feasible.
fn some_setting(net: &mut RandomNet, packed: &Packed, n: usize) -> Setting {
    let random = &mut net.net.random;
    let threads = 1 + random.below(3);
    let banded = packed.banded.is_some() && random.chance(50);
    let (smallest, everything) = packed.arena_range(threads, banded);
    let between = random.below((everything - smallest) as usize + 1) as u64;
    Setting {
        arena_bytes: match n {
            0 => smallest,
            1 => everything,
            _ => smallest + between,
        },
        threads,
        strategy: match random.below(4) {
            0 => Strategy::OnDemand,
            _ if n == 1 => Strategy::Resident,
            _ => Strategy::Preload,
        },
        io: if random.chance(50) {
            IoMode::Uring
        } else {
            IoMode::Pread
        },
        banded,
    }
}
