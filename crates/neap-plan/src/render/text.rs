//! A plan as text: a summary, the memory map (address × computes), and the lanes if a timeline is given.

use super::rects::{Kind, Rect, rects};
use crate::{ExecutionPlan, LaneKind, Timeline, Workload};

const COLUMNS: usize = 96;
const ROWS: usize = 24;

/// `1.5 MiB`, `12 KiB`, `7 B`.
pub fn bytes_text(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match value {
        _ if unit == 0 => format!("{bytes} B"),
        v if v >= 100.0 => format!("{v:.0} {}", UNITS[unit]),
        v => format!("{v:.1} {}", UNITS[unit]),
    }
}

/// `12.3 ms`, `450 µs`, `80 ns`.
pub fn ns_text(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{:.0} µs", ns as f64 / 1e3),
        1_000_000..10_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.2} s", ns as f64 / 1e9),
    }
}

/// Renders a valid plan; the timeline's last run gives the lanes.
pub fn text(workload: &Workload, plan: &ExecutionPlan, timeline: Option<&Timeline>) -> String {
    let rects = rects(workload, plan);
    let mut out = String::new();
    let mut line = |text: &str| {
        out.push_str(text);
        out.push('\n');
    };
    let loaded = plan.loaded_bytes_per_run();
    line(&format!("strategy    {}", plan.strategy));
    line(&format!("memory      {}", bytes_text(plan.memory_bytes())));
    line(&format!(
        "weights     {}",
        bytes_text(workload.weight_bytes())
    ));
    line(&format!(
        "  resident  {} in {} reads",
        bytes_text(plan.resident_bytes()),
        plan.resident.len()
    ));
    if !plan.prepared.is_empty() {
        line(&format!(
            "  prepared  {} for {} steps",
            bytes_text(plan.prepared_bytes(workload)),
            plan.prepared.len()
        ));
    }
    line(&format!(
        "  streamed  {} per run in {} loads",
        bytes_text(loaded),
        plan.loads.len()
    ));
    if !plan.stores.is_empty() {
        line(&format!(
            "activations {} per run to the spill file in {} stores, back in {} loads",
            bytes_text(plan.stored_bytes_per_run()),
            plan.stores.len(),
            plan.returns.len()
        ));
    }
    line(&format!(
        "steps       {} in {} computes",
        workload.steps.len(),
        plan.computes.len()
    ));
    if let Some(run) = timeline.and_then(Timeline::last_run) {
        line(&format!(
            "latency     {} (stalls {})",
            ns_text(run.latency_ns()),
            ns_text(run.stall_ns)
        ));
    }
    line("");
    line(
        "memory: █ activations  ▓ workspace  ▒ weights in use  ░ loading or waiting  ≡ resident  · free",
    );
    map(plan, &rects, &mut line);
    if let Some(timeline) = timeline {
        line("");
        lanes(plan, timeline, &mut line);
    }
    out
}

/// Rows of addresses, highest first; each cell shows what takes most of it.
fn map(plan: &ExecutionPlan, rects: &[Rect], line: &mut impl FnMut(&str)) {
    let n = plan.computes.len().max(1);
    let columns = n.min(COLUMNS);
    let row_bytes = plan.memory_bytes().div_ceil(ROWS as u64).max(1);
    // A column shows the middle one of its computes.
    let shown: Vec<i64> = (0..columns)
        .map(|c| ((2 * c + 1) * n / (2 * columns)) as i64)
        .collect();
    const MARKS: [char; 5] = ['█', '▓', '▒', '░', '≡'];
    let mut cells = vec![[0u64; MARKS.len()]; columns * ROWS];
    for r in rects {
        for (column, &at) in shown.iter().enumerate() {
            // A load that starts in the run before is also there in the tail of this one.
            let now = [at, at - n as i64]
                .into_iter()
                .find(|t| (r.begin..r.end).contains(t));
            let Some(now) = now else { continue };
            let mark = match r.kind {
                Kind::Buffer if now < r.used_from => 3,
                Kind::Buffer => 0,
                Kind::Workspace => 1,
                Kind::Load if now >= r.used_from => 2,
                Kind::Load => 3,
                Kind::Resident | Kind::Prepared => 4,
            };
            let rows = r.arena.begin / row_bytes..r.arena.end.div_ceil(row_bytes);
            for row in rows.filter(|&row| row < ROWS as u64) {
                let begin = r.arena.begin.max(row * row_bytes);
                let end = r.arena.end.min((row + 1) * row_bytes);
                cells[row as usize * columns + column][mark] += end.saturating_sub(begin);
            }
        }
    }
    for row in (0..ROWS).rev() {
        let mut text = format!("{:>10} │", bytes_text(row as u64 * row_bytes));
        for column in 0..columns {
            let cell = &cells[row * columns + column];
            let most = (0..MARKS.len()).max_by_key(|&m| cell[m]).unwrap_or(0);
            let used: u64 = cell.iter().sum();
            text.push(if 2 * used >= row_bytes {
                MARKS[most]
            } else if used > 0 {
                '.'
            } else {
                '·'
            });
        }
        line(&text);
    }
    line(&format!("{:>10} └{}", "", "─".repeat(columns)));
}

/// A bar for each lane over the time of the last run: where it was busy.
fn lanes(plan: &ExecutionPlan, timeline: &Timeline, line: &mut impl FnMut(&str)) {
    let Some(run) = timeline.last_run() else {
        return;
    };
    let latency = run.latency_ns();
    for (lane, what) in plan.lanes.iter() {
        if what.kind == LaneKind::Store && !timeline.spans.iter().any(|s| s.lane == lane) {
            continue;
        }
        let mut busy = [0f64; COLUMNS];
        for (begin, end) in super::rects::busy(timeline, lane, |_| true) {
            let at = |ns: u64| ns as f64 * COLUMNS as f64 / latency.max(1) as f64;
            let (from, to) = (at(begin), at(end));
            for column in from as usize..(to.ceil() as usize).min(COLUMNS) {
                busy[column] += (to.min(column as f64 + 1.0) - from.max(column as f64)).max(0.0);
            }
        }
        let bar = busy.map(|share| match share {
            ..0.05 => ' ',
            ..0.35 => '░',
            ..0.65 => '▒',
            ..0.90 => '▓',
            _ => '█',
        });
        let name = &what.name;
        line(&format!("{name:>10} │{}│", bar.iter().collect::<String>()));
    }
    line(&format!(
        "{:>10}  0{:>width$}",
        "",
        ns_text(latency),
        width = COLUMNS - 1
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let bytes: Vec<_> = [0, 1023, 1536, 250 << 20, 3 << 40].map(bytes_text).into();
        assert_eq!(bytes, ["0 B", "1023 B", "1.5 KiB", "250 MiB", "3.0 TiB"]);
        let times: Vec<_> = [80, 450_000, 12_345_678, 20_000_000_000]
            .map(ns_text)
            .into();
        assert_eq!(times, ["80 ns", "450 µs", "12.3 ms", "20.00 s"]);
    }
}
