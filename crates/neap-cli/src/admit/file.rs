//! Task files of `neap admit`.
//!
//! ```toml
//! memory = "256MiB"               # of all tasks together
//! margin = 0.25                   # how much longer a model's job may take than predicted
//!
//! [[task]]
//! name = "camera"
//! model = "yolov3.onnx"           # from this file's folder: its curve is predicted
//! period = "200ms"
//! deadline = "150ms"              # the period, if it is not said
//!
//! [[task]]
//! name = "radar"
//! curve = [["20MiB", "50ms"], ["60MiB", "20ms"]]   # a job's longest time by budget, measured elsewhere
//! step = "5ms"                    # it can be interrupted after so long at most, ...
//! resume = "1ms"                  # ... which makes it so much longer
//! period = "100ms"
//!
//! [swap]                          # for tasks that are swapped as a whole, as RT-Swap does it
//! chunk = "32MiB"
//! in = "3ms"                      # longest time of one chunk
//! out = "3ms"
//!
//! [[task]]
//! name = "lidar"
//! memory = "1GiB"
//! swappable = "700MiB"
//! wcet = "29ms"                   # longest time when all of it is in memory
//! period = "500ms"
//! ```

use crate::failure::{Outcome, bad, one_line};
use crate::meaning::{Parsed, Size, Time, at};
use neap_realtime::budgets::Point;
use neap_realtime::{LONGEST_NS, SwapCost};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// A task file, checked.
#[derive(Debug)]
pub struct Tasks {
    pub memory_bytes: u64,
    pub margin: f64,
    pub swap: Option<SwapCost>,
    pub tasks: Vec<Task>,
}

#[derive(Debug)]
pub struct Task {
    pub name: String,
    pub period_ns: u64,
    pub deadline_ns: u64,
    pub needs: Needs,
    /// Longest part that is not interrupted, and what an interruption costs.
    pub steps: Option<(u64, u64)>,
}

/// What a job needs.
#[derive(Debug)]
pub enum Needs {
    Model(PathBuf),
    /// Budgets, and the longest time with each.
    Curve(Vec<(u64, u64)>),
    Swapped {
        memory_bytes: u64,
        swappable_bytes: u64,
        wcet_ns: u64,
    },
}

