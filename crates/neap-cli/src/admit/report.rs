//! The verdict as a table and as JSON.

use super::file::{Needs, Tasks};
use super::judge::{Change, Judged, Method};
use crate::report::{bound_ms, ms};
use comfy_table::{CellAlignment, Table, presets};
use neap_realtime::demand::Verdict;
use neaptide::Bytes;
use serde::Serialize;
use std::fmt::Write as _;
use std::path::Path;

#[derive(Serialize)]
pub struct Report {
    file: String,
    admitted: bool,
    /// Otherwise the search ended before all budgets were looked at.
    decided: bool,
    /// `budgets`, `theorem` or `demand`.
    method: &'static str,
    memory_bytes: u64,
    /// Of all tasks together: budgets, or footprints.
    needed_bytes: u64,
    swapped_bytes: u64,
    utilisation: f64,
    /// All times could be so many times as long; only of an admitted set.
    slack: Option<f64>,
    /// Why it is refused.
    reason: Option<String>,
    /// On predicted times of models; `None` without models.
    margin: Option<f64>,
    tasks: Vec<Row>,
    /// Each is enough alone.
    changes: Vec<Advice>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    period_ms: f64,
    deadline_ms: f64,
    memory_bytes: u64,
    swapped_bytes: u64,
    /// Longest time of a job, moving memory included.
    work_ms: f64,
    utilisation: f64,
    /// Longest from release to completion; only of an admitted set.
    response_bound_ms: Option<f64>,
}

#[derive(Serialize)]
struct Advice {
    change: &'static str,
    task: Option<String>,
    memory_bytes: Option<u64>,
    percent: Option<u64>,
    period_ms: Option<f64>,
    deadline_ms: Option<f64>,
    text: String,
}

impl Report {
    pub fn new(file: &Path, tasks: &Tasks, judged: &Judged) -> Report {
        let each = tasks.tasks.iter().zip(&judged.shares).zip(&judged.work);
        let rows: Vec<Row> = each
            .map(|((task, share), work)| Row {
                name: task.name.clone(),
                period_ms: ms(task.period_ns),
                deadline_ms: ms(task.deadline_ns),
                memory_bytes: share.memory_bytes,
                swapped_bytes: share.swapped_bytes,
                work_ms: bound_ms(work.work_ns),
                utilisation: work.work_ns as f64 / work.period_ns as f64,
                response_bound_ms: share.response_ns.map(bound_ms),
            })
            .collect();
        let is_model = |t: &super::file::Task| matches!(t.needs, Needs::Model(_));
        let changes = judged.changes.iter().map(|c| advice(tasks, c));
        let mut report = Report {
            file: file.display().to_string(),
            admitted: judged.admitted,
            decided: judged.is_decided,
            method: match judged.method {
                Method::Budgets => "budgets",
                Method::Theorem => "theorem",
                Method::Demand => "demand",
            },
            memory_bytes: tasks.memory_bytes,
            needed_bytes: rows
                .iter()
                .map(|r| r.memory_bytes)
                .fold(0, u64::saturating_add),
            swapped_bytes: rows
                .iter()
                .map(|r| r.swapped_bytes)
                .fold(0, u64::saturating_add),
            utilisation: rows.iter().map(|r| r.utilisation).sum(),
            slack: judged.slack_permille.map(|p| p as f64 / 1000.0),
            reason: None,
            margin: tasks.tasks.iter().any(is_model).then_some(tasks.margin),
            tasks: rows,
            changes: changes.collect(),
        };
        report.reason = (!judged.admitted).then(|| report.reason(judged));
        report
    }

    fn reason(&self, judged: &Judged) -> String {
        if !judged.is_decided {
            return "not decided: the search for budgets ended before all were looked at".into();
        }
        match judged.verdict {
            Verdict::Overloaded => format!(
                "the jobs take {:.0} % of the time, with the times shown",
                self.utilisation * 100.0
            ),
            Verdict::Misses {
                interval_ns,
                demand_ns,
                holder,
                hold_ns,
            } => {
                let held = holder.map(|task| {
                    format!(
                        ", and '{}' can hold them up by {:.3} ms",
                        self.tasks[task].name,
                        bound_ms(hold_ns)
                    )
                });
                format!(
                    "within {:.3} ms there can be {:.3} ms to do{}",
                    ms(interval_ns),
                    bound_ms(demand_ns),
                    held.unwrap_or_default()
                )
            }
            Verdict::Admitted => {
                format!("deadlines would be met with {}", Bytes(self.needed_bytes))
            }
            Verdict::Undecided if judged.method != Method::Budgets => {
                "not every task fits in memory when all others are swapped out".into()
            }
            Verdict::Undecided => "the tasks take nearly all of the time".into(),
        }
    }

