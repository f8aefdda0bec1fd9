//! The whole test suite, or one of its parts.
//!
//! ```text
//!   cargo xtask test                     unit, property and end-to-end tests; ONNX's node tests; accuracy against
//!                                        onnxruntime, with each instruction set; the Python package; 64-bit Arm
//!   cargo xtask test --part isa          only that part: tests, docs, checked, conformance, accuracy, isa,
//!                                        python, c, serve, cuda, vulkan, arm
//!   cargo xtask test --part checked-whole    all tests with overflow checks and a sanitizer
//!   cargo xtask test --target aarch64    only the Arm part; an error where it is not possible
//! ```
//! What cannot be tested here is told at the end; with `NEAP_REQUIRE_ALL=1` it is a failure.

use crate::background::Background;
use crate::check::check;
use crate::skips::Skips;
use crate::{
    accuracy, arm, c_library, checked, conformance, cuda, models, python, serving, vulkan,
};
use anyhow::{Result, bail};
use std::path::Path;
use std::process::Command;
use std::time::Instant;

type Part = fn(&Path, &Skips) -> Result<()>;

/// Name, what it is, how it is run.
const PARTS: &[(&str, &str, Part)] = &[
    ("tests", "unit, property and end-to-end tests", tests),
    ("docs", "documentation tests", documentation),
    (
        "checked",
        "quick tests with overflow checks and AddressSanitizer",
        checked::quick,
    ),
    (
        "checked-whole",
        "all tests with overflow checks and AddressSanitizer",
        checked::whole,
    ),
    ("conformance", "ONNX node tests", |root, _| {
        conformance::node_tests(root, &[""; 0])
    }),
    ("accuracy", "accuracy against onnxruntime", accuracy_of_all),
    (
        "isa",
        "all instruction sets against onnxruntime",
        conformance::instruction_sets,
    ),
    ("python", "the Python package", python::run),
    ("c", "the C library", c_library::run),
    ("serve", "the server, asked by real clients", serving::run),
    ("cuda", "CUDA programs on a driver of software", cuda::run),
    ("vulkan", "whole models on Vulkan", vulkan::run),
    ("arm", "64-bit Arm", arm_if_possible),
];

/// Run only when named.
const ON_REQUEST: &[&str] = &["checked-whole"];

/// They have folders of their own to build in, and go on beside all others, on what these leave of the processors. With the
/// arguments that run them alone.
const BESIDE: [(&str, [&str; 3]); 2] = [
    ("arm", ["test", "--target", "aarch64"]),
    ("checked", ["test", "--part", "checked"]),
];

pub fn run(root: &Path, target: Option<&str>, part: Option<&str>) -> Result<()> {
    match target {
        None => parts(root, part),
        Some("aarch64" | "aarch64-unknown-linux-gnu") => arm::run(root),
        Some(other) => bail!("unknown target {other}: only aarch64 is known"),
    }
}

fn parts(root: &Path, only: Option<&str>) -> Result<()> {
    let wanted = |name: &str| only.map_or(!ON_REQUEST.contains(&name), |only| only == name);
    if only.is_some_and(|only| !PARTS.iter().any(|(name, ..)| *name == only)) {
        let names: Vec<_> = PARTS.iter().map(|(name, ..)| *name).collect();
        bail!("the parts are {}", names.join(", "));
    }
    let skips = Skips::collect(root)?;
    let mut beside = Vec::new();
    for (name, arguments) in BESIDE {
        if only.is_none() && (name != "arm" || arm::missing().is_none()) {
            let part = Background::start(root, name, &arguments, &skips)?;
            beside.push((name, part));
        }
    }
    for (name, what, part) in PARTS {
        // What goes on beside them is waited for when all else is done.
        if !wanted(name) || beside.iter().any(|(other, _)| other == name) {
            continue;
        }
        let started = Instant::now();
        part(root, &skips)?;
        println!("--- {what}: {:.0} s", started.elapsed().as_secs_f64());
    }
    for (name, part) in beside {
        let started = Instant::now();
        part.finish()?;
        let waited = started.elapsed().as_secs_f64();
        println!("--- {name}, beside the others; waited for: {waited:.0} s");
    }
    skips.tell()?;
    println!("all tests passed");
    Ok(())
}

fn tests(root: &Path, skips: &Skips) -> Result<()> {
    // Tests that compare with the reference engine find its environment ready.
    models::python(root)?;
    let nextest = Command::new("cargo")
        .args(["nextest", "--version"])
        .output()
        .is_ok_and(|o| o.status.success());
    let mut tests = Command::new(env!("CARGO"));
    if nextest {
        tests.args(["nextest", "run", "--release", "--workspace"]);
        tests.args(["--no-fail-fast", "--status-level", "slow"]);
        // Many wait for the drive or for other processes.
        let processors = std::thread::available_parallelism().map_or(1, |n| n.get());
        tests.arg(format!("--test-threads={}", processors + 1));
    } else {
        tests.args(["test", "--release", "--workspace", "--quiet"]);
    }
    // Examples without tests are not built: clippy sees that they could be.
    tests.args(["--lib", "--bins", "--tests"]);
    check(skips.watch(tests.current_dir(root)), "tests")
}

fn documentation(root: &Path, _: &Skips) -> Result<()> {
    let mut tests = Command::new(env!("CARGO"));
    tests.args(["test", "--release", "--workspace", "--doc", "--quiet"]);
    check(tests.current_dir(root), "documentation tests")?;
    let has_mdbook = Command::new("mdbook").arg("--version").output().is_ok();
    match has_mdbook {
        true => check(
            Command::new("sh").arg(root.join("scripts/book.sh")),
            "the book",
        ),
        false => {
            println!("the book is not built: there is no mdbook");
            Ok(())
        }
    }
}

fn accuracy_of_all(root: &Path, skips: &Skips) -> Result<()> {
    if models::python(root)?.is_none() {
        skips.skip("comparison with onnxruntime: no Python environment")?;
    }
    if !accuracy::can_enforce() {
        skips.skip("hard limits on memory: no right to make memory cgroups")?;
    }
    accuracy::run(root, &[])
}

fn arm_if_possible(root: &Path, skips: &Skips) -> Result<()> {
    match arm::missing() {
        None => arm::run(root),
        Some(missing) => skips.skip(&format!(
            "64-bit Arm: {missing} is missing (see scripts/install_arm.sh)"
        )),
    }
}
