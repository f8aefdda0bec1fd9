//! Minutes of mixed requests at saturation inside a hard limit: every answer is checked.
//!
//! ```text
//!   promised   a request every period, its deadline promised          batched   several clients, up to four rows
//!   large      streams its weights: several clients                    guest     loaded and unloaded all the time
//!   vanishing  clients that go away before their answer         storm      a second guest, and budgets that change
//! ```

use super::client::{Answer, Client, Server, request};
use super::{Place, ServeArgs, image, link};
use crate::models;
use crate::watch::Watch;
use anyhow::{Context, Result, bail, ensure};
use neap_zoo::Batch;
use neaptide::{Cache, Model, OpenOptions, RunOptions};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Different inputs of each model.
const IMAGES: u64 = 3;

/// Rows of the largest batch.
const ROWS: usize = 4;

/// Batches have kernels of their own, which differ in rounding: by this part of the largest output.
const TOLERANCE: f32 = 1e-4;

/// A model, requests for it, and what they are answered with.
struct Example {
    requests: Vec<Vec<u8>>,
    expected: Vec<Vec<u8>>,
    is_exact: bool,
}

/// What clients saw of one model.
#[derive(Default)]
struct Seen {
    sent: u64,
    answered: u64,
    /// 429.
    refused: u64,
    /// 503, of a model that comes and goes.
    not_ready: u64,
    wrong: u64,
    /// No answer, or one that is none of these.
    lost: u64,
    largest_batch: usize,
    latencies_ms: Vec<f64>,
    first_fault: Option<String>,
}

struct Shared<'a> {
    server: &'a Server,
    examples: BTreeMap<&'static str, Example>,
    seen: Mutex<BTreeMap<&'static str, Seen>>,
    is_over: AtomicBool,
    vanished: AtomicU64,
    loads: AtomicU64,
    loads_refused: AtomicU64,
    budgets: AtomicU64,
    budgets_refused: AtomicU64,
}

