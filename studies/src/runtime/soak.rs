//! Our way alone, for long: whether deadlines hold that held for a minute, whatever else the machine does.
//!
//! ```text
//!   --soak 30 --percent 96 --beside TEXT ─► one cell ─► target/runtime/soak-PERCENT.json ─► a section of the page
//! ```

use super::figures::{Cell, Spread};
use super::report::{LONGEST, longest_row, mib, or_none, outcome, progress, worst_part};
use super::tasks::{PERCENTS, TASKS, Way};
use super::{Place, RuntimeArgs, prepare, prepared, scheduling, worker};
use crate::watch::{Watch, Watched};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::fmt::Write as _;

/// One long run, with what the page says of it: the rest of the page may be of another day.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Soaked {
    minutes: f64,
    /// What else the machine did; as it was told.
    beside: Option<String>,
    setting: String,
    models_bytes: u64,
    cell: Cell,
    watched: Option<Watched>,
}

fn name(percent: u32) -> String {
    format!("soak-{percent}")
}

/// How the section begins, and the one after it.
const HEADING: &str = "## For ";
const AFTER: &str = "## Distributions";

/// Runs it and keeps it. Misses are told like anything else.
pub fn measure(place: &Place, args: &RuntimeArgs, minutes: f64) -> Result<()> {
    ensure!(
        PERCENTS.contains(&args.percent),
        "--percent is one of {PERCENTS:?}"
    );
    let command = scheduling::Command::new(!args.no_fifo);
    let models = prepare::models(place)?;
    let prepared = prepared(place, &models, &command, false)?;
    let setting = crate::setting::setting()?;
    let name = name(args.percent);
    eprintln!("{name}: {minutes} minutes");
    let which = (Way::Ours, args.percent);
    let all = (&models, &prepared, &command);
    let watch = models.on_drive().map(Watch::start).transpose()?;
    let cell = worker::cell(place, all, which, minutes * 60.0, &name)?;
    let watched = watch.map(Watch::stop).transpose()?;
    eprintln!("{}", progress(&prepared, &cell));
    let soaked = Soaked {
        minutes,
        beside: args.beside.clone(),
        setting,
        models_bytes: prepared.models_bytes(args.percent),
        cell,
        watched,
    };
    place.kept.write(&name, &soaked)?;
    println!("{}", soaked.section());
    Ok(())
}

/// The one of this machine with the smallest budget.
pub fn kept(place: &Place) -> Result<Option<Soaked>> {
    for percent in PERCENTS.into_iter().rev() {
        if let Some(soaked) = place.kept.read(&name(percent))? {
            return Ok(Some(soaked));
        }
    }
    Ok(None)
}

impl Soaked {
    pub fn section(&self) -> String {
        let cell = &self.cell;
        let told = match self.minutes == 30.0 {
            true => "half an hour".to_owned(),
            false => format!("{} minutes", self.minutes),
        };
        let beside = self.beside.as_deref().unwrap_or("nothing that was told");
        let mut text = format!(
            "{HEADING}{told}\n\n\
             Made by `cargo study runtime --soak {} --percent {}`, then with `--write`. {}; {}. Only *ours*, as in the rows of its budget. \
             What else the machine did: {beside}.\n\n\
             | demanded above the budget | models MiB | hard limit MiB | jobs | missed | never ended | worst response ÷ deadline | the clock wakes late µs: average, most | peak MiB | limit reached | jobs with other bits | outcome |\n\
             |--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
            self.minutes, cell.percent, self.setting, cell.scheduled,
        );
        let ended: usize = cell.tasks.iter().map(|task| task.response_ms.len()).sum();
        let _ = writeln!(
            text,
            "| {} % | {:.1} | {:.1} | {} | {} | {} | {:.2} | {:.0}, {:.0} | {:.1} | {} | {} | {} |",
            cell.percent,
            mib(self.models_bytes),
            mib(cell.limit_bytes),
            cell.released(),
            cell.missed(),
            cell.released().saturating_sub(ended as u64),
            worst_part(cell),
            cell.late_us.average,
            cell.late_us.most,
            mib(cell.peak_bytes),
            cell.limit_reached,
            cell.other_bits,
            outcome(cell),
        );
        text += "\n| task | model | deadline ms | jobs | missed | response ms: 50 % | 99.9 % | worst | latency ms: average |\n\
                 |--:|---|--:|--:|--:|--:|--:|--:|--:|\n";
        for (at, (task, model)) in cell.tasks.iter().zip(&TASKS).enumerate() {
            let _ = writeln!(
                text,
                "| {} | {} | {:.1} | {} | {} | {} | {} | {} | {:.1} |",
                at + 1,
                model.name,
                task.deadline_ms,
                task.released,
                task.missed(),
                or_none(task.response_at(0.5)),
                or_none(task.response_at(0.999)),
                or_none(task.response_at(1.0)),
                Spread::of(&task.latency_ms).average,
            );
        }
        let watched = self.watched.as_ref().map(Watched::told);
        text + "\n"
            + LONGEST
            + &longest_row(cell)
            + &watched.map_or(String::new(), |told| format!("\n{told}\n"))
    }
}

