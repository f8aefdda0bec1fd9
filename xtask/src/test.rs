//! The whole test suite, or its Arm part.
//!
//! ```text
//!   cargo xtask test                     unit, property and end-to-end tests; accuracy against
//!                                        onnxruntime; ONNX's node tests; the Arm part where possible
//!   cargo xtask test --target aarch64    only the Arm part; an error where it is not possible
//! ```

use crate::{accuracy, conformance, models};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const ARM: &str = "aarch64-unknown-linux-gnu";

/// Runs an Arm program here. The library path keeps the cross tools' loader and C library together:
/// another libc of this architecture may be installed, and a mixture of two hangs.
const EMULATOR: &[&str] = &[
    "qemu-aarch64-static",
    "-L",
    "/usr/aarch64-linux-gnu",
    "-E",
    "LD_LIBRARY_PATH=/usr/aarch64-linux-gnu/lib",
];

/// Crates whose tests are run under emulation: the kernels' tables.
const ARM_TESTED: &[&str] = &["neap-kernels"];

pub fn run(root: &Path, target: Option<&str>) -> Result<()> {
    match target {
        None => all(root),
        Some("aarch64" | ARM) => {
            if let Some(missing) = arm_missing() {
                bail!("{missing} is missing: run scripts/install_arm.sh as root (Debian)");
            }
            arm(root)
        }
        Some(other) => bail!("unknown target {other}: only aarch64 is known"),
    }
}

fn all(root: &Path) -> Result<()> {
    let mut clock = Clock(Instant::now());
    // Tests that compare with the reference engine find its environment ready.
    models::python(root)?;
    let nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|o| o.status.success());
    let mut tests = Command::new(env!("CARGO"));
    if nextest {
        tests.args([
            "nextest",
            "run",
            "--release",
            "--workspace",
            "--no-fail-fast",
            "--status-level",
            "slow",
        ]);
    } else {
        tests.args([
            "test",
            "--release",
            "--workspace",
            "--lib",
            "--bins",
            "--tests",
            "--quiet",
        ]);
    }
    check(tests.current_dir(root), "tests")?;
    clock.tell("unit, property and end-to-end tests");
    check(
        Command::new(env!("CARGO"))
            .args(["test", "--release", "--workspace", "--doc", "--quiet"])
            .current_dir(root),
        "documentation tests",
    )?;
    clock.tell("documentation tests");
    conformance::run(root, None, false, None)?;
    clock.tell("ONNX node tests");
    accuracy::run(root, &[])?;
    clock.tell("accuracy against onnxruntime");
    match arm_missing() {
        None => {
            arm(root)?;
            clock.tell("64-bit Arm");
        }
        Some(missing) => {
            println!("SKIPPED: 64-bit Arm ({missing} is missing; see scripts/install_arm.sh)")
        }
    }
    println!("all tests passed");
    Ok(())
}

/// Cross-builds, runs the kernels' tests under emulation, and runs a model packed on this machine.
fn arm(root: &Path) -> Result<()> {
    let target_dir = root.join("target/arm");
    let cargo = |arguments: &[&str]| {
        let mut command = Command::new("/usr/bin/env");
        command
            .arg("cargo")
            .args(arguments)
            .args(["--release", "--target", ARM])
            .current_dir(root)
            .env_remove("RUSTUP_TOOLCHAIN")
            .env("RUSTC", "/usr/bin/rustc")
            .env("CARGO_TARGET_DIR", &target_dir)
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER",
                "aarch64-linux-gnu-gcc",
            )
            .env(
                "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER",
                EMULATOR.join(" "),
            )
            // Emulation is hundreds of times slower: tests leave their large cases out.
            .env("NEAP_EMULATED", "1")
            .env("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc");
        command
    };
    for name in ARM_TESTED {
        check(
            &mut cargo(&["test", "--quiet", "--package", name, "--lib", "--tests"]),
            name,
        )?;
    }
    check(
        &mut cargo(&["build", "--quiet", "--package", "neap-cli"]),
        "neap for Arm",
    )?;
    end_to_end(root, &target_dir.join(ARM).join("release/neap"))
}

/// A `.neap` packed here runs on Arm unchanged, with the same outputs but for rounding.
fn end_to_end(root: &Path, arm_neap: &Path) -> Result<()> {
    let neap = models::neap(root)?;
    let work = root.join("target/arm-run");
    std::fs::create_dir_all(&work)?;
    for name in ["squeezenet1_1", "mobilenet_v2"] {
        let model = models::zoo_model(root, name)?;
        let packed = work.join(format!("{name}.neap"));
        check(
            Command::new(&neap)
                .arg("pack")
                .arg(&model)
                .arg("-o")
                .arg(&packed),
            "pack",
        )?;
        let run = |command: &mut Command, folder: &str| -> Result<PathBuf> {
            let folder = work.join(name).join(folder);
            let report = folder.with_extension("json");
            std::fs::create_dir_all(&folder)?;
            command.arg("run").arg(&packed).args([
                "--memory-budget",
                "none",
                "--threads",
                "2",
                "--seed",
                "1",
            ]);
            check(
                command
                    .arg("--output-dir")
                    .arg(&folder)
                    .arg("--json")
                    .arg(&report),
                "run",
            )?;
            let report: serde_json::Value =
                serde_json::from_str(&std::fs::read_to_string(&report)?)?;
            let file = report["outputs"][0]["file"]
                .as_str()
                .context("the report names no output")?;
            Ok(PathBuf::from(file))
        };
        let here = run(&mut Command::new(&neap), "x86-64")?;
        let mut emulated = Command::new(EMULATOR[0]);
        let there = run(emulated.args(&EMULATOR[1..]).arg(arm_neap), "aarch64")?;
        let error = accuracy::compare(&there, &here)?;
        println!("ok    {name} packed on x86-64 runs on aarch64, error {error:.1e}");
    }
    Ok(())
}

/// The first tool that cross-building needs and does not find.
fn arm_missing() -> Option<&'static str> {
    let needed = [
        ("/usr/bin/rustc", "Debian's rustc"),
        (
            "/usr/lib/rustlib/aarch64-unknown-linux-gnu",
            "the standard library for arm64",
        ),
        ("/usr/bin/aarch64-linux-gnu-gcc", "aarch64-linux-gnu-gcc"),
        ("/usr/bin/qemu-aarch64-static", "qemu-aarch64-static"),
    ];
    needed
        .iter()
        .find(|(path, _)| !Path::new(path).exists())
        .map(|(_, what)| *what)
}

fn check(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {what}"))?;
    if !status.success() {
        bail!("{what} failed: {status}");
    }
    Ok(())
}

struct Clock(Instant);

impl Clock {
    fn tell(&mut self, what: &str) {
        println!("--- {what}: {:.0} s", self.0.elapsed().as_secs_f64());
        self.0 = Instant::now();
    }
}
