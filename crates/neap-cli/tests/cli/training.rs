//! `neap train`: as a user types it, killed, and with everything wrong that can be.

use crate::onnx::unrolled_classifier;
use crate::support::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// With `m.onnx`, which learns pictures of 28 x 28.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.neap("zoo mlp_28 --batch dynamic -o m.onnx").ok();
    bench
}

/// `count` pictures with a bright row for each class, in IDX files.
fn pictures(folder: &Path, which: &str, count: u32, class: impl Fn(u32) -> u8) {
    fs::create_dir_all(folder).unwrap();
    let (mut pixels, mut classes) = (Vec::new(), Vec::new());
    for i in 0..count {
        let bright = i % 10 * 2 + 4;
        pixels.extend((0..784).map(|p| {
            if p / 28 == bright {
                255
            } else {
                (i * 7 + p) as u8 % 64
            }
        }));
        classes.push(class(i));
    }
    let write = |name: &str, head: &[u32], data: &[u8]| {
        let mut bytes = vec![0, 0, 8, head.len() as u8];
        head.iter().for_each(|d| bytes.extend(d.to_be_bytes()));
        bytes.extend(data);
        fs::write(folder.join(format!("{which}-{name}-ubyte")), bytes).unwrap();
    };
    write("images-idx3", &[count, 28, 28], &pixels);
    write("labels-idx1", &[count], &classes);
}

pub fn data(bench: &Bench) {
    pictures(&bench.path("data"), "train", 200, |i| (i % 10) as u8);
    pictures(&bench.path("data"), "t10k", 50, |i| (i % 10) as u8);
}

#[test]
fn a_model_learns_and_can_be_run() {
    let bench = bench();
    data(&bench);
    let ran = bench
        .neap(
            "train m.onnx --data data --epochs 3 --batch 20 --lr 3e-3 --memory-budget 64MiB -o t.onnx \
             --log t.jsonl --page t.html --augment flip --threads 1",
        )
        .ok();
    assert!(
        ran.stdout.contains("t.onnx: 30 steps") && ran.stdout.contains("accuracy"),
        "{}",
        ran.stdout
    );
    assert!(ran.stderr.contains("epoch 3 of 3"), "{}", ran.stderr);
    let log = fs::read_to_string(bench.path("t.jsonl")).unwrap();
    let last: serde_json::Value = serde_json::from_str(log.lines().last().unwrap()).unwrap();
    assert_eq!(last["epoch"], 3);
    assert!(
        last["validation_accuracy"].as_f64().unwrap() > 0.9,
        "{last}"
    );
    assert!(
        fs::read_to_string(bench.path("t.html"))
            .unwrap()
            .contains("<svg")
    );
    bench
        .neap("run t.onnx --shape input=1x1x28x28 --memory-budget 32MiB")
        .ok();
    let mut names: Vec<_> = fs::read_dir(bench.dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.starts_with("t.") && !n.ends_with(".neap"))
        .collect();
    names.sort();
    let expected = [
        "t.html",
        "t.jsonl",
        "t.onnx",
        "t.onnx.checkpoint",
        "t.safetensors",
    ];
    assert_eq!(names, expected);
}

#[test]
fn killed_at_any_moment_it_ends_with_the_same_bits() {
    check_kills("");
}

#[test]
fn adapters_killed_at_any_moment_end_with_the_same_bits() {
    check_kills("--lora 4 --lora-alpha 8");
}

