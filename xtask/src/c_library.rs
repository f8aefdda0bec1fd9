//! The C library: installed as a user installs it, its examples built with sanitizers and run.

use crate::check::check;
use crate::models;
use crate::skips::Skips;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiler and source of each example.
const EXAMPLES: [(&str, &str, &[&str]); 3] = [
    ("run", "cc", &["-std=c11", "run.c"]),
    ("misuse", "cc", &["-std=c11", "misuse.c"]),
    ("cancel", "c++", &["-std=c++17", "-pthread", "cancel.cpp"]),
];

/// Installs the library into `target/c`, builds the examples against it and runs them.
///
/// # Errors
/// When anything of that fails; without compilers or pkg-config it is skipped.
pub fn run(root: &Path, skips: &Skips) -> Result<()> {
    for tool in ["cc", "c++", "pkg-config"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return skips.skip(&format!("the C library: there is no {tool}"));
        }
    }
    let prefix = root.join("target/c");
    let mut install = Command::new(root.join("scripts/install_c.sh"));
    check(install.arg(&prefix), "installing the C library")?;
    for (name, compiler, arguments) in EXAMPLES {
        build(root, &prefix, name, compiler, arguments)?;
    }
    let model = models::zoo_model(root, "squeezenet1_1")?;
    let model = model.to_str().context("a path that is UTF-8")?;

    // The same bits within a budget as without.
    let free = example(&prefix, "run", &[model, "none", "exact"])?;
    let small = example(&prefix, "run", &[model, "3MiB", "exact"])?;
    let values = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().skip(1).map(String::from).collect::<Vec<_>>()
    };
    expect(&free, 0, "the first is")?;
    expect(&small, 0, "the first is")?;
    if values(&free) != values(&small) {
        bail!(
            "within a budget: {:?}, without: {:?}",
            values(&small),
            values(&free)
        );
    }
    expect(
        &example(&prefix, "run", &[model, "100K"])?,
        3,
        "try a budget of",
    )?;
    expect(&example(&prefix, "run", &["no.onnx"])?, 2, "no.onnx")?;
    let absent = prefix.join("absent");
    let absent = absent.to_str().context("a path that is UTF-8")?;
    expect(
        &example(&prefix, "misuse", &[model, absent])?,
        0,
        "0 faults",
    )?;
    expect(&example(&prefix, "cancel", &[model])?, 0, "a run was ended")
}

/// With AddressSanitizer, which also tells of memory that nobody freed.
fn build(root: &Path, prefix: &Path, name: &str, compiler: &str, arguments: &[&str]) -> Result<()> {
    let mut flags = Command::new("pkg-config");
    flags.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let flags = flags.args(["--cflags", "--libs", "neaptide"]).output()?;
    let flags = String::from_utf8(flags.stdout)?;
    let mut build = Command::new(compiler);
    build.current_dir(root.join("crates/neap-c/examples"));
    build.args([
        "-Wall",
        "-Wextra",
        "-Werror",
        "-g",
        "-fsanitize=address,undefined",
    ]);
    build.args(arguments).args(flags.split_whitespace());
    build.arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    check(
        build.arg("-o").arg(program(prefix, name)),
        &format!("building {name}"),
    )
}

fn example(prefix: &Path, name: &str, arguments: &[&str]) -> Result<Output> {
    let mut run = Command::new(program(prefix, name));
    Ok(run.args(arguments).output()?)
}

fn program(prefix: &Path, name: &str) -> PathBuf {
    prefix.join(name)
}

/// The exit code, and words on either stream.
fn expect(output: &Output, code: i32, words: &str) -> Result<()> {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    match output.status.code() == Some(code) && text.contains(words) {
        true => Ok(()),
        false => bail!("{}, not {code} and '{words}':\n{text}", output.status),
    }
}
