//! What became of tests: on the console, beside the committed list, and as a page by operator.

use super::Outcome;
use anyhow::{Result, bail};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

/// By a test's name, the operator that it tests.
pub(super) type Operators = BTreeMap<String, String>;

/// A test's verdict; reasons with it.
enum Verdict {
    Passed {
        with_weights: bool,
        steps_on_device: usize,
    },
    Refused(String),
    Contradicting(String),
    Wrong(String),
}

pub(super) struct Report {
    onnx: &'static str,
    verdicts: BTreeMap<String, Verdict>,
    operators: Operators,
}

#[derive(Default)]
pub(super) struct Counts {
    pub passed: usize,
    weighted: usize,
    /// Of the passed ones, those with a step on a device, and such steps.
    pub on_device: usize,
    pub steps_on_device: usize,
    refused: usize,
    contradicting: usize,
    pub wrong: usize,
}

impl Report {
    pub(super) fn new(
        onnx: &'static str,
        contradicting: &'static str,
        outcomes: BTreeMap<String, Outcome>,
        operators: Operators,
    ) -> Report {
        let known: BTreeMap<&str, &str> = contradicting
            .lines()
            .filter_map(|line| line.split_once(": "))
            .collect();
        let verdicts = outcomes.into_iter().map(|(name, outcome)| {
            let verdict = match (outcome, known.get(name.as_str())) {
                (
                    Outcome::Passed {
                        with_weights,
                        steps_on_device,
                    },
                    None,
                ) => Verdict::Passed {
                    with_weights,
                    steps_on_device,
                },
                (Outcome::Passed { .. }, Some(_)) => {
                    Verdict::Wrong("it passes, and is listed as one that does not".into())
                }
                (Outcome::Refused(reason), _) => Verdict::Refused(reason),
                (Outcome::Wrong(reason), Some(why)) => {
                    Verdict::Contradicting(format!("{reason}: {why}"))
                }
                (Outcome::Wrong(reason), None) => Verdict::Wrong(reason),
            };
            (name, verdict)
        });
        Report {
            onnx,
            verdicts: verdicts.collect(),
            operators,
        }
    }

    pub(super) fn counts(&self) -> Counts {
        count(self.verdicts.values())
    }

    pub(super) fn tests(&self) -> usize {
        self.verdicts.len()
    }

    pub(super) fn onnx(&self) -> &'static str {
        self.onnx
    }

    pub(super) fn print(&self) {
        for (name, verdict) in &self.verdicts {
            match verdict {
                Verdict::Passed { .. } => {}
                Verdict::Refused(reason) => println!("refused {name}: {reason}"),
                Verdict::Contradicting(reason) => println!("FAILED  {name}: {reason}"),
                Verdict::Wrong(reason) => println!("WRONG   {name}: {reason}"),
            }
        }
        let counts = self.counts();
        println!(
            "conformance: of {} tests of onnx {} {} pass without a budget and in the smallest arena, {} of them with \
             weights too; {} are refused, {} fail as their data contradict the definition, {} are wrong",
            self.verdicts.len(),
            self.onnx,
            counts.passed,
            counts.weighted,
            counts.refused,
            counts.contradicting,
            counts.wrong,
        );
        if counts.on_device > 0 {
            println!(
                "{} of those that pass have steps on the device, {} in all",
                counts.on_device, counts.steps_on_device
            );
        }
    }

    /// Beside the list of tests that passed before, to which those are added that newly pass where `update` is set.
    ///
    /// # Errors
    /// A test is wrong, or one that passed before does not.
    pub(super) fn compare(&self, list: &Path, partial: bool, update: bool) -> Result<()> {
        let passed = self.verdicts.iter();
        let passed = passed.filter(|(_, verdict)| matches!(verdict, Verdict::Passed { .. }));
        let passed: BTreeSet<&str> = passed.map(|(name, _)| name.as_str()).collect();
        let listed = std::fs::read_to_string(list).unwrap_or_default();
        let listed: BTreeSet<&str> = listed.lines().filter(|l| !l.is_empty()).collect();
        let lost: Vec<&str> = listed
            .iter()
            .copied()
            .filter(|n| !passed.contains(n) && (!partial || self.verdicts.contains_key(*n)))
            .collect();
        for name in &lost {
            println!("LOST    {name}");
        }
        if update {
            let all: Vec<&str> = listed.union(&passed).copied().collect();
            std::fs::write(list, all.join("\n") + "\n")?;
        }
        let wrong = self.counts().wrong;
        if wrong > 0 || !lost.is_empty() {
            bail!(
                "{wrong} tests of onnx {} are wrong, {} that passed before do not",
                self.onnx,
                lost.len()
            );
        }
        Ok(())
    }

    /// Operators of which not every test passes.
    fn incomplete(&self) -> String {
        let mut by_operator: BTreeMap<&str, Vec<&Verdict>> = BTreeMap::new();
        for (name, verdict) in &self.verdicts {
            let operator = self.operators.get(name).map_or("", String::as_str);
            by_operator.entry(operator).or_default().push(verdict);
        }
        let mut text =
            String::from("| operator | tests | pass | are refused | contradict | a reason |\n");
        text.push_str("|---|--:|--:|--:|--:|---|\n");
        for (operator, verdicts) in by_operator {
            let counts = count(verdicts.iter().copied());
            if counts.passed == verdicts.len() {
                continue;
            }
            let reason = verdicts.iter().find_map(|verdict| match verdict {
                Verdict::Passed { .. } => None,
                Verdict::Refused(reason)
                | Verdict::Contradicting(reason)
                | Verdict::Wrong(reason) => Some(reason.as_str()),
            });
            let _ = writeln!(
                text,
                "| {operator} | {} | {} | {} | {} | {} |",
                verdicts.len(),
                counts.passed,
                counts.refused,
                counts.contradicting,
                reason.unwrap_or_default().replace(['|', '\n'], " "),
            );
        }
        text
    }
}