impl Task {
    /// A point of its curve.
    pub fn point(&self, budget_bytes: u64, work_ns: u64) -> Point {
        let step_ns = self.steps.map_or(work_ns, |(step, _)| step);
        Point {
            budget_bytes,
            work_ns,
            hold_ns: step_ns.min(work_ns),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTasks {
    memory: Parsed<Size>,
    margin: Option<Spanned<f64>>,
    swap: Option<RawSwap>,
    #[serde(default, rename = "task")]
    tasks: Vec<Spanned<RawTask>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSwap {
    chunk: Parsed<Size>,
    r#in: Parsed<Time>,
    out: Parsed<Time>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTask {
    name: Option<String>,
    period: Parsed<Time>,
    deadline: Option<Parsed<Time>>,
    model: Option<PathBuf>,
    curve: Option<Vec<(Parsed<Size>, Parsed<Time>)>>,
    memory: Option<Parsed<Size>>,
    swappable: Option<Parsed<Size>>,
    wcet: Option<Parsed<Time>>,
    step: Option<Parsed<Time>>,
    resume: Option<Parsed<Time>>,
}

/// More tasks than this are a slip of the pen.
const MOST_TASKS: usize = 64;
const MOST_POINTS: usize = 1000;
const MARGIN: f64 = 0.25;

/// Reads a task file; every error names the file, and the line where that is known.
pub fn read(path: &Path) -> Outcome<Tasks> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| bad(format!("cannot read {}: {e}", path.display())))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    parse(&text, folder).map_err(|e| bad(format!("{}: {e}", path.display())))
}

fn parse(text: &str, folder: &Path) -> Result<Tasks, String> {
    let raw: RawTasks = toml::from_str(text).map_err(|e| {
        let what = one_line(e.message());
        e.span().map_or(what.clone(), |s| at(text, s.start, &what))
    })?;
    let margin = match &raw.margin {
        None => MARGIN,
        Some(m) if (0.0..=10.0).contains(m.get_ref()) => *m.get_ref(),
        Some(m) => return Err(at(text, m.span().start, "is not between 0 and 10")),
    };
    let swap = raw.swap.map(|s| SwapCost {
        chunk_bytes: s.chunk.0.0,
        in_ns: s.r#in.0.ns(),
        out_ns: s.out.0.ns(),
    });
    if swap.is_some_and(|s| s.chunk_bytes == 0) {
        return Err("swap: the chunk is 0".into());
    }
    if swap.is_some_and(|s| s.in_ns.max(s.out_ns) > LONGEST_NS / 1000) {
        return Err("swap: a chunk takes longer than an hour".into());
    }
    let mut tasks: Vec<Task> = Vec::new();
    for spanned in raw.tasks {
        let start = spanned.span().start;
        let task = task(spanned.into_inner(), tasks.len(), folder, swap.is_some());
        let task = task.map_err(|what| at(text, start, &what))?;
        if tasks.iter().any(|t| t.name == task.name) {
            return Err(format!("two tasks are called '{}'", task.name));
        }
        tasks.push(task);
    }
    match tasks.len() {
        0 => Err("there is no [[task]]".into()),
        n if n > MOST_TASKS => Err(format!("more than {MOST_TASKS} tasks")),
        _ => Ok(Tasks {
            memory_bytes: raw.memory.0.0,
            margin,
            swap,
            tasks,
        }),
    }
}

fn task(raw: RawTask, index: usize, folder: &Path, swaps: bool) -> Result<Task, String> {
    let stem = raw.model.as_ref().and_then(|p| p.file_stem());
    let stem = stem.map(|s| s.to_string_lossy().into_owned());
    let name = raw.name.or(stem);
    let name = name.unwrap_or_else(|| format!("task {}", index + 1));
    let wrong = |what: String| format!("task '{name}': {what}");
    let positive = |what: &str, ns: u64| match ns {
        0 => Err(wrong(format!("the {what} is 0"))),
        ns if ns > LONGEST_NS => Err(wrong(format!("the {what} is longer than a hundred days"))),
        ns => Ok(ns),
    };
    let period_ns = positive("period", raw.period.0.ns())?;
    let deadline = raw.deadline.as_ref().map_or(period_ns, |d| d.0.ns());
    let deadline_ns = positive("deadline", deadline)?;
    let memory = raw.memory.map(|m| m.0.0);
    let wcet = raw.wcet.map(|w| positive("wcet", w.0.ns())).transpose()?;
    let needs = match (raw.model, raw.curve, memory, wcet, raw.swappable) {
        (Some(model), None, None, None, None) => Needs::Model(folder.join(model)),
        (None, Some(curve), None, None, None) => {
            if curve.is_empty() || curve.len() > MOST_POINTS {
                return Err(wrong(format!("a curve has 1 to {MOST_POINTS} points")));
            }
            let points = curve.iter().map(|(size, time)| {
                let ns = positive("time of a point", time.0.ns())?;
                Ok((size.0.0, ns))
            });
            Needs::Curve(points.collect::<Result<_, String>>()?)
        }
        (None, None, Some(memory), Some(wcet), None) if !swaps => {
            Needs::Curve(vec![(memory, wcet)])
        }
        (None, None, Some(memory_bytes), Some(wcet_ns), swappable) if swaps => Needs::Swapped {
            memory_bytes,
            swappable_bytes: swappable.map_or(0, |s| s.0.0),
            wcet_ns,
        },
        (_, _, _, _, Some(_)) if !swaps => {
            return Err(wrong("'swappable' needs a [swap] table".into()));
        }
        _ => {
            return Err(wrong(
                "give a model, or a curve, or memory and wcet (and swappable, with a [swap] table)"
                    .into(),
            ));
        }
    };
    match &needs {
        Needs::Model(_) | Needs::Curve(_) if swaps => {
            return Err(wrong(
                "with a [swap] table all tasks are given as memory, swappable and wcet".into(),
            ));
        }
        Needs::Swapped {
            memory_bytes,
            swappable_bytes,
            ..
        } if swappable_bytes > memory_bytes => {
            return Err(wrong("more is swappable than it has".into()));
        }
        _ => {}
    }
    let steps = match (raw.step, raw.resume) {
        (None, None) => None,
        (None, Some(_)) => return Err(wrong("'resume' needs a step".into())),
        (Some(step), resume) => {
            if !matches!(needs, Needs::Curve(_)) {
                return Err(wrong("a step is for tasks with a curve or a wcet".into()));
            }
            let resume_ns = resume.map_or(0, |r| r.0.ns()).min(LONGEST_NS);
            Some((positive("step", step.0.ns())?, resume_ns))
        }
    };
    Ok(Task {
        name,
        period_ns,
        deadline_ns,
        needs,
        steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Tasks, String> {
        parse(text, Path::new("tasks"))
    }

    #[test]
    fn a_file_with_everything() {
        let tasks = read(
            "memory = '256MiB'\nmargin = 0.5\n[[task]]\nmodel = 'a.onnx'\nperiod = '200ms'\ndeadline = '150ms'\n\
             [[task]]\ncurve = [['20MiB', '50ms'], ['60MiB', '20ms']]\nstep = '5ms'\nresume = '1ms'\nperiod = '0.1s'\n\
             [[task]]\nname = 'x'\nmemory = '1MiB'\nwcet = '2ms'\nperiod = '10ms'\n",
        )
        .unwrap();
        assert_eq!((tasks.memory_bytes, tasks.margin), (256 << 20, 0.5));
        let names: Vec<&str> = tasks.tasks.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["a", "task 2", "x"]);
        assert_eq!(tasks.tasks[0].deadline_ns, 150_000_000);
        assert!(matches!(&tasks.tasks[0].needs, Needs::Model(p) if p == Path::new("tasks/a.onnx")));
        assert_eq!(tasks.tasks[1].steps, Some((5_000_000, 1_000_000)));
        assert_eq!(tasks.tasks[1].point(1, 3_000_000).hold_ns, 3_000_000);
        assert!(matches!(&tasks.tasks[2].needs, Needs::Curve(c) if c == &[(1 << 20, 2_000_000)]));
        let tasks = read(
            "memory = '1GiB'\nswap = { chunk = '2MiB', in = '1ms', out = '2ms' }\n\
             [[task]]\nmemory = '1MiB'\nswappable = '1MiB'\nwcet = '2ms'\nperiod = '10ms'\n",
        );
        assert_eq!(tasks.unwrap().swap.unwrap().out_ns, 2_000_000);
    }

    #[test]
    fn mistakes_are_named() {
        let plain = "memory = '1MiB'\nwcet = '2ms'\nperiod = '10ms'\n";
        for (text, part) in [
            ("memory = '1MiB'\n".into(), "no [[task]]"),
            ("memory = 'lots'\n".into(), "line 1"),
            ("memory = '1MiB'\nmargin = -1\n".into(), "line 2, margin"),
            (format!("memory = '1MiB'\n[[task]]\n{plain}x = 1\n"), "line 6"),
            ("memory = '1MiB'\n[[task]]\nperiod = '10ms'\n".into(), "task 'task 1': give a model"),
            (format!("memory = '1MiB'\n[[task]]\n{plain}model = 'a'\n"), "give a model"),
            (format!("memory = '1MiB'\n[[task]]\n{plain}deadline = '0ms'\n"), "the deadline is 0"),
            (format!("memory = '1MiB'\n[[task]]\n{plain}deadline = '9000h'\n"), "range"),
            (format!("memory = '1MiB'\n[[task]]\n{plain}swappable = '1MiB'\n"), "[swap]"),
            (format!("memory = '1MiB'\n[[task]]\n{plain}resume = '1ms'\n"), "needs a step"),
            (
                "memory = '1MiB'\n[[task]]\ncurve = []\nperiod = '1ms'\n".into(),
                "a curve has",
            ),
            (
                format!("memory = '1MiB'\n[[task]]\nname = 'a'\n{plain}[[task]]\nname = 'a'\n{plain}"),
                "two tasks are called 'a'",
            ),
            (
                format!(
                    "memory = '1MiB'\nswap = {{ chunk = '2MiB', in = '1ms', out = '2ms' }}\n[[task]]\n{plain}swappable = '2MiB'\n"
                ),
                "more is swappable",
            ),
            (
                "memory = '1MiB'\nswap = { chunk = '2MiB', in = '1ms', out = '2ms' }\n[[task]]\nmodel = 'a'\nperiod = '1ms'\n"
                    .into(),
                "with a [swap] table",
            ),
        ] {
            let error = read(&text).unwrap_err();
            assert!(error.contains(part), "'{part}' is not in: {error}");
        }
    }
}
