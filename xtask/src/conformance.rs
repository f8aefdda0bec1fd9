//! `neap-conformance`, which has the engine in itself: the ONNX standard's node tests, and every instruction set.

use crate::check::check;
use crate::skips::Skips;
use anyhow::Result;
use std::path::Path;
use std::process::Command;

/// # Errors
/// When a test does not have the outcome that the committed lists say.
pub fn node_tests(root: &Path, arguments: &[impl AsRef<str>]) -> Result<()> {
    let mut command = program(root);
    command.arg("node-tests");
    command.args(arguments.iter().map(AsRef::as_ref));
    check(&mut command, "ONNX node tests")
}

/// # Errors
/// When an instruction set of this processor is wrong.
pub fn instruction_sets(root: &Path, skips: &Skips) -> Result<()> {
    let mut command = program(root);
    command.arg("instruction-sets");
    check(skips.watch(&mut command), "all instruction sets")
}

fn program(root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "run",
        "--release",
        "--quiet",
        "--package",
        "neap-conformance",
        "--",
    ]);
    command.current_dir(root);
    command
}
