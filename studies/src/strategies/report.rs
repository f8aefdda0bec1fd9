//! Tables, what they say, and the page that holds them.

use super::findings::{self, Errors, Noise, Win};
use super::{AUTO, Effort, Figures, Point, RESIDENT, SINGLE};
use crate::peer::median;
use anyhow::Result;
use std::fmt::Write as _;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn percent(share: f64) -> f64 {
    100.0 * share
}

fn place(share: u32) -> String {
    match share {
        0 => "smallest".into(),
        share => format!("{share} %"),
    }
}

/// A line that tells how far the bench is.
pub fn progress(point: &Point) -> String {
    let cells = point.cells.iter().map(|cell| match &cell.outcome {
        Ok(f) => format!(
            "{} {:.1} ({:.1})",
            cell.strategy, f.measured_ms, f.predicted_ms
        ),
        Err(_) => format!("{} -", cell.strategy),
    });
    let cells: Vec<String> = cells.collect();
    let unsteady = point.cells.iter().any(|c| !is_steady(c));
    format!(
        "{} at {} ({:.1} MiB): {}{}",
        point.model,
        place(point.share),
        mib(point.budget_bytes),
        cells.join(", "),
        if unsteady { "; unsteady" } else { "" }
    )
}

fn is_steady(cell: &super::Cell) -> bool {
    cell.outcome.as_ref().map_or(true, |f| f.is_steady)
}

pub fn tables(points: &[Point]) -> String {
    let parts = [
        noise(points),
        winners(points),
        distances(points),
        auto(points),
        errors(points),
        details(points),
    ];
    parts.join("\n")
}

/// What one plan differs by from process to process.
fn noise(points: &[Point]) -> String {
    let noise = Noise::of(points);
    format!(
        "## Noise\n\n\
         At {} of {} points *auto* chose a plan with the same prediction as the strategy's own process. Both run the same\n\
         plan, so the difference between their measurements is noise.\n\n\
         | pairs | median | nine of ten within | most |\n|--:|--:|--:|--:|\n\
         | {} | {:.1} % | {:.1} % | {:.1} % |\n\n\
         **A lead of less than {:.1} % is called none below.**\n",
        noise.pairs,
        points.len(),
        noise.pairs,
        percent(noise.median),
        percent(noise.usual),
        percent(noise.most),
        percent(noise.tie())
    )
}

/// Measured latency by strategy, and who is fastest by what.
fn winners(points: &[Point]) -> String {
    let mut text = String::from(
        "## Measured\n\nMilliseconds; the lead is that of the fastest single strategy over the next.\n\n| model | budget | MiB |",
    );
    for strategy in SINGLE.into_iter().chain([AUTO, RESIDENT]) {
        let _ = write!(text, " {strategy} |");
    }
    text += " the fastest leads by |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n";
    let wins = findings::wins(points);
    for point in points {
        let win = wins.iter().find(|w| std::ptr::eq(w.point, point));
        let _ = write!(
            text,
            "| {} | {} | {:.1} |",
            point.model,
            place(point.share),
            mib(point.budget_bytes)
        );
        for strategy in SINGLE.into_iter().chain([AUTO, RESIDENT]) {
            let cell = match point.figures(strategy) {
                Some(f) if win.is_some_and(|w| w.strategy == strategy) => {
                    format!("**{:.2}**", f.measured_ms)
                }
                Some(f) => format!("{:.2}", f.measured_ms),
                None => "-".into(),
            };
            let _ = write!(text, " {cell} |");
        }
        let _ = writeln!(text, " {} |", win.map_or(String::new(), lead));
    }
    text
}

/// By what a winner wins.
fn lead(win: &Win) -> String {
    let (Some(next), Some((waiting_ms, computing_ms))) = (win.next, win.lead_ms()) else {
        return "nobody else can".into();
    };
    if !win.is_clear() {
        return "nothing: within the noise".into();
    }
    let less = |ms: f64| match ms < 0.0 {
        true => format!("{:.2} ms more", -ms),
        false => format!("{ms:.2} ms less"),
    };
    format!(
        "{:.0} %: {} waiting, {} computing, {:.2} × the bytes",
        percent(next.measured_ms / win.first.measured_ms - 1.0),
        less(waiting_ms),
        less(computing_ms),
        win.first.loaded_bytes as f64 / next.loaded_bytes.max(1) as f64
    )
}

