//! Plots as SVG: pairs that should agree, over two logarithmic axes with the diagonal and a band around it; and lines.

use std::fmt::Write as _;

pub struct Dot<'a> {
    pub series: &'a str,
    pub x: f64,
    pub y: f64,
}

const SIZE: f64 = 520.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 20.0;
const COLOURS: [&str; 8] = [
    "#1b6ca8", "#c8553d", "#3a7d44", "#8e5ea2", "#b8860b", "#2a9d8f", "#555555", "#d1495b",
];

/// Measured along x, predicted along y, in milliseconds; `band` is a share, such as 0.05.
pub fn agreement(dots: &[Dot], band: f64) -> String {
    let values = dots.iter().flat_map(|d| [d.x, d.y]);
    let (low, high) = values
        .filter(|v| *v > 0.0)
        .fold((f64::MAX, 0.0f64), |(l, h), v| (l.min(v), h.max(v)));
    let (low, high) = match low < f64::MAX {
        true => (low / 1.3, high * 1.3),
        false => (1.0, 10.0),
    };
    let at = |v: f64| (v.max(low) / low).ln() / (high / low).ln() * SIZE;
    let (x, y) = (|v: f64| LEFT + at(v), |v: f64| TOP + SIZE - at(v));
    let (width, height) = (LEFT + SIZE + 150.0, TOP + SIZE + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let mut put = |text: String| {
        let _ = writeln!(svg, "{text}");
    };
    let corner = |v: f64, share: f64| format!("{:.1},{:.1}", x(v), y((v * share).min(high)));
    let (above, below) = (1.0 + band, 1.0 - band);
    put(format!(
        "<polygon points=\"{} {} {} {}\" fill=\"#e6eef5\"/>",
        corner(low, above),
        corner(high, above),
        corner(high, below),
        corner(low, below)
    ));
    for tick in ticks(low, high) {
        put(format!(
            "<path d=\"M{:.1} {TOP}V{:.1}M{LEFT} {:.1}H{:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{tick}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            x(tick),
            TOP + SIZE,
            y(tick),
            LEFT + SIZE,
            x(tick),
            TOP + SIZE + 16.0,
            LEFT - 6.0,
            y(tick) + 4.0
        ));
    }
    put(format!(
        "<path d=\"M{LEFT} {:.1}L{:.1} {TOP}\" stroke=\"#888888\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">measured, ms</text>\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">predicted, ms</text>",
        TOP + SIZE,
        LEFT + SIZE,
        LEFT + SIZE / 2.0,
        TOP + SIZE + 38.0,
        TOP + SIZE / 2.0
    ));
    let mut names: Vec<&str> = Vec::new();
    for dot in dots {
        let index = names.iter().position(|n| *n == dot.series);
        let index = index.unwrap_or_else(|| {
            names.push(dot.series);
            names.len() - 1
        });
        put(format!(
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"{}\" fill-opacity=\"0.8\"/>",
            x(dot.x),
            y(dot.y),
            COLOURS[index % COLOURS.len()]
        ));
    }
    for (index, name) in names.iter().enumerate() {
        let top = TOP + 12.0 + 20.0 * index as f64;
        put(format!(
            "<circle cx=\"{:.1}\" cy=\"{top:.1}\" r=\"4\" fill=\"{}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{name}</text>",
            LEFT + SIZE + 16.0,
            COLOURS[index % COLOURS.len()],
            LEFT + SIZE + 26.0,
            top + 4.0
        ));
    }
    svg + "</svg>\n"
}

/// 1, 2 and 5 times powers of ten.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
    powers
        .flat_map(|p| [1.0, 2.0, 5.0].map(|m| m * 10f64.powi(p)))
        .filter(|t| (low..=high).contains(t))
        .collect()
}

/// A series of points that are joined.
pub struct Line<'a> {
    pub name: &'a str,
    pub points: Vec<(f64, f64)>,
}

