//! Tests once more in a build that looks closer: overflow checks, debug assertions and AddressSanitizer.
//!
//! The profile `checked` of Cargo.toml turns the first two on. The sanitizer comes with the toolchain, behind a
//! flag that is not stable: good enough for a check, never for a build that is used. Crates that start
//! the ordinary program or compare it with other engines are left out.

use crate::skips::Skips;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Named even where it is this machine's, so that build scripts and procedural macros are not instrumented.
pub const TARGET: &str = "x86_64-unknown-linux-gnu";

pub const SANITIZE: &str = "-Zsanitizer=address";

/// Their unsafe code is elsewhere, or there is none.
const LEFT_OUT: &[&str] = &["neap-cli", "neap-zoo", "xtask"];

/// Without tests that count this process's memory, of which the sanitizer takes most. Random tests draw fewer cases
/// here (`neap_testing::cases`).
const FILTER: &str = "not ((package(neaptide) & binary(adaptation)) \
    | (package(neap-onnx) & test(opening_half_a_gigabyte_costs_little)))";

/// What every change is checked with: quick tests of code that computes addresses or reads what others wrote, and files
/// damaged in thousands of ways.
const QUICK: &[&str] = &[
    "neap-kernels",
    "neap-ops",
    "neap-onnx",
    "neap-plan",
    "neap-planner",
    "neap-store",
    "neaptide",
];

/// Of the façade only what opens damaged files.
const QUICK_FILTER: &str = "not package(neaptide) | test(hostile)";

/// Quick tests only.
pub fn quick(root: &Path, skips: &Skips) -> Result<()> {
    let packages = QUICK.iter().map(|name| format!("--package={name}"));
    let filter = format!("({FILTER}) & ({QUICK_FILTER})");
    test(root, skips, packages.collect(), &filter)
}

/// All tests that can run so.
pub fn whole(root: &Path, skips: &Skips) -> Result<()> {
    let left_out = LEFT_OUT.iter().map(|name| format!("--exclude={name}"));
    let packages = [String::from("--workspace")].into_iter().chain(left_out);
    test(root, skips, packages.collect(), FILTER)
}

fn test(root: &Path, skips: &Skips, packages: Vec<String>, filter: &str) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["nextest", "run", "--cargo-profile", "checked"])
        .args(["--no-fail-fast", "--status-level", "slow"])
        .args(packages)
        .args(["--filterset", filter])
        .current_dir(root)
        .env("CARGO_TARGET_DIR", root.join("target/checked"));
    if has_sanitizer(root)? {
        sanitized(&mut command);
    } else {
        skips.skip("AddressSanitizer: this toolchain has no runtime for it")?;
    }
    let status = skips.watch(&mut command).status();
    let status = status.context("cannot start cargo nextest")?;
    if !status.success() {
        bail!("tests with overflow checks and a sanitizer failed: {status}");
    }
    Ok(())
}

/// Builds what this command builds with AddressSanitizer.
pub fn sanitized(command: &mut Command) {
    command
        .args(["--target", TARGET])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", SANITIZE);
}

pub fn has_sanitizer(root: &Path) -> Result<bool> {
    let output = Command::new("rustc")
        .args(["--print", "sysroot"])
        .current_dir(root)
        .output()
        .context("cannot start rustc")?;
    let sysroot = PathBuf::from(String::from_utf8(output.stdout)?.trim());
    let libraries = sysroot.join("lib/rustlib").join(TARGET).join("lib");
    let Ok(entries) = std::fs::read_dir(libraries) else {
        return Ok(false);
    };
    let names = entries.filter_map(|e| Some(e.ok()?.file_name().to_string_lossy().into_owned()));
    Ok(names.into_iter().any(|name| name.ends_with("rt.asan.a")))
}
