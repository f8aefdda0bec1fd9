//! What the server says: while it loads, in its log, and when what it needs is damaged.

use super::super::onnx::{layers, relu};
use super::server::{Server, bench_with, floats, layers_request};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Waits until a line of the log, which is JSON, is as wished.
fn line(lines: &mut impl Iterator<Item = Value>, is_it: impl Fn(&Value) -> bool) -> Value {
    lines.find(|line| is_it(line)).expect("no such line")
}

#[test]
fn the_log_has_a_line_for_each_load_refusal_miss_and_change() {
    let bench = bench_with(&[
        ("a.onnx", &relu("x", &["2"], "y")),
        ("late.onnx", &relu("x", &["2"], "y")),
        ("late.toml", b"deadline = '0.001us'"),
    ]);
    let options =
        "serve models --http 127.0.0.1:0 --memory-budget 64MiB --log-format json --access-log";
    let mut child = bench
        .command(options)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut lines = text.map(|line| {
        let line = line.unwrap();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|_| panic!("no JSON: {line}"))
    });
    let is = |message: &'static str| move |line: &Value| line["message"] == message;
    line(&mut lines, is("listening"));
    let loaded = line(&mut lines, is("loaded"));
    assert_eq!(
        (&loaded["model"], &loaded["level"]),
        (&json!("a"), &json!("INFO"))
    );
    let serving = line(&mut lines, |line| {
        line["message"]
            .as_str()
            .unwrap()
            .starts_with("serving 2 models on http://")
    });
    let told = serving["message"].as_str().unwrap();
    let server = Server {
        child,
        address: told.rsplit("://").next().unwrap().to_string(),
        metrics: None,
        grpc: None,
    };
    let request = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [2], "data": [1, -1] },
    ] });
    server.infer("late", &request).ok();
    assert_eq!(
        line(&mut lines, is("a deadline was missed"))["model"],
        "late"
    );
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let headers = format!("x-request-id: seven\r\ntraceparent: {parent}\r\n");
    let answer = server.ask("POST", "/v2/models/a/infer", &headers, b"[]");
    answer.refused(400, "request");
    assert_eq!(answer.header("x-request-id"), Some("seven"));
    let refused = line(&mut lines, is("refused"));
    assert_eq!(refused["why"], "malformed");
    assert_eq!(refused["span"]["id"], "seven");
    assert_eq!(
        refused["span"]["trace_id"],
        "4bf92f3577b34da6a3ce929d0e0e4736"
    );
    let access = line(&mut lines, is("answered"));
    assert_eq!(
        (&access["status"], &access["method"]),
        (&json!(400), &json!("POST"))
    );
    let budget = json!({ "budget_bytes": 60 << 20 }).to_string();
    server.ask("POST", "/memory", "", budget.as_bytes()).ok();
    assert_eq!(
        line(&mut lines, is("the budget changed"))["bytes"],
        60 << 20
    );
    let post = |path: &str| server.ask("POST", path, "", b"");
    post("/v2/repository/models/a/unload").ok();
    assert_eq!(line(&mut lines, is("unloaded"))["model"], "a");
    std::fs::write(bench.path("models/a.onnx"), b"rubbish").unwrap();
    post("/v2/repository/models/a/load").refused(400, "a.onnx");
    assert_eq!(line(&mut lines, is("not loaded"))["model"], "a");
    bench
        .neap("serve models --log-level loud")
        .fails(2, &["--log-level"]);
}

#[test]
fn a_server_that_loads_lives_and_is_not_ready_and_ends_when_it_is_told() {
    // A folder that takes a while: each model is packed.
    let bench = bench_with(&[]);
    std::fs::create_dir_all(bench.path("models")).unwrap();
    for at in 0..8 {
        std::fs::write(bench.path(&format!("models/m{at}.onnx")), layers()).unwrap();
    }
    let mut child = bench
        .command("serve models --http 127.0.0.1:0 --memory-budget 512MiB")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let first = lines.next().unwrap().unwrap();
    let address = first.split_once(" http=").expect("it listens first").1;
    let mut server = Server {
        child,
        address: address.trim().to_string(),
        metrics: None,
        grpc: None,
    };
    assert_eq!(server.get("/v2/health/live").ok().json()["live"], true);
    let ready = server.get("/v2/health/ready");
    assert_eq!((ready.status, &ready.json()["ready"]), (503, &json!(false)));
    server.infer("m0", &json!({})).refused(503, "being loaded");
    let started = Instant::now();
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(started.elapsed() < Duration::from_secs(30));
    let rest: Vec<String> = lines.map(Result::unwrap).collect();
    assert!(
        rest.iter().all(|line| !line.contains("serving")),
        "{rest:?}"
    );
}

#[test]
fn damage_on_the_servers_side_is_not_the_clients_fault() {
    let bench = bench_with(&[("source.onnx", &layers())]);
    bench
        .neap("pack models/source.onnx -o models/m.neap -q")
        .ok();
    std::fs::remove_file(bench.path("models/source.onnx")).unwrap();
    bench.write("models/m.toml", b"deadline = '60s'");
    // So little that weights are read in each run.
    let server = Server::start(&bench, "--memory-budget 22MiB --request-memory 1MiB");
    let x = layers_request(&floats(3, 4096));
    server.infer("m", &x).ok();
    let path = bench.path("models/m.neap");
    let whole = std::fs::read(&path).unwrap();
    let damage = |bytes: &[u8]| {
        use std::os::unix::fs::FileExt;
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.sync_all().unwrap();
    };
    let half = whole.len() / 8;
    damage(
        &[
            &whole[..half],
            &vec![0x5a; whole.len() - 2 * half][..],
            &whole[whole.len() - half..],
        ]
        .concat(),
    );
    server.infer("m", &x).refused(500, "m.neap was overwritten");
    server.get("/v2/models/m/ready").refused(503, "overwritten");
    let index = server
        .ask("POST", "/v2/repository/index", "", b"{}")
        .ok()
        .json();
    assert_eq!(index[0]["state"], "UNAVAILABLE");
    let text = String::from_utf8(server.get("/metrics").ok().body).unwrap();
    for series in [
        "neap_refusals_total{model=\"m\",why=\"machine\"} 1",
        "neap_refusals_total{model=\"m\",why=\"malformed\"} 0",
        "neap_deadlines_missed_total{model=\"m\"} 1",
        "neap_model_ready{model=\"m\"} 0",
    ] {
        assert!(
            text.lines().any(|line| line == series),
            "no {series} in {text}"
        );
    }
    damage(&whole);
    server
        .ask("POST", "/v2/repository/models/m/load", "", b"")
        .ok();
    server.infer("m", &x).ok();
    assert_eq!(server.get("/v2/models/m/ready").status, 200);
}
