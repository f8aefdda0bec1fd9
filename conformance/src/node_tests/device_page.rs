//! The place of these tests in docs/gpu.md: how many pass with a device.

use super::report::Report;
use anyhow::{Context, Result};
use std::fmt::Write as _;

/// Around the table.
const BEFORE: &str = "<!-- node tests: cargo xtask conformance --device vulkan --write -->\n";
const AFTER: &str = "<!-- end of node tests -->\n";

/// The page with a new table.
pub(super) fn with_table(page: &str, reports: &[&Report]) -> Result<String> {
    let (before, rest) = page
        .split_once(BEFORE)
        .context("docs/gpu.md has no place for node tests")?;
    let (_, after) = rest.split_once(AFTER).context("the place has no end")?;
    let table = table(reports);
    Ok(format!("{before}{BEFORE}{table}{AFTER}{after}"))
}

fn table(reports: &[&Report]) -> String {
    let mut text = String::from(
        "| onnx | tests | pass | of these with steps on the device | such steps | wrong |\n|---|--:|--:|--:|--:|--:|\n",
    );
    for report in reports {
        let counts = report.counts();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            report.onnx(),
            report.tests(),
            counts.passed,
            counts.on_device,
            counts.steps_on_device,
            counts.wrong,
        );
    }
    text
}
