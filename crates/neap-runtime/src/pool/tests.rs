//! Tests of the pool: every task once, panics, nesting, sleepers, latency.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

fn runs_each_once(pool: &Pool, tasks: usize) {
    let counts: Vec<AtomicU8> = (0..tasks).map(|_| AtomicU8::new(0)).collect();
    let busy: Vec<AtomicBool> = (0..pool.workers())
        .map(|_| AtomicBool::new(false))
        .collect();
    pool.run(tasks, &|task, worker| {
        assert!(
            !busy[worker].swap(true, SeqCst),
            "a worker runs one task at a time"
        );
        counts[task].fetch_add(1, Relaxed);
        busy[worker].store(false, SeqCst);
    });
    assert!(counts.iter().all(|c| c.load(Relaxed) == 1));
}

#[test]
fn every_task_runs_once() {
    for workers in [1, 2, 3, 5] {
        let pool = Pool::new(workers).unwrap();
        assert_eq!(pool.workers(), workers);
        for round in 0..400 {
            runs_each_once(&pool, round % 37);
        }
        runs_each_once(&pool, 20_000);
    }
}

#[test]
fn zero_workers_is_the_caller_alone() {
    let pool = Pool::new(0).unwrap();
    assert_eq!(pool.workers(), 1);
    runs_each_once(&pool, 10);
}

#[test]
fn sleeping_workers_wake() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_micros(300));
        runs_each_once(&pool, 50);
    }
}

#[test]
fn long_tasks_outlast_the_callers_spinning() {
    let pool = Pool::new(2).unwrap();
    let done = AtomicUsize::new(0);
    for _ in 0..10 {
        pool.run(2, &|task, _| {
            std::thread::sleep(Duration::from_micros(if task == 0 { 10 } else { 2000 }));
            done.fetch_add(1, SeqCst);
        });
    }
    assert_eq!(done.load(SeqCst), 20);
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let pool = Pool::new(2).unwrap();
    for bad in [0, 3, 99] {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|task, _| assert_ne!(task, bad, "task {bad} fails"));
        }));
        let payload = caught.unwrap_err();
        let message = payload.downcast_ref::<String>().unwrap();
        assert!(message.contains("fails"), "{message}");
        runs_each_once(&pool, 100);
    }
}

#[test]
fn nested_and_concurrent_calls() {
    let pool = Pool::new(3).unwrap();
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..100 {
                    pool.run(8, &|_, outer| {
                        pool.run(4, &|_, inner| {
                            assert_eq!(outer, inner);
                            total.fetch_add(1, Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(total.load(Relaxed), 3 * 100 * 8 * 4);
}

/// Callers take turns, and a panic is that of the caller whose task it was in.
#[test]
fn a_panic_is_not_another_callers() {
    let pool = Pool::new(2).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..2000 {
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    pool.run(4, &|_, _| resume_unwind(Box::new("on purpose")))
                }));
                assert!(ran.is_err());
            }
        });
        scope.spawn(|| {
            for _ in 0..2000 {
                runs_each_once(&pool, 4);
            }
        });
    });
}

/// `cargo test --release -- --ignored --nocapture dispatch` prints the figure.
#[test]
#[ignore = "a measurement"]
fn dispatch_latency() {
    let pool = Pool::new(2).unwrap();
    let busy = |ns: u128| {
        let start = Instant::now();
        while start.elapsed().as_nanos() < ns {}
    };
    for task_ns in [0, 5_000] {
        let mut samples_ns: Vec<u128> = (0..20_000)
            .map(|_| {
                let start = Instant::now();
                pool.run(2, &|_, _| busy(task_ns));
                start.elapsed().as_nanos() - task_ns
            })
            .collect();
        samples_ns.sort_unstable();
        println!(
            "2 tasks of {task_ns} ns on 2 workers take longer by: median {} ns, p90 {} ns",
            samples_ns[samples_ns.len() / 2],
            samples_ns[samples_ns.len() * 9 / 10]
        );
    }
}
