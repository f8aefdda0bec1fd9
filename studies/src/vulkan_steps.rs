//! `cargo study vulkan-steps`: which steps `--device vulkan` leaves to the processor, of every network of the zoo and
//! the trained models. Nothing is run: it follows from operators, types and sizes.

use crate::check::check;
use crate::models;
use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[derive(Args)]
pub struct VulkanStepsArgs {
    /// Only these networks of the zoo, or files
    only: Vec<String>,
    /// Write the table of docs/gpu.md
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// Around the table.
const BEFORE: &str = "<!-- steps: cargo study vulkan-steps --write -->\n";
const AFTER: &str = "<!-- end of steps -->\n";

/// Of one model.
#[derive(Debug, PartialEq)]
struct Row {
    model: String,
    steps: usize,
    here: usize,
    /// Those of the processor, by operator.
    others: BTreeMap<String, usize>,
}

pub fn run(root: &Path, args: &VulkanStepsArgs) -> Result<()> {
    let mut names = args.only.clone();
    if names.is_empty() {
        names.extend(neap_zoo::list().iter().map(|entry| entry.name.to_owned()));
        let trained = models::trained(root)?.into_iter();
        let files: BTreeSet<String> = trained
            .map(|case| case.model.display().to_string())
            .collect();
        names.extend(files);
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--release", "--quiet", "--package", "neap-vulkan"]);
    build.args(["--package", "neap-features", "--example", "steps"]);
    check(build.current_dir(root), "building the example")?;
    let target = std::env::var_os("CARGO_TARGET_DIR");
    let target = target.map_or_else(|| root.join("target"), PathBuf::from);
    let output = Command::new(target.join("release/examples/steps"))
        .arg(root.join("target/models/packed"))
        .args(&names)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "it ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    let rows = text.lines().map(row).collect::<Result<Vec<_>>>()?;
    let table = table(&rows);
    println!("{table}");
    if args.write {
        let path = root.join("docs/gpu.md");
        let page = with_table(&std::fs::read_to_string(&path)?, &table)?;
        std::fs::write(&path, page)?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}

/// A line of the example `steps`.
fn row(line: &str) -> Result<Row> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [model, steps, here, others] = fields[..] else {
        bail!("no row of steps: {line}");
    };
    let others = others.split(", ").filter(|one| !one.is_empty());
    let others = others.map(|one| {
        let (name, count) = one
            .rsplit_once(' ')
            .context("an operator without a count")?;
        Ok((name.to_owned(), count.parse()?))
    });
    Ok(Row {
        model: model.into(),
        steps: steps.parse()?,
        here: here.parse()?,
        others: others.collect::<Result<_>>()?,
    })
}

fn table(rows: &[Row]) -> String {
    let mut text =
        String::from("| model | steps | on the device | on the processor |\n|---|--:|--:|---|\n");
    let mut all: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows {
        for (name, count) in &row.others {
            *all.entry(name).or_default() += count;
        }
        let others = row
            .others
            .iter()
            .map(|(name, count)| (name.as_str(), *count));
        let told = format!(
            "{} | {} | {} | {}",
            row.model,
            row.steps,
            row.here,
            listed(others)
        );
        let _ = writeln!(text, "| {told} |");
    }
    let sum = |of: fn(&Row) -> usize| rows.iter().map(of).sum::<usize>();
    let (steps, here) = (sum(|row| row.steps), sum(|row| row.here));
    let _ = writeln!(text, "| **all** | {steps} | {here} | {} |", listed(all));
    text
}

/// The most frequent first.
fn listed<'a>(operators: impl IntoIterator<Item = (&'a str, usize)>) -> String {
    let mut operators: Vec<(&str, usize)> = operators.into_iter().collect();
    operators.sort_by_key(|&(name, count)| (usize::MAX - count, name));
    let told = operators
        .iter()
        .map(|(name, count)| format!("`{name}` {count}"));
    match operators.is_empty() {
        true => "–".into(),
        false => told.collect::<Vec<_>>().join(", "),
    }
}

fn with_table(page: &str, table: &str) -> Result<String> {
    let (before, rest) = page
        .split_once(BEFORE)
        .context("docs/gpu.md has no place for it")?;
    let (_, after) = rest.split_once(AFTER).context("the table has no end")?;
    Ok(format!("{before}{BEFORE}{table}{AFTER}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_the_example_becomes_one_of_the_table() {
        let rows = [
            row("one\t10\t7\tCast 1, Where 2").expect("a row"),
            row("two\t4\t4\t").expect("a row"),
        ];
        assert_eq!(rows[0].others["Where"], 2);
        let text = table(&rows);
        assert!(
            text.contains("| one | 10 | 7 | `Where` 2, `Cast` 1 |\n"),
            "{text}"
        );
        assert!(text.contains("| two | 4 | 4 | – |\n"), "{text}");
        assert!(
            text.contains("| **all** | 14 | 11 | `Where` 2, `Cast` 1 |\n"),
            "{text}"
        );
        assert!(row("one\t10").is_err() && row("one\tx\t1\t").is_err());
    }

    #[test]
    fn only_the_table_of_the_page_changes() {
        let page = format!("# Page\n\n{BEFORE}old\n{AFTER}\nMore.\n");
        let other = with_table(&page, "new\n").expect("it has a place");
        assert_eq!(other, page.replace("old", "new"));
        assert!(with_table("# Page\n", "new\n").is_err());
    }
}