/// That section of a page; empty where there is none.
pub fn section_of(page: &str) -> &str {
    match bounds(page) {
        Some((from, to)) => &page[from..to],
        None => "",
    }
}

/// The page with another such section, before the plots; with none where it is empty.
///
/// # Errors
/// Where the page has no plots, so is none.
pub fn with_section(page: &str, section: &str) -> Result<String> {
    if section.is_empty() {
        return Ok(page.to_owned());
    }
    let after = heading(page, AFTER).context("the page has to be written whole first")?;
    let from = bounds(page).map_or(after, |(from, _)| from);
    Ok(format!(
        "{}{}\n\n{}",
        &page[..from],
        section.trim_end(),
        &page[after..]
    ))
}

fn bounds(page: &str) -> Option<(usize, usize)> {
    let from = heading(page, HEADING)?;
    let to = page[from + HEADING.len()..].find("\n## ")?;
    Some((from, from + HEADING.len() + to + 1))
}

/// Where a line begins so.
fn heading(page: &str, start: &str) -> Option<usize> {
    page.find(&format!("\n{start}")).map(|at| at + 1)
}

#[cfg(test)]
mod tests {
    use super::super::figures::Outcome;
    use super::super::report::tests::cell;
    use super::super::tasks::tests::prepared;
    use super::*;

    fn soaked(minutes: f64) -> Soaked {
        let mut cell = cell(Way::Ours, 1.0, Outcome::Ended);
        cell.tasks[2].released = 1;
        Soaked {
            minutes,
            beside: Some("three compilers".into()),
            setting: "a machine".into(),
            models_bytes: prepared().models_bytes(96),
            cell,
            watched: None,
        }
    }

    #[test]
    fn misses_are_told() {
        let text = soaked(30.0).section();
        assert!(text.starts_with("## For half an hour\n"), "{text}");
        assert!(text.contains("What else the machine did: three compilers."));
        // Of 11 jobs 5 never ended.
        assert!(text.contains(" | 11 | 5 | 5 | 0.00 | "), "{text}");
        assert!(text.contains("| 2 | 1 | 1.0 | – | – | 1.0 |"), "{text}");
        assert!(soaked(2.5).section().starts_with("## For 2.5 minutes\n"));
    }

    #[test]
    fn a_section_takes_the_place_of_the_last_one() {
        let without = "# Page\n\n## Tables\n\nText.\n\n## Distributions (Figure 9)\n\nPlots.\n";
        assert_eq!(section_of(without), "");
        assert_eq!(with_section(without, "").expect("as it was"), without);
        let long = soaked(30.0).section();
        let first = with_section(without, &long).expect("it has plots");
        assert_eq!(section_of(&first).trim_end(), long.trim_end());
        let other = soaked(2.5).section();
        let second = with_section(&first, &other).expect("it has plots");
        assert_eq!(section_of(&second).trim_end(), other.trim_end());
        assert_eq!(second.matches(HEADING).count(), 1);
        assert!(second.contains("Text.\n\n## For 2.5") && second.contains("\n\n## Distributions"));
        assert_eq!(second.len() - other.len(), first.len() - long.len());
        assert!(with_section("no page", &long).is_err());
    }
}
