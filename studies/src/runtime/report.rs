//! The page: misses, responses, latencies, overheads; plots of distributions.

use super::figures::{
    Cell, Outcome, Spread, TaskFigures, distribution, largest_difference, quantile,
};
use super::tasks::{PAPER_USE, PERCENTS, Prepared, TASKS, THREADS, Way};
use crate::chart::{self, Line};
use anyhow::Result;
use std::fmt::Write as _;

/// Tasks of Figure 9, one of each deadline; and budgets of the plots.
const PLOTTED: [usize; 3] = [0, 2, 4];
const PLOTTED_PERCENTS: [u32; 2] = [4, 96];

/// A plot ends at so many deadlines.
const PLOTTED_DEADLINES: f64 = 3.0;

/// Outputs of two ways differ by rounding only.
const MOST_DIFFERENCE: f64 = 1e-3;

pub fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn title(way: Way) -> &'static str {
    match way {
        Way::Ours => "ours",
        Way::Pages => "the kernel pages",
        Way::Whole => "whole models",
    }
}

pub fn outcome(cell: &Cell) -> String {
    match &cell.outcome {
        Outcome::Ended => "ended".into(),
        Outcome::Killed => "killed by the kernel".into(),
        Outcome::Failed(why) => format!("failed: {}", why.lines().next().unwrap_or_default()),
    }
}

/// One cell, for who waits.
pub fn progress(prepared: &Prepared, cell: &Cell) -> String {
    let admission = cell
        .start
        .as_ref()
        .and_then(|start| start.admission.clone());
    format!(
        "  {}: {} of {} missed, peak {:.1} of {:.1} MiB, limit reached {} times; {}; {}",
        outcome(cell),
        cell.missed(),
        cell.released(),
        mib(cell.peak_bytes),
        mib(prepared.limit_bytes(cell.percent)),
        cell.limit_reached,
        admission.unwrap_or_else(|| "no test".into()),
        cell.scheduled,
    )
}

pub fn tables(prepared: &Prepared, cells: &[Cell]) -> String {
    let parts = [
        tasks(prepared),
        summary(prepared, cells),
        responses(cells),
        latencies(cells),
        longest(cells),
        overheads(cells),
    ];
    parts.join("\n")
}

/// Table IV.
fn tasks(prepared: &Prepared) -> String {
    let mut text = String::from(
        "## The tasks (Table IV)\n\n\
         | task | model | deadline and period ms | memory with everything in it MiB | run alone ms, ours | onnxruntime |\n\
         |---|---|--:|--:|--:|--:|\n",
    );
    let deadlines = prepared.deadlines_ns();
    for (at, task) in TASKS.iter().enumerate() {
        let ort = prepared.ort_ms.as_ref().map(|ms| format!("{:.1}", ms[at]));
        let _ = writeln!(
            text,
            "| {} | {} | {:.1} | {:.1} | {:.1} | {} |",
            at + 1,
            task.name,
            deadlines[at] as f64 / 1e6,
            mib(prepared.whole_bytes[at]),
            prepared.ours_ms[at],
            ort.unwrap_or_else(|| "–".into()),
        );
    }
    let _ = writeln!(
        text,
        "\nAll six take {:.1} MiB. Run alone: the median of seven runs without a limit. Deadlines have the paper's ratio, and are such that \
         the slower engine's runs take {:.1} % of the processor, as they do in the paper.",
        mib(prepared.demand_bytes()),
        PAPER_USE * 100.0,
    );
    if let Some(why) = &prepared.ort_missing {
        let _ = writeln!(text, "\nThere was no onnxruntime: {why}.");
    }
    text
}

/// The worst response of all jobs, in deadlines of their tasks.
pub fn worst_part(cell: &Cell) -> f64 {
    let each = cell.tasks.iter().flat_map(|task| {
        let parts = task.response_ms.iter();
        parts.map(|ms| ms / task.deadline_ms)
    });
    each.fold(0.0, f64::max)
}

