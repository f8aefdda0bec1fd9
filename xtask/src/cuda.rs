//! CUDA programs as they are, under the hook and the scheduler, on a driver of software.

use crate::check::check;
use crate::python::environment;
use crate::skips::Skips;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

const REQUIREMENTS: &str = "scripts/requirements-cuda.txt";

/// Builds the hook, the scheduler and the driver, and runs programs on them.
///
/// # Errors
/// When anything of that fails; without Python it is skipped.
pub fn run(root: &Path, skips: &Skips) -> Result<()> {
    let Some(folder) = environment(root, "cuda", REQUIREMENTS)? else {
        return skips.skip("CUDA programs: no Python environment with cuda-bindings");
    };
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--quiet", "-p", "neap-hook"]);
    build.args(["-p", "neap-gpud", "-p", "neap-cuda-standin"]);
    check(build.current_dir(root), "building the hook")?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    let mut tests = Command::new(folder.join("bin/python"));
    tests.args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "."]);
    tests.env("NEAP_GPU_BUILD", target.join("release"));
    // Tests find what they share beside them.
    let folder = root.join("crates/neap-gpud/tests");
    check(
        tests.current_dir(folder),
        "CUDA programs on a driver of software",
    )
}