/// Of a training with these options, too.
fn check_kills(options: &str) {
    let bench = bench();
    data(&bench);
    let train = |name: &str| {
        format!(
            "train m.onnx --data data --epochs 4 --batch 10 --augment shift,flip --threads 1 {options} \
             --checkpoint-every 3 --log {name}.jsonl -o {name}.onnx"
        )
    };
    let begun = std::time::Instant::now();
    bench.neap(&train("whole")).ok();
    let whole = begun.elapsed();
    let mut seed = neap_testing::seed();
    let mut kills = 0;
    for attempt in 1.. {
        assert!(attempt < 60, "it never gets anywhere");
        let mut child = bench
            .command(&format!("{} --resume", train("killed")))
            .stderr(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        // Longer and longer, so that it comes to an end on a busy machine, too.
        let share = (seed >> 33) as f64 / (1u64 << 31) as f64;
        sleep(whole.mul_f64(0.1 + share * f64::from(attempt) / 6.0));
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{status}");
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
    }
    assert!(kills > 0);
    for kind in ["onnx", "safetensors"] {
        let of = |name: &str| fs::read(bench.path(&format!("{name}.{kind}"))).unwrap();
        assert!(
            of("whole") == of("killed"),
            "{kind} differs after {kills} kills"
        );
    }
    let leftovers = fs::read_dir(bench.dir.path()).unwrap();
    let leftovers = leftovers.map(|e| e.unwrap().file_name().into_string().unwrap());
    let leftovers: Vec<_> = leftovers
        .filter(|n| n.contains("partial") || n.contains("validation"))
        .collect();
    assert!(leftovers.is_empty(), "{leftovers:?}");
}

#[test]
fn a_signal_leaves_a_checkpoint() {
    let bench = bench();
    data(&bench);
    let arguments = "train m.onnx --data data --epochs 100000 --batch 10 -o t.onnx";
    let mut child = bench
        .command(arguments)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let checkpoint = bench.path("t.onnx.checkpoint");
    for _ in 0..600 {
        if checkpoint.exists() {
            break;
        }
        sleep(Duration::from_millis(100));
    }
    Command::new("kill")
        .arg(child.id().to_string())
        .status()
        .unwrap();
    let status = child.wait().unwrap();
    assert!(!status.success());
    assert!(checkpoint.exists() && !bench.path("t.onnx").exists());
    let refused = bench.neap("train m.onnx --data data --batch 10 -o t.onnx");
    refused.fails(2, &["t.onnx.checkpoint", "--resume"]);
}

#[test]
fn what_is_wrong_is_said_in_one_line() {
    let bench = bench();
    data(&bench);
    let refused = |args: &str, code: i32, parts: &[&str]| {
        bench.neap(args).fails(code, parts);
        assert!(!bench.path("t.onnx").exists(), "{args}");
    };
    refused("train m.onnx -o t.onnx", 2, &["--data"]);
    refused("train m.onnx --data nowhere -o t.onnx", 2, &["nowhere"]);
    refused("train none.onnx --data data -o t.onnx", 2, &["none.onnx"]);
    refused("train m.onnx --data data -o t.neap", 2, &[".onnx"]);
    refused("train m.onnx --data data -o m.onnx", 2, &["another name"]);
    refused(
        "train m.onnx --data data --batch 1000 -o t.onnx",
        2,
        &["200 samples"],
    );
    refused(
        "train m.onnx --data data --freeze x* -o t.onnx",
        2,
        &["--freeze x*"],
    );
    refused(
        "train m.onnx --data data --mean 1,2 -o t.onnx",
        2,
        &["--mean has 2 values"],
    );
    refused(
        "train m.onnx --data data --loss mse -o t.onnx",
        2,
        &["labels"],
    );
    refused("train m.onnx --data data --lr=-1 -o t.onnx", 2, &["--lr"]);
    let lora = |args: &str, parts: &[&str]| {
        refused(
            &format!("train m.onnx --data data {args} -o t.onnx"),
            2,
            parts,
        );
    };
    lora("--lora 0", &["--lora"]);
    lora("--lora 11", &["rank 11", "10 outputs"]);
    lora("--lora 4 --lora-targets x*", &["--lora-targets x*"]);
    lora("--lora 4 --lora-alpha=-1", &["--lora-alpha"]);
    lora("--lora-alpha 8", &["--lora"]);
    lora("--lora 4 --freeze *", &["--freeze"]);
    refused(
        "train m.onnx --data data --memory-budget 30% -o t.onnx",
        2,
        &["size"],
    );
    refused(
        "train m.onnx --data data --enforce -o t.onnx",
        2,
        &["--memory-budget"],
    );
    let budget = "train m.onnx --data data --memory-budget 2MiB -o t.onnx";
    refused(budget, 3, &["smallest feasible budget"]);
    assert!(!bench.path("t.onnx.checkpoint").exists());

    // Wrong data, found when they are read.
    pictures(&bench.path("wrong"), "train", 60, |i| {
        if i == 41 { 77 } else { 1 }
    });
    let wrong = "train m.onnx --data wrong --batch 10 --validation 0 -o t.onnx";
    refused(wrong, 2, &["sample 41 has class 77", "10 classes"]);

    // Nothing learned is lost when a loss is no number.
    let wild = "train m.onnx --data data --batch 20 --optimizer sgd --lr 1e30 -o t.onnx --checkpoint-every 1";
    refused(wild, 2, &["a lower --lr"]);
}

/// A refusal names the smallest budget in bytes.
fn smallest(said: &str) -> u64 {
    let (_, after) = said.split_once("smallest feasible budget is ").unwrap();
    let (_, bytes) = after.split_once('(').unwrap();
    let (bytes, _) = bytes.split_once(" bytes)").unwrap();
    bytes.replace(',', "").parse().unwrap()
}

#[test]
fn a_strategy_is_told_and_refused_by_name() {
    let bench = Bench::new();
    bench.neap("zoo cnn_28 --batch dynamic -o m.onnx").ok();
    data(&bench);
    let train = "train m.onnx --data data --epochs 1 --batch 100 --threads 1";
    let refused = bench.neap(&format!(
        "{train} --memory-budget 8MiB --strategy keep -o t.onnx"
    ));
    let keep = smallest(&refused.fails(3, &["smallest feasible budget", "--strategy keep"]));
    let refused = bench.neap(&format!("{train} --strategy root -o t.onnx"));
    refused.fails(2, &["root", "optimal"]);
    let mut files = Vec::new();
    for (strategy, bytes) in [("keep", keep), ("swap", keep - (1 << 20)), ("sqrt", keep)] {
        let ran = bench
            .neap(&format!(
                "{train} --memory-budget {bytes} --strategy {strategy} -o {strategy}.onnx --log {strategy}.jsonl"
            ))
            .ok();
        let said = format!("strategy {strategy}: ");
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        let log = fs::read_to_string(bench.path(&format!("{strategy}.jsonl"))).unwrap();
        let plan: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
        assert_eq!(plan["strategy"], strategy);
        assert!(plan["planned_bytes"].as_u64().unwrap() <= bytes);
        assert_eq!(plan["stored_bytes"] != 0, strategy == "swap", "{plan}");
        assert_eq!(plan["recomputed_flops"] != 0, strategy == "sqrt", "{plan}");
        files.push(fs::read(bench.path(&format!("{strategy}.onnx"))).unwrap());
    }
    assert!(files.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn a_full_drive_leaves_the_last_checkpoint() {
    let bench = bench();
    data(&bench);
    let train = "train m.onnx --data data --batch 20 --threads 1 -o t.onnx";
    bench.neap(&format!("{train} --epochs 1")).ok();
    let before = fs::read(bench.path("t.onnx.checkpoint")).unwrap();
    // Files may have 512 KiB, a checkpoint has more. Ignored, the signal becomes an error of the write.
    let script = format!("trap '' XFSZ; ulimit -f 1024; exec {NEAP} {train} --epochs 2 --resume");
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(bench.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    let line = said.lines().last().unwrap();
    assert!(
        line.contains("cannot write") && line.contains("last good checkpoint"),
        "{said}"
    );
    assert!(fs::read(bench.path("t.onnx.checkpoint")).unwrap() == before);
    bench.neap(&format!("{train} --epochs 2 --resume")).ok();
}

/// What thousands of nodes take until the step is planned is part of the smallest budget.
#[test]
fn many_nodes_are_trained_in_the_smallest_budget_that_is_named() {
    let bench = Bench::with_model(&unrolled_classifier(300));
    if !can_enforce(&bench) {
        return;
    }
    data(&bench);
    let train = |budget: u64| {
        bench.neap(&format!(
            "train m.onnx --data data --batch 20 --epochs 1 --validation 0 --threads 1 --lr 0.001 -o t.onnx \
             --memory-budget {budget} --enforce"
        ))
    };
    // Too little for the refusal, and too little for the training.
    let named = |line: String| -> u64 {
        let (_, rest) = line.rsplit_once('(').unwrap();
        rest.split_once(" bytes").unwrap().0.parse().unwrap()
    };
    let smallest = named(train(3 << 20).fails(3, &["smallest feasible budget"]));
    assert!(smallest > 8 << 20, "{smallest}");
    let again = named(train(smallest - (1 << 20)).fails(3, &["smallest feasible budget"]));
    assert!(again.abs_diff(smallest) <= 512 << 10, "{again}, {smallest}");
    train(smallest).ok();
}

#[test]
fn digits_are_learned_under_a_hard_limit() {
    let bench = Bench::new();
    if !can_enforce(&bench) {
        return;
    }
    let ran = bench
        .neap("train --demo --limit 640 --epochs 1 --memory-budget 64MiB --enforce --threads 1")
        .ok();
    assert!(
        ran.stdout.contains("digits.onnx: 10 steps"),
        "{}",
        ran.stdout
    );
    assert!(bench.path("digits.onnx").exists());
}

#[test]
fn the_demo_works_again_and_trains_its_own_network() {
    let bench = Bench::new();
    bench.write("cnn_28.onnx", b"somebody's own file");
    let demo = "train --demo --limit 128 --epochs 1 --threads 1";
    for name in ["digits.onnx", "digits-2.onnx"] {
        let ran = bench.neap(demo).ok();
        assert!(
            ran.stdout.starts_with(&format!("{name}: ")),
            "{}",
            ran.stdout
        );
        assert!(bench.path(name).exists());
    }
    let own = std::fs::read(bench.path("cnn_28.onnx")).unwrap();
    assert_eq!(own, b"somebody's own file");
    // Asked for, a training goes on under the name that it has.
    let more = bench
        .neap("train --demo --limit 128 --epochs 2 --threads 1 --resume")
        .ok();
    assert!(more.stdout.starts_with("digits.onnx: "), "{}", more.stdout);
}