fn summary(prepared: &Prepared, cells: &[Cell]) -> String {
    let mut text = String::from(
        "## Misses, and the kernel's count\n\n\
         | demanded above the budget | models MiB | hard limit MiB | way | jobs | missed | never ended | worst response ÷ deadline | peak MiB | limit reached | pages read anew | the test before it began | outcome |\n\
         |--:|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|---|---|\n",
    );
    for percent in PERCENTS {
        for cell in cells.iter().filter(|cell| cell.percent == percent) {
            let ended: usize = cell.tasks.iter().map(|task| task.response_ms.len()).sum();
            let admission = cell
                .start
                .as_ref()
                .and_then(|start| start.admission.as_deref());
            let _ = writeln!(
                text,
                "| {percent} % | {:.1} | {:.1} | {} | {} | {} | {} | {:.2} | {:.1} | {} | {} | {} | {} |",
                mib(prepared.models_bytes(percent)),
                mib(cell.limit_bytes),
                title(cell.way),
                cell.released(),
                cell.missed(),
                cell.released().saturating_sub(ended as u64),
                worst_part(cell),
                mib(cell.peak_bytes),
                cell.limit_reached,
                cell.major_faults
                    .map_or("–".into(), |count| count.to_string()),
                admission.unwrap_or("none"),
                outcome(cell),
            );
        }
    }
    text + "\n" + &agreement(cells)
}

/// Whether all computed the same.
fn agreement(cells: &[Cell]) -> String {
    let changed: usize = cells.iter().map(|cell| cell.other_bits).sum();
    let ended: Vec<&Cell> = cells.iter().filter(|c| !c.outputs.is_empty()).collect();
    let mut most = 0.0f64;
    for pair in ended.windows(2) {
        for (one, other) in pair[0].outputs.iter().zip(&pair[1].outputs) {
            let differ = largest_difference(one, other);
            // NaN counts as different.
            most = if differ <= most { most } else { differ };
        }
    }
    let verdict = match most <= MOST_DIFFERENCE {
        true => "the same but for rounding",
        false => "NOT the same",
    };
    format!(
        "{changed} jobs had other bits than their task's first job. Outputs of different ways and budgets are {verdict}: they \
         differ by {most:.1e} of the largest value at most.\n"
    )
}

fn responses(cells: &[Cell]) -> String {
    let mut text = String::from(
        "## Response times\n\nFrom release to end, in milliseconds, of all jobs that were released; – where that job never ended.\n",
    );
    for percent in PERCENTS {
        let here: Vec<&Cell> = cells
            .iter()
            .filter(|cell| cell.percent == percent)
            .collect();
        if here.is_empty() {
            continue;
        }
        let _ = writeln!(
            text,
            "\n### {percent} % more than there is\n\n\
             | task | deadline | way | jobs | missed | 50 % | 99 % | worst |\n|--:|--:|---|--:|--:|--:|--:|--:|"
        );
        for at in 0..TASKS.len() {
            for cell in &here {
                text += &response_row(at, cell);
            }
        }
    }
    text
}

pub fn or_none(ms: Option<f64>) -> String {
    ms.map_or("–".into(), |ms| format!("{ms:.1}"))
}

fn response_row(at: usize, cell: &Cell) -> String {
    let task = &cell.tasks[at];
    format!(
        "| {} | {:.1} | {} | {} | {} | {} | {} | {} |\n",
        at + 1,
        task.deadline_ms,
        title(cell.way),
        task.released,
        task.missed(),
        or_none(task.response_at(0.5)),
        or_none(task.response_at(0.99)),
        or_none(task.response_at(1.0)),
    )
}

/// Figure 8 as a table.
fn latencies(cells: &[Cell]) -> String {
    let mut text = String::from(
        "## Latencies (Figure 8)\n\nFrom where a job has the processor to its end, reading and swapping included, in milliseconds. Of it *swapping* is what \
         comes before the run.\n\n\
         | above the budget | task | way | average | least | 25 % | 75 % | most | swapping, average |\n|--:|--:|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for percent in PERCENTS {
        for at in 0..TASKS.len() {
            for cell in cells.iter().filter(|cell| cell.percent == percent) {
                text += &latency_row(at, cell);
            }
        }
    }
    text
}

fn latency_row(at: usize, cell: &Cell) -> String {
    let task: &TaskFigures = &cell.tasks[at];
    if task.latency_ms.is_empty() {
        return String::new();
    }
    let spread = Spread::of(&task.latency_ms);
    let swapping = match cell.way {
        Way::Whole => format!("{:.1}", Spread::of(&task.swap_ms).average),
        Way::Ours | Way::Pages => "–".into(),
    };
    format!(
        "| {} % | {} | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {swapping} |\n",
        cell.percent,
        at + 1,
        title(cell.way),
        spread.average,
        spread.least,
        quantile(&task.latency_ms, 0.25),
        quantile(&task.latency_ms, 0.75),
        spread.most,
    )
}

