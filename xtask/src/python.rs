//! The Python package: its wheel is built, installed into a fresh environment, and tested there.
//!
//! ```text
//!   target/python/tools    maturin, pytest and the reference engine: made once for a list of requirements
//!   target/python/wheels   the wheel of this build
//!   target/python/torch    PyTorch, for nightly tests and `cargo study torch` only
//!   target/python/with-torch   the wheel, for a Python with PyTorch
//!   target/python/fresh    an environment with nothing but the wheel; tests find their tools in the other one
//! ```

use crate::check::check;
use crate::skips::Skips;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = "scripts/requirements-python.txt";

const WITH_TORCH: &str = "scripts/requirements-torch.txt";

/// Tests the package with PyTorch, which takes gigabytes, and compares training with PyTorch's. `given` is a Python that has
/// it already.
///
/// # Errors
/// When anything of that fails, or PyTorch cannot be had.
pub fn torch(root: &Path, given: Option<&Path>) -> Result<()> {
    let tools = tools(root)?.context("no Python environment")?;
    let python = with_torch(root, given)?;
    let wheel = wheel(root, &tools)?;
    // Beside the environment, which may be another's.
    let folder = root.join("target/python/with-torch");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "--disable-pip-version-check", "install"]);
    install
        .args(["--quiet", "--no-deps", "--target"])
        .arg(&folder);
    check(install.arg(wheel), "installing the wheel")?;
    let mut tests = Command::new(&python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    // The environment has the newer of the two versions of onnx whose tests are known here.
    tests.args(
        ["test_torch.py", "test_backend.py"].map(|file| format!("crates/neap-py/tests/{file}")),
    );
    tests.env("PYTHONPATH", &folder).current_dir(root);
    check(&mut tests, "tests with PyTorch")?;
    let mut training = Command::new(&python);
    training.arg(root.join("scripts/torch_training.py"));
    training.arg(study(root)?);
    check(&mut training, "training beside PyTorch")
}

/// The program of `studies/`, which trains what the script exports.
fn study(root: &Path) -> Result<PathBuf> {
    let target = root.join("target");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--quiet", "--locked"]);
    build
        .arg("--manifest-path")
        .arg(root.join("studies/Cargo.toml"));
    build.arg("--target-dir").arg(&target);
    check(&mut build, "neap-study")?;
    Ok(target.join("release/neap-study"))
}

/// A Python with PyTorch: the one that is given, or one that is made.
///
/// # Errors
/// When it cannot be made.
pub fn with_torch(root: &Path, given: Option<&Path>) -> Result<PathBuf> {
    if let Some(python) = given {
        // A link stays one: where it lies says which packages there are.
        return Ok(std::path::absolute(python)?);
    }
    let made = environment(root, "torch", WITH_TORCH)?;
    let made = made.context("PyTorch cannot be installed")?;
    Ok(made.join("bin/python"))
}

/// Builds, installs and tests the package.
///
/// # Errors
/// When anything of that fails; without Python it is skipped.
pub fn run(root: &Path, skips: &Skips) -> Result<()> {
    let Some(tools) = tools(root)? else {
        return skips.skip("the Python package: no Python environment can be made");
    };
    let wheel = wheel(root, &tools)?;
    let python = install(root, &tools, &wheel)?;
    let mut tests = Command::new(python);
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    tests.env("NEAPTIDE_EP", provider(root)?);
    check(tests.current_dir(root), "tests of the Python package")
}

/// Builds the execution provider for onnxruntime.
fn provider(root: &Path) -> Result<PathBuf> {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--quiet", "-p", "neap-ep"]);
    check(build.current_dir(root), "building the execution provider")?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    Ok(target.join("release/libneaptide_ep.so"))
}

/// The folder of an environment with what a list names; `None` where it cannot be had.
///
/// # Errors
/// When the list cannot be read, or that the environment was made cannot be noted.
pub fn environment(root: &Path, name: &str, list: &'static str) -> Result<Option<PathBuf>> {
    let folder = root.join("target/python").join(name);
    let (wanted, marker) = (root.join(list), folder.join("requirements.txt"));
    let text = fs::read_to_string(&wanted).context(list)?;
    if fs::read_to_string(&marker).is_ok_and(|made| made == text) {
        return Ok(Some(folder));
    }
    let mut make = Command::new("python3");
    make.args(["-m", "venv", "--clear"]).arg(&folder);
    let mut fill = Command::new(folder.join("bin/python"));
    fill.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-r",
    ]);
    for command in [&mut make, fill.arg(&wanted)] {
        if !command.status().is_ok_and(|status| status.success()) {
            return Ok(None);
        }
    }
    fs::write(marker, text)?;
    Ok(Some(folder))
}

/// Builds the wheel for this machine.
fn wheel(root: &Path, tools: &Path) -> Result<PathBuf> {
    let mut build = Command::new(tools.join("bin/maturin"));
    build.args(["build", "--release", "--locked", "--quiet"]);
    self::build(root, build, &root.join("target/python/wheels"))
}

/// The wheel that maturin, told how, leaves in a folder.
pub fn build(root: &Path, mut build: Command, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    build.arg("--out").arg(folder).current_dir(root);
    // What cargo tells its own programs would have the engine built anew; what is told to cargo stays.
    let settings = ["CARGO_HOME", "CARGO_TARGET_DIR", "CARGO_INCREMENTAL"];
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_")) {
        if !settings.contains(&name.as_str()) && !name.starts_with("CARGO_PROFILE_") {
            build.env_remove(name);
        }
    }
    check(&mut build, "building the wheel")?;
    let mut files = fs::read_dir(folder)?;
    match (files.next(), files.next()) {
        (Some(wheel), None) => Ok(wheel?.path()),
        _ => bail!("{} does not hold one wheel", folder.display()),
    }
}

/// The environment in which the package is built and tested.
pub fn tools(root: &Path) -> Result<Option<PathBuf>> {
    environment(root, "tools", REQUIREMENTS)
}

/// Makes an environment with nothing but the wheel, and gives its Python. Packages of the other environment come after
/// its own.
pub fn install(root: &Path, tools: &Path, wheel: &Path) -> Result<PathBuf> {
    let folder = root.join("target/python/fresh");
    let mut make = Command::new(tools.join("bin/python"));
    make.args(["-m", "venv", "--clear", "--without-pip"])
        .arg(&folder);
    check(&mut make, "making a Python environment")?;
    let python = folder.join("bin/python");
    let mut install = Command::new(tools.join("bin/python"));
    install.args(["-m", "pip", "--disable-pip-version-check", "--python"]);
    install
        .arg(&python)
        .args(["install", "--quiet", "--no-deps"]);
    check(install.arg(wheel), "installing the wheel")?;
    let packages = packages(&folder)?;
    fs::write(
        packages.join("tools.pth"),
        format!("{}\n", self::packages(tools)?.display()),
    )?;
    Ok(python)
}

/// Where an environment keeps its packages.
fn packages(environment: &Path) -> Result<PathBuf> {
    let mut versions = fs::read_dir(environment.join("lib"))?;
    let version = versions
        .next()
        .context("an environment without packages")??;
    Ok(version.path().join("site-packages"))
}