fn count<'a>(verdicts: impl Iterator<Item = &'a Verdict>) -> Counts {
    let mut counts = Counts::default();
    for verdict in verdicts {
        match verdict {
            Verdict::Passed {
                with_weights,
                steps_on_device,
            } => {
                counts.passed += 1;
                counts.weighted += usize::from(*with_weights);
                counts.on_device += usize::from(*steps_on_device > 0);
                counts.steps_on_device += steps_on_device;
            }
            Verdict::Refused(_) => counts.refused += 1,
            Verdict::Contradicting(_) => counts.contradicting += 1,
            Verdict::Wrong(_) => counts.wrong += 1,
        }
    }
    counts
}

type Row = (&'static str, fn(&Counts) -> usize);

const ROWS: [Row; 5] = [
    ("pass", |c| c.passed),
    ("of these with weights too", |c| c.weighted),
    ("are refused with a clear error", |c| c.refused),
    (
        "fail because their expected data contradict the operator's definition",
        |c| c.contradicting,
    ),
    ("give a wrong result or fail while running", |c| c.wrong),
];

/// The page of these tests.
pub(super) fn page(reports: &[&Report]) -> String {
    let mut text = String::from(
        "# The ONNX standard's node tests\n\n`cargo xtask conformance --write` runs the tests and writes this page. \
         Each test is packed, planned and run\nin a session: without a budget, and in the smallest arena that can be \
         planned. A test with several inputs runs there\nagain with all inputs but the first as weights.\n\n|",
    );
    for report in reports {
        let _ = write!(text, " | onnx {}", report.onnx);
    }
    text.push_str(" |\n|---|");
    text.push_str(&"--:|".repeat(reports.len()));
    let counts: Vec<Counts> = reports.iter().map(|report| report.counts()).collect();
    let mut row = |name: &str, cells: Vec<usize>| {
        let cells = cells.iter().map(|n| format!(" {n} |")).collect::<String>();
        let _ = write!(text, "\n| {name} |{cells}");
    };
    row("tests", reports.iter().map(|r| r.verdicts.len()).collect());
    for (name, count) in ROWS {
        row(name, counts.iter().map(count).collect());
    }
    text.push('\n');
    for report in reports {
        let _ = write!(
            text,
            "\n## Operators of onnx {} of which not every test passes\n\n{}",
            report.onnx,
            report.incomplete()
        );
    }
    text
}
