//! A page with a training's curves, in one file that needs nothing else.

use crate::error::{Result, unwritable};
use crate::history::{Epoch, History};
use crate::whole;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 260.0;
/// Around the curves, for axes' figures.
const LEFT: f64 = 56.0;
const BELOW: f64 = 28.0;
const MARGIN: f64 = 12.0;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:46rem;padding:0 1rem;color:#1b1f24;background:#fff}
svg{width:100%;height:auto}text{font-size:12px;fill:#57606a}
.grid{stroke:#d8dee4}.train{stroke:#0969da;fill:none;stroke-width:1.5}.validation{stroke:#cf222e;fill:none;stroke-width:2}
circle.validation{fill:#cf222e}
table{border-collapse:collapse;width:100%}td,th{text-align:right;padding:.2rem .6rem;border-bottom:1px solid #d8dee4}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}text{fill:#8d96a0}.grid{stroke:#30363d}
.train{stroke:#58a6ff}.validation{stroke:#ff7b72}circle.validation{fill:#ff7b72}td,th{border-color:#30363d}}";

/// Writes the page. `facts` are shown above the curves.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    path: &Path,
    title: &str,
    facts: &[(String, String)],
    history: &History,
) -> Result<()> {
    let text = page(title, facts, history);
    whole::write(path, |partial| {
        fs::write(partial, text).map_err(|e| unwritable(path, &e))
    })
}

fn page(title: &str, facts: &[(String, String)], history: &History) -> String {
    let mut out = String::new();
    let title = escaped(title);
    // Writing to a string cannot fail, here and below.
    let _ = write!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>{title}</title><style>{STYLE}</style>\n<h1>{title}</h1>\n<p>"
    );
    for (index, (name, value)) in facts.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        let _ = write!(out, "{comma}{} <b>{}</b>", escaped(name), escaped(value));
    }
    out.push_str("</p>\n");
    let epochs = &history.epochs;
    let train = history.points.iter();
    let loss = Chart {
        title: "Loss",
        train: train
            .clone()
            .map(|p| (p.step as f64, p.loss.into()))
            .collect(),
        validation: validation(epochs, |e| e.validation_loss),
        is_share: false,
    };
    let accuracy = Chart {
        title: "Accuracy",
        train: train
            .filter_map(|p| Some((p.step as f64, p.accuracy?.into())))
            .collect(),
        validation: validation(epochs, |e| e.validation_accuracy),
        is_share: true,
    };
    for chart in [loss, accuracy] {
        chart.draw(&mut out);
    }
    table(&mut out, epochs);
    out.push_str("</html>\n");
    out
}

fn validation(epochs: &[Epoch], of: impl Fn(&Epoch) -> Option<f32>) -> Vec<(f64, f64)> {
    let points = epochs.iter();
    points
        .filter_map(|e| Some((e.step as f64, of(e)?.into())))
        .collect()
}

struct Chart {
    title: &'static str,
    train: Vec<(f64, f64)>,
    validation: Vec<(f64, f64)>,
    /// From 0 to 1, shown in per cent.
    is_share: bool,
}

impl Chart {
    fn draw(&self, out: &mut String) {
        let all = || self.train.iter().chain(&self.validation);
        let Some(last) = all().map(|p| p.0).reduce(f64::max) else {
            return;
        };
        let most = all().map(|p| p.1).fold(0.0, f64::max);
        let top = if self.is_share { 1.0 } else { round_up(most) };
        let x = |step: f64| LEFT + step / last.max(1.0) * (WIDTH - LEFT - MARGIN);
        let y = |value: f64| MARGIN + (1.0 - value / top) * (HEIGHT - MARGIN - BELOW);
        let _ = write!(
            out,
            "<h2>{}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">",
            self.title, self.title
        );
        for part in 0..=4 {
            let value = top * f64::from(part) / 4.0;
            let shown = match self.is_share {
                true => format!("{:.0} %", 100.0 * value),
                false => format!("{value:.3}"),
            };
            let (line, right) = (y(value), WIDTH - MARGIN);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{line:.1}\" y2=\"{line:.1}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{shown}</text>",
                LEFT - 6.0,
                line + 4.0
            );
        }
        for part in 0..=4 {
            let step = (last * f64::from(part) / 4.0).round();
            let anchor = if part == 4 { "end" } else { "middle" };
            let _ = write!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{step}</text>",
                x(step),
                HEIGHT - 8.0
            );
        }
        for (class, points) in [("train", &self.train), ("validation", &self.validation)] {
            let _ = write!(out, "<polyline class=\"{class}\" points=\"");
            for &(step, value) in points {
                let _ = write!(out, "{:.1},{:.1} ", x(step), y(value));
            }
            out.push_str("\"/>");
        }
        for &(step, value) in &self.validation {
            let (x, y) = (x(step), y(value));
            let _ = write!(
                out,
                "<circle class=\"validation\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>"
            );
        }
        out.push_str("</svg>\n");
    }
}

/// 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    if !value.is_finite() || value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .find(|s| s * power >= value);
    step.unwrap_or(10.0) * power
}

fn table(out: &mut String, epochs: &[Epoch]) {
    if epochs.is_empty() {
        return;
    }
    out.push_str(
        "<table><tr><th>epoch<th>step<th>loss, training<th>accuracy<th>loss, validation<th>accuracy</tr>\n",
    );
    let share = |v: Option<f32>| v.map_or("–".into(), |v| format!("{:.2} %", 100.0 * v));
    let number = |v: Option<f32>| v.map_or("–".into(), |v| format!("{v:.4}"));
    for e in epochs {
        let _ = writeln!(
            out,
            "<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            e.epoch,
            e.step,
            number(Some(e.train_loss)),
            share(e.train_accuracy),
            number(e.validation_loss),
            share(e.validation_accuracy)
        );
    }
    out.push_str("</table>\n<p><span style=\"color:#0969da\">blue</span>: training, <span style=\"color:#cf222e\">red</span>: validation</p>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Point;

    #[test]
    fn a_page_has_both_curves_and_every_epoch() {
        let mut history = History::default();
        for step in 1..=20 {
            history.add(Point {
                step,
                loss: 2.0 / step as f32,
                accuracy: Some(step as f32 / 20.0),
            });
        }
        history.epochs.push(Epoch {
            epoch: 1,
            step: 20,
            train_loss: 0.5,
            train_accuracy: Some(0.5),
            validation_loss: Some(0.25),
            validation_accuracy: Some(0.75),
        });
        let facts = [("model".to_string(), "<a&b>".to_string())];
        let page = page("t", &facts, &history);
        assert_eq!(page.matches("<svg").count(), 2);
        assert_eq!(page.matches("<circle").count(), 2);
        assert!(
            page.contains("&lt;a&amp;b>") && page.contains("75.00 %") && page.contains("0.2500")
        );
        assert!(!page.contains("NaN") && !page.contains("http"));
    }

    #[test]
    fn axes_end_at_round_numbers() {
        for (value, expected) in [(0.0, 1.0), (0.3, 0.5), (1.0, 1.0), (2.3, 5.0), (17.0, 20.0)] {
            assert_eq!(round_up(value), expected);
        }
    }
}