/// Where each strategy stands, by budget, and a sentence for each that wins.
fn distances(points: &[Point]) -> String {
    let mut text = String::from(
        "## Where each wins, and why\n\n\
         Latency in that of the fastest single strategy: median over models, and the worst; in brackets how many\n\
         models it cannot run within that budget.\n\n| budget |",
    );
    for strategy in SINGLE {
        let _ = write!(text, " {strategy} |");
    }
    text += &format!("\n|---|{}\n", "--:|".repeat(SINGLE.len()));
    let mut shares: Vec<u32> = points.iter().map(|p| p.share).collect();
    shares.sort_unstable();
    shares.dedup();
    for share in shares {
        let here = || points.iter().filter(|p| p.share == share);
        let _ = write!(text, "| {} |", place(share));
        for strategy in SINGLE {
            let ratios = findings::ratios(here(), strategy);
            let cell = match ratios.len() {
                0 => "none".to_owned(),
                able => {
                    let worst = ratios.iter().copied().fold(0.0, f64::max);
                    let cannot = here().count() - able;
                    let cannot = match cannot {
                        0 => String::new(),
                        n => format!(" [{n}]"),
                    };
                    format!("{:.2} ({worst:.2}){cannot}", median(&ratios))
                }
            };
            let _ = write!(text, " {cell} |");
        }
        text.push('\n');
    }
    text.push('\n');
    let wins = findings::wins(points);
    for strategy in SINGLE {
        let own: Vec<&Win> = wins.iter().filter(|w| w.strategy == strategy).collect();
        let _ = writeln!(text, "{}", sentence(strategy, &own, points));
    }
    text
}

fn sentence(strategy: &str, wins: &[&Win], points: &[Point]) -> String {
    let able = points.iter().filter_map(|p| p.figures(strategy)).count();
    let clear: Vec<&&Win> = wins.iter().filter(|w| w.is_clear()).collect();
    let mut text = format!(
        "- *{strategy}* can run at {able} of {} points, is first at {} and beyond the noise at {}",
        points.len(),
        wins.len(),
        clear.len()
    );
    if clear.is_empty() {
        return text + ".";
    }
    let leads: Vec<(f64, f64)> = clear.iter().filter_map(|w| w.lead_ms()).collect();
    let by_waiting = leads
        .iter()
        .filter(|(waiting, computing)| waiting > computing);
    let by_waiting = by_waiting.count();
    let share = |f: &Figures| f.stall_ms / f.measured_ms;
    let of_nexts = |value: &dyn Fn(&Figures) -> f64| {
        median(
            &clear
                .iter()
                .filter_map(|w| w.next)
                .map(value)
                .collect::<Vec<_>>(),
        )
    };
    let of_own = |value: &dyn Fn(&Figures) -> f64| {
        median(&clear.iter().map(|w| value(w.first)).collect::<Vec<_>>())
    };
    let loads = clear.iter().filter_map(|w| {
        let next = w.next?.loaded_bytes.max(1);
        Some(w.first.loaded_bytes as f64 / next as f64)
    });
    let loads = median(&loads.collect::<Vec<_>>());
    let names: Vec<String> = clear
        .iter()
        .map(|w| format!("{} {}", w.point.model, place(w.point.share)))
        .collect();
    let _ = write!(
        text,
        " ({}). Medians there: it waits {:.0} % of its time, the next {:.0} %, and loads {loads:.2} × the bytes; the lead is \
         waiting less at {by_waiting}, computing less at {}.",
        names.join(", "),
        percent(of_own(&share)),
        percent(of_nexts(&share)),
        leads.len() - by_waiting,
    );
    text
}

