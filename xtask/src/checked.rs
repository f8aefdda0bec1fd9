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
const FILTER: &str =
    "not ((package(neaptide) & binary(adaptation)) | test(opening_half_a_gigabyte))";

/// What every change is checked with: quick tests of code that computes addresses or reads what others wrote...
const QUICK: &str = "--lib --tests --package=neap-features --package=neap-blocks --package=neap-kernels \
    --package=neap-ops --package=neap-onnx --package=neap-plan --package=neap-planner --package=neap-store";
const QUICK_FILTER: &str = "not test(opening_half_a_gigabyte)";

/// ... and files damaged in thousands of ways. Nothing else of the façade is built.
const DAMAGED: &str = "--package=neap-features --package=neaptide --test=e2e";
const DAMAGED_FILTER: &str = "test(hostile)";

/// Quick tests only.
pub fn quick(root: &Path, skips: &Skips) -> Result<()> {
    test(root, skips, QUICK, QUICK_FILTER)?;
    test(root, skips, DAMAGED, DAMAGED_FILTER)
}

/// All tests that can run so.
pub fn whole(root: &Path, skips: &Skips) -> Result<()> {
    let left_out = LEFT_OUT.iter().map(|name| format!(" --exclude={name}"));
    let all = String::from("--workspace --lib --bins --tests") + &left_out.collect::<String>();
    test(root, skips, &all, FILTER)
}

/// Builds and runs what cargo's arguments name.
fn test(root: &Path, skips: &Skips, what: &str, filter: &str) -> Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["nextest", "run", "--cargo-profile", "checked"])
        .args(["--no-fail-fast", "--status-level", "slow"])
        .args(what.split_whitespace())
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

/// Builds what this command builds with AddressSanitizer, and runs it. Leaks are not looked for: that is done when a process
/// ends, by stopping its threads, and a thread that is just ending may fail a test that passed.
pub fn sanitized(command: &mut Command) {
    command
        .args(["--target", TARGET])
        .env("ASAN_OPTIONS", "detect_leaks=0")
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
