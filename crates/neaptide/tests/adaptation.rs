//! A session whose budget goes up and down, and the kernel's count of its memory.

mod graphs;

use graphs::Layers;
use neap_ir::Graph;
use neaptide::{Budget, CostProfile, Error, IoMode, Model, RunOptions, Session};
use std::fs;
use std::path::Path;

/// Convolutions of odd sizes: 30 MB of weights.
fn graph() -> Graph {
    graphs::conv_chain(&Layers {
        channels: vec![16, 272, 512, 480, 512, 368, 16],
        side: 10,
        seed: 0,
        gain: 1e-3,
        last: None,
    })
}

fn status_bytes(key: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|l| l.strip_prefix(key));
    let number = line.expect("there").trim().trim_end_matches("kB").trim();
    number.parse::<u64>().expect("a number") * 1024
}

/// The peak counts anew from here.
fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("the own peak can be reset");
}

struct Bench {
    session: Session,
    input: Vec<u8>,
    expected: Option<Vec<u8>>,
}

impl Bench {
    fn open(path: &Path, options: &RunOptions) -> Bench {
        let model = Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})
            .expect("opens");
        let plan = model.plan(options).expect("feasible");
        let session = model.into_session(plan, options).expect("opens");
        let floats = (0..session.inputs()[0].len_bytes() / 4).map(|i| (i % 11) as f32 * 0.1);
        Bench {
            input: floats.flat_map(f32::to_le_bytes).collect(),
            session,
            expected: None,
        }
    }

    fn run(&mut self) {
        let mut output = vec![0u8; self.session.outputs()[0].len_bytes()];
        self.session
            .run(&[&self.input], &mut [&mut output])
            .expect("runs");
        let expected = self.expected.get_or_insert_with(|| output.clone());
        assert!(*expected == output, "other bits");
    }
}

/// One test, since the process's memory is counted.
#[test]
fn budgets_up_and_down() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("model.neap");
    neaptide::pack_graph(
        graph(),
        &path,
        &neaptide::OpenOptions::of_own_process(),
        &mut |_| {},
    )
    .expect("packs");
    for io in [IoMode::Auto, IoMode::Pread] {
        let options = RunOptions {
            exact: true,
            threads: 2,
            io,
            ..RunOptions::default()
        };
        before_the_first_run(&path, &options);
        up_and_down(&path, &options);
        prepared(&path, &options);
    }
    panels_prepared(&path);
}

/// Memory that is left over holds panels in the form that kernels take: the same bits, within every budget.
fn panels_prepared(path: &Path) {
    let open =
        || Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {}).expect("opens");
    let options = RunOptions {
        threads: 2,
        // By these, memory is no bound.
        costs: Some(CostProfile {
            memory_bytes_per_second: 1e15,
            ..CostProfile::default()
        }),
        ..RunOptions::default()
    };
    let budget = |budget, options: &RunOptions| RunOptions {
        budget,
        ..options.clone()
    };
    let stored = RunOptions {
        prepared_weights: false,
        ..options.clone()
    };
    let exact = RunOptions {
        exact: true,
        ..options.clone()
    };
    for without in [&stored, &exact] {
        let plan = open().plan(without).expect("feasible");
        assert!(plan.execution().prepared.is_empty());
    }
    let plan = open().plan(&options).expect("feasible");
    let panels = plan.workload().steps.iter().map(|s| s.prepared_bytes());
    let all_bytes: u64 = panels.sum();
    assert!(all_bytes > 40 << 20, "{all_bytes}");
    let whole = open().plan(&stored).expect("feasible").high_water_bytes();

    // More memory: no less prepared, no slower.
    let (mut latency_ns, mut count) = (u64::MAX, 0);
    for part in 0..=16 {
        let bytes = whole - (1 << 20) + (all_bytes + (4 << 20)) * part / 16;
        let plan = open()
            .plan(&budget(Budget::Bytes(bytes), &options))
            .expect("feasible");
        assert!(plan.high_water_bytes() <= bytes);
        assert!(plan.prediction.latency_ns <= latency_ns, "{part}");
        assert!(plan.execution().prepared.len() >= count, "{part}");
        (latency_ns, count) = (plan.prediction.latency_ns, plan.execution().prepared.len());
    }
    assert!(count > 2, "{count}");

    let mut bench = Bench::open(path, &stored);
    bench.run();
    let expected = bench.expected.take();
    drop(bench);
    let most = whole + all_bytes + (8 << 20);
    let mut bench = Bench::open(path, &budget(Budget::Bytes(most), &options));
    bench.expected = expected;
    let mut before = most;
    for next in [
        whole + (1 << 20),
        most,
        whole + all_bytes / 2,
        most,
        whole + (1 << 20),
    ] {
        bench.run();
        bench.run();
        assert!(status_bytes("VmRSS:") <= before);
        forget_peak();
        let done = bench.session.set_budget(Budget::Bytes(next));
        assert!(done.expect("feasible").high_water_bytes <= next);
        assert!(status_bytes("VmRSS:") <= next);
        bench.run();
        bench.run();
        let peak = status_bytes("VmHWM:");
        assert!(peak <= next.max(before), "{peak} of {before}, {next}");
        before = next;
    }
    let done = bench.session.set_budget(Budget::Unlimited);
    assert!(done.expect("feasible").high_water_bytes >= whole + all_bytes);
    bench.run();
    bench.run();
}