pub fn run(root: &Path, place: &Place, args: &ServeArgs) -> Result<String> {
    let folder = place.models("mixed")?;
    let zoo = |name: &str| models::zoo_model(root, name);
    let open = neap_zoo::Options {
        batch: Batch::Dynamic,
        ..neap_zoo::Options::default()
    };
    let batched = models::zoo_model_as(root, "mobilenet_v2", "mobilenet_v2-open", &open)?;
    let period = format!("period = '{}ms'\n", args.period);
    link(&folder, "promised", &zoo("squeezenet1_1")?, &period)?;
    let rows =
        format!("[shapes]\ninput = [1, 3, 224, 224]\n[batch]\nmost = {ROWS}\nwait = '2ms'\n");
    link(&folder, "batched", &batched, &rows)?;
    link(&folder, "large", &zoo("resnet50")?, "")?;
    link(&folder, "guest", &zoo("mobilenet_v2")?, "")?;
    let mut names = vec!["promised", "batched", "large", "guest"];
    if args.storm {
        link(&folder, "second", &zoo("squeezenet1_1")?, "")?;
        names.push("second");
    }
    let mut examples = BTreeMap::new();
    for name in names {
        examples.insert(name, example(place, &folder, name)?);
    }
    let options = [
        format!("--memory-budget={}MiB", args.budget),
        "--enforce".into(),
        "--exact".into(),
        "--threads=2".into(),
        "--max-waiting=16".into(),
    ];
    let server = Server::start(&place.neap, &folder, &place.cache, &options)?;
    if let Some(refused) = server.said.iter().find(|line| line.contains("not served")) {
        bail!("{refused}: give a longer --period");
    }
    let shared = Shared {
        server: &server,
        examples,
        seen: Mutex::default(),
        is_over: AtomicBool::new(false),
        vanished: AtomicU64::new(0),
        loads: AtomicU64::new(0),
        loads_refused: AtomicU64::new(0),
        budgets: AtomicU64::new(0),
        budgets_refused: AtomicU64::new(0),
    };
    let watch = Watch::start(&zoo("resnet50")?)?;
    let told = play(&shared, args)?;
    let watched = watch.stop()?;
    let Shared {
        seen,
        vanished,
        loads,
        loads_refused,
        budgets,
        budgets_refused,
        ..
    } = shared;
    let seen = seen
        .into_inner()
        .map_err(|_| anyhow::anyhow!("a client panicked"))?;
    let missed = server.metric("neap_deadlines_missed_total{model=\"promised\"}")?;
    let met = server.metric("neap_deadlines_met_total{model=\"promised\"}")?;
    let made_way = server.metric("neap_made_way_total")?;
    let status = server.end()?;
    let most = told["process_most_bytes"].as_u64().context("a peak")?;
    let mut text = format!(
        "\n## Mixed requests\n\n{} minutes at saturation, in a cgroup with {} MiB as hard limit, on two threads with `--exact`. Each \
         answer's values were compared with those of the model alone: all bits, but for `batched`, whose batches may differ \
         by {TOLERANCE} of the largest output.\n\n\
         | model | sent | answered | wrong | refused (429) | not loaded (503) | lost | largest batch | p50, ms | p99, ms | most, ms |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n",
        args.minutes, args.budget
    );
    for (name, seen) in &seen {
        let mut ms = seen.latencies_ms.clone();
        ms.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let index = (ms.len() as f64 * share) as usize;
            ms.get(index.min(ms.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0.0)
        };
        writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} | {} | {} | {:.0} | {:.0} | {:.0} |",
            seen.sent,
            seen.answered,
            seen.wrong,
            seen.refused,
            seen.not_ready,
            seen.lost,
            seen.largest_batch,
            at(0.5),
            at(0.99),
            at(1.0)
        )?;
    }
    writeln!(
        text,
        "\n| | |\n|---|--:|\n| server ended by the kernel for want of memory | {} |\n| peak of its memory, MiB | {:.1} |\n\
         | promised deadlines met | {met} |\n| promised deadlines missed | {missed} |\n\
         | runs that made way for a promised request | {made_way} |\n| clients that went away before their answer | {} |\n\
         | loads of models that come and go | {} |\n| loads that were refused | {} |\n\
         | changes of the budget | {} |\n| budgets that were refused | {} |",
        u8::from(!status.success()),
        most as f64 / f64::from(1 << 20),
        vanished.into_inner(),
        loads.into_inner(),
        loads_refused.into_inner(),
        budgets.into_inner(),
        budgets_refused.into_inner(),
    )?;
    writeln!(text, "\n{}", watched.told())?;
    for (name, seen) in &seen {
        if let Some(fault) = &seen.first_fault {
            eprintln!("{text}");
            bail!("{name}: {fault}");
        }
    }
    ensure!(status.success(), "the server ended with {status}");
    Ok(text)
}

/// All clients at once; what `/memory` tells at the end.
fn play(shared: &Shared, args: &ServeArgs) -> Result<Value> {
    std::thread::scope(|scope| {
        let pause = match args.storm {
            true => Duration::from_millis(5),
            false => Duration::from_millis(300),
        };
        let mut clients = vec![
            scope.spawn(|| shared.promised(Duration::from_millis(args.period))),
            scope.spawn(|| shared.ask_on("batched", 1)),
            scope.spawn(|| shared.ask_on("batched", 2)),
            scope.spawn(|| shared.ask_on("batched", 3)),
            scope.spawn(|| shared.ask_on("batched", 4)),
            scope.spawn(|| shared.ask_on("large", 5)),
            scope.spawn(|| shared.ask_on("large", 6)),
            scope.spawn(|| shared.ask_on("guest", 7)),
            scope.spawn(|| shared.vanish()),
            scope.spawn(move || shared.come_and_go("guest", pause)),
        ];
        if args.storm {
            clients.push(scope.spawn(|| shared.ask_on("second", 8)));
            clients.push(scope.spawn(move || shared.come_and_go("second", pause)));
            clients.push(scope.spawn(|| shared.change_budgets(args.budget << 20)));
        }
        std::thread::sleep(Duration::from_secs_f64(args.minutes * 60.0));
        let told = shared.server.ask("GET", "/memory", "");
        shared.is_over.store(true, Relaxed);
        for client in clients {
            client
                .join()
                .map_err(|_| anyhow::anyhow!("a client panicked"))??;
        }
        Ok(serde_json::from_slice(&told?.1)?)
    })
}

