//! Small plots as SVG: panels of lines or horizontal bars, on a light ground, with one legend.
//!
//! ```text
//!   title
//!   ── a   ·· b   ● c            legend
//!   ┌ panel ────┐ ┌ panel ────┐
//!   │ y         │ │           │
//!   └───────── x┘ └───────────┘
//! ```

use std::fmt::Write as _;

pub const BLUE: &str = "#1f6fb4";
pub const RED: &str = "#c8382e";
pub const GREEN: &str = "#2e8b4f";
pub const ORANGE: &str = "#d97f0e";
pub const PURPLE: &str = "#7a4fa3";
pub const GREY: &str = "#777777";

const PANEL_WIDTH: f64 = 380.0;
const PANEL_HEIGHT: f64 = 270.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 44.0;
const HEADER: f64 = 66.0;

#[derive(Clone, Copy, PartialEq)]
pub enum Line {
    None,
    Solid,
    Dashed,
    Dotted,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Mark {
    None,
    Circle,
    Square,
    Diamond,
    Triangle,
    Cross,
}

pub struct Series {
    pub name: String,
    pub color: &'static str,
    pub line: Line,
    pub mark: Mark,
    pub points: Vec<(f64, f64)>,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Scale {
    /// From zero.
    Linear,
    Log,
}

pub struct Panel {
    pub title: String,
    pub x_label: &'static str,
    pub y_label: &'static str,
    pub x: Scale,
    pub y: Scale,
    pub series: Vec<Series>,
}

/// Horizontal bars: for each category one bar per series; `None` is shown as a dash.
pub struct Bars {
    pub title: String,
    pub x_label: &'static str,
    pub categories: Vec<String>,
    /// Name, colour, values by category.
    pub series: Vec<(String, &'static str, Vec<Option<f64>>)>,
}

struct Page {
    text: String,
    columns: usize,
    next: usize,
    width: f64,
    height: f64,
}

impl Page {
    fn new(title: &str, panels: usize, columns: usize, legend: &[&Series]) -> Page {
        let columns = columns.min(panels).max(1);
        let width = (columns as f64 * PANEL_WIDTH).max(2.0 * PANEL_WIDTH);
        let height = HEADER + panels.div_ceil(columns) as f64 * PANEL_HEIGHT + 6.0;
        let mut page = Page {
            text: String::new(),
            columns,
            next: 0,
            width,
            height,
        };
        page.label(14.0, 22.0, "start", 15, "#111", title);
        let mut x = 14.0;
        for series in legend {
            page.line_style(&[(x, 45.0), (x + 26.0, 45.0)], series);
            page.mark(x + 13.0, 45.0, series);
            page.label(x + 32.0, 49.0, "start", 12, "#222", &series.name);
            x += 32.0 + 6.7 * series.name.chars().count() as f64 + 20.0;
        }
        page
    }

    fn finish(self) -> String {
        let Page {
            text,
            width,
            height,
            ..
        } = self;
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"Helvetica, Arial, sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{text}</svg>\n"
        )
    }

    /// The next panel's plotting area: left, top, right, bottom.
    fn area(&mut self, title: &str, left: f64) -> [f64; 4] {
        let (column, row) = (self.next % self.columns, self.next / self.columns);
        self.next += 1;
        let x = column as f64 * PANEL_WIDTH;
        let y = HEADER + row as f64 * PANEL_HEIGHT;
        let area = [
            x + left,
            y + TOP,
            x + PANEL_WIDTH - RIGHT,
            y + PANEL_HEIGHT - BOTTOM,
        ];
        self.label(
            (area[0] + area[2]) / 2.0,
            y + TOP - 9.0,
            "middle",
            13,
            "#111",
            title,
        );
        let (width, height) = (area[2] - area[0], area[3] - area[1]);
        self.put(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"#fbfbfb\" stroke=\"#999\"/>",
            area[0], area[1]
        ));
        area
    }

    fn put(&mut self, what: std::fmt::Arguments) {
        let _ = writeln!(self.text, "{what}");
    }

    fn label(&mut self, x: f64, y: f64, anchor: &str, size: u32, color: &str, text: &str) {
        let text = escape(text);
        self.put(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\" fill=\"{color}\">{text}</text>"
        ));
    }

    fn rule(&mut self, from: (f64, f64), to: (f64, f64), color: &str) {
        self.put(format_args!(
            "<line x1=\"{:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"{color}\" stroke-width=\"1\"/>",
            from.0, from.1, to.0, to.1
        ));
    }