/// Loads that opening began have touched memory, and may not have arrived: that is the arena's, too.
fn before_the_first_run(path: &Path, options: &RunOptions) {
    for _ in 0..8 {
        let bounds = Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})
            .expect("opens")
            .bounds(options);
        let mut bench = Bench::open(path, options);
        let least = bounds.smallest_feasible_bytes();
        let done = bench.session.set_budget(Budget::Bytes(least));
        assert!(done.expect("feasible").high_water_bytes <= least);
        forget_peak();
        bench.run();
        bench.run();
        let peak = status_bytes("VmHWM:");
        assert!(peak <= least, "{peak} of {least}");
    }
}

/// Budgets whose plans are made before.
fn prepared(path: &Path, options: &RunOptions) {
    const ROOM: u64 = 1 << 20;
    let options = RunOptions {
        reserve_bytes: ROOM,
        ..options.clone()
    };
    let bounds = Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})
        .expect("opens")
        .bounds(&options);
    let (least, most) = (
        bounds.smallest_feasible_bytes() + (1 << 20),
        bounds.unlimited_high_water_bytes() + (1 << 20),
    );
    let budgets = [2 << 20, least, u64::midpoint(least, most), most];
    let mut bench = Bench::open(
        path,
        &RunOptions {
            budget: Budget::Bytes(most),
            ..options
        },
    );
    bench.run();
    forget_peak();
    let count = bench.session.prepare(&budgets, ROOM).expect("plans");
    assert_eq!(count, 3, "all that are feasible");
    assert!(status_bytes("VmHWM:") <= most);
    let mut before = most;
    for budget in [least, budgets[2], most, budgets[2], least] {
        forget_peak();
        let done = bench.session.set_budget(Budget::Bytes(budget));
        let done = done.expect("prepared");
        assert!(done.was_prepared && done.high_water_bytes <= budget);
        assert_eq!(done.budget_bytes, Some(budget));
        bench.run();
        bench.run();
        let peak = status_bytes("VmHWM:");
        assert!(peak <= budget.max(before), "{peak} of {before}, {budget}");
        assert!(status_bytes("VmRSS:") <= budget);
        before = budget;
    }
    let other = bench.session.set_budget(Budget::Bytes(most - (1 << 20)));
    assert!(!other.expect("feasible").was_prepared);
    bench.run();
    assert_eq!(bench.session.prepare(&budgets, 0).expect("plans"), 0);
    let other = bench.session.set_budget(Budget::Bytes(least));
    assert!(!other.expect("feasible").was_prepared);
    bench.run();
}

fn up_and_down(path: &Path, options: &RunOptions) {
    let bounds = Model::open(path, &neaptide::OpenOptions::of_own_process(), &mut |_| {})
        .expect("opens")
        .bounds(options);
    let (least, most) = (
        bounds.smallest_feasible_bytes(),
        bounds.unlimited_high_water_bytes(),
    );
    assert!(most > least + (20 << 20), "{bounds:?}");
    let mut bench = Bench::open(path, options);
    bench.run();
    assert!(bench.session.stats().resident_bytes > 25 << 20);
    let mut random = 88172645463325252u64;
    let mut budget = most;
    let (mut kept, mut down, mut up) = (0, 0, 0);
    for turn in 0..20 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let next = match turn % 6 {
            0 => least,
            3 => most + (8 << 20),
            _ => least + (random >> 11) % (most - least),
        };
        forget_peak();
        let done = bench
            .session
            .set_budget(Budget::Bytes(next))
            .unwrap_or_else(|e| panic!("turn {turn}: {e}"));
        let (peak, now) = (status_bytes("VmHWM:"), status_bytes("VmRSS:"));
        assert!(
            peak <= budget.max(next),
            "turn {turn}: {peak} of {budget}, {next}"
        );
        assert!(now <= next, "turn {turn}: {now} of {next}");
        assert_eq!(bench.session.budget_bytes(), Some(next));
        assert_eq!(done.budget_bytes, Some(next));
        assert!(done.high_water_bytes <= next);
        assert!(done.planning_ns <= done.total_ns);
        let resident = bench.session.stats().resident_bytes;
        assert_eq!(done.kept_bytes + done.read_bytes, resident);
        if next < budget {
            down += done.released_bytes;
        } else {
            up += done.read_bytes;
        }
        kept += done.kept_bytes;
        budget = next;

        forget_peak();
        bench.run();
        bench.run();
        let peak = status_bytes("VmHWM:");
        assert!(peak <= budget, "turn {turn}: {peak} of {budget}");
    }
    assert!(
        kept > 0 && down > 30 << 20 && up > 30 << 20,
        "{kept} {down} {up}"
    );

    let refused = bench.session.set_budget(Budget::Bytes(2 << 20));
    let Err(Error::Infeasible { smallest_bytes, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(
        bench.session.budget_bytes(),
        Some(budget),
        "still the old one"
    );
    bench.run();
    bench
        .session
        .set_budget(Budget::Bytes(smallest_bytes))
        .expect("what was named can be met");
    bench.run();
    let done = bench
        .session
        .set_budget(Budget::Unlimited)
        .expect("feasible");
    assert_eq!(
        (done.budget_bytes, bench.session.budget_bytes()),
        (None, None)
    );
    bench.run();
    let again = bench
        .session
        .set_budget(Budget::Unlimited)
        .expect("feasible");
    assert_eq!((again.read_bytes, again.released_bytes), (0, 0));
    bench.run();
}
