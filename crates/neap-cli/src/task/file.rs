//! Task files: which models run together, in how much memory, for how long.
//!
//! ```toml
//! total = "843MiB"              # memory of all models' processes together
//! allocate = "curves"           # or slowdown, paper, equal, direct
//! duration = "5s"               # or runs = 20, for each model
//! one_process = true            # in turns, instead of a process for each model
//!
//! [[model]]
//! path = "yolov3.onnx"          # from this file's folder
//! urgency = 2.0                 # how much its latency matters
//! threads = 1
//! cpus = [0]                    # the processors that it may use
//! period = "200ms"              # a run begins no sooner after the one before
//! copies = 2                    # so many processes of it
//! ```

use crate::budgets::schedule::Schedule;
use crate::failure::{Outcome, bad, one_line};
use crate::meaning::{Meaning, Parsed, Size, Time, at};
use neaptide::{Budget, Strategy};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Spanned;

/// Who gets how much.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, serde::Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Policy {
    /// The largest weighted latency as small as can be, by each model's predicted latency
    Curves,
    /// The largest weighted slowdown as small as can be: latency relative to that with all memory
    Slowdown,
    /// SwapNet's Equation 1: by demand and performance score
    Paper,
    /// The same for every model
    Equal,
    /// Every model wholly in memory, whatever the total (to compare)
    Direct,
}

/// A task, checked.
#[derive(Debug, Clone, PartialEq)]
pub struct Task {
    pub total_bytes: u64,
    pub policy: Policy,
    pub strategy: Option<Strategy>,
    /// Measured runs of each model; without, as long as `duration`.
    pub runs: Option<u32>,
    pub duration: Option<Duration>,
    pub warmup: u32,
    /// Totals over time.
    pub schedule: Option<Schedule>,
    /// All in one process, in turns.
    pub one_process: bool,
    pub members: Vec<Member>,
}

