//! The table of predictions, and its page.

use super::{GOOD, Point, SHARES};
use crate::chart;
use anyhow::Result;
use std::borrow::Borrow;
use std::fmt::Write as _;
use std::path::Path;

pub(super) fn line(p: &Point) -> String {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    format!(
        "| {} | {} | {:.1} | {:.2} | {:.2}-{:.2} | {:.2} | {} | {:+.1} % | {:.2} | {} | {:.1} % | {} |",
        p.model,
        p.budget_bytes
            .map_or("none".into(), |b| format!("{:.1}", mib(b))),
        mib(p.loaded_bytes),
        p.measured_ms,
        p.spread_ms.0,
        p.spread_ms.1,
        p.now_ms,
        percent(p.now_off),
        (p.now_ratio - 1.0) * 100.0,
        p.ahead_ms,
        percent(p.ahead_off),
        p.drift * 100.0,
        p.turns,
    )
}

fn percent(off: f64) -> String {
    let mark = if off <= GOOD { "" } else { "**" };
    format!("{mark}{:.1} %{mark}", off * 100.0)
}

pub fn table<P: Borrow<Point>>(points: &[P]) -> String {
    let points: Vec<&Point> = points.iter().map(Borrow::<Point>::borrow).collect();
    let mut text = String::from(
        "| model | budget MiB | loaded MiB/run | measured ms | 80 % of turns | predicted ms, costs of the same seconds | off by | bias | \
         predicted ms, ahead | off by | next turn | turns |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for point in &points {
        let _ = writeln!(text, "{}", line(point));
    }
    text.push('\n');
    let mut share = |of: &str, error: &dyn Fn(&Point) -> f64, keep: &dyn Fn(&Point) -> bool| {
        let errors = points.iter().copied().filter(|p| keep(p)).map(error);
        let mut errors: Vec<f64> = errors.collect();
        errors.sort_by(f64::total_cmp);
        let good = errors.iter().filter(|e| **e <= GOOD).count();
        let _ = writeln!(
            text,
            "- {of}: {good} of {} within {:.0} % ({:.0} %); half of them within {:.1} %.",
            errors.len(),
            GOOD * 100.0,
            good as f64 / errors.len().max(1) as f64 * 100.0,
            errors.get(errors.len() / 2).unwrap_or(&0.0) * 100.0
        );
    };
    let streams = |p: &Point| p.loaded_bytes > 0;
    let (now, ahead, drift) = (
        |p: &Point| p.now_off,
        |p: &Point| p.ahead_off,
        |p: &Point| p.drift,
    );
    share("**Costs of the same seconds**", &now, &|_| true);
    share("Of those, plans that load weights", &now, &streams);
    share("Predicted ahead", &ahead, &|_| true);
    share("Of those, plans that load weights", &ahead, &streams);
    share("A turn as a prediction of the next", &drift, &|_| true);
    text
}

pub(super) fn write(root: &Path, points: &[Point], rounds: u32) -> Result<()> {
    let path = root.join("docs/prediction.md");
    std::fs::write(&path, page(&table(points), rounds)?)?;
    eprintln!("wrote {}", path.display());
    let path = root.join("docs/prediction.svg");
    let dots: Vec<chart::Dot> = points
        .iter()
        .map(|p| chart::Dot {
            series: &p.model,
            x: p.measured_ms,
            y: p.measured_ms * p.now_ratio,
        })
        .collect();
    std::fs::write(&path, chart::agreement(&dots, GOOD))?;
    eprintln!("wrote {}", path.display());
    Ok(())
}

fn page(table: &str, rounds: u32) -> Result<String> {
    Ok(format!(
        "# Predicted and measured latency\n\n\
         Made by `cargo study prediction --write`. Two threads on {}.\n\n\
         One process per model [calibrates](calibration.md) in full. It plans for these budgets: the smallest feasible one and\n\
         1 MiB; {} of the way from there to everything resident; none. It opens a session for each. The\n\
         sessions run in turn, {} times.\n\n\
         - *Measured*: the median over turns of each turn's median. The range holds the middle 80 % of turns.\n\
         - *Turns*: those that count. The machine kept its speed around them: steps took the same before and after, within\n\
         \x20 {:.0} %. Where fewer than {} turns are like that, all count.\n\
         - *Costs of the same seconds*: each turn's plan is predicted again. Step times come from a session with everything\n\
         \x20 resident that runs just before and after; rate and latency of storage come from the loads of these very runs. This\n\
         \x20 shows how good the simulator is.\n\
         - *Ahead*: the prediction when the plan was made, seconds before, from calibration.\n\
         - *Off by*: the median over turns of the absolute error. *Bias* is the median of the signed error; the plot shows it.\n\
         - *Next turn*: the same absolute error where a turn's median predicts the same session's next turn. No prediction made\n\
         \x20 ahead can be better than the machine is steady.\n\n\
         ![Predicted and measured latency](prediction.svg)\n\n{table}",
        crate::setting::setting()?,
        SHARES[1..]
            .iter()
            .map(|s| format!("{:.0} %", s * 100.0))
            .collect::<Vec<_>>()
            .join(", "),
        rounds,
        super::STEADY * 100.0,
        super::LEAST_STEADY,
    ))
}
