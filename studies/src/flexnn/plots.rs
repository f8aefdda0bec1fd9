//! Which plots there are.

use super::results::{Curve, ModelResult, Point};
use super::svg::{self, Bars, Line, Mark, Panel, Scale, Series};
use super::{PAPER_STORAGE, results};

/// File names and contents.
pub fn all(results: &[ModelResult]) -> Vec<(String, String)> {
    let mut plots = vec![(
        "flexnn-curves.svg".into(),
        curves(results, None, "Latency by memory, storage as it is"),
    )];
    for (rate, device) in PAPER_STORAGE {
        if results.iter().any(|r| r.curve(Some(rate)).is_some()) {
            let megabytes = rate / 1_000_000;
            let title = format!("Latency by memory, storage at {megabytes} MB/s ({device})");
            plots.push((
                format!("flexnn-curves-{megabytes}.svg"),
                curves(results, Some(rate), &title),
            ));
        }
    }
    if results.iter().any(|r| !r.ablations.is_empty()) {
        plots.push(("flexnn-ablation.svg".into(), ablation(results)));
    }
    plots.push(("flexnn-predicted.svg".into(), predicted(results)));
    plots
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn curves(results: &[ModelResult], throttle: Option<u64>, title: &str) -> String {
    let panels: Vec<Panel> = results
        .iter()
        .filter_map(|result| {
            Some(Panel {
                title: result.model.clone(),
                x_label: "memory of the whole process, MiB",
                y_label: "latency, ms",
                x: Scale::Log,
                y: Scale::Linear,
                series: series(result, result.curve(throttle)?),
            })
        })
        .collect();
    svg::figure(title, &panels, 3)
}

fn series(result: &ModelResult, curve: &Curve) -> Vec<Series> {
    let line = |name: &str, color, line, mark, points| Series {
        name: name.into(),
        color,
        line,
        mark,
        points,
    };
    let measured = |points: &[Point]| -> Vec<(f64, f64)> {
        points
            .iter()
            .map(|p| (mib(p.memory_bytes()), p.latency_ms))
            .collect()
    };
    let mut all = Vec::new();
    if let Some(free_ms) = curve.free_ms() {
        let bound = curve.points.iter();
        let bound = bound.map(|p| (mib(p.memory_bytes()), p.bound_ms(free_ms)));
        all.push(line(
            "bound",
            svg::GREY,
            Line::Dotted,
            Mark::None,
            bound.collect(),
        ));
    }
    let dashed = measured(&curve.ondemand);
    all.push(line(
        "on demand",
        svg::ORANGE,
        Line::Dashed,
        Mark::Square,
        dashed,
    ));
    all.push(line(
        "neap",
        svg::BLUE,
        Line::Solid,
        Mark::Circle,
        measured(&curve.points),
    ));
    if let Some(resident) = &curve.resident {
        let point = vec![(mib(resident.peak_bytes), resident.latency_ms)];
        all.push(line("resident", svg::BLUE, Line::None, Mark::Cross, point));
    }
    for peer in &result.peers {
        let (color, mark) = match peer.engine.as_str() {
            "onnxruntime" => (svg::RED, Mark::Diamond),
            "openvino" => (svg::PURPLE, Mark::Triangle),
            _ => (svg::GREEN, Mark::Square),
        };
        if let Ok(f) = &peer.outcome {
            let point = vec![(mib(f.peak_bytes), f.latency_ms)];
            all.push(line(&peer.engine, color, Line::None, mark, point));
        }
    }
    all
}

fn ablation(results: &[ModelResult]) -> String {
    let panels: Vec<Bars> = results
        .iter()
        .filter(|r| !r.ablations.is_empty())
        .map(|result| {
            let of = |a: &results::Ablation| -> Vec<Option<f64>> {
                let ratio = |ms: f64| ms / a.full_ms;
                a.variants
                    .iter()
                    .map(|v| v.latency_ms.as_ref().ok().copied().map(ratio))
                    .collect()
            };
            let budgets = result
                .ablations
                .iter()
                .map(|a| format!("{:.0}", mib(a.budget_bytes)));
            let budgets: Vec<String> = budgets.collect();
            let names = ["smaller budget", "larger budget"];
            let colors = [svg::BLUE, svg::ORANGE];
            Bars {
                title: format!("{}, {} MiB", result.model, budgets.join(" and ")),
                x_label: "latency, multiple of the whole engine's",
                categories: result.ablations[0]
                    .variants
                    .iter()
                    .map(|v| format!("w/o {}", v.without))
                    .collect(),
                series: (result.ablations.iter().zip(names).zip(colors))
                    .map(|((a, name), color)| (name.to_string(), color, of(a)))
                    .collect(),
            }
        })
        .collect();
    svg::bars(
        "What each part is worth: latency without it, same budget",
        &panels,
        3,
    )
}

/// All points of all curves.
fn predicted(results: &[ModelResult]) -> String {
    let mut series = Vec::new();
    let (mut low_ms, mut high_ms) = (f64::MAX, f64::MIN);
    let kinds = [
        (None, "storage as it is", svg::BLUE, Mark::Circle),
        (
            Some(PAPER_STORAGE[1].0),
            "718 MB/s",
            svg::GREEN,
            Mark::Square,
        ),
        (
            Some(PAPER_STORAGE[0].0),
            "257 MB/s",
            svg::ORANGE,
            Mark::Diamond,
        ),
    ];
    for (throttle, name, color, mark) in kinds {
        let curves = results.iter().filter_map(|r| r.curve(throttle));
        let points = curves.flat_map(|c| &c.points);
        let points: Vec<(f64, f64)> = points
            .map(|p| (p.latency_ms, p.predicted_ms / p.latency_ms))
            .collect();
        for &(ms, _) in &points {
            (low_ms, high_ms) = (low_ms.min(ms), high_ms.max(ms));
        }
        if !points.is_empty() {
            series.push(Series {
                name: name.into(),
                color,
                line: Line::None,
                mark,
                points,
            });
        }
    }
    let level = |ratio: f64, name: &str, line| Series {
        name: name.into(),
        color: svg::GREY,
        line,
        mark: Mark::None,
        points: vec![(low_ms, ratio), (high_ms, ratio)],
    };
    if low_ms <= high_ms {
        series.push(level(1.0, "equal", Line::Solid));
        series.push(level(1.05, "5 % apart", Line::Dotted));
        series.push(level(0.95, "5 % apart", Line::Dotted));
    }
    let panel = Panel {
        title: "all models, budgets and storages".into(),
        x_label: "measured latency, ms",
        y_label: "predicted ÷ measured",
        x: Scale::Log,
        y: Scale::Linear,
        series,
    };
    svg::figure("Predicted and measured latency", &[panel], 1)
}