    /// One line.
    pub fn refusal(&self) -> String {
        let reason = self.reason.as_deref().unwrap_or_default();
        let change = self.changes.first();
        let change = change.map(|c| format!("; {}", c.text)).unwrap_or_default();
        format!(
            "not admitted in {}: {reason}{change}",
            Bytes(self.memory_bytes)
        )
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |label: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{label:<11} {value}");
        };
        line(
            "verdict",
            match &self.reason {
                None => "admitted: no deadline is missed".into(),
                Some(reason) => format!("not admitted: {reason}"),
            },
        );
        let swapped = match self.swapped_bytes {
            0 => String::new(),
            bytes => format!(", {} of it swapped at most", Bytes(bytes)),
        };
        line(
            "memory",
            format!(
                "{}; tasks take {} together{swapped}",
                Bytes(self.memory_bytes),
                Bytes(self.needed_bytes)
            ),
        );
        line(
            "use",
            format!("{:.1} % of the time", self.utilisation * 100.0),
        );
        if let Some(slack) = self.slack {
            line(
                "slack",
                format!("all times could be {slack:.3} times as long"),
            );
        }
        if let Some(margin) = self.margin {
            line(
                "times",
                format!("of models: as predicted, and {:.0} % more", margin * 100.0),
            );
        }
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header([
            "task",
            "period",
            "deadline",
            "memory",
            "swapped",
            "longest job",
            "use",
            "response at most",
        ]);
        for row in &self.tasks {
            let time = |ms: f64| format!("{ms:.3} ms");
            table.add_row([
                row.name.clone(),
                time(row.period_ms),
                time(row.deadline_ms),
                Bytes(row.memory_bytes).to_string(),
                Bytes(row.swapped_bytes).to_string(),
                time(row.work_ms),
                format!("{:.1} %", row.utilisation * 100.0),
                row.response_bound_ms.map_or("–".into(), time),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = writeln!(text, "{table}");
        if !self.admitted && self.changes.is_empty() {
            let _ = writeln!(
                text,
                "No single change of memory, periods or tasks {} enough.",
                if self.decided {
                    "is"
                } else {
                    "was found to be"
                }
            );
        }
        if !self.changes.is_empty() {
            let _ = writeln!(text, "Each of these would be enough:");
        }
        for change in &self.changes {
            let _ = writeln!(text, "  {}", change.text);
        }
        text
    }
}

fn advice(tasks: &Tasks, change: &Change) -> Advice {
    let name = |task: usize| tasks.tasks[task].name.clone();
    let empty = |change, text| Advice {
        change,
        task: None,
        memory_bytes: None,
        percent: None,
        period_ms: None,
        deadline_ms: None,
        text,
    };
    match *change {
        Change::Memory { bytes } => Advice {
            memory_bytes: Some(bytes),
            ..empty("memory", format!("memory = \"{bytes}\" ({})", Bytes(bytes)))
        },
        Change::AllPeriods { percent } => Advice {
            percent: Some(percent),
            ..empty(
                "all_periods",
                format!("all periods and deadlines {} % longer", percent - 100),
            )
        },
        Change::Period {
            task,
            period_ns,
            deadline_ns,
        } => Advice {
            task: Some(name(task)),
            period_ms: Some(bound_ms(period_ns)),
            deadline_ms: Some(bound_ms(deadline_ns)),
            ..empty(
                "period",
                format!(
                    "'{}' with a period of {:.3} ms and a deadline of {:.3} ms",
                    name(task),
                    bound_ms(period_ns),
                    bound_ms(deadline_ns)
                ),
            )
        },
        Change::Without { task } => Advice {
            task: Some(name(task)),
            ..empty(
                "without",
                format!("without '{}', or with a smaller model there", name(task)),
            )
        },
    }
}