impl Shared<'_> {
    fn note(&self, name: &'static str, change: impl FnOnce(&mut Seen)) {
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        change(seen.entry(name).or_default());
    }

    /// One request on a connection that is made anew when it is gone.
    fn ask(&self, client: &mut Option<Client>, name: &'static str, which: usize) {
        let example = &self.examples[name];
        let which = which % example.requests.len();
        let asked = match client {
            Some(client) => Ok(client),
            None => Client::connect(&self.server.http).map(|new| client.insert(new)),
        };
        let answer = asked.and_then(|client| client.infer(&example.requests[which]));
        if !matches!(&answer, Ok((answer, _)) if answer.status == 200) {
            *client = None;
        }
        let pause = match &answer {
            Ok((answer, _)) if answer.status == 200 => Duration::ZERO,
            _ => Duration::from_millis(20),
        };
        self.note(name, |seen| {
            seen.sent += 1;
            match answer {
                Ok((answer, took)) => seen.add(example, which, name, &answer, took),
                Err(error) => {
                    seen.lost += 1;
                    seen.first_fault.get_or_insert(format!("{error:#}"));
                }
            }
        });
        std::thread::sleep(pause);
    }

    /// As fast as answers come.
    fn ask_on(&self, name: &'static str, seed: usize) -> Result<()> {
        let mut client = None;
        for turn in seed.. {
            if self.is_over.load(Relaxed) {
                break;
            }
            self.ask(&mut client, name, turn);
        }
        Ok(())
    }

    fn promised(&self, period: Duration) -> Result<()> {
        let began = Instant::now();
        let mut client = None;
        for turn in 0u32.. {
            // A little later than it may be, so that no two are nearer than a period.
            let at = began + (period + Duration::from_millis(2)) * turn;
            std::thread::sleep(at.saturating_duration_since(Instant::now()));
            if self.is_over.load(Relaxed) {
                break;
            }
            self.ask(&mut client, "promised", turn as usize);
        }
        Ok(())
    }

    /// Clients that do not wait for their answer.
    fn vanish(&self) -> Result<()> {
        for turn in 0usize.. {
            if self.is_over.load(Relaxed) {
                break;
            }
            let requests = &self.examples[["large", "batched"][turn % 2]].requests;
            let client = Client::connect(&self.server.http);
            let after = Duration::from_millis(turn as u64 * 37 % 200);
            // One that is refused meanwhile may be closed already.
            let gone = client.and_then(|c| c.vanish(&requests[0], after));
            self.vanished.fetch_add(u64::from(gone.is_ok()), Relaxed);
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// A model that is loaded and unloaded all the time.
    fn come_and_go(&self, name: &str, pause: Duration) -> Result<()> {
        while !self.is_over.load(Relaxed) {
            for what in ["unload", "load"] {
                let path = format!("/v2/repository/models/{name}/{what}");
                let (status, body) = self.server.ask("POST", &path, "")?;
                match (what, status) {
                    // Another change is on its way.
                    ("unload", 429) => 0,
                    ("load", 200) => self.loads.fetch_add(1, Relaxed),
                    // No memory, or steps that would take too long beside the promise.
                    ("load", 429 | 400) => self.loads_refused.fetch_add(1, Relaxed),
                    (_, 200) => 0,
                    _ => bail!("{what}: {status} {}", String::from_utf8_lossy(&body)),
                };
                std::thread::sleep(pause);
            }
        }
        Ok(())
    }

    /// Budgets from three quarters of the first on.
    fn change_budgets(&self, most_bytes: u64) -> Result<()> {
        for turn in 0u64.. {
            if self.is_over.load(Relaxed) {
                break;
            }
            let bytes = most_bytes - most_bytes / 4 * (turn * 37 % 100) / 100;
            let body = format!("{{\"budget_bytes\": {bytes}}}");
            let (status, told) = self.server.ask("POST", "/memory", &body)?;
            match status {
                200 => self.budgets.fetch_add(1, Relaxed),
                // Too small for the models of now, or another change is on its way.
                429 => self.budgets_refused.fetch_add(1, Relaxed),
                _ => bail!(
                    "budget {bytes}: {status} {}",
                    String::from_utf8_lossy(&told)
                ),
            };
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }
}

impl Seen {
    fn add(
        &mut self,
        example: &Example,
        which: usize,
        name: &str,
        answer: &Answer,
        took: Duration,
    ) {
        match answer.status {
            200 => {
                self.answered += 1;
                self.latencies_ms.push(took.as_secs_f64() * 1e3);
                self.largest_batch = self.largest_batch.max(answer.rows);
                if !example.is_right(which, &answer.tensor) {
                    self.wrong += 1;
                    self.first_fault.get_or_insert("a wrong answer".into());
                }
            }
            429 => self.refused += 1,
            503 if name == "guest" || name == "second" => self.not_ready += 1,
            status => {
                self.lost += 1;
                self.first_fault
                    .get_or_insert(format!("{status}: {}", answer.text));
            }
        }
    }
}

impl Example {
    fn is_right(&self, which: usize, tensor: &[u8]) -> bool {
        let expected = &self.expected[which];
        if self.is_exact || tensor.len() != expected.len() {
            return tensor == expected;
        }
        let most = floats(expected).fold(0f32, |most, v| most.max(v.abs()));
        let mut pairs = floats(tensor).zip(floats(expected));
        pairs.all(|(a, b)| (a - b).abs() <= TOLERANCE * most)
    }
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    let words = bytes.as_chunks::<4>().0.iter();
    words.map(|&word| f32::from_le_bytes(word))
}

/// Requests, and what the model gives alone, without a limit.
fn example(place: &Place, folder: &Path, name: &str) -> Result<Example> {
    let open = OpenOptions {
        shapes: match name {
            "batched" => [("input".to_string(), vec![1, 3, 224, 224])].into(),
            _ => BTreeMap::new(),
        },
        cache: Cache::Folder(place.cache.clone()),
        ..OpenOptions::default()
    };
    let path = folder.join(format!("{name}.onnx"));
    let model = Model::open(&path, &open, &mut |_| {})?;
    let options = RunOptions {
        threads: 2,
        exact: true,
        ..RunOptions::default()
    };
    let plan = model.plan(&options)?;
    let mut session = model.into_session(plan, &options)?;
    let input = session.inputs().first().context("an input")?.clone();
    let bytes = session.outputs().first().context("an output")?.len_bytes();
    let (mut requests, mut expected) = (Vec::new(), Vec::new());
    for seed in 1..=IMAGES {
        let tensor = image(seed, input.ty.elements());
        let mut output = vec![0; bytes];
        session.run(&[&tensor], &mut [&mut output])?;
        requests.push(request(name, &input.name, &input.ty.shape, &tensor));
        expected.push(output);
    }
    ensure!(
        expected[0] != expected[1],
        "the model does not look at its input"
    );
    Ok(Example {
        requests,
        expected,
        is_exact: name != "batched",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_are_seen() {
        let bytes = |values: [f32; 3]| values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut example = Example {
            requests: Vec::new(),
            expected: vec![bytes([1.0, -8.0, 0.5])],
            is_exact: true,
        };
        let near: Vec<u8> = bytes([1.0, -8.0, 0.5001]);
        let far: Vec<u8> = bytes([1.0, -8.0, 0.502]);
        assert!(example.is_right(0, &bytes([1.0, -8.0, 0.5])));
        assert!(!example.is_right(0, &near));
        example.is_exact = false;
        assert!(example.is_right(0, &near));
        assert!(!example.is_right(0, &far) && !example.is_right(0, &near[4..]));
        assert!(!example.is_right(0, &bytes([1.0, f32::NAN, 0.5])));
    }
}