    fn line_style(&mut self, points: &[(f64, f64)], series: &Series) {
        let dash = match series.line {
            Line::None => return,
            Line::Solid => "",
            Line::Dashed => " stroke-dasharray=\"7 4\"",
            Line::Dotted => " stroke-dasharray=\"2 3\"",
        };
        let text: Vec<String> = points
            .iter()
            .map(|(x, y)| format!("{x:.1},{y:.1}"))
            .collect();
        self.put(format_args!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"{dash}/>",
            text.join(" "),
            series.color
        ));
    }

    fn mark(&mut self, x: f64, y: f64, series: &Series) {
        let color = series.color;
        let path = match series.mark {
            Mark::None => return,
            Mark::Circle => {
                self.put(format_args!(
                    "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.6\" fill=\"{color}\"/>"
                ));
                return;
            }
            Mark::Square => "m-3.5 -3.5h7v7h-7z",
            Mark::Diamond => "m0 -4.8l4.8 4.8l-4.8 4.8l-4.8 -4.8z",
            Mark::Triangle => "m0 -4.6l4.4 7.8h-8.8z",
            Mark::Cross => "m-4 -4l8 8m0 -8l-8 8",
        };
        let paint = match series.mark {
            Mark::Cross => format!("stroke=\"{color}\" stroke-width=\"2\" fill=\"none\""),
            _ => format!("fill=\"{color}\""),
        };
        self.put(format_args!("<path d=\"M{x:.1} {y:.1}{path}\" {paint}/>"));
    }
}

/// Panels of lines, so many beside each other.
pub fn figure(title: &str, panels: &[Panel], columns: usize) -> String {
    let mut legend: Vec<&Series> = Vec::new();
    for series in panels.iter().flat_map(|p| &p.series) {
        if !legend.iter().any(|s| s.name == series.name) {
            legend.push(series);
        }
    }
    let mut page = Page::new(title, panels.len(), columns, &legend);
    for panel in panels {
        draw(&mut page, panel);
    }
    page.finish()
}

fn draw(page: &mut Page, panel: &Panel) {
    let [left, top, right, bottom] = page.area(&panel.title, LEFT);
    let all = || panel.series.iter().flat_map(|s| s.points.iter());
    let x_axis = Axis::new(panel.x, all().map(|p| p.0));
    let y_axis = Axis::new(panel.y, all().map(|p| p.1));
    let at_x = |v: f64| left + x_axis.share(v) * (right - left);
    let at_y = |v: f64| bottom - y_axis.share(v) * (bottom - top);
    for tick in x_axis.ticks() {
        page.rule((at_x(tick), top), (at_x(tick), bottom), "#e4e4e4");
        page.label(
            at_x(tick),
            bottom + 15.0,
            "middle",
            11,
            "#333",
            &number(tick),
        );
    }
    for tick in y_axis.ticks() {
        page.rule((left, at_y(tick)), (right, at_y(tick)), "#e4e4e4");
        page.label(
            left - 5.0,
            at_y(tick) + 4.0,
            "end",
            11,
            "#333",
            &number(tick),
        );
    }
    page.label(
        (left + right) / 2.0,
        bottom + 33.0,
        "middle",
        12,
        "#222",
        panel.x_label,
    );
    let (x, y) = (left - 46.0, (top + bottom) / 2.0);
    page.put(format_args!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\" font-size=\"12\" fill=\"#222\" \
         transform=\"rotate(-90 {x:.1} {y:.1})\">{}</text>",
        escape(panel.y_label)
    ));
    for series in &panel.series {
        let points: Vec<(f64, f64)> = series
            .points
            .iter()
            .map(|p| (at_x(p.0), at_y(p.1)))
            .collect();
        page.line_style(&points, series);
        for &(x, y) in &points {
            page.mark(x, y, series);
        }
    }
}

