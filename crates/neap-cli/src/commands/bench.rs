//! `neap bench`: models × budgets, each measured in a process of its own.

use crate::args::{EngineArgs, OpenArgs};
use crate::carried;
use crate::child::{self, Figures};
use crate::failure::{Failure, Outcome};
use crate::printed::Printed;
use crate::progress::note;
use clap::{ArgMatches, Args, ValueEnum};
use comfy_table::{CellAlignment, Table, TableStyle, presets};
use neaptide::{Budget, Bytes};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct BenchArgs {
    /// Models to measure
    #[arg(required = true)]
    models: Vec<PathBuf>,
    /// Budgets to measure each model under, such as none,64MiB,25%,auto
    #[arg(
        long,
        value_name = "SIZES",
        default_value = "none",
        value_delimiter = ',',
        value_parser = crate::cgroup::limits::any_budget
    )]
    memory_budget: Vec<Budget>,
    /// Let the kernel enforce the budgets
    #[arg(long)]
    enforce: bool,
    /// Runs before the measured ones
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = crate::numbers::any::<u32>)]
    warmup: u32,
    /// Measured runs
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = crate::numbers::whole::<u32>(1..=1_000_000))]
    iterations: u32,
    #[command(flatten)]
    printed: Printed<Format>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A table
    Text,
    Json,
    Csv,
    /// Markdown
    Md,
}

/// A model under a budget, and its figures or what kept it from running.
struct Row {
    model: String,
    budget: String,
    result: Result<Figures, String>,
}

/// `given` holds the options as they were written.
pub fn run(args: &BenchArgs, given: &ArgMatches, quiet: bool) -> Outcome {
    let mut rows = Vec::new();
    let mut code = 0;
    for model in &args.models {
        for budget in &args.memory_budget {
            if !quiet {
                let limit = match budget {
                    Budget::Unlimited => "without a limit".to_string(),
                    budget => format!("within {budget}"),
                };
                note(&format!("measuring {} {limit}", model.display()));
            }
            let result = match child::run(&arguments(args, given, model, *budget), true)? {
                Ok(figures) => {
                    for remark in &figures.remarks {
                        super::note_once(&format!("{}: {remark}", model.display()));
                    }
                    Ok(figures)
                }
                Err(ended) => {
                    code = code.max(ended.failure.exit_code());
                    let said = ended.said.trim_start_matches("neap: ").to_string();
                    let said = match said.is_empty() {
                        true => ended.failure.message().unwrap_or_default(),
                        false => said,
                    };
                    note(&format!("neap: {}: {said}", model.display()));
                    Err(said)
                }
            };
            rows.push(Row {
                model: model.display().to_string(),
                budget: budget.to_string(),
                result,
            });
        }
    }
    let printed = &args.printed;
    match printed.form() {
        Format::Text => printed.print(&table(&rows, presets::UTF8_HORIZONTAL_ONLY))?,
        Format::Md => printed.print(&table(&rows, presets::ASCII_MARKDOWN))?,
        Format::Csv => printed.print(&csv(&rows))?,
        Format::Json => printed.print_json(&rows.iter().map(object).collect::<Vec<_>>())?,
    }
    match code {
        0 => Ok(()),
        code => Err(Failure::Reported(code)),
    }
}

/// The command line of one measurement: options of the model and the engine as they were given, and what
/// differs from row to row.
fn arguments(args: &BenchArgs, given: &ArgMatches, model: &Path, budget: Budget) -> Vec<OsString> {
    let mut list: Vec<OsString> = vec![model.into(), "--quiet".into()];
    list.extend(carried::words::<OpenArgs>(given));
    list.extend(carried::words::<EngineArgs>(given));
    let mut option = |name: &str, value: String| list.push(format!("--{name}={value}").into());
    // In bytes where it is a size: rounded for people it would be another one.
    let budget_text = match budget {
        Budget::Bytes(bytes) => bytes.to_string(),
        other => other.to_string(),
    };
    option("memory-budget", budget_text);
    option("warmup", args.warmup.to_string());
    option("iterations", args.iterations.to_string());
    if args.enforce && budget != Budget::Unlimited {
        list.push("--enforce".into());
    }
    list
}

const COLUMNS: [&str; 10] = [
    "model",
    "budget",
    "peak",
    "planned",
    "median ms",
    "p95 ms",
    "loaded/run",
    "stall ms",
    "predicted ms",
    "processor ms",
];

/// Of the machine's processors, in rows that were measured where they count it.
const ENERGY: &str = "energy mJ";

