//! docs/training-torch.md: a row for each process.

use super::figures::{End, Figures, Planned, Ran, Row, Who};
use std::collections::BTreeSet;
use std::fmt::Write as _;

pub fn table(all: &[Figures]) -> String {
    let mut text = String::from(
        "| network, batch | | hard limit MiB | peak MiB | end | s a step | predicted s | × PyTorch's | × least | strategy | stored MiB a step | loaded MiB a step | computed again, GFLOP |\n\
         |---|---|--:|--:|---|--:|--:|--:|--:|---|--:|--:|--:|\n",
    );
    for figures in all {
        let beside = Beside::of(figures);
        for (at, row) in figures.rows.iter().enumerate() {
            let name = if at == 0 { figures.name.as_str() } else { "" };
            let _ = writeln!(text, "| {name} |{}", line(row, &beside));
        }
    }
    text
}

/// What a row's time is compared with.
struct Beside {
    torch_ms: Option<f64>,
    /// Of ours without a limit.
    own_ms: Option<f64>,
    drive: Option<f64>,
}

impl Beside {
    fn of(figures: &Figures) -> Beside {
        let mut rows = figures.rows.iter();
        let own = rows.find(|row| row.who == Who::Ours && row.limit.is_none());
        Beside {
            torch_ms: figures.rows.first().and_then(step_ms),
            own_ms: own.and_then(step_ms),
            drive: figures.drive,
        }
    }

    /// The larger of what computing takes without a limit, and what the drive takes for a step's bytes.
    fn least_ms(&self, plan: &Planned) -> Option<f64> {
        let moved = (plan.stored_bytes + plan.loaded_bytes) as f64;
        Some(self.own_ms?.max(moved * 1e3 / self.drive?))
    }
}

fn step_ms(row: &Row) -> Option<f64> {
    match &row.end {
        End::Ran(ran) => Some(ran.step_ms),
        _ => None,
    }
}

/// All but the network's name.
fn line(row: &Row, beside: &Beside) -> String {
    let who = match row.who {
        Who::PyTorch => "PyTorch",
        Who::Ours => "ours",
    };
    let limit = row.limit.map_or("none".into(), |limit| {
        format!("{:.0} ({} %)", mib(limit.bytes), limit.percent)
    });
    let end = match &row.end {
        End::Ran(ran) => ran_text(ran, beside),
        End::Killed => " – | killed | – | – | – | – | – | – | – | – |".into(),
        End::Refused { smallest_bytes } => format!(
            " – | refused, {:.0} MiB would do | – | – | – | – | – | – | – | – |",
            mib(*smallest_bytes)
        ),
    };
    format!(" {who} | {limit} |{end}")
}