/// What the longest job of each way and budget waited for.
fn longest(cells: &[Cell]) -> String {
    let mut text = format!("## What the longest job waited for\n\n{LONGEST}");
    for percent in PERCENTS {
        for cell in cells.iter().filter(|cell| cell.percent == percent) {
            text += &longest_row(cell);
        }
    }
    text
}

pub const LONGEST: &str = "Of each row the job that took longest once it had the processor. *Drive*: while nothing was computed, as weights \
    were on their way. *Stolen*: time of both processors that the host gave to others meanwhile, as the kernel counts it. A test of \
    deadlines holds as far as drive and host are no slower than when runs were measured.\n\n\
    | above the budget | way | task | latency ms | drive ms | stolen ms | median of that task: latency ms | drive ms |\n\
    |--:|---|--:|--:|--:|--:|--:|--:|\n";

/// Nothing where no job ended.
pub fn longest_row(cell: &Cell) -> String {
    let jobs = cell.tasks.iter().enumerate().flat_map(|(at, task)| {
        let each = task.latency_ms.iter().enumerate();
        each.map(move |(job, &ms)| (at, job, ms))
    });
    let Some((at, job, ms)) = jobs.max_by(|a, b| a.2.total_cmp(&b.2)) else {
        return String::new();
    };
    let task = &cell.tasks[at];
    // The kernel reads what is touched, and tells nobody.
    let drive_ms = match cell.way {
        Way::Pages => &[],
        Way::Ours | Way::Whole => &task.drive_ms[..],
    };
    let drive_median = (!drive_ms.is_empty()).then(|| quantile(drive_ms, 0.5));
    format!(
        "| {} % | {} | {} | {ms:.1} | {} | {} | {:.1} | {} |\n",
        cell.percent,
        title(cell.way),
        at + 1,
        or_none(drive_ms.get(job).copied()),
        or_none(task.stolen_ms.get(job).copied()),
        quantile(&task.latency_ms, 0.5),
        or_none(drive_median),
    )
}

/// Table V.
fn overheads(cells: &[Cell]) -> String {
    let mut text = String::from(
        "## Overheads (Table V)\n\n\
         | above the budget | way | start ms | the test µs | choosing a job µs: average, least, most | the clock wakes late µs: average, most | beside models MiB | volumes MiB |\n\
         |--:|---|--:|--:|--:|--:|--:|---|\n",
    );
    for percent in PERCENTS {
        for cell in cells.iter().filter(|cell| cell.percent == percent) {
            let Some(start) = &cell.start else {
                continue;
            };
            let volumes = start.volumes_bytes.iter();
            let volumes: Vec<String> = volumes.map(|&b| format!("{:.0}", mib(b))).collect();
            let _ = writeln!(
                text,
                "| {percent} % | {} | {:.0} | {} | {:.1}, {:.1}, {:.1} | {:.0}, {:.0} | {} | {} |",
                title(cell.way),
                start.start_ms,
                start
                    .admission_us
                    .map_or("–".into(), |us| format!("{us:.0}")),
                cell.choosing_us.average,
                cell.choosing_us.least,
                cell.choosing_us.most,
                cell.late_us.average,
                cell.late_us.most,
                start
                    .beside_bytes
                    .map_or("–".into(), |bytes| format!("{:.1}", mib(bytes))),
                match volumes.is_empty() {
                    true => "–".into(),
                    false => volumes.join(", "),
                },
            );
        }
    }
    text += "\nThe paper: 120.5 µs for the start of its library, 22.7 µs (12.8 to 55.6) of scheduling for a job, 14.9 MB of extra memory, 6.3 MB \
             lost in chunks.\n\
             Here *start* opens, plans and reads all six models, up to where the first could run. *Choosing* is from where the processor is free to where the job is handed over: \
             releases, the queue, the engine's turn, and victims. There are no chunks in *ours* and nothing is allocated in a run, so nothing is lost to them; \
             *beside models* is all that the process has beside weights, activations and buffers, when it begins.\n";
    text
}