/// Whether `auto` keeps its promise, and what that is worth.
fn auto(points: &[Point]) -> String {
    let no_worse = points.iter().filter(|p| findings::auto_is_no_worse(p));
    let no_worse = no_worse.count();
    let mut ratios = findings::ratios(points.iter(), AUTO);
    ratios.sort_by(f64::total_cmp);
    let mut text = format!(
        "## auto\n\n\
         Predicted milliseconds of plans that one process makes, with the same calibration, the same memory of its own\n\
         and the same number of generations in each search. At {no_worse} of {} points *auto* is predicted no slower\n\
         than *preload* and *search*, to the nanosecond.\n\
         **auto is never worse in prediction: {}.**\n\n| model | budget |",
        points.len(),
        if no_worse == points.len() {
            "yes"
        } else {
            "NO"
        },
    );
    for strategy in SINGLE.into_iter().chain([AUTO]) {
        let _ = write!(text, " {strategy} |");
    }
    text += &format!("\n|---|--:|{}\n", "--:|".repeat(SINGLE.len() + 1));
    for point in points {
        let _ = write!(text, "| {} | {} |", point.model, place(point.share));
        for found in &point.foreseen {
            let _ = match found.latency_ns {
                None => write!(text, " - |"),
                Some(ns) if found.strategy == AUTO => {
                    write!(text, " {:.3} ({}) |", ns as f64 / 1e6, found.chosen)
                }
                Some(ns) => write!(text, " {:.3} |", ns as f64 / 1e6),
            };
        }
        text.push('\n');
    }
    text.push('\n');
    if let Some(worst) = ratios.last() {
        let _ = writeln!(
            text,
            "Measured, it takes {:.2} × (median) to {worst:.2} × the fastest strategy's latency; the noise alone is {:.2} ×.",
            median(&ratios),
            1.0 + Noise::of(points).usual
        );
    }
    let mut counts: Vec<(&str, usize)> = Vec::new();
    for figures in points.iter().filter_map(|p| p.figures(AUTO)) {
        match counts.iter_mut().find(|(name, _)| *name == figures.chosen) {
            Some((_, count)) => *count += 1,
            None => counts.push((&figures.chosen, 1)),
        }
    }
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let counts: Vec<String> = counts.iter().map(|(s, n)| format!("{s} {n} ×")).collect();
    let _ = writeln!(text, "It took {}.", counts.join(", "));
    text
}

/// Predicted against measured: all points, then by strategy and by model.
fn errors(points: &[Point]) -> String {
    let mut text = String::from(
        "## Simulation against reality\n\n\
         Predicted ÷ measured − 1 of the same plans, after the calibration of each model; negative: predicted too fast.\n\
         SwapAdvisor reports −12 % to +4 % for its simulator.\n\n\
         | | plans | median | median size | from | to | within ±4 % | within ±5 % |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    let all = || {
        points
            .iter()
            .flat_map(|p| p.cells.iter().map(move |c| (p, c)))
            .filter_map(|(p, c)| Some((p, c.strategy, c.outcome.as_ref().ok()?)))
    };
    let mut row = |name: &str, found: Option<Errors>| {
        if let Some(e) = found {
            let _ = writeln!(
                text,
                "| {name} | {} | {:+.1} % | {:.1} % | {:+.1} % | {:+.1} % | {:.0} % | {:.0} % |",
                e.count,
                percent(e.median),
                percent(e.median_size),
                percent(e.least),
                percent(e.most),
                percent(e.within_4),
                percent(e.within_5)
            );
        }
    };
    // The control is none of them: a model is calibrated until that is right.
    let streamed = || all().filter(|(_, s, _)| *s != RESIDENT).map(|(_, _, f)| f);
    row("all but resident", findings::errors(streamed()));
    let steady = streamed().filter(|f| f.is_steady);
    row("machine as fast as calibrated", findings::errors(steady));
    for strategy in SINGLE.into_iter().chain([AUTO, RESIDENT]) {
        let own = all().filter(|(_, s, _)| *s == strategy).map(|(_, _, f)| f);
        row(strategy, findings::errors(own));
    }
    let mut models: Vec<&str> = points.iter().map(|p| p.model.as_str()).collect();
    models.dedup();
    for model in models {
        let of_model = all().filter(|(p, s, _)| p.model == model && *s != RESIDENT);
        let own = of_model.map(|(_, _, f)| f);
        row(model, findings::errors(own));
    }
    text
}

