//! Figures of the README are those of the pages of figures. `NEAP_WRITE_README=1` writes them anew.

use std::fs;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- figures: begin -->\n";
const END: &str = "<!-- figures: end -->\n";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(name)
}

/// A row of a table in a page, by what its first cells say and a column that the table has.
struct Row {
    page: &'static str,
    cells: Vec<(String, String)>,
}

fn cells(line: &str) -> Vec<String> {
    let cells = line.trim().trim_matches('|').split('|');
    cells.map(|cell| cell.trim().replace("**", "")).collect()
}

/// The first row that begins so, of a table with this column.
fn row(page: &'static str, column: &str, first: &[&str]) -> Row {
    let text = fs::read_to_string(path(&format!("docs/{page}"))).unwrap();
    let mut header: Option<Vec<String>> = None;
    for line in text.lines() {
        if !line.starts_with('|') {
            header = None;
            continue;
        }
        let cells = cells(line);
        match &header {
            None => header = Some(cells),
            Some(names) => {
                let begins = first.iter().zip(&cells).all(|(a, b)| a == b);
                if begins && names.iter().any(|name| name == column) {
                    let cells = names.iter().cloned().zip(cells).collect();
                    return Row { page, cells };
                }
            }
        }
    }
    panic!("docs/{page} has no row {first:?} of a table with a column '{column}'")
}

impl Row {
    /// The cell of the column; of several that are called so, the one at `at`.
    fn cell(&self, column: &str, at: usize) -> &str {
        let cells = self.cells.iter().filter(|(name, _)| name == column);
        let cell = cells.map(|(_, cell)| cell.as_str()).nth(at);
        cell.unwrap_or_else(|| panic!("docs/{} has no column '{column}'", self.page))
    }

    fn number(&self, column: &str) -> f64 {
        let cell = self.cell(column, 0);
        let number = cell.split(' ').next().unwrap().parse();
        number.unwrap_or_else(|_| panic!("docs/{}, {column}: {cell}", self.page))
    }
}

/// Of `684, 792, 816, 257`.
fn part(list: &str, at: usize) -> &str {
    list.split(", ").nth(at).unwrap()
}

fn figures() -> String {
    let mut rows: Vec<[String; 4]> = Vec::new();
    let mut add = |what: &str, other: String, its: String, ours: String| {
        rows.push([what.into(), other, its, ours]);
    };
    for (name, title) in [
        ("resnet152", "ResNet-152"),
        ("yolov3", "YOLOv3"),
        ("gpt2", "GPT-2"),
    ] {
        let row = row("benchmarks.md", "no budget ms", &[name]);
        let n = |column| row.number(column);
        add(
            title,
            "[onnxruntime](docs/benchmarks.md)".into(),
            format!(
                "{:.0} MiB, {:.0} ms",
                n("onnxruntime peak MiB"),
                n("onnxruntime ms")
            ),
            format!("{:.0} MiB, {:.0} ms", n("peak MiB"), n("budget ms")),
        );
    }
    let peaks = "peaks MiB: onnxruntime, OpenVINO, ncnn, no budget";
    for (name, title, other, at) in [
        ("resnet152", "ResNet-152, no budget", "ncnn", 2),
        ("gpt2", "GPT-2, no budget", "OpenVINO", 1),
    ] {
        let row = row("flexnn.md", peaks, &[name]);
        let n = |column: &str| row.number(column);
        let peak = |at| part(row.cell(peaks, 0), at);
        add(
            title,
            format!("[{other}](docs/flexnn.md)"),
            format!("{} MiB, {:.0} ms", peak(at), n(&format!("{other} ms"))),
            format!("{} MiB, {:.0} ms", peak(3), n("no budget ms")),
        );
    }
    let model = "SmolLM2-135M-Instruct.Q4_1";
    let row_of_text = row("language-models.md", "tokens/s", &[model, "56 (60 %)"]);
    let n = |column: &str, at| row_of_text.cell(column, at);
    add(
        "SmolLM2-135M, within 56 MiB",
        "[llama.cpp](docs/language-models.md#how-fast)".into(),
        format!(
            "{} MiB, {} tokens/s",
            n("peak, MiB", 1),
            n("llama.cpp: tokens/s", 0)
        ),
        format!("{} MiB, {} tokens/s", n("peak, MiB", 0), n("tokens/s", 0)),
    );
    let page = "training-torch.md";
    let theirs = row(page, "hard limit MiB", &["resnet50, 16", "PyTorch", "none"]);
    let ours = row(page, "hard limit MiB", &["", "ours", "330 (12.5 %)"]);
    let step = |row: &Row| {
        let (peak, seconds) = (row.number("peak MiB"), row.number("s a step"));
        format!("{peak:.0} MiB, {seconds:.1} s")
    };
    add(
        "a step of training ResNet-50",
        format!("[PyTorch](docs/{page})"),
        step(&theirs),
        step(&ours),
    );
    let mut text = "| | beside | the other one | Neaptide |\n|---|---|---|---|\n".to_string();
    for [what, other, its, ours] in rows {
        text += &format!("| {what} | {other} | {its} | {ours} |\n");
    }
    let smallest = |name: &str| {
        let row = row("flexnn.md", "budget MiB", &[name]);
        row.number("budget MiB").ceil()
    };
    let [resnet, vgg, gpt] = ["resnet152", "vgg19", "gpt2"].map(smallest);
    text += &format!(
        "\nResNet-152 (240 MB of weights) runs in {resnet} MiB, VGG-19 (575 MB) in {vgg} MiB, GPT-2 (500 MB) in {gpt} MiB.\n"
    );
    text
}

#[test]
fn figures_are_those_of_the_pages() {
    let readme = fs::read_to_string(path("README.md")).unwrap();
    let (before, rest) = readme.split_once(BEGIN).unwrap();
    let (written, after) = rest.split_once(END).unwrap();
    let expected = figures();
    if std::env::var_os("NEAP_WRITE_README").is_some() {
        let text = [before, BEGIN, &expected, END, after].concat();
        fs::write(path("README.md"), text).unwrap();
        return;
    }
    assert_eq!(
        written, expected,
        "NEAP_WRITE_README=1 writes README.md anew"
    );
}

/// What the README says of how much a network's weights are.
#[test]
fn sizes_of_weights_are_those_of_the_zoo() {
    for (name, megabytes) in [("resnet152", 240.0), ("vgg19", 575.0), ("gpt2", 500.0)] {
        let bench = super::support::Bench::new();
        bench
            .neap(&format!("zoo {name} --shapes-only -o m.onnx"))
            .ok();
        let facts = bench.json("inspect m.onnx -q --format json");
        let bytes = facts["packed_weight_bytes"].as_f64().unwrap();
        assert!(
            (bytes / 1e6 / megabytes - 1.0).abs() < 0.02,
            "{name}: {bytes}"
        );
    }
}

#[test]
fn it_fits_on_a_few_screens() {
    let readme = fs::read_to_string(path("README.md")).unwrap();
    assert!(readme.lines().count() <= 145);
}