/// Figure 9.
pub fn plots(_: &Prepared, cells: &[Cell]) -> Vec<(String, String)> {
    if cells.is_empty() {
        return Vec::new();
    }
    let plot = |at: usize| {
        let mut names = Vec::new();
        for percent in PLOTTED_PERCENTS {
            for cell in cells.iter().filter(|cell| cell.percent == percent) {
                // A legend has little room.
                let way = title(cell.way).trim_start_matches("the ");
                let name = format!("{way}, {percent} %");
                names.push((name, distribution(&cell.tasks[at], PLOTTED_DEADLINES)));
            }
        }
        let lines: Vec<Line> = names
            .iter()
            .map(|(name, points)| Line {
                name,
                points: points.clone(),
            })
            .collect();
        let svg = chart::lines("response ÷ deadline", "jobs that ended by then, %", &lines);
        (plot_name(at), svg)
    };
    PLOTTED.map(plot).into()
}

fn plot_name(at: usize) -> String {
    format!("realtime-runs-{}.svg", at + 1)
}

pub fn page(prepared: &Prepared, cells: &[Cell]) -> Result<String> {
    let windows: Vec<f64> = cells.iter().map(|cell| cell.window_s).collect();
    let longest = windows.iter().copied().fold(0.0, f64::max);
    let shortest = windows.iter().copied().fold(longest, f64::min);
    let mut released = format!("{longest:.0}");
    if format!("{shortest:.0}") != released {
        released = format!("{shortest:.0} to {released}");
    }
    let mut scheduled: Vec<&str> = cells.iter().map(|cell| cell.scheduled.as_str()).collect();
    scheduled.sort_unstable();
    scheduled.dedup();
    let mut text = format!(
        "# Deadlines beyond memory, run for real\n\n\
         Made by `cargo study runtime`, then with `--write`. {}; {THREADS} threads; {}. Each row had jobs released for {released} s. \
         Source: the runtime experiment of Kang et al., *RT-Swap*, RTSS 2024 (Table IV, Figures 8 and 9, Table V). Whether deadlines hold by theory is \
         on [another page](realtime.md).\n\n\
         Six tasks release a job (one inference) every period; a job must be done by the next release. All take turns in one process, the earliest deadline first, and a \
         job runs to its end. All tasks release their first job at once. The models need more memory than there is. The budget is for all models together. The hard limit of the memory cgroup is \
         {:.0} MiB more in every way: what onnxruntime's process takes beside weights when it is idle, and 8 MiB. Ours needs less of that, and does not use the rest.\n\n\
         | way | |\n|---|---|\n\
         | ours | one `Engine` with the budget. Resident weights are divided by predicted latency ÷ deadline; the rest is read beside computing in each job. The test of processor demand counts with the longest of four runs of each task, and half as much again |\n\
         | the kernel pages | onnxruntime 1.31.0. Each model was optimised once, and saved as it is mapped: {:.1} MiB of weights. It is opened without optimising and prepacking, which would copy weights, and without an arena. The kernel reads pages when they are touched, and evicts others. There is no swap |\n\
         | whole models | RT-Swap's policy on our engine: a job's model is read whole (direct I/O) before it executes. Where room is lacking, the model whose next job comes last gives up its volume, then the next. Volumes are the paper's smallest (Equation 1), or those that processor demand admits, or all. Of what a model keeps, our planner chooses which weights those are, beside its buffers |\n\n\
         Both of our ways compute with the same kernels. A job that never ended is missed. The last job may begin a quarter of the time after the last release.\n\n",
        measured_on(prepared, cells),
        scheduled.join("; "),
        mib(prepared.process_bytes),
        mib(prepared.ort_mapped_bytes),
    );
    text += &tables(prepared, cells);
    text += "\n## Distributions (Figure 9)\n\nOf tasks with different deadlines, like the paper's. A line that ends below 100 % has jobs that took longer, or never ended.\n";
    for at in PLOTTED {
        let _ = writeln!(text, "\n![Task {}]({})", at + 1, plot_name(at));
    }
    Ok(text)
}