/// Panels of horizontal bars.
pub fn bars(title: &str, panels: &[Bars], columns: usize) -> String {
    let mut names: Vec<Series> = Vec::new();
    for (name, color, _) in panels.iter().flat_map(|p| &p.series) {
        if !names.iter().any(|s| s.name == *name) {
            names.push(Series {
                name: name.clone(),
                color,
                line: Line::None,
                mark: Mark::Square,
                points: Vec::new(),
            });
        }
    }
    let legend: Vec<&Series> = names.iter().collect();
    let mut page = Page::new(title, panels.len(), columns, &legend);
    for panel in panels {
        let [left, top, right, bottom] = page.area(&panel.title, 112.0);
        let values = panel.series.iter().flat_map(|s| s.2.iter().flatten());
        let axis = Axis::new(Scale::Linear, values.copied());
        // Room for the figures behind the bars.
        let at = |v: f64| left + axis.share(v) * (right - left - 34.0);
        for tick in axis.ticks() {
            page.rule((at(tick), top), (at(tick), bottom), "#e4e4e4");
            page.label(at(tick), bottom + 15.0, "middle", 11, "#333", &number(tick));
        }
        page.label(
            (left + right) / 2.0,
            bottom + 33.0,
            "middle",
            12,
            "#222",
            panel.x_label,
        );
        let row = (bottom - top) / panel.categories.len().max(1) as f64;
        let thick = row * 0.8 / panel.series.len().max(1) as f64;
        for (c, category) in panel.categories.iter().enumerate() {
            let y = top + row * c as f64;
            page.label(left - 6.0, y + row / 2.0 + 4.0, "end", 11, "#222", category);
            for (s, (_, color, values)) in panel.series.iter().enumerate() {
                let y = y + row * 0.1 + thick * s as f64;
                let value = values.get(c).copied().flatten();
                let end = value.map_or(left, at);
                page.put(format_args!(
                    "<rect x=\"{left:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{color}\"/>",
                    end - left,
                    thick * 0.92
                ));
                let text = value.map_or("too small a budget".into(), |v| format!("{v:.2}"));
                page.label(end + 4.0, y + thick / 2.0 + 3.5, "start", 10, "#333", &text);
            }
        }
    }
    page.finish()
}

struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
}

impl Axis {
    fn new(scale: Scale, values: impl Iterator<Item = f64>) -> Axis {
        let values = values.filter(|v| v.is_finite() && (scale == Scale::Linear || *v > 0.0));
        let (low, high) = values.fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(v), h.max(v)));
        if low > high {
            return Axis {
                scale,
                low: 1.0,
                high: 10.0,
            };
        }
        match scale {
            Scale::Linear => Axis {
                scale,
                low: 0.0,
                high: (high * 1.08).max(1e-9),
            },
            Scale::Log => Axis {
                scale,
                low: low / 1.2,
                high: high * 1.2,
            },
        }
    }

    /// Where a value lies between the ends, 0 to 1.
    fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        }
    }

    fn ticks(&self) -> Vec<f64> {
        match self.scale {
            Scale::Linear => {
                let rough = (self.high - self.low) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power);
                let step = step.into_iter().find(|s| *s >= rough).unwrap_or(power);
                let count = (self.high / step).floor() as usize;
                (0..=count).map(|i| i as f64 * step).collect()
            }
            Scale::Log => {
                let first = self.low.log10().floor() as i32;
                let last = self.high.log10().ceil() as i32;
                let decades =
                    (first..=last).flat_map(|e| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(e)));
                decades
                    .filter(|t| (self.low..=self.high).contains(t))
                    .collect()
            }
        }
    }
}

/// A tick's label: no more digits than it needs.
fn number(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_lie_within_the_axis() {
        let axis = Axis::new(Scale::Log, [10.0, 640.0].into_iter());
        assert_eq!(axis.ticks(), [10.0, 20.0, 50.0, 100.0, 200.0, 500.0]);
        let axis = Axis::new(Scale::Linear, [3.0, 92.0].into_iter());
        assert_eq!(axis.ticks(), [0.0, 20.0, 40.0, 60.0, 80.0]);
        assert!(axis.share(0.0) == 0.0 && axis.share(92.0) < 1.0);
        // Nothing to show is no reason to fail.
        assert!(!Axis::new(Scale::Log, std::iter::empty()).ticks().is_empty());
    }

    #[test]
    fn labels_are_short_and_escaped() {
        assert_eq!([number(0.5), number(20.0), number(0.0)], ["0.5", "20", "0"]);
        assert_eq!(escape("a<b & c"), "a&lt;b &amp; c");
    }

    #[test]
    fn every_element_is_closed() {
        let series = Series {
            name: "a".into(),
            color: BLUE,
            line: Line::Dashed,
            mark: Mark::Cross,
            points: vec![(1.0, 2.0), (10.0, 1.0)],
        };
        let panel = Panel {
            title: "t".into(),
            x_label: "x",
            y_label: "y",
            x: Scale::Log,
            y: Scale::Linear,
            series: vec![series],
        };
        let text = figure("title", &[panel], 2);
        let open = text.matches("<text").count();
        assert_eq!(open, text.matches("</text>").count());
        assert!(text.starts_with("<svg") && text.ends_with("</svg>\n"));
        assert!(!text.contains("NaN") && !text.contains("inf"));
    }
}
