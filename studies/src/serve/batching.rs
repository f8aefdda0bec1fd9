//! Requests that wait together share one reading of the weights: images a second by the size of batches, under a quarter
//! of the memory that the model takes.
//!
//! The same server, with one batch size after another: as many clients as rows ask as fast as answers come. Beside it what
//! the planner predicts, whose best size is named.

use super::client::{Client, Server, request};
use super::{Place, image, link};
use crate::chart::{self, Line};
use crate::models;
use anyhow::{Context, Result, ensure};
use neap_zoo::Batch;
use neaptide::{Budget, Cache, Model, OpenOptions, RunOptions};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

const NETWORK: &str = "resnet50";
const THREADS: usize = 2;

/// For each size of batches.
const ASKED_FOR: Duration = Duration::from_secs(8);

/// Connections, requests and the process, beside the model.
const BESIDE_BYTES: u64 = 48 << 20;

struct Point {
    rows: usize,
    predicted: f64,
    measured: f64,
    /// Rows of a run, on average.
    together: f64,
}

/// The section of the page, and its plot.
pub fn run(root: &Path, place: &Place, most_rows: usize) -> Result<(String, String)> {
    let open = neap_zoo::Options {
        batch: Batch::Dynamic,
        ..neap_zoo::Options::default()
    };
    let path = models::zoo_model_as(root, NETWORK, &format!("{NETWORK}-open"), &open)?;
    let (model_bytes, predicted) = predicted(place, &path, most_rows)?;
    let mut points = Vec::new();
    for (rows, predicted) in predicted {
        let (measured, together) = measured(place, &path, model_bytes, rows)?;
        eprintln!("{rows} rows: {measured:.1} images/s, predicted {predicted:.1}");
        points.push(Point {
            rows,
            predicted,
            measured,
            together,
        });
    }
    let line = |name, of: fn(&Point) -> f64| Line {
        name,
        points: points.iter().map(|p| (p.rows as f64, of(p))).collect(),
    };
    let lines = [
        line("measured", |p| p.measured),
        line("predicted", |p| p.predicted),
    ];
    let plot = chart::lines("rows of a batch, at most", "images/s", &lines);
    Ok((section(&points, model_bytes)?, plot))
}

/// A quarter of what the model takes, and images a second by rows within it.
fn predicted(place: &Place, path: &Path, most_rows: usize) -> Result<(u64, Vec<(usize, f64)>)> {
    let shapes = |rows: usize| BTreeMap::from([("input".to_string(), vec![rows, 3, 224, 224])]);
    let open = OpenOptions {
        shapes: shapes(1),
        cache: Cache::Folder(place.cache.clone()),
        ..OpenOptions::default()
    };
    let mut model = Model::open(path, &open, &mut |_| {})?;
    let unlimited = RunOptions {
        threads: THREADS,
        exact: true,
        budget: Budget::Engine(0),
        ..RunOptions::default()
    };
    let model_bytes = model.bounds(&unlimited).whole.total_bytes() / 4;
    let options = RunOptions {
        budget: Budget::Engine(model_bytes),
        ..unlimited
    };
    let mut sizes = Vec::new();
    let mut rows = 1;
    while rows <= most_rows {
        model.bind(&shapes(rows))?;
        let plan = model.plan(&options);
        let Ok(plan) = plan else { break };
        let ns = plan.prediction.latency_ns;
        sizes.push((rows, rows as f64 * 1e9 / ns as f64));
        rows *= 2;
    }
    ensure!(
        !sizes.is_empty(),
        "the model does not run in a quarter of its memory"
    );
    Ok((model_bytes, sizes))
}

/// Images a second, and rows that ran together on average.
fn measured(place: &Place, path: &Path, model_bytes: u64, rows: usize) -> Result<(f64, f64)> {
    let folder = place.models("batches")?;
    let shapes = "[shapes]\ninput = [1, 3, 224, 224]\n";
    let settings = match rows {
        1 => shapes.to_string(),
        _ => format!("{shapes}[batch]\nmost = {rows}\nwait = '200ms'\n"),
    };
    link(&folder, "model", path, &settings)?;
    let options = [
        format!("--memory-budget={}", model_bytes + BESIDE_BYTES),
        "--request-memory=24MiB".into(),
        "--exact".into(),
        format!("--threads={THREADS}"),
    ];
    let server = Server::start(&place.neap, &folder, &place.cache, &options)?;
    let tensor = image(1, 3 * 224 * 224);
    let request = request("model", "input", &[1, 3, 224, 224], &tensor);
    let ask = |clients: usize, time: Duration| {
        let until = Instant::now() + time;
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..clients)
                .map(|_| {
                    scope.spawn(|| {
                        let mut client = Client::connect(&server.http)?;
                        let (mut images, mut together) = (0u64, 0u64);
                        while Instant::now() < until {
                            let (answer, _) = client.infer(&request)?;
                            ensure!(answer.status == 200, "{}: {}", answer.status, answer.text);
                            images += 1;
                            together += answer.rows as u64;
                        }
                        Ok((images, together))
                    })
                })
                .collect();
            let mut sum = (0, 0);
            for client in clients {
                let (images, together) = client.join().ok().context("a client panicked")??;
                sum = (sum.0 + images, sum.1 + together);
            }
            anyhow::Ok(sum)
        })
    };
    ask(rows, ASKED_FOR / 8)?;
    let began = Instant::now();
    let (images, together) = ask(rows, ASKED_FOR)?;
    let rate = images as f64 / began.elapsed().as_secs_f64();
    ensure!(server.end()?.success(), "the server failed");
    Ok((rate, together as f64 / images.max(1) as f64))
}

fn section(points: &[Point], model_bytes: u64) -> Result<String> {
    let best = |of: fn(&Point) -> f64| {
        let most = points.iter().max_by(|a, b| of(a).total_cmp(&of(b)));
        most.map_or(0, |p| p.rows)
    };
    let mut text = format!(
        "\n## Batches\n\n{NETWORK} in {:.1} MiB, a quarter of what it takes with everything in memory; {THREADS} threads, `--exact`. \
         As many clients as rows ask as fast as answers come.\n\n![images a second by batch](serving-batches.svg)\n\n\
         | rows, at most | rows together, on average | images/s | predicted |\n|--:|--:|--:|--:|\n",
        model_bytes as f64 / f64::from(1 << 20)
    );
    for p in points {
        writeln!(
            text,
            "| {} | {:.1} | {:.1} | {:.1} |",
            p.rows, p.together, p.measured, p.predicted
        )?;
    }
    writeln!(
        text,
        "\nThe best size is {} as measured, and {} as predicted.",
        best(|p| p.measured),
        best(|p| p.predicted)
    )?;
    Ok(text)
}