/// Where and of what these figures are.
fn measured_on(prepared: &Prepared, cells: &[Cell]) -> String {
    let mut commits: Vec<&str> = cells.iter().map(|cell| cell.commit.as_str()).collect();
    commits.sort_unstable();
    commits.dedup();
    let many = if commits.len() > 1 { "s" } else { "" };
    format!("{}, commit{many} {}", prepared.place, commits.join(", "))
}

#[cfg(test)]
pub mod tests {
    use super::super::figures::Start;
    use super::super::tasks::tests::prepared;
    use super::*;

    #[test]
    fn the_longest_job_tells_what_it_waited_for() {
        let mut ours = cell(Way::Ours, 12.0, Outcome::Ended);
        ours.tasks[2].latency_ms = vec![9.0, 40.0, 11.0];
        ours.tasks[2].drive_ms = vec![1.0, 30.0, 2.0];
        ours.tasks[2].stolen_ms = vec![0.0, 10.0, 0.0];
        assert_eq!(
            longest_row(&ours),
            "| 96 % | ours | 3 | 40.0 | 30.0 | 10.0 | 11.0 | 2.0 |\n"
        );
        // What was not noted is not told.
        ours.tasks[2].drive_ms.clear();
        ours.tasks[2].stolen_ms.clear();
        assert!(longest_row(&ours).contains("| 40.0 | – | – | 11.0 | – |"));
    }

    #[test]
    fn cells_of_several_commits_name_each() {
        let first = cell(Way::Ours, 12.0, Outcome::Ended);
        let mut second = first.clone();
        let one = measured_on(&prepared(), &[first.clone(), second.clone()]);
        assert_eq!(one, "a processor, a drive, commit 0123456789");
        second.commit = "abcdef0123".into();
        let both = measured_on(&prepared(), &[first, second]);
        assert!(both.ends_with("commits 0123456789, abcdef0123"), "{both}");
    }

    pub fn cell(way: Way, response_ms: f64, outcome: Outcome) -> Cell {
        let deadlines = prepared().deadlines_ns();
        let task = |&ns: &u64| TaskFigures {
            deadline_ms: ns as f64 / 1e6,
            released: 2,
            response_ms: vec![response_ms],
            latency_ms: vec![response_ms],
            swap_ms: vec![1.0],
            drive_ms: vec![0.5],
            stolen_ms: vec![0.0],
        };
        Cell {
            way,
            percent: 96,
            limit_bytes: prepared().limit_bytes(96),
            window_s: 1.0,
            commit: "0123456789".into(),
            scheduled: "as usual".into(),
            outcome,
            start: Some(Start::default()),
            tasks: deadlines.iter().map(task).collect(),
            choosing_us: Spread::default(),
            late_us: Spread::default(),
            peak_bytes: 1 << 20,
            limit_reached: 3,
            major_faults: None,
            other_bits: 0,
            outputs: vec![vec![1.0, 2.0]; TASKS.len()],
        }
    }

    #[test]
    fn tables_tell_misses_and_killed_ways() {
        let mut cells = vec![
            cell(Way::Ours, 1.0, Outcome::Ended),
            cell(Way::Pages, 1e6, Outcome::Killed),
        ];
        let text = tables(&prepared(), &cells);
        // One of two jobs of each task never ended; all others were late.
        assert!(text.contains("| ours | 12 | 6 | 6 | "), "{text}");
        assert!(
            text.contains("| the kernel pages | 12 | 12 | 6 | "),
            "{text}"
        );
        assert!(text.contains("killed by the kernel"));
        assert!(text.contains("the same but for rounding"));
        assert!(cells.iter().all(|cell| cell.is_of(&prepared())));
        let mut others = prepared();
        others.ours_ms[5] *= 2.0;
        assert!(!cells[0].is_of(&others));
        others = prepared();
        others.process_bytes += 1 << 20;
        assert!(!cells[0].is_of(&others));
        cells[1].outputs[5][0] = 1.1;
        assert!(tables(&prepared(), &cells).contains("NOT the same"));
        cells[1].outputs[5][0] = f32::NAN;
        assert!(tables(&prepared(), &cells).contains("NOT the same"));
    }

    #[test]
    fn there_is_a_plot_of_each_deadline() {
        let plots = plots(&prepared(), &[cell(Way::Ours, 1.0, Outcome::Ended)]);
        assert_eq!(plots.len(), 3);
        assert!(plots.iter().all(|(_, svg)| svg.contains("ours, 96 %")));
    }
}