/// A model, in a process of its own or one of several in this one.
#[derive(Debug, Clone, PartialEq)]
pub struct Member {
    pub name: String,
    pub path: PathBuf,
    pub urgency: f64,
    pub threads: u16,
    /// Processors by number; not empty.
    pub cpus: Vec<usize>,
    pub period: Option<Duration>,
    pub seed: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTask {
    total: Parsed<Size>,
    allocate: Option<Policy>,
    strategy: Option<Parsed<StrategyName>>,
    runs: Option<Spanned<u32>>,
    duration: Option<Parsed<Time>>,
    #[serde(default)]
    warmup: u32,
    total_schedule: Option<Parsed<Totals>>,
    #[serde(default)]
    one_process: bool,
    #[serde(rename = "model")]
    models: Vec<RawModel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawModel {
    path: PathBuf,
    name: Option<String>,
    urgency: Option<Spanned<f64>>,
    threads: Option<Spanned<u16>>,
    cpus: Option<Spanned<Vec<usize>>>,
    period: Option<Parsed<Time>>,
    copies: Option<Spanned<u32>>,
    #[serde(default)]
    seed: u64,
}

struct Totals(Schedule);
struct StrategyName(Strategy);

impl Meaning for Totals {
    fn parse(text: &str) -> Result<Totals, String> {
        let schedule: Schedule = text.parse()?;
        let strange = schedule
            .budgets()
            .find(|(_, b)| !matches!(b, Budget::Bytes(_)));
        if let Some((_, budget)) = strange {
            return Err(format!("'{budget}' is no size"));
        }
        Ok(Totals(schedule))
    }
}

impl Meaning for StrategyName {
    fn parse(text: &str) -> Result<StrategyName, String> {
        crate::strategies::by_name(text).map(StrategyName)
    }
}

/// More processes than this are a slip of the pen.
const MOST_MEMBERS: usize = 64;

/// Reads a task file; every error names the file, and the line and key where that is known.
pub fn read(path: &Path) -> Outcome<Task> {
    let text = std::fs::read_to_string(path)
        .map_err(|e| bad(format!("cannot read {}: {e}", path.display())))?;
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let folder = path.parent().unwrap_or(Path::new("."));
    parse(&text, folder, processors).map_err(|e| bad(format!("{}: {e}", path.display())))
}

fn parse(text: &str, folder: &Path, processors: usize) -> Result<Task, String> {
    let raw: RawTask = toml::from_str(text).map_err(|e| {
        let what = one_line(e.message());
        e.span().map_or(what.clone(), |s| at(text, s.start, &what))
    })?;
    let mut members: Vec<Member> = Vec::new();
    for model in &raw.models {
        let copies = checked(text, &model.copies, 1, |&n| n > 0, "is not above zero")?;
        let urgency = checked(
            text,
            &model.urgency,
            1.0,
            |u| *u > 0.0 && u.is_finite(),
            "is no number above zero",
        )?;
        let threads = checked(
            text,
            &model.threads,
            1,
            |n| (1..=256).contains(n),
            "is not between 1 and 256",
        )?;
        let few = |cpus: &Vec<usize>| !cpus.is_empty() && cpus.iter().all(|&c| c < processors);
        let what = format!("are not processors of this machine, which has {processors}");
        let cpus = match &model.cpus {
            None => None,
            Some(given) => Some(checked(text, &Some(given.clone()), Vec::new(), few, &what)?),
        };
        let stem = model.path.file_stem().unwrap_or_default().to_string_lossy();
        let name = model.name.clone().unwrap_or_else(|| stem.into_owned());
        for copy in 1..=copies {
            if members.len() == MOST_MEMBERS {
                return Err(format!("more than {MOST_MEMBERS} models"));
            }
            // In turn, so that models share processors as little as possible.
            let first = members.len() * usize::from(threads);
            let own = (first..first + usize::from(threads)).map(|cpu| cpu % processors);
            members.push(Member {
                name: match copies {
                    1 => name.clone(),
                    _ => format!("{name} {copy}"),
                },
                path: folder.join(&model.path),
                urgency,
                threads,
                cpus: cpus.clone().unwrap_or_else(|| own.collect()),
                period: model.period.as_ref().map(|p| p.0.0),
                seed: model.seed + u64::from(copy) - 1,
            });
        }
    }
    if members.is_empty() {
        return Err("there is no [[model]]".into());
    }
    for (i, member) in members.iter().enumerate() {
        if members[..i].iter().any(|m| m.name == member.name) {
            return Err(format!(
                "two models are called '{}': give one a name, or copies = 2",
                member.name
            ));
        }
    }
    let runs = match &raw.runs {
        None => None,
        given => Some(checked(
            text,
            given,
            1,
            |n| (1..=1_000_000).contains(n),
            "is not between 1 and 1000000",
        )?),
    };
    let schedule = raw.total_schedule.map(|s| s.0.0);
    let duration = raw.duration.map(|d| d.0.0);
    let lasts = schedule.as_ref().map(Schedule::end);
    Ok(Task {
        total_bytes: raw.total.0.0,
        policy: raw.allocate.unwrap_or(Policy::Curves),
        strategy: raw.strategy.map(|s| s.0.0),
        runs,
        duration: duration.or(lasts.filter(|_| runs.is_none())),
        warmup: raw.warmup,
        schedule,
        one_process: raw.one_process,
        members,
    })
}

fn checked<T: Clone + std::fmt::Debug>(
    text: &str,
    given: &Option<Spanned<T>>,
    default: T,
    is_good: impl Fn(&T) -> bool,
    what: &str,
) -> Result<T, String> {
    let Some(spanned) = given else {
        return Ok(default);
    };
    let value = spanned.get_ref();
    if is_good(value) {
        return Ok(value.clone());
    }
    Err(at(text, spanned.span().start, &format!("{value:?} {what}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Task, String> {
        parse(text, Path::new("tasks"), 2)
    }

    #[test]
    fn a_task_with_everything() {
        let task = read(
            "total = '843MiB'\nallocate = 'paper'\nstrategy = 'search'\nduration = '5s'\nwarmup = 2\n\
             total_schedule = '1s:700MiB,2s:800MiB'\n\
             [[model]]\npath = 'a.onnx'\nurgency = 2\ncopies = 2\nperiod = '100ms'\n\
             [[model]]\nname = 'b'\npath = '/x/a.onnx'\nthreads = 2\ncpus = [1]\n",
        )
        .unwrap();
        assert_eq!(task.total_bytes, 843 << 20);
        assert_eq!(
            (task.policy, task.strategy),
            (Policy::Paper, Some(Strategy::Search))
        );
        assert_eq!(task.duration, Some(Duration::from_secs(5)));
        let names: Vec<&str> = task.members.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["a 1", "a 2", "b"]);
        assert_eq!(task.members[0].path, Path::new("tasks/a.onnx"));
        assert_eq!(task.members[2].path, Path::new("/x/a.onnx"));
        let cpus: Vec<&[usize]> = task.members.iter().map(|m| m.cpus.as_slice()).collect();
        assert_eq!(cpus, [&[0][..], &[1], &[1]]);
        assert_eq!((task.members[0].seed, task.members[1].seed), (0, 1));
        // Without a duration, as long as the schedule takes.
        let task = read("total = '1G'\ntotal_schedule = '1s:700M,2s:800M'\n[[model]]\npath='a'\n");
        assert_eq!(task.unwrap().duration, Some(Duration::from_secs(3)));
    }

    #[test]
    fn mistakes_are_named_with_line_and_key() {
        let model = "[[model]]\npath = 'a'\n";
        for (text, parts) in [
            ("total = 'lots'\n", &["line 1", "total", "lots"][..]),
            ("total = 5\n", &["line 1", "total", "string"]),
            (
                "\nallocate = 'fair'\ntotal = '1G'\n",
                &["line 2", "allocate", "fair"],
            ),
            ("total = '1G'\nspeed = 1\n", &["line 2", "speed"]),
            ("total = '1G'\nruns = 0\n", &["line 2", "runs"]),
            (
                "total = '1G'\nduration = '5y'\n",
                &["line 2", "duration", "5y"],
            ),
            (
                "total = '1G'\nstrategy = 'luck'\n",
                &["line 2", "strategy", "luck"],
            ),
            (
                "total = '1G'\nstrategy = 'blocks'\n",
                &["line 2", "'blocks' is gone"],
            ),
            (
                "total = '1G'\ntotal_schedule = '1s:50%'\n",
                &["line 2", "total_schedule", "50%"],
            ),
            ("total = \n", &["line 1"]),
            ("allocate = 'equal'\n", &["total"]),
        ] {
            let error = read(&format!("{text}{model}")).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "'{part}' is not in: {error}");
            }
        }
        for (line, parts) in [
            ("urgency = 0", &["line 4", "urgency"][..]),
            ("urgency = nan", &["line 4", "urgency"]),
            ("threads = 0", &["line 4", "threads"]),
            ("cpus = [2]", &["line 4", "cpus", "has 2"]),
            ("cpus = []", &["line 4", "cpus"]),
            ("copies = 0", &["line 4", "copies"]),
            ("copies = 100", &["64"]),
            ("colour = 1", &["line 4", "colour"]),
            ("[[model]]\npath = 'a'", &["called 'a'"]),
        ] {
            let error = read(&format!("total = '1G'\n{model}{line}\n")).unwrap_err();
            for part in parts {
                assert!(error.contains(part), "'{part}' is not in: {error}");
            }
        }
        assert!(
            read("total = '1G'\nmodel = []\n")
                .unwrap_err()
                .contains("no [[model]]")
        );
        assert!(read("total = '1G'\n").unwrap_err().contains("model"));
    }
}
