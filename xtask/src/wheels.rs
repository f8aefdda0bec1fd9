//! `cargo xtask wheels`: the Python package with the command `neap` for others' machines, x86-64 and 64-bit Arm, each tried out.
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
use std::os::unix::fs::PermissionsExt;
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

/// The wheel for a processor, with the command `neap` in it.
fn build(root: &Path, tools: &Path, processor: &str) -> Result<PathBuf> {
    let of_program = [
        "--bindings",
        "bin",
        "--manifest-path",
        "crates/neap-cli/Cargo.toml",
    ];
    let program = maturin(root, tools, processor, "neap", &of_program)?;
    let package = maturin(root, tools, processor, "package", &[])?;
    let folder = root.join("target/wheels").join(processor).join("joined");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let of_program = unpacked(tools, &program, &folder.join("neap"))?;
    let of_package = unpacked(tools, &package, &folder.join("package"))?;
    let name = of_package.file_name().unwrap_or_default().display();
    let scripts = of_package.join(format!("{name}.data/scripts"));
    fs::create_dir_all(&scripts)?;
    fs::rename(command_in(&of_program)?, scripts.join("neap"))?;
    let wheel = folder.join("wheel");
    fs::create_dir_all(&wheel)?;
    let mut pack = Command::new(tools.join("bin/python"));
    pack.args(["-m", "wheel", "pack"]).arg(&of_package);
    check(pack.arg("--dest-dir").arg(&wheel), "packing the wheel")?;
    only(&wheel)
}

/// The one folder that comes of a wheel.
fn unpacked(tools: &Path, wheel: &Path, folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let mut unpack = Command::new(tools.join("bin/python"));
    unpack.args(["-m", "wheel", "unpack"]).arg(wheel);
    check(unpack.arg("--dest").arg(folder), "unpacking the wheel")?;
    only(folder)
}

fn only(folder: &Path) -> Result<PathBuf> {
    let mut entries = fs::read_dir(folder)?;
    match (entries.next(), entries.next()) {
        (Some(entry), None) => Ok(entry?.path()),
        _ => bail!("{} does not hold one file", folder.display()),
    }
}

fn maturin(
    root: &Path,
    tools: &Path,
    processor: &str,
    what: &str,
    more: &[&str],
) -> Result<PathBuf> {
    let folder = root.join("target/wheels").join(processor).join(what);
    let mut build = Command::new(tools.join("bin/maturin"));
    build.args(["build", "--release", "--locked", "--quiet", "--zig"]);
    build.args(["--compatibility", COMPATIBILITY, "--target"]);
    build.arg(format!("{processor}-unknown-linux-gnu"));
    build.args(more);
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

/// `neaptide-VERSION.data/scripts/neap` in an unpacked wheel.
fn command_in(folder: &Path) -> Result<PathBuf> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path().join("scripts/neap");
        if path.is_file() {
            return Ok(path);
        }
    }
    bail!("{} has no command neap", folder.display())
}

/// With this machine's Python and nothing but numpy.
fn try_here(root: &Path, wheel: &Path, model: &Path) -> Result<PathBuf> {
    let tests = python::tools(root)?.context("no Python environment")?;
    let python = python::install(root, &tests, wheel)?;
    let command = python.with_file_name("neap");
    check(Command::new(&command).arg("--version"), "the wheel's neap")?;
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
    let command = command_in(&installed)?;
    // A zip file says nothing of who may run it here.
    fs::set_permissions(&command, fs::Permissions::from_mode(0o755))?;
    let mut asked = arm::emulated(&folder.join("root"), &command);
    check(asked.arg("--version"), "the wheel's neap for 64-bit Arm")?;
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
