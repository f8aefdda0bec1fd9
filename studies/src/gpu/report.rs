//! Tables of the device's figures, and their page.

use super::beside::{Figures, Row};
use super::predicted::Found;
use crate::{prediction, setting};
use anyhow::Result;
use std::fmt::Write as _;

/// What is aimed at: of ncnn's time, and of its memory.
const TIME: f64 = 0.8;
const MEMORY: f64 = 1.0 / 3.0;

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// As a share of the other's, marked where it is more than is aimed at.
fn share(own: f64, other: f64, most: f64) -> String {
    let share = own / other;
    let mark = if share <= most { "" } else { "**" };
    format!("{mark}{share:.2}{mark}")
}

pub fn beside_line(row: &Row) -> String {
    let mut text = match &row.peer {
        Ok(peer) => format!(
            "| {} | {:.0} | {:.0} |",
            row.model,
            peer.latency_ms,
            mib(peer.peak_bytes)
        ),
        Err(reason) => format!("| {} | {reason} | |", row.model),
    };
    let mut own = |figures: &Figures| {
        let peer = row.peer.as_ref().ok();
        let time = peer.map(|p| share(figures.latency_ms, p.latency_ms, TIME));
        let memory = peer.map(|p| share(figures.peak_bytes as f64, p.peak_bytes as f64, MEMORY));
        let none = || "–".to_owned();
        let _ = write!(
            text,
            " {:.0} | {} | {:.0} | {} |",
            figures.latency_ms,
            time.unwrap_or_else(none),
            mib(figures.peak_bytes),
            memory.unwrap_or_else(none),
        );
    };
    own(&row.free);
    own(&row.tight);
    let _ = write!(
        text,
        " {:.0} | {:.0} |",
        mib(row.budget_bytes),
        mib(row.loaded_bytes)
    );
    text
}

pub fn tables(rows: &[Row], found: &[Found]) -> String {
    let mut text = String::from(
        "## Beside ncnn\n\n\
         | network | ncnn ms | peak MiB | no budget ms | of ncnn's | peak MiB | of ncnn's | within the budget ms | of ncnn's | peak MiB | of ncnn's | budget MiB | loaded MiB/run |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
    );
    for row in rows {
        let _ = writeln!(text, "{}", beside_line(row));
    }
    let host: Vec<_> = found.iter().flat_map(|f| &f.host).collect();
    let own: Vec<_> = found.iter().flat_map(|f| &f.own).collect();
    text += "\n## Predicted and measured, in the host's memory\n\nBudgets are of the process.\n\n";
    text += &prediction::report::table(&host);
    text += "\n## Predicted and measured, in the device's own memory\n\nBudgets are of the device; the host keeps all weights.\n\n";
    text + &prediction::report::table(&own)
}

pub fn page(tables: &str, rows: &[Row], found: &[Found]) -> Result<String> {
    let device = rows.first().map_or("no device", |row| row.device.as_str());
    let rounds = rows.iter().map(|row| row.rounds).min().unwrap_or(0);
    let turns = found.iter().map(|found| found.turns).min().unwrap_or(0);
    let ahead = match found.iter().all(|found| found.calibrated) {
        true => "from a calibration by the network (`--calibrate`)",
        false => {
            "from rates that were measured when the device was opened, or from the profile of an earlier calibration"
        }
    };
    Ok(format!(
        "# Figures of Vulkan\n\n\
         Made by `cargo study vulkan`, then `cargo study vulkan --write`, on {}. The device is {device}: a driver that computes \
         on the processor, if it is called llvmpipe. [gpu.md](gpu.md) says what the two memories are.\n\n\
         **Beside ncnn.** Each engine is a process of its own, in 32 bits; they take turns. Times are medians of at least {rounds} runs, after one that is \
         not counted. ncnn computes on the same device (`use_vulkan_compute`), without Winograd, which is slower there. *Peak* is the most that \
         the kernel charged the process (a memory cgroup of its own): what the driver takes is part of it, program text that was \
         read before is not. *Within the budget*: a third of ncnn's peak, or the smallest feasible budget where that is more; where \
         ncnn does not run the network, a third of what no budget takes. The kernel enforces it. Bold shares are above the aim: 0.8 of ncnn's time, a third of its memory.\n\n\
         **Predictions.** Sessions of one process take turns, {turns} times at least; a turn is one run or more, for 0.8 s, and one before that is not counted. Budgets are \
         the smallest feasible one, half of the way from there to everything resident, and none. *Costs of the same seconds*: times of steps \
         come from the session without a budget just before and after, and rate and latency of loads from these runs where they are handed over in groups. \
         *Ahead*: {ahead}. Bold errors are above 5 %.\n\n{tables}",
        setting::setting()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_misses_the_aim_is_marked_and_what_ncnn_cannot_is_said() {
        let figures = |latency_ms, mib: u64| Figures {
            latency_ms,
            peak_bytes: mib << 20,
        };
        let row = |peer| Row {
            model: "m".into(),
            device: "d".into(),
            rounds: 3,
            peer,
            free: figures(70.0, 200),
            budget_bytes: 100 << 20,
            tight: figures(90.0, 99),
            loaded_bytes: 7 << 20,
        };
        let line = beside_line(&row(Ok(figures(100.0, 300))));
        assert_eq!(
            line,
            "| m | 100 | 300 | 70 | 0.70 | 200 | **0.67** | 90 | **0.90** | 99 | 0.33 | 100 | 7 |"
        );
        let line = beside_line(&row(Err("no layer".into())));
        assert!(
            line.starts_with("| m | no layer | | 70 | – | 200 | – |"),
            "{line}"
        );
    }
}
