//! Signals and closed pipes: quiet ends, nothing half-written, no process or group left.

use super::onnx::{endless, layers};
use super::support::{Bench, can_enforce};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

fn signal(child: &Child, number: i32) {
    // SAFETY: the child has not been waited for.
    unsafe { libc::kill(child.id() as i32, number) };
}

/// Waits, but not forever.
fn wait(child: &mut Child) -> std::process::ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "it does not end"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Processes with this text on their command line.
fn processes(text: &str) -> usize {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return 0;
    };
    entries
        .flatten()
        .filter_map(|e| std::fs::read(e.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(text))
        .count()
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let bench = Bench::with_model(&layers());
    for args in [
        "inspect m.onnx --graph",
        "plan m.onnx",
        "zoo --list",
        "--help",
    ] {
        let mut child = bench
            .command(&format!("{args} -q"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args}");
        assert!(output.stderr.is_empty(), "{args}: {:?}", output.stderr);
    }
}

#[test]
fn an_interrupted_writer_leaves_nothing() {
    let bench = Bench::new();
    let mut child = bench
        .command("zoo vgg19 -o big.onnx")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    // Half-written is when the temporary file is there.
    while std::fs::read_dir(bench.dir.path()).unwrap().count() == 0 {
        assert!(started.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(2));
    }
    signal(&child, libc::SIGINT);
    let status = wait(&mut child);
    // On a fast machine it may have been finished.
    if status.code() != Some(0) {
        assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
        assert_eq!(std::fs::read_dir(bench.dir.path()).unwrap().count(), 0);
    }
}

#[test]
fn a_supervised_run_ends_with_its_supervisor() {
    let bench = Bench::with_model(&layers());
    if !can_enforce(&bench) {
        return;
    }
    for number in [libc::SIGTERM, libc::SIGKILL] {
        let mark = format!("report-{number}-{}.json", std::process::id());
        let mut child = bench
            .command(&format!(
                "run m.onnx --memory-budget 64MiB --enforce --iterations 1000000 --json {mark}"
            ))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while processes(&mark) < 2 {
            assert!(started.elapsed() < Duration::from_secs(30), "no child");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, number);
        let status = wait(&mut child);
        assert_eq!(status.signal(), Some(number), "{status}");
        let started = Instant::now();
        while processes(&mark) > 0 {
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "the child lives on"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(!bench.path(&mark).exists());
    }
}

/// A sender to the whole group reaches the child too, to which its supervisor passes the signal on: that is one signal.
#[test]
fn an_interrupted_group_leaves_a_checkpoint() {
    let bench = Bench::new();
    if !can_enforce(&Bench::with_model(&layers())) {
        return;
    }
    let mut child = bench
        .command("train --demo --memory-budget 64MiB --enforce --epochs 1000 --log log.jsonl")
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let started = Instant::now();
    while std::fs::metadata(bench.path("log.jsonl")).map_or(0, |file| file.len()) == 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "no step");
        std::thread::sleep(Duration::from_millis(20));
    }
    // SAFETY: the group is the child's own, and it has not been waited for.
    unsafe { libc::kill(-(child.id() as i32), libc::SIGINT) };
    let status = wait(&mut child);
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status}");
    assert!(bench.path("digits.onnx.checkpoint").exists());
}

/// Also where signals wait, so that a trace, a following budget or a made model ends in order.
#[test]
fn a_run_without_end_ends_at_a_signal() {
    let bench = Bench::with_model(&endless());
    bench.neap("pack m.onnx -o m.neap").ok();
    for (args, number) in [
        ("run m.neap --trace t.csv", libc::SIGINT),
        ("run m.neap --follow psi --output-dir out", libc::SIGTERM),
        ("profile m.neap --cache-dir .", libc::SIGINT),
    ] {
        let mut child = bench
            .command(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // Whenever it comes, it ends the command; by then the loop goes round.
        std::thread::sleep(Duration::from_secs(2));
        assert!(child.try_wait().unwrap().is_none(), "{args} has ended");
        signal(&child, number);
        let began = Instant::now();
        let status = wait(&mut child);
        assert!(began.elapsed() < Duration::from_secs(5), "{args}");
        assert_eq!(status.signal(), Some(number), "{args}: {status}");
        assert_eq!(bench.leftovers(), [""; 0], "{args}");
    }
    let trace = std::fs::read_to_string(bench.path("t.csv")).unwrap();
    assert_eq!(trace.lines().count(), 1, "no run was whole: {trace}");
    let outputs = std::fs::read_dir(bench.path("out")).unwrap();
    assert_eq!(outputs.count(), 0);
}

#[test]
fn a_run_that_follows_ends_with_outputs_and_a_report() {
    let bench = Bench::with_model(&layers());
    bench.neap("run m.onnx").ok();
    let mut child = bench
        .command("run m.onnx --follow psi --output-dir out --json r.json --trace t.csv")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    while std::fs::read_dir(bench.dir.path())
        .unwrap()
        .flatten()
        .all(|e| !e.file_name().to_string_lossy().starts_with("t.csv"))
    {
        assert!(started.elapsed() < Duration::from_secs(30), "no trace");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, libc::SIGTERM);
    let status = wait(&mut child);
    assert_eq!(status.signal(), Some(libc::SIGTERM), "{status}");
    assert_eq!(std::fs::read_dir(bench.path("out")).unwrap().count(), 1);
    let report = std::fs::read_to_string(bench.path("r.json")).unwrap();
    assert!(report.contains("\"adaptations\""), "{report}");
}

#[test]
fn a_stopped_run_keeps_its_trace() {
    for number in [libc::SIGTERM, libc::SIGINT] {
        let bench = Bench::with_model(&layers());
        let mut child = bench
            .command("run m.onnx --duration 100s --trace t.csv")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let started = Instant::now();
        while !bench
            .leftovers()
            .iter()
            .any(|name| name.starts_with("t.csv"))
        {
            assert!(started.elapsed() < Duration::from_secs(30), "no trace");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(&child, number);
        let status = wait(&mut child);
        assert_eq!(status.signal(), Some(number), "{status}");
        assert_eq!(bench.leftovers(), [""; 0]);
        let trace = std::fs::read_to_string(bench.path("t.csv")).unwrap();
        assert!(trace.starts_with("time_s,") && trace.lines().count() > 1);
        assert!(trace.ends_with('\n'));
    }
}
