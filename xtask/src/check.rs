//! Programs that must succeed.

use anyhow::{Context, Result, bail};
use std::process::Command;

/// Runs a command to its end.
///
/// # Errors
/// When it cannot be started or does not succeed.
pub fn check(command: &mut Command, what: &str) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot start {what}"))?;
    if !status.success() {
        bail!("{what} failed: {status}");
    }
    Ok(())
}
