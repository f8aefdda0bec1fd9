//! Random graphs on storage that misbehaves, under virtual time: the same bits or a clean error.

use crate::nets::RandomNet;
use crate::sessions::{Packed, Setting, is_storage_error, plain_setting, run};
use neap_planner::Strategy;
use neap_store::{FaultScript, IoMode, RandomFaults};

const GRAPHS: u64 = 24;

#[test]
fn faults_change_no_bits() {
    let (mut good, mut bad) = (0, 0);
    for seed in neap_testing::seed()..neap_testing::seed() + GRAPHS {
        let mut net = RandomNet::new(seed + 1000);
        let packed = Packed::new(net.net.graph.clone());
        let inputs = net.inputs();
        let mut plain = packed.open(&plain_setting(&packed)).expect("feasible");
        let expected = run(&mut plain, &inputs).expect("runs");
        let faults = RandomFaults {
            seed,
            short_per_mille: 150,
            error_per_mille: if seed % 2 == 0 { 20 } else { 0 },
            retry_per_mille: 100,
            delay_per_mille: 100,
            max_delay_ns: 5_000_000,
            // A block is checked when it is first read: see the tests of damaged files.
            corrupt_per_mille: 0,
        };
        let threads = 1 + seed as usize % 3;
        let (smallest, everything) = packed.arena_range(threads, false);
        for arena_bytes in [smallest, smallest + (everything - smallest) / 3] {
            let setting = Setting {
                arena_bytes,
                threads,
                strategy: Strategy::Preload,
                io: IoMode::Auto,
                banded: false,
            };
            let mut session = match packed.open_faulty(&setting, FaultScript::random(faults)) {
                Ok(session) => session,
                Err(e) if is_storage_error(&e) => {
                    bad += 1;
                    continue;
                }
                Err(e) => panic!("seed {seed}: {e}"),
            };
            for _ in 0..5 {
                match run(&mut session, &inputs) {
                    Ok(found) => {
                        assert!(found == expected, "seed {seed}: other bits");
                        good += 1;
                    }
                    Err(e) if is_storage_error(&e) => bad += 1,
                    Err(e) => panic!("seed {seed}: {e}"),
                }
            }
        }
    }
    // Both happen, or nothing was tested.
    assert!(good > 50 && bad > 3, "{good} good runs, {bad} bad");
}
