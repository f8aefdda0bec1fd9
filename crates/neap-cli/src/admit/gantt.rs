//! What happens when all tasks begin at once and take their longest times: a picture, and events for Perfetto.

use super::file::Tasks;
use super::judge::Judged;
use neap_realtime::simulate::{Choices, Doing, Span, simulate_with_spans};
use serde_json::{Value, json};
use std::fmt::Write as _;

const MOST_SPANS: usize = 2000;
const LEFT: f64 = 160.0;
const WIDTH: f64 = 1000.0;
const ROW: f64 = 34.0;
const TOP: f64 = 30.0;

/// Two of the longest periods.
fn played(judged: &Judged) -> (u64, Vec<Span>) {
    let longest = judged.work.iter().map(|w| w.period_ns).max().unwrap_or(1);
    let until_ns = 2 * longest;
    if judged.scene.actors.is_empty() {
        return (until_ns, Vec::new());
    }
    let choices = Choices::synchronous(&judged.scene, until_ns);
    let (_, spans) = simulate_with_spans(&judged.scene, &choices, MOST_SPANS);
    (until_ns, spans)
}

fn name(doing: Doing) -> &'static str {
    match doing {
        Doing::Execute => "execute",
        Doing::SwapIn => "swap in",
        Doing::SwapOut => "swap out",
    }
}

/// A row for each task: bars for what is done, ticks for releases (up) and deadlines (down).
pub fn svg(tasks: &Tasks, judged: &Judged) -> String {
    let (until_ns, spans) = played(judged);
    let x = |ns: u64| LEFT + ns.min(until_ns) as f64 / until_ns as f64 * WIDTH;
    let bottom = TOP + ROW * tasks.tasks.len() as f64;
    let (width, height) = (LEFT + WIDTH + 20.0, bottom + 60.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let mut put = |text: String| {
        let _ = writeln!(svg, "{text}");
    };
    for (index, task) in tasks.tasks.iter().enumerate() {
        let base = TOP + ROW * (index + 1) as f64 - 8.0;
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <path d=\"M{LEFT} {base:.1}H{:.1}\" stroke=\"#888888\"/>",
            LEFT - 8.0,
            base - 4.0,
            escaped(&task.name),
            LEFT + WIDTH
        ));
        for job in 0..(until_ns / task.period_ns).min(500) {
            let release = job * task.period_ns;
            put(format!(
                "<path d=\"M{:.1} {base:.1}v-24\" stroke=\"#3a7d44\"/>",
                x(release)
            ));
            if release + task.deadline_ns <= until_ns {
                put(format!(
                    "<path d=\"M{:.1} {base:.1}v6\" stroke=\"#c8553d\" stroke-width=\"2\"/>",
                    x(release + task.deadline_ns)
                ));
            }
        }
    }
    for span in spans.iter().filter(|s| s.start_ns < until_ns) {
        let base = TOP + ROW * (span.task + 1) as f64 - 8.0;
        let (colour, tall) = match span.doing {
            Doing::Execute => ("#1b6ca8", 18.0),
            Doing::SwapIn => ("#b8860b", 10.0),
            Doing::SwapOut => ("#bbbbbb", 10.0),
        };
        put(format!(
            "<rect x=\"{:.2}\" y=\"{:.1}\" width=\"{:.2}\" height=\"{tall}\" fill=\"{colour}\">\
             <title>{}: {:.3} to {:.3} ms</title></rect>",
            x(span.start_ns),
            base - tall,
            (x(span.end_ns) - x(span.start_ns)).max(0.3),
            name(span.doing),
            span.start_ns as f64 / 1e6,
            span.end_ns as f64 / 1e6
        ));
    }
    for i in 0..=10u64 {
        let ns = until_ns / 10 * i;
        put(format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{:.1}</text>",
            x(ns),
            bottom + 16.0,
            ns as f64 / 1e6
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">ms; blue executes, yellow is fetched, grey leaves; \
         green up: release, red down: deadline</text>",
        LEFT + WIDTH / 2.0,
        bottom + 40.0
    ));
    svg + "</svg>\n"
}

/// Complete events, a thread for each task.
pub fn trace(tasks: &Tasks, judged: &Judged) -> Value {
    let (_, spans) = played(judged);
    let names = tasks.tasks.iter().enumerate().map(|(task, t)| {
        json!({"ph": "M", "pid": 1, "tid": task, "name": "thread_name", "args": {"name": t.name}})
    });
    let events = spans.iter().map(|span| {
        json!({
            "ph": "X",
            "pid": 1,
            "tid": span.task,
            "name": name(span.doing),
            "ts": span.start_ns as f64 / 1e3,
            "dur": (span.end_ns - span.start_ns) as f64 / 1e3,
        })
    });
    json!({"displayTimeUnit": "ms", "traceEvents": names.chain(events).collect::<Vec<Value>>()})
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    text.replace('>', "&gt;")
}