/// Every figure.
fn details(points: &[Point]) -> String {
    let mut text = String::from(
        "## All figures\n\n\
         | model | budget | strategy | predicted ms | measured ms | off by | loaded MiB/run | waiting ms | predicted waiting ms |\n\
         |---|--:|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for point in points {
        for cell in &point.cells {
            let _ = write!(text, "| {} | {} | ", point.model, place(point.share));
            let _ = match &cell.outcome {
                Err(bytes) => writeln!(
                    text,
                    "{} | needs {:.1} MiB | | | | | |",
                    cell.strategy,
                    mib(*bytes)
                ),
                Ok(f) => writeln!(
                    text,
                    "{}{} | {:.2} | {:.2} | {:+.1} %{} | {:.1} | {:.2} | {:.2} |",
                    cell.strategy,
                    match cell.strategy {
                        AUTO => format!(" ({})", f.chosen),
                        _ => String::new(),
                    },
                    f.predicted_ms,
                    f.measured_ms,
                    percent(f.predicted_ms / f.measured_ms - 1.0),
                    if f.is_steady { "" } else { " ~" },
                    mib(f.loaded_bytes),
                    f.stall_ms,
                    f.predicted_stall_ms
                ),
            };
        }
    }
    text
}

pub fn page(tables: &str, effort: Effort) -> Result<String> {
    Ok(format!(
        "# Strategies\n\n\
         Made by `cargo study strategies --write`. Two threads on {}.\n\n\
         Medians in milliseconds. Processes take turns: {} rounds; each turn begins with a rest and one run that does not\n\
         count. Each model is calibrated before its plans are made, and again where the resident model's time is off by\n\
         5 % right after. A search has {} generations.\n\n\
         - *Budgets*: the smallest feasible one, and larger shares of the unlimited footprint.\n\
         - *resident* runs beside them without a limit.\n\
         - *Waiting*: time in which a run has nothing to compute because weights are on their way.\n\
         - *~*: the machine was never as fast as when it was calibrated. Where it was in some rounds, only those count.\n\n{tables}",
        crate::setting::setting()?,
        effort.rounds,
        effort.search_generations,
    ))
}

#[cfg(test)]
mod tests {
    use super::super::findings::tests::{figures, foreseen, point};
    use super::*;

    #[test]
    fn tables_say_who_wins_who_cannot_and_why() {
        let measured = point(&[
            ("resident", Ok(figures(8.0, 8.0, 0.0))),
            ("preload", Ok(figures(10.0, 10.0, 1.0))),
            ("blocks", Ok(figures(12.0, 15.0, 4.0))),
            ("odswap", Err(80 << 20)),
            ("auto", Ok(figures(10.0, 10.0, 1.0))),
        ]);
        let points = [Point {
            foreseen: foreseen(&[
                ("preload", Some(9_000_000)),
                ("odswap", None),
                ("auto", Some(9_000_000)),
            ]),
            ..measured
        }];
        let text = tables(&points);
        for part in [
            "| m | 25 % | 64.0 | **10.00** | - | 15.00 | - | - | 10.00 | 8.00 | 50 %: 3.00 ms less waiting, 2.00 ms less computing, 1.00 × the bytes",
            "| 25 % | 1.00 (1.00) | none | 1.50 (1.50) | none | none |",
            "*preload* can run at 1 of 1 points, is first at 1 and beyond the noise at 1 (m 25 %)",
            "prediction: yes",
            "| m | 25 % | 9.000 | - | 9.000 (preload) |",
            "It took preload 1 ×.",
            "| all but resident | 3 |",
            "odswap | needs 80.0 MiB",
            "auto (preload) | 10.00 | 10.00 | +0.0 %",
        ] {
            assert!(text.contains(part), "no '{part}' in:\n{text}");
        }
    }
}