fn ran_text(ran: &Ran, beside: &Beside) -> String {
    let by = |ms: Option<f64>| ms.map_or("–".into(), |ms| format!("{:.2}", ran.step_ms / ms));
    let ratio = by(beside.torch_ms);
    let plan = ran.plan.as_ref();
    let least = by(plan.and_then(|plan| beside.least_ms(plan)));
    let predicted = plan.map_or("–".into(), |p| format!("{:.2}", p.predicted_ms / 1e3));
    let plan = match &ran.plan {
        None => " – | – | – | – |".into(),
        Some(plan) => format!(
            " {} | {:.0} | {:.0} | {:.1} |",
            plan.strategy,
            mib(plan.stored_bytes),
            mib(plan.loaded_bytes),
            plan.recomputed_flops as f64 / 1e9,
        ),
    };
    format!(
        " {:.0} | ran | {:.2} | {predicted} | **{ratio}** | {least} |{plan}",
        mib(ran.peak_bytes),
        ran.step_ms / 1e3,
    )
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Seconds from opening a model until the first step, over all processes of ours.
fn opening_s(all: &[Figures]) -> Option<(f64, f64)> {
    let rows = all.iter().flat_map(|figures| &figures.rows);
    let plans = rows.filter_map(|row| match &row.end {
        End::Ran(ran) => ran.plan.as_ref(),
        _ => None,
    });
    let widen = |(low, high): (f64, f64), s: f64| (low.min(s), high.max(s));
    plans
        .map(|plan| plan.opened_s)
        .fold(None, |found, s| Some(widen(found.unwrap_or((s, s)), s)))
}

pub fn page(all: &[Figures], setting: &str) -> String {
    let unique = |texts: BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join(", ");
    let versions = unique(all.iter().map(|f| f.version.clone()).collect());
    let rounds = unique(all.iter().map(|f| f.rounds.to_string()).collect());
    let mut page = format!(
        "# Training beside PyTorch\n\n\
         How much memory and time does a step of training take, here and in PyTorch {versions}? Both train the same network by the same\n\
         batch of noise, in f32 with two threads on the processor: SGD with momentum; AdamW for gpt2_lm. PyTorch runs as it comes, with\n\
         nothing computed again and nothing compiled.\n\n{}\n",
        table(all)
    );
    page += "\
        - *Hard limit*: of the memory cgroup that the process is alone in, with no swap; in brackets, of PyTorch's peak. It is our budget, too.\n\
        - *Peak*: the most that the kernel charged this cgroup. What PyTorch maps of its libraries is not in it: they lie in the page\n\
        cache already.\n\
        - *Killed*: by the kernel, for want of memory.\n\
        - *× PyTorch's*: by PyTorch's step with no limit.\n\
        - *Predicted*: when the plan was chosen, by the drive and two steps of zeros, measured while the model was opened.\n\
        - *× least*: by the larger of our step with no limit, and what the drive takes for the bytes that a step stores and loads, both ways at once.\n\
        - *Strategy*: what becomes of activations that there is no room for ([strategies](train.md#activations-that-do-not-fit)).\n\
        - Our losses have the same bits under every limit; the command ends with an error where they have not.\n";
    let drives: Vec<f64> = all.iter().filter_map(|f| f.drive).collect();
    if !drives.is_empty() {
        let [low, high] = [
            drives.iter().copied().fold(f64::MAX, f64::min),
            drives.iter().copied().fold(0.0, f64::max),
        ];
        let _ = writeln!(
            page,
            "- The drive stored and loaded {:.1} to {:.1} GB/s, both together, between the steps.",
            low / 1e9,
            high / 1e9
        );
    }
    if let Some((low, high)) = opening_s(all) {
        let _ = writeln!(
            page,
            "- Opening a model and planning its step took ours {low:.1} to {high:.1} s."
        );
    }
    let beside: BTreeSet<&str> = all.iter().filter_map(|f| f.beside.as_deref()).collect();
    for what in beside {
        let _ = writeln!(
            page,
            "- Measured beside other work: {what}. Times are upper bounds."
        );
    }
    let _ = write!(
        page,
        "\nTimes are medians of {rounds} steps of processes that take turns, a step each, after steps that are not counted.\n\
         Made by `cargo study torch --write` on {setting}.\n"
    );
    page
}

#[cfg(test)]
mod tests {
    use super::super::figures::Limit;
    use super::*;

    fn row(who: Who, limit: Option<Limit>, end: End) -> Row {
        Row { who, limit, end }
    }

    fn ran(peak_mib: u64, step_ms: f64, plan: Option<Planned>) -> End {
        End::Ran(Ran {
            peak_bytes: peak_mib << 20,
            step_ms,
            plan,
        })
    }

    fn figures() -> Figures {
        let limit = |percent, mib: u64| {
            Some(Limit {
                percent,
                bytes: mib << 20,
            })
        };
        let plan = Planned {
            strategy: "cheap".into(),
            stored_bytes: 3 << 20,
            loaded_bytes: 4 << 20,
            recomputed_flops: 2_500_000_000,
            predicted_ms: 2000.0,
            opened_s: 1.5,
        };
        Figures {
            name: "net, 4".into(),
            version: "2".into(),
            rounds: 2,
            beside: None,
            drive: Some(7.0 * 1024.0 * 1024.0),
            rows: vec![
                row(Who::PyTorch, None, ran(400, 1000.0, None)),
                row(Who::PyTorch, limit(50.0, 200), End::Killed),
                row(Who::Ours, None, ran(200, 800.0, None)),
                row(Who::Ours, limit(12.5, 50), ran(49, 2500.0, Some(plan))),
                row(
                    Who::Ours,
                    limit(1.0, 4),
                    End::Refused {
                        smallest_bytes: 20 << 20,
                    },
                ),
            ],
        }
    }

    #[test]
    fn every_process_has_a_row_with_all_columns() {
        let table = table(&[figures()]);
        let columns: Vec<usize> = table.lines().map(|l| l.matches('|').count()).collect();
        assert_eq!(columns, vec![columns[0]; 7], "{table}");
        for row in [
            "| net, 4 | PyTorch | none | 400 | ran | 1.00 | – | **1.00** | – | – | – | – | – |",
            "|  | PyTorch | 200 (50 %) | – | killed | – | – | – | – | – | – | – | – |",
            "|  | ours | 50 (12.5 %) | 49 | ran | 2.50 | 2.00 | **2.50** | 2.50 | cheap | 3 | 4 | 2.5 |",
            "|  | ours | 4 (1 %) | – | refused, 20 MiB would do | – | – | – | – | – | – | – | – |",
        ] {
            assert!(table.contains(row), "{row} is not in {table}");
        }
    }

    #[test]
    fn a_page_says_what_else_the_machine_did() {
        let mut figures = figures();
        assert!(!page(std::slice::from_ref(&figures), "a machine").contains("other work"));
        figures.beside = Some("a build".into());
        let page = page(&[figures], "a machine");
        assert!(page.contains("other work: a build"), "{page}");
        assert!(page.contains("took ours 1.5 to 1.5 s"), "{page}");
    }
}