/// Lines over two linear axes; that of y begins at 0.
pub fn lines(x_label: &str, y_label: &str, lines: &[Line]) -> String {
    let all = || lines.iter().flat_map(|l| &l.points);
    let low = all().map(|p| p.0).fold(f64::MAX, f64::min);
    let high = all().map(|p| p.0).fold(low + 1e-9, f64::max);
    let top = all().map(|p| p.1).fold(1e-9, f64::max);
    let (wide, tall) = (SIZE * 1.3, SIZE * 0.7);
    let x = |v: f64| LEFT + (v - low) / (high - low) * wide;
    let y = |v: f64| TOP + tall - v / top * tall;
    let (width, height) = (LEFT + wide + 150.0, TOP + tall + 50.0);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    // Writing to a string cannot fail.
    let mut put = |text: String| {
        let _ = writeln!(svg, "{text}");
    };
    for i in 0..=5 {
        let (at_x, at_y) = (
            low + (high - low) * f64::from(i) / 5.0,
            top * f64::from(i) / 5.0,
        );
        put(format!(
            "<path d=\"M{LEFT} {:.1}H{:.1}\" stroke=\"#dddddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{at_y:.0}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{at_x:.1}</text>",
            y(at_y),
            LEFT + wide,
            LEFT - 6.0,
            y(at_y) + 4.0,
            x(at_x),
            TOP + tall + 16.0
        ));
    }
    put(format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{x_label}</text>\
         <text transform=\"translate(16 {:.1}) rotate(-90)\" text-anchor=\"middle\">{y_label}</text>",
        LEFT + wide / 2.0,
        TOP + tall + 38.0,
        TOP + tall / 2.0
    ));
    for (index, line) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let path: Vec<String> = (line.points.iter())
            .map(|&(a, b)| format!("{:.1},{:.1}", x(a), y(b)))
            .collect();
        put(format!(
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        ));
        let at = TOP + 12.0 + 20.0 * index as f64;
        put(format!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"12\" height=\"3\" fill=\"{colour}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            LEFT + wide + 12.0,
            at - 2.0,
            LEFT + wide + 30.0,
            at + 4.0,
            line.name
        ));
    }
    svg + "</svg>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dot_on_the_diagonal_is_drawn_on_it() {
        let dot = |x, y| Dot { series: "m", x, y };
        let svg = agreement(&[dot(1.0, 1.0), dot(100.0, 100.0)], 0.05);
        // Both coordinates are as far from the corner.
        let circle = svg.lines().find(|l| l.starts_with("<circle")).unwrap();
        let number = |key: &str| -> f64 {
            let rest = circle.split(key).nth(1).unwrap();
            rest.split('"').next().unwrap().parse().unwrap()
        };
        let (cx, cy) = (number("cx=\""), number("cy=\""));
        assert!((cx - LEFT - (TOP + SIZE - cy)).abs() < 0.2, "{cx} {cy}");
        assert!(svg.ends_with("</svg>\n"));
        assert!(agreement(&[], 0.05).contains("svg"));
    }

    #[test]
    fn lines_go_from_corner_to_corner() {
        let points = vec![(4.0, 100.0), (13.0, 0.0)];
        let svg = lines("n", "sets", &[Line { name: "m", points }]);
        let line = svg.lines().find(|l| l.starts_with("<polyline")).unwrap();
        let end = format!(
            "{LEFT:.1},{TOP:.1} {:.1},{:.1}",
            LEFT + SIZE * 1.3,
            TOP + SIZE * 0.7
        );
        assert!(line.contains(&end), "{line}");
        assert!(lines("n", "sets", &[]).ends_with("</svg>\n"));
    }

    #[test]
    fn ticks_lie_in_the_range() {
        assert_eq!(ticks(0.9, 30.0), [1.0, 2.0, 5.0, 10.0, 20.0]);
    }
}
