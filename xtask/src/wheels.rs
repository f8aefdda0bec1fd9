//! `cargo xtask wheels`: the Python package for others' machines, x86-64 and 64-bit Arm, each tried out.
//!
//! ```text
//!   maturin, zig's linker ─► target/wheels/neaptide-…-manylinux_2_28_{x86_64,aarch64}.whl
//!   each one, with a Python of its own (Arm's under emulation) ─► a model within a budget ─► the same outputs
//! ```
//! A wheel may ask for no newer C library than its name says. zig's linker sees to that, whatever this machine has.

use crate::check::check;
use crate::{accuracy, arm, models, python};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = "scripts/requirements-wheels.txt";

/// Linux distributions since 2018 have this C library or a later one.
const COMPATIBILITY: &str = "manylinux_2_28";

/// For the other processor's Python; this machine's is in the tests' environment.
const NUMPY: &str = "2.4.6";

/// What both wheels run, and within what.
const MODEL: &str = "squeezenet1_1";
const BUDGET: &str = "8MiB";

pub fn run(root: &Path) -> Result<()> {
    if let Some(missing) = arm::missing() {
        bail!("{missing} is missing: run scripts/install_arm.sh as root (Debian)");
    }
    let tools =
        python::environment(root, "wheels", REQUIREMENTS)?.context("no Python environment")?;
    let model = models::zoo_model(root, MODEL)?;
    let here = build(root, &tools, "x86_64")?;
    let there = build(root, &tools, "aarch64")?;
    let found = [
        try_here(root, &here, &model)?,
        try_on_arm(root, &there, &model)?,
    ];
    let error = accuracy::compare(&found[0], &found[1])?;
    ensure!(error <= 1e-4, "outputs of both differ by {error:.1e}");
    println!("outputs of both differ by {error:.1e} of the largest");
    for wheel in [here, there] {
        let mib = fs::metadata(&wheel)?.len() as f64 / 1048576.0;
        println!("{} ({mib:.1} MiB)", wheel.display());
    }
    Ok(())
}

/// The wheel for a processor.
fn build(root: &Path, tools: &Path, processor: &str) -> Result<PathBuf> {
    let folder = root.join("target/wheels").join(processor);
    let mut build = Command::new(tools.join("bin/maturin"));
    build.args(["build", "--release", "--locked", "--quiet", "--zig"]);
    build.args(["--compatibility", COMPATIBILITY, "--target"]);
    build.arg(format!("{processor}-unknown-linux-gnu"));
    build.env("CARGO_TARGET_DIR", root.join("target/zig"));
    // It finds zig by the `python3` of its environment.
    let path = std::env::var("PATH").unwrap_or_default();
    build.env("PATH", format!("{}/bin:{path}", tools.display()));
    if processor == "aarch64" {
        // The one with that processor's standard library.
        build.env("RUSTC", "/usr/bin/rustc");
    }
    python::build(root, build, &folder)
}

/// With this machine's Python and nothing but numpy.
fn try_here(root: &Path, wheel: &Path, model: &Path) -> Result<PathBuf> {
    let tests = python::tools(root)?.context("no Python environment")?;
    let python = python::install(root, &tests, wheel)?;
    let out = root.join("target/wheels/x86_64.npy");
    let mut try_it = Command::new(python);
    check(
        try_it.arg("scripts/try_wheel.py").args(words(model, &out)),
        "the wheel for x86-64",
    )?;
    Ok(out)
}

fn try_on_arm(root: &Path, wheel: &Path, model: &Path) -> Result<PathBuf> {
    let folder = root.join("target/wheels/arm-python");
    let made = Command::new("sh")
        .arg("scripts/arm_python.sh")
        .arg(&folder)
        .arg(NUMPY)
        .current_dir(root)
        .output()
        .context("cannot start sh")?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "arm_python.sh: {}", said.trim());
    let version = String::from_utf8(made.stdout)?;
    let installed = root.join("target/wheels/arm-installed");
    if installed.exists() {
        fs::remove_dir_all(&installed)?;
    }
    let mut unpack = Command::new("python3");
    unpack
        .args(["-m", "zipfile", "-e"])
        .args([wheel, &installed]);
    check(&mut unpack, "unpacking the wheel")?;
    let out = root.join("target/wheels/aarch64.npy");
    let python = folder.join(format!("root/usr/bin/python{}", version.trim()));
    let mut try_it = arm::emulated(&folder.join("root"), &python);
    try_it.env(
        "PYTHONPATH",
        format!(
            "{}:{}",
            installed.display(),
            folder.join("packages").display()
        ),
    );
    check(
        try_it.arg("scripts/try_wheel.py").args(words(model, &out)),
        "the wheel for 64-bit Arm",
    )?;
    Ok(out)
}

fn words<'a>(model: &'a Path, out: &'a Path) -> [&'a std::ffi::OsStr; 3] {
    [model.as_os_str(), BUDGET.as_ref(), out.as_os_str()]
}
