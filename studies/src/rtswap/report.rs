//! What was found, as `docs/realtime.md`.

use super::figures::{Figure, REDUCED, SETS, TASKS};
use super::hunting::{Bag, Tightness};
use super::methods::{METHODS, Method};
use std::fmt::Write;

/// Writing to a string cannot fail.
macro_rules! line {
    ($text:expr, $($rest:tt)*) => {{ let _ = writeln!($text, $($rest)*); }};
}

/// The page's words, before the figures.
const HEAD: &str = include_str!("head.md");

pub fn head(text: &mut String, seed: u64) {
    line!(text, "{}", HEAD.trim_end());
    line!(
        text,
        "\nRandom sets are drawn from seed {seed}. {SETS} sets at each point.\n"
    );
}

fn table(text: &mut String, label: &str, points: &[String], figure: &Figure) {
    line!(text, "| {label} | {} |", points.join(" | "));
    line!(text, "|---|{}", "--:|".repeat(points.len()));
    for (method, bars) in METHODS.iter().zip(&figure.admitted) {
        let bars: Vec<String> = bars.iter().map(usize::to_string).collect();
        line!(text, "| {} | {} |", method.name(), bars.join(" | "));
    }
}

fn reach(figure: &Figure, method: Method) -> f64 {
    let at = METHODS.iter().position(|m| *m == method);
    at.map_or(0.0, |i| figure.reach[i])
}

pub fn by_tasks(text: &mut String, figure: &Figure, overflow_gb: f64) {
    line!(
        text,
        "\n## By number of tasks (Figure 7a)\n\nSets admitted, of {SETS}. 13 tasks need {overflow_gb:.1} GB more than there are (the paper: 25.9).\n\n\
         ![Figure 7a](realtime-tasks.svg)\n"
    );
    let points: Vec<String> = TASKS.map(|n| n.to_string()).collect();
    table(text, "tasks", &points, figure);
    line!(
        text,
        "\nHow many more sets RT-Swap admits than another method, over all points (a minus: fewer):\n\n| beside | here | the paper |\n|---|--:|--:|"
    );
    let ours = reach(figure, Method::RtSwap);
    for (method, paper) in [
        (Method::Min, "72 %"),
        (Method::MoVmm, "139 %"),
        (Method::Pageable, "221 %"),
        (Method::Base, "383 %"),
        (Method::Demand, "–"),
        (Method::Streamed, "–"),
        (Method::ReadOnly, "–"),
    ] {
        let other = reach(figure, method);
        let more = match other > 0.0 {
            true => format!("{:+.0} %", (ours / other - 1.0) * 100.0),
            false => "–".into(),
        };
        line!(text, "| {} | {more} | {paper} |", method.name());
    }
}

pub fn by_memory(text: &mut String, figure: &Figure) {
    line!(
        text,
        "\n## By memory (Figure 7b)\n\nThe first five tasks of each set, with so many per cent less memory than 24 GB.\n\n![Figure 7b](realtime-memory.svg)\n"
    );
    let points: Vec<String> = REDUCED.iter().map(|r| format!("{r} %")).collect();
    table(text, "less", &points, figure);
    averages(
        text,
        "The reduction that a set bears, of those that are admitted with all memory, averaged (in steps of 5 %)",
        figure,
        "36.5 %",
        "5.2 %",
    );
}

pub fn by_resolution(text: &mut String, figure: &Figure) {
    line!(
        text,
        "\n## By resolution (Figure 7c)\n\nTen tasks, of which so many have the high resolution.\n\n![Figure 7c](realtime-resolution.svg)\n"
    );
    let points: Vec<String> = (0..=10).map(|n: usize| n.to_string()).collect();
    table(text, "high", &points, figure);
    averages(
        text,
        "The share of tasks that can have the high resolution, averaged",
        figure,
        "70.5 %",
        "29.4 %",
    );
}

fn averages(text: &mut String, what: &str, figure: &Figure, paper: &str, others: &str) {
    line!(
        text,
        "\n{what}:\n\n| method | here | the paper |\n|---|--:|--:|"
    );
    for (i, method) in METHODS.iter().enumerate() {
        let paper = match i {
            0 => paper.to_owned(),
            1..=4 => format!("{others}, the average of these four"),
            _ => "–".into(),
        };
        line!(
            text,
            "| {} | {:.1} % | {paper} |",
            method.name(),
            figure.reach[i]
        );
    }
}

pub fn hunts(text: &mut String, bags: &[(&str, Bag)]) {
    line!(
        text,
        "\n## Soundness, hunted\n\n\
         A set is drawn, and its periods are made as short as the test admits. Then it is played again and again: with all\n\
         phases random, with one or two tasks a nanosecond before all others, with deadlines that meet; with times longest or drawn, transfers\n\
         too, releases periodic or late; and the choices that left least time are varied. The last row is the control: it\n\
         shows that the hunt finds misses where there are some.\n\n\
         | sets at the edge of | sets | jobs | missed deadlines | sets with a miss |\n|---|--:|--:|--:|--:|"
    );
    for (name, bag) in bags {
        line!(
            text,
            "| {name} | {} | {} | {} | {:.1} % |",
            bag.sets,
            bag.jobs,
            bag.misses,
            bag.missing_sets as f64 / bag.sets.max(1) as f64 * 100.0
        );
    }
}

pub fn tightness(text: &mut String, rows: &[(&str, Tightness)]) {
    line!(
        text,
        "\n## Tightness\n\n\
         Two or three tasks with periods of 8 to 24 and all times whole; every phasing is played with longest times, in two orders of ties.\n\
         *Refused without need*: a test refuses the set, and no phasing misses. Shorter times than the longest can do more harm, so some of\n\
         these sets may be refused rightly. For tasks that only execute, demand is exact but for rounding; a set with more work than time may miss later than\n\
         the 600 nanoseconds that are played.\n\n\
         | sets | drawn | no phasing misses | refused without need: Theorem 1 | demand | admitted, and a phasing misses |\n|---|--:|--:|--:|--:|--:|"
    );
    for (name, t) in rows {
        let refused = |admitted: u64| {
            format!(
                "{} ({:.1} %)",
                t.schedulable - admitted,
                (t.schedulable - admitted) as f64 / t.schedulable.max(1) as f64 * 100.0
            )
        };
        line!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            t.drawn,
            t.schedulable,
            refused(t.by_theorem),
            refused(t.by_demand),
            t.wrong
        );
    }
}