fn table(rows: &[Row], style: TableStyle) -> String {
    let mut table = Table::new();
    let has_energy = |row: &Row| matches!(&row.result, Ok(f) if f.energy_mj_per_run.is_some());
    let energy = rows.iter().any(has_energy).then_some(ENERGY);
    let columns: Vec<&str> = COLUMNS.into_iter().chain(energy).collect();
    table.load_style(style).set_header(&columns);
    for row in rows {
        let mut cells = vec![row.model.clone(), row.budget.clone()];
        match &row.result {
            Ok(f) => cells.extend([
                Bytes(f.peak_memory_bytes).to_string(),
                Bytes(f.planned_high_water_bytes).to_string(),
                format!("{:.2}", f.latency_ms.median),
                format!("{:.2}", f.latency_ms.p95),
                Bytes(f.loaded_bytes_per_run).to_string(),
                format!("{:.2}", f.stall_ms),
                format!("{:.2}", f.predicted_latency_ms),
                format!("{:.2}", f.processor_ms_per_run),
            ]),
            Err(_) => cells.extend(std::iter::repeat_n("-".to_string(), COLUMNS.len() - 2)),
        }
        if energy.is_some() {
            let counted = row.result.as_ref().ok().and_then(|f| f.energy_mj_per_run);
            cells.push(counted.map_or_else(|| "-".into(), |mj| format!("{mj:.1}")));
        }
        table.add_row(cells);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.to_string() + "\n"
}

fn object(row: &Row) -> Value {
    match &row.result {
        Ok(f) => json!({
            "model": row.model,
            "budget": row.budget,
            "memory_budget_bytes": f.memory_budget_bytes,
            "peak_memory_bytes": f.peak_memory_bytes,
            "peak_memory_source": f.peak_memory_source,
            "planned_high_water_bytes": f.planned_high_water_bytes,
            "latency_ms": {
                "median": f.latency_ms.median,
                "p95": f.latency_ms.p95,
                "min": f.latency_ms.min,
                "max": f.latency_ms.max,
            },
            "loaded_bytes_per_run": f.loaded_bytes_per_run,
            "stall_ms": f.stall_ms,
            "predicted_latency_ms": f.predicted_latency_ms,
            "processor_ms_per_run": f.processor_ms_per_run,
            "energy_mj_per_run": f.energy_mj_per_run,
        }),
        Err(error) => json!({"model": row.model, "budget": row.budget, "error": error}),
    }
}

fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "model,budget,memory_budget_bytes,peak_memory_bytes,planned_high_water_bytes,\
         latency_median_ms,latency_p95_ms,loaded_bytes_per_run,stall_ms,predicted_latency_ms,\
         processor_ms_per_run,energy_mj_per_run,error\n",
    );
    for row in rows {
        let mut fields = vec![row.model.clone(), row.budget.clone()];
        match &row.result {
            Ok(f) => fields.extend([
                f.memory_budget_bytes
                    .map_or_else(String::new, |b| b.to_string()),
                f.peak_memory_bytes.to_string(),
                f.planned_high_water_bytes.to_string(),
                f.latency_ms.median.to_string(),
                f.latency_ms.p95.to_string(),
                f.loaded_bytes_per_run.to_string(),
                f.stall_ms.to_string(),
                f.predicted_latency_ms.to_string(),
                f.processor_ms_per_run.to_string(),
                f.energy_mj_per_run
                    .map_or_else(String::new, |mj| mj.to_string()),
                String::new(),
            ]),
            Err(error) => {
                fields.extend(std::iter::repeat_n(String::new(), 10));
                fields.push(error.clone());
            }
        }
        let fields: Vec<String> = fields.iter().map(|f| quote(f)).collect();
        text += &fields.join(",");
        text.push('\n');
    }
    text
}

fn quote(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_quoted_where_they_must_be() {
        assert_eq!(quote("a b"), "a b");
        assert_eq!(quote("a,\"b\""), "\"a,\"\"b\"\"\"");
    }

    #[test]
    fn failed_rows_keep_the_columns() {
        let rows = [Row {
            model: "m.onnx".into(),
            budget: "1 MiB".into(),
            result: Err("no, thanks".into()),
        }];
        let text = csv(&rows);
        let (header, row) = text.trim_end().split_once('\n').unwrap();
        assert_eq!(header.split(',').count(), 13);
        assert_eq!(row, "m.onnx,1 MiB,,,,,,,,,,,\"no, thanks\"");
        assert!(table(&rows, presets::ASCII_MARKDOWN).starts_with("| model"));
    }
}
