//! Random graphs under random budgets: the same bits under every plan, and the right ones.

use crate::build::Net;
use crate::nets::{RandomNet, difference, evaluate};
use crate::sessions::{Packed, Setting, plain_setting, run, with_stored_constants};
use neap_ir::op::{Activation, Op};
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
        _ => neap_testing::seed()..neap_testing::seed() + GRAPHS,
    };
    let started = Instant::now();
    let (mut done, mut met) = (0, Met::default());
    for seed in seeds {
        if started.elapsed() > TIME && done >= MIN_GRAPHS {
            eprintln!("stopped after {done} graphs: the time is up");
            break;
        }
        let checked = catch_unwind(AssertUnwindSafe(|| check(RandomNet::new(seed), &mut met)));
        if let Err(payload) = checked {
            eprintln!("the failing seed is {seed}");
            std::panic::resume_unwind(payload);
        }
        done += 1;
    }
    let enough = met.sliced_plans > 10
        && met.streamed_plans > 20
        && met.tables > 0
        && met.banded_plans > 10
        && met.reordered_plans > 10;
    let found = (
        met.sliced_plans,
        met.streamed_plans,
        met.tables,
        met.banded_plans,
        met.reordered_plans,
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
    reordered_plans: usize,
}

/// Cells of a recurrent network, unrolled: each computes with the weights of its layer.
#[test]
fn same_bits_where_layers_share_weights() {
    let mut net = Net::seeded(5);
    let mut sequence = vec![net.input(&[2, 96]); 3];
    for _ in 0..3 {
        let weights = net.weight(&[96, 96], 0.1);
        let bias = net.weight(&[96], 0.3);
        let mut state = None;
        for x in &mut sequence {
            let y = net.op(Op::MatMul, &[*x, weights]);
            let y = net.add(y, bias);
            let y = match state {
                Some(state) => net.add(y, state),
                None => y,
            };
            *x = net.activation(Activation::Sigmoid, y);
            state = Some(*x);
        }
    }
    net.output(sequence[2]);
    let mut met = Met::default();
    let net = RandomNet { net, rows: 1 };
    let packed = check(net, &mut met);
    assert!(met.sliced_plans > 0 && met.streamed_plans > 1);
    let (_, everything) = packed.arena_range(1, false);
    let weight_bytes = 3 * 96 * 97 * 4;
    assert!(everything < weight_bytes + (64 << 10), "{everything}");
}

/// Compares the network's results under several plans with those of its operators one by one.
fn check(mut net: RandomNet, met: &mut Met) -> Packed {
    let sources = tempfile::tempdir().expect("a temporary folder");
    let graph = with_stored_constants(&mut net, sources.path());
    let strip_bytes = *net
        .net
        .random
        .pick(&[None, Some(0), Some(1 << 10), Some(8 << 10)]);
    let packed = Packed::with_strips(graph, strip_bytes);
    let inputs = [net.inputs(), net.inputs()];
    let mut plain = packed.open(&plain_setting(&packed)).expect("feasible");
    let expected = inputs.each_ref().map(|i| run(&mut plain, i).expect("runs"));
    for (inputs, expected) in inputs.iter().zip(&expected) {
        let off = difference(&evaluate(&net.net.graph, inputs), expected);
        assert!(off <= 1e-4, "off by {off} of the outputs' range");
    }
    let reordered = packed.reordered();
    for n in 0..SETTINGS {
        let other = reordered.as_ref().filter(|_| net.net.random.chance(50));
        let packed = other.unwrap_or(&packed);
        let setting = some_setting(&mut net, packed, n);
        let Some(mut session) = packed.open(&setting) else {
            continue;
        };
        met.look(packed, &setting);
        met.reordered_plans += usize::from(other.is_some());
        // Runs follow each other in all ways: the loads of one begin during the one before.
        for which in [0, 1, 1, 0] {
            let found =
                run(&mut session, &inputs[which]).unwrap_or_else(|e| panic!("{setting:?}: {e}"));
            assert!(found == expected[which], "other bits under {setting:?}");
        }
    }
    packed
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
            0 => Strategy::Search,
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
