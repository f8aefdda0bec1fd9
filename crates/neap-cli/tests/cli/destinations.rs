//! What is written to: links, devices and pipes stay what they are.

use super::onnx::{layers, relu};
use super::support::{Bench, NEAP};
use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};
use std::process::Command;

fn fifo(bench: &Bench, name: &str) {
    let made = Command::new("mkfifo").arg(bench.path(name)).status();
    assert!(made.unwrap().success());
}

/// Every option that writes a file.
const WRITERS: [&str; 6] = [
    "run m.onnx --json TO.json",
    "run m.onnx --trace TO.json",
    "run m.onnx --trace-events TO.json",
    "plan m.onnx -o TO.json",
    "pack m.onnx -o TO.neap",
    "zoo squeezenet1_1 --shapes-only -o TO.onnx",
];

#[test]
fn a_link_stays_and_what_it_leads_to_is_written() {
    for words in WRITERS {
        let bench = Bench::with_model(&layers());
        let ending = words.rsplit('.').next().unwrap();
        let (link, target) = (format!("TO.{ending}"), format!("target.{ending}"));
        bench.write(&target, b"old");
        let private = fs::Permissions::from_mode(0o600);
        fs::set_permissions(bench.path(&target), private).unwrap();
        symlink(&target, bench.path(&link)).unwrap();
        bench.neap(words).ok();
        let found = fs::symlink_metadata(bench.path(&link)).unwrap();
        assert!(found.is_symlink(), "{words}");
        assert_ne!(fs::read(bench.path(&target)).unwrap(), b"old", "{words}");
        assert_eq!(bench.leftovers(), [""; 0], "{words}");
        if ending == "json" {
            let mode = fs::metadata(bench.path(&target)).unwrap().permissions();
            assert_eq!(mode.mode() & 0o777, 0o600, "{words}");
        }
    }
}

/// A link stands for the device, so that a mistake replaces the link and not this machine's device.
#[test]
fn a_device_stays_a_device() {
    for words in WRITERS {
        let bench = Bench::with_model(&layers());
        let ending = words.rsplit('.').next().unwrap();
        let link = bench.path(&format!("TO.{ending}"));
        symlink("/dev/null", &link).unwrap();
        let ran = bench.neap(words);
        // A model needs a file.
        match ending {
            "json" => drop(ran.ok()),
            _ => drop(ran.fails(2, &["a device or a pipe"])),
        }
        assert_eq!(fs::read_link(&link).unwrap().to_str(), Some("/dev/null"));
        assert!(fs::metadata(&link).unwrap().file_type().is_char_device());
        assert_eq!(bench.leftovers(), [""; 0], "{words}");
    }
}

#[test]
fn a_pipe_gets_the_report() {
    let bench = Bench::with_model(&relu("x", &["2", "3"], "y"));
    fifo(&bench, "report");
    let mut run = bench.command("run m.onnx --json report").spawn().unwrap();
    let report = fs::read(bench.path("report")).unwrap();
    assert!(run.wait().unwrap().success());
    let report: serde_json::Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["random_inputs"][0], "x");
    // As shells hand over pipes, and as standard output is called.
    for to in [">(cat)", "/dev/stdout"] {
        let line = format!("{NEAP} run m.onnx --json {to} | cat");
        let output = Command::new("bash")
            .args(["-c", &line])
            .current_dir(bench.dir.path())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\"random_inputs\""), "{to}: {text}");
    }
}

#[test]
fn a_pipe_is_no_model_and_no_input() {
    let bench = Bench::with_model(&relu("x", &["2", "3"], "y"));
    for name in ["pipe", "pipe.onnx", "pipe.neap", "pipe.npy", "pipe.npz"] {
        fifo(&bench, name);
    }
    for model in ["pipe", "pipe.onnx", "pipe.neap"] {
        for command in ["run", "inspect", "plan"] {
            let ran = bench.neap(&format!("{command} {model}"));
            ran.fails(2, &[model, "not a regular file"]);
        }
    }
    for input in ["x=pipe.npy", "pipe.npy", "x=pipe.npz", "pipe.npz"] {
        let ran = bench.neap(&format!("run m.onnx --input {input}"));
        ran.fails(2, &["pipe.np", "not a regular file"]);
    }
}
