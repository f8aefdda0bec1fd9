//! The table of predictions, and its page.

use super::{GOOD, Point, ROUNDS, SHARES};
use crate::chart;
use anyhow::Result;
use std::fmt::Write as _;
use std::path::Path;

pub(super) fn line(p: &Point) -> String {
    let mib = |bytes: u64| bytes as f64 / 1048576.0;
    format!(
        "| {} | {} | {:.1} | {:.2} | {:.2}-{:.2} | {:.2} | {} | {:.2} | {} | {:.1} % | {} |",
        p.model,
        p.budget_bytes
            .map_or("none".into(), |b| format!("{:.1}", mib(b))),
        mib(p.loaded_bytes),
        p.measured_ms,
        p.spread_ms.0,
        p.spread_ms.1,
        p.now_ms,
        percent(now(p)),
        p.ahead_ms,
        percent(ahead(p)),
        p.drift * 100.0,
        p.turns,
    )
}

fn now(p: &Point) -> f64 {
    p.now_ratio - 1.0
}

fn ahead(p: &Point) -> f64 {
    p.ahead_ms / p.measured_ms - 1.0
}

fn percent(error: f64) -> String {
    let mark = if error.abs() <= GOOD { "" } else { "**" };
    format!("{mark}{:+.1} %{mark}", error * 100.0)
}

pub(super) fn table(points: &[Point]) -> String {
    let mut text = String::from(
        "| model | budget MiB | loaded MiB/run | measured ms | 80 % of turns | predicted ms, costs of the same seconds | off by | \
         predicted ms, ahead | off by | next turn | turns |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for point in points {
        let _ = writeln!(text, "{}", line(point));
    }
    text.push('\n');
    let mut share = |of: &str, error: &dyn Fn(&Point) -> f64, keep: &dyn Fn(&Point) -> bool| {
        let errors = points.iter().filter(|p| keep(p)).map(error);
        let mut errors: Vec<f64> = errors.map(f64::abs).collect();
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
    share("**Costs of the same seconds**", &now, &|_| true);
    share("Of those, plans that load weights", &now, &streams);
    share("Predicted ahead", &ahead, &|_| true);
    share("Of those, plans that load weights", &ahead, &streams);
    share("A turn as a prediction of the next", &|p| p.drift, &|_| {
        true
    });
    text
}

pub(super) fn write(root: &Path, points: &[Point]) -> Result<()> {
    let path = root.join("docs/prediction.md");
    std::fs::write(&path, page(&table(points))?)?;
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

fn page(table: &str) -> Result<String> {
    Ok(format!(
        "# Predicted and measured latency\n\n\
         Made by `cargo xtask bench prediction --write`. Two threads on {}. For each model one process\n\
         [calibrates](calibration.md) in full, plans for the smallest feasible budget (and 1 MiB), {} of the way from there to\n\
         that with everything resident, and none, and opens a session for each. The sessions run in turn, {ROUNDS} times.\n\n\
         - *Measured*: the median over turns of each turn's median, and the range of the middle 80 % of turns.\n\
         - *Turns* that count: around which the machine kept its speed: steps took the same before and after, within {:.0} % (all, where fewer than {} are such).\n\
         - *Costs of the same seconds*: for each turn a plan is predicted again, with times of steps that a session with everything resident\n\
         \x20 shows just before and after, and with rate and latency of storage as the loads of these very runs show them; what slices and\n\
         \x20 loads cost computing comes from calibration. When what is computed, loaded and waited for is for the simulator to say: this is how\n\
         \x20 good that is. Where nothing is loaded it says little but that two sessions are alike. *Off by* is the median of the turns' errors; the plot has these.\n\
         - *Ahead*: what was predicted when the plan was made, from what calibration found some seconds before. The machine changes its speed, and that of\n\
         \x20 its drive, for seconds and minutes: *next turn* says how far off a turn's median is as a prediction of the same session's next one, some seconds later.\n\n\
         ![Predicted and measured latency](prediction.svg)\n\n{table}",
        crate::bench::machine()?,
        SHARES[1..]
            .iter()
            .map(|s| format!("{:.0} %", s * 100.0))
            .collect::<Vec<_>>()
            .join(", "),
        super::STEADY * 100.0,
        super::LEAST_STEADY,
    ))
}
