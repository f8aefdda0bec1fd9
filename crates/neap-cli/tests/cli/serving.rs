//! `neap serve` as clients meet it: the real program, a port of its own, bytes over TCP.

mod advice;
mod promises;
mod server;
mod tls;

use super::onnx::{FLOAT, INT64, Model, layers, relu};
use super::support::{can_enforce, f32_bytes};
use serde_json::{Value, json};
use server::{Server, bench_with, binary, expected, floats, layers_request, read_answer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn answers_are_those_of_neap_run() {
    let bench = bench_with(&[("layers.onnx", &layers())]);
    let x = floats(1, 4096);
    let wanted = expected(&bench, &x);
    let server = Server::start(&bench, "--memory-budget 40MiB --exact");

    let answer = server.infer("layers", &layers_request(&x)).ok().json();
    assert_eq!(answer["model_name"], "layers");
    assert_eq!(answer["id"], "seven");
    let output = &answer["outputs"][0];
    assert_eq!(output["name"], "out/put:0");
    assert_eq!(output["datatype"], "FP32");
    assert_eq!(output["shape"], json!([4, 1024]));
    let data: Vec<f32> = serde_json::from_value(output["data"].clone()).unwrap();
    assert_eq!(f32_bytes(&data), wanted);

    // The same as bytes, after JSON texts of every length modulo eight.
    for id in ["", "1", "12", "123", "1234", "12345", "123456", "1234567"] {
        let request = json!({
            "id": id,
            "inputs": [{ "name": "x", "datatype": "FP32", "shape": [4, 1024],
                         "parameters": { "binary_data_size": 16384 } }],
            "outputs": [{ "name": "out/put:0", "parameters": { "binary_data": true } }],
        });
        let (header, body) = binary(&request, &f32_bytes(&x));
        let path = "/v2/models/layers/versions/1/infer";
        let answer = server.ask("POST", path, &header, &body).ok();
        let json_bytes: usize = answer
            .header("inference-header-content-length")
            .unwrap()
            .parse()
            .unwrap();
        let (text, tensor) = answer.body.split_at(json_bytes);
        assert!(tensor == wanted, "other bits");
        let text: Value = serde_json::from_slice(text).unwrap();
        let parameters = &text["outputs"][0]["parameters"];
        assert_eq!(parameters["binary_data_size"], 16384);
        assert!(text["outputs"][0].get("data").is_none());
    }
}

#[test]
fn answers_have_the_sizes_that_the_data_decide() {
    let shape = ["2", "4"];
    let places = Model::default()
        .input("x", FLOAT, &shape)
        .node("NonZero", &["x"], &["places"])
        .node("Relu", &["x"], &["y"])
        .output("places", INT64, &["2", "n"])
        .output("y", FLOAT, &shape)
        .finish();
    let shaped = Model::default()
        .input("x", FLOAT, &shape)
        .input("target", INT64, &["2"])
        .node("Reshape", &["x", "target"], &["y"])
        .output("y", FLOAT, &["a", "b"])
        .finish();
    let bench = bench_with(&[
        ("shaped.onnx", &shaped),
        ("shaped.toml", b"[values]\ntarget = [4, -1]\n"),
        ("places.onnx", &places),
    ]);
    let server = Server::start(&bench, "--memory-budget 40MiB");
    let outputs = &server.get("/v2/models/places").ok().json()["outputs"];
    assert_eq!(outputs[0]["shape"], json!([2, -1]));
    assert_eq!(outputs[1]["shape"], json!([2, 4]));
    for (x, found) in [
        ([0.0f32, 1.0, 0.0, 2.0, 3.0, 0.0, 0.0, 4.0], 4),
        ([0.0; 8], 0),
        ([5.0; 8], 8),
    ] {
        let places = |axis: usize| {
            let all = (0..8i64).filter(|&i| x[i as usize] != 0.0);
            all.map(move |i| [i / 4, i % 4][axis])
        };
        let expected: Vec<i64> = places(0).chain(places(1)).collect();
        let request = json!({
            "inputs": [{ "name": "x", "datatype": "FP32", "shape": [2, 4], "data": x }],
        });
        let output = &server.infer("places", &request).ok().json()["outputs"][0];
        assert_eq!(output["datatype"], "INT64");
        assert_eq!(output["shape"], json!([2, found]));
        assert_eq!(output["data"], json!(expected));

        // The same as bytes.
        let request = json!({
            "inputs": [{ "name": "x", "datatype": "FP32", "shape": [2, 4], "data": x }],
            "parameters": { "binary_data_output": true },
        });
        let answer = server.infer("places", &request).ok();
        let at = answer.header("inference-header-content-length").unwrap();
        let (text, tensors) = answer.body.split_at(at.parse().unwrap());
        let text: Value = serde_json::from_slice(text).unwrap();
        assert_eq!(text["outputs"][0]["shape"], json!([2, found]));
        let own_bytes = 16 * found;
        let told = &text["outputs"][0]["parameters"]["binary_data_size"];
        assert_eq!(*told, own_bytes);
        let (own, rest) = tensors.split_at(own_bytes);
        let expected: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
        assert_eq!(own, expected);
        assert_eq!(rest, f32_bytes(&x));
    }
    let shaped = server.get("/v2/models/shaped").ok().json();
    assert_eq!(shaped["inputs"].as_array().unwrap().len(), 1);
    assert_eq!(shaped["outputs"][0]["shape"], json!([4, 2]));
    for (name, settings, reason) in [
        (
            "rows",
            "[batch]\nmost = 4\n",
            "the data decide the size of 'places'",
        ),
        ("often", "period = '1s'\n", "cannot be promised"),
    ] {
        let write = |ending: &str, bytes: &[u8]| {
            std::fs::write(bench.path(&format!("models/{name}.{ending}")), bytes).unwrap();
        };
        write("onnx", &places);
        write("toml", settings.as_bytes());
        let path = format!("/v2/repository/models/{name}/load");
        server.ask("POST", &path, "", b"").refused(400, reason);
    }
}

#[test]
fn models_are_listed_loaded_and_unloaded() {
    let bench = bench_with(&[
        ("a.onnx", &relu("x", &["2", "3"], "y")),
        ("b/1/model.onnx", &relu("x", &["4"], "y")),
    ]);
    let server = Server::start(&bench, "--memory-budget 64MiB");
    assert_eq!(server.get("/v2/health/live").status, 200);
    assert_eq!(server.get("/v2/health/ready").status, 200);
    let about = server.get("/v2").ok().json();
    assert_eq!(about["extensions"][0], "binary_tensor_data");
    let model = server.get("/v2/models/a").ok().json();
    let expected = json!({
        "name": "a", "versions": ["1"], "platform": "onnx_neaptide",
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [2, 3] }],
        "outputs": [{ "name": "y", "datatype": "FP32", "shape": [2, 3] }],
    });
    assert_eq!(model, expected);
    let index = |server: &Server| {
        let path = "/v2/repository/index";
        let listed = server.ask("POST", path, "", b"{}").ok().json();
        let states = listed.as_array().unwrap().iter();
        states
            .map(|m| {
                format!(
                    "{}:{}",
                    m["name"].as_str().unwrap(),
                    m["state"].as_str().unwrap_or("")
                )
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(index(&server), "a:READY b:READY");

    let post = |path: &str| server.ask("POST", path, "", b"");
    post("/v2/repository/models/b/unload").ok();
    assert_eq!(index(&server), "a:READY b:UNAVAILABLE");
    server.get("/v2/models/b/ready").refused(503, "not loaded");
    post("/v2/repository/models/b/load").ok();
    assert_eq!(server.get("/v2/models/b/versions/1/ready").status, 200);
    server
        .get("/v2/models/b/versions/7")
        .refused(404, "version");

    // A refusal leaves the connection of a large request in use.
    let head = |path: &str, close: &str| {
        let len = 4_000_000;
        format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len}\r\n{close}\r\n")
    };
    let mut stream = server.connect();
    let mut writer = stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        for close in ["", "connection: close\r\n"] {
            writer.write_all(head("/v2/models/nothing/infer", close).as_bytes())?;
            writer.write_all(&vec![b' '; 4_000_000])?;
        }
        std::io::Result::Ok(())
    });
    let mut both = Vec::new();
    stream.read_to_end(&mut both).unwrap();
    sender.join().unwrap().unwrap();
    let both = String::from_utf8(both).unwrap();
    assert_eq!(both.matches("HTTP/1.1 404").count(), 2, "{both}");

    // One that comes later, one that is broken, one that is not there.
    std::fs::write(bench.path("models/c.onnx"), relu("x", &["5"], "y")).unwrap();
    assert_eq!(index(&server), "a:READY b:READY c:");
    post("/v2/repository/models/c/load").ok();
    std::fs::write(bench.path("models/d.onnx"), b"rubbish").unwrap();
    post("/v2/repository/models/d/load").refused(400, "d.onnx");
    post("/v2/repository/models/e/load").refused(404, "'e'");
    let request = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [5], "data": [-1, 2, -3, 4, -5] },
    ] });
    let answer = server.infer("c", &request).ok().json();
    assert_eq!(
        answer["outputs"][0]["data"],
        json!([0.0, 2.0, 0.0, 4.0, 0.0])
    );
}

#[test]
fn what_is_malformed_is_refused_on_one_line() {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2", "3"], "y"))]);
    let server = Server::start(
        &bench,
        "--memory-budget 64MiB --max-body 100KB --client-timeout 1s",
    );
    let x = |change: &dyn Fn(&mut Value)| {
        let mut request = json!({ "inputs": [
            { "name": "x", "datatype": "FP32", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6] },
        ] });
        change(&mut request);
        server.infer("a", &request)
    };
    x(&|_| ()).ok();
    let input = |key: &'static str, value: Value| x(&move |r| r["inputs"][0][key] = value.clone());
    input("name", json!("z")).refused(400, "no such input");
    input("datatype", json!("INT8")).refused(400, "FP32");
    input("datatype", json!("BYTES")).refused(400, "FP32");
    input("shape", json!([3, 2])).refused(400, "[2, 3]");
    input("shape", json!([-2, 3])).refused(400, "JSON");
    input("shape", json!([2, 3, 1])).refused(400, "shape");
    input("shape", json!([18_446_744_073_709_551_615u64, 3])).refused(400, "shape");
    input("shape", json!(vec![1; 5000])).refused(400, "more than");
    input("data", json!([1, 2, 3])).refused(400, "fewer");
    input("data", json!(vec![1; 700])).refused(400, "more");
    input("data", json!([1, 2, 3, 4, 5, "six"])).refused(400, "string");
    input("data", json!({})).refused(400, "FP32");
    input("parameters", json!({ "binary_data_size": 24 })).refused(400, "too short");
    input("parameters", json!({ "shared_memory_region": "r" })).refused(400, "shared memory");
    x(&|r| r["inputs"] = json!([])).refused(400, "missing");
    x(&|r| {
        let again = r["inputs"][0].clone();
        r["inputs"].as_array_mut().unwrap().push(again);
    })
    .refused(400, "twice");
    x(&|r| r["outputs"] = json!([{ "name": "q" }])).refused(400, "no such output");
    x(&|r| r["inputs"] = json!(7)).refused(400, "JSON");
    server
        .infer("nothing", &json!({}))
        .refused(404, "'nothing'");

    let path = "/v2/models/a/infer";
    server
        .ask("POST", path, "", b"{\"inputs\": [")
        .refused(400, "JSON");
    server
        .ask("POST", path, "", &[0xff; 100])
        .refused(400, "JSON");
    let deep = "[".repeat(50_000);
    server
        .ask("POST", path, "", deep.as_bytes())
        .refused(400, "JSON");
    let encoded = "content-encoding: gzip\r\n";
    server
        .ask("POST", path, encoded, b"")
        .refused(415, "compressed");
    for (length, part) in [("999", "larger"), ("-1", "no number"), ("x", "no number")] {
        let header = format!("inference-header-content-length: {length}\r\n");
        server.ask("POST", path, &header, b"{}").refused(400, part);
    }
    server
        .ask("POST", path, "", &[b' '; 200_000])
        .refused(413, "102400");
    server.get(path).refused(405, "GET");
    server.get("/nowhere").refused(404, "nothing");
    let page = server.get("/").ok();
    assert_eq!(
        page.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    assert!(page.header("content-security-policy").is_some());
    assert!(page.body.starts_with(b"<!doctype html>"));
    server
        .get("/v2/models/..%2f..%2fetc")
        .refused(404, "no model");

    let chunked = b"POST /v2/models/a/infer HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    server.raw(chunked).refused(411, "Content-Length");
    // A body that never comes, and a head that never ends.
    let half = b"POST /v2/models/a/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{";
    server.raw(half).refused(408, "1s");
    let mut endless = server.connect();
    endless.write_all(b"GET /v2 HTTP/1.1\r\nhost:").unwrap();
    let mut rest = Vec::new();
    let _ = endless.read_to_end(&mut rest);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    let answer = server.raw(long.as_bytes());
    assert!((400..500).contains(&answer.status), "{}", answer.status);
    assert_eq!(server.raw(b"rubbish\r\n\r\n").status, 400);
    x(&|_| ()).ok();
}

#[test]
fn the_budget_changes_while_clients_ask() {
    let bench = bench_with(&[("layers.onnx", &layers()), ("more.onnx", &layers())]);
    let server = Server::start(&bench, "--memory-budget 64MiB --exact");
    let x = layers_request(&floats(9, 4096));
    let first = server.infer("layers", &x).ok().json();
    let change = |bytes: u64| {
        let body = json!({ "budget_bytes": bytes }).to_string();
        server.ask("POST", "/memory", "", body.as_bytes())
    };
    let told = server.get("/memory").ok().json();
    let planned = |told: &Value| told["models"]["parts"]["total_bytes"].as_u64().unwrap();
    let most = planned(&told);
    let beside = (64 << 20) - told["models"]["budget_bytes"].as_u64().unwrap();
    change(beside).refused(429, "budget");
    let mut changed = 0;
    for part in [2, 4, 3, 8, 1, 6, 8] {
        let budget = beside + most * part / 8 + (512 << 10);
        let told = change(budget);
        if told.status == 429 {
            // A small part may be too little for two models.
            continue;
        }
        let told = told.ok().json();
        assert_eq!(told["budget_bytes"], budget);
        assert!(planned(&told) <= budget - beside, "{told}");
        changed += 1;
        for model in ["layers", "more"] {
            let answer = server.infer(model, &x).ok().json();
            assert_eq!(answer["outputs"], first["outputs"]);
        }
    }
    assert!(changed > 2);
    change(65 << 20).refused(400, "began with");
    server
        .ask("POST", "/memory", "", b"{}")
        .refused(400, "budget_bytes");
    assert_eq!(change(64 << 20).ok().json()["budget_bytes"], 64 << 20);
}

#[test]
fn changes_that_come_at_once_wait_for_each_other() {
    let bench = bench_with(&[
        ("a.onnx", &relu("x", &["2", "3"], "y")),
        ("b.onnx", &relu("x", &["4"], "y")),
        ("c.onnx", &relu("x", &["5"], "y")),
    ]);
    let server = Server::start(&bench, "--memory-budget 64MiB");
    let budget = json!({ "budget_bytes": 64 << 20 }).to_string();
    let paths = [
        "/v2/repository/models/a/unload",
        "/v2/repository/models/b/load",
        "/memory",
        "/v2/repository/models/c/unload",
        "/v2/repository/models/a/load",
        "/v2/repository/models/c/load",
    ];
    std::thread::scope(|scope| {
        for path in paths {
            let (server, budget) = (&server, &budget);
            scope.spawn(move || {
                for _ in 0..4 {
                    let body = if path == "/memory" { budget } else { "" };
                    server.ask("POST", path, "", body.as_bytes()).ok();
                }
            });
        }
    });
    for path in ["a", "b", "c"] {
        let path = format!("/v2/repository/models/{path}/load");
        server.ask("POST", &path, "", b"").ok();
    }
    assert_eq!(server.get("/v2/health/ready").status, 200);
}

#[test]
fn overload_is_refused_at_once() {
    let bench = bench_with(&[("layers.onnx", &layers())]);
    // Room for one request, not for two.
    let server = Server::start(
        &bench,
        "--memory-budget 40MiB --request-memory 60KB --max-connections 3",
    );
    let head = b"POST /v2/models/layers/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 20000\r\ninference-header-content-length: 100\r\n\r\n";
    let mut slow = server.connect();
    slow.write_all(head).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let request = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [4, 1024], "parameters": { "binary_data_size": 16384 } },
    ], "parameters": { "binary_data_output": true } });
    let (header, body) = binary(&request, &f32_bytes(&floats(2, 4096)));
    let path = "/v2/models/layers/infer";
    let started = Instant::now();
    let refused = server.ask("POST", path, &header, &body);
    refused.refused(429, "they may");
    assert!(refused.header("retry-after").is_some());
    assert!(started.elapsed() < Duration::from_secs(5));
    drop(slow);
    // Its memory is free again as soon as the server sees that it is gone.
    let started = Instant::now();
    while server.ask("POST", path, &header, &body).status != 200 {
        assert!(started.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(20));
    }
    // More than all memory is not a matter of time.
    let huge = layers_request(&floats(3, 4096));
    server.infer("layers", &huge).refused(413, "61440");
    let _idle: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    std::thread::sleep(Duration::from_millis(200));
    server.raw(b"").refused(429, "connected");
}

#[test]
fn requests_that_wait_run_together() {
    let settings = b"[shapes]\nx = [1, 4]\n[batch]\nmost = 4\nwait = '200ms'\n";
    let bench = bench_with(&[
        ("rows.onnx", &relu("x", &["n", "4"], "y")),
        ("rows.toml", settings),
    ]);
    let server = Server::start(&bench, "--memory-budget 64MiB");
    let model = server.get("/v2/models/rows").ok().json();
    assert_eq!(model["inputs"][0]["shape"], json!([-1, 4]));
    std::thread::scope(|scope| {
        for client in 0..8 {
            let server = &server;
            scope.spawn(move || {
                let rows = 1 + client % 3;
                let x: Vec<i64> = (0..rows * 4).map(|i| i - client).collect();
                let request = json!({ "inputs": [
                    { "name": "x", "datatype": "FP32", "shape": [rows, 4], "data": x },
                ] });
                let answer = server.infer("rows", &request).ok().json();
                let output = &answer["outputs"][0];
                assert_eq!(output["shape"], json!([rows, 4]));
                let expected: Vec<f64> = x.iter().map(|&v| v.max(0) as f64).collect();
                assert_eq!(output["data"], json!(expected), "client {client}");
            });
        }
    });
    let many = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [5, 4], "data": vec![0; 20] },
    ] });
    server.infer("rows", &many).refused(400, "4 at most");
}

#[test]
fn what_happens_is_counted() {
    let bench = bench_with(&[
        ("early.onnx", &relu("x", &["2"], "y")),
        ("early.toml", b"deadline = '60s'"),
        ("late.onnx", &relu("x", &["2"], "y")),
        ("late.toml", b"deadline = '0.001us'"),
    ]);
    let mut server = Server::start(&bench, "--memory-budget 64MiB --metrics 127.0.0.1:0");
    let request = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [2], "data": [1, -1] },
    ] });
    for _ in 0..3 {
        server.infer("early", &request).ok();
    }
    server.infer("late", &request).ok();
    server.infer("late", &json!({})).refused(400, "inputs");
    server.infer("made-up", &request).refused(404, "made-up");
    server.address = server.metrics.clone().unwrap();
    let text = String::from_utf8(server.get("/metrics").ok().body).unwrap();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name} in {text}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("neap_requests_total{model=\"early\"}"), 3.0);
    assert_eq!(value("neap_latency_seconds_count{model=\"early\"}"), 3.0);
    assert_eq!(value("neap_deadlines_met_total{model=\"early\"}"), 3.0);
    assert_eq!(value("neap_deadlines_missed_total{model=\"late\"}"), 1.0);
    assert_eq!(
        value("neap_refusals_total{model=\"late\",why=\"malformed\"}"),
        1.0
    );
    assert_eq!(
        value("neap_refusals_total{model=\"\",why=\"not_found\"}"),
        1.0
    );
    assert_eq!(
        value("neap_memory_bytes{kind=\"budget\"}"),
        f64::from(64 << 20)
    );
    assert!(value("neap_memory_bytes{kind=\"process\"}") < f64::from(64 << 20));
    assert!(value("neap_memory_bytes{kind=\"model:early\"}") > 0.0);
    assert!(!text.contains("made-up"));
}

#[test]
fn only_those_who_show_the_token_are_answered() {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2"], "y"))]);
    std::fs::write(bench.path("token"), "0123456789abcdef\n").unwrap();
    let options = "--memory-budget 64MiB --metrics 127.0.0.1:0 --token-file token";
    let mut server = Server::start(&bench, options);
    let known = "authorization: Bearer 0123456789abcdef\r\n";
    let body = br#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [1, -1]}]}"#;
    let infer =
        |server: &Server, headers: &str| server.ask("POST", "/v2/models/a/infer", headers, body);
    infer(&server, known).ok();
    for wrong in ["", "authorization: Bearer 0123456789abcdeg\r\n"] {
        let answer = infer(&server, wrong);
        answer.refused(401, "token");
        assert_eq!(answer.header("www-authenticate"), Some("bearer"));
        server
            .ask("GET", "/memory", wrong, b"")
            .refused(401, "token");
        server
            .ask("GET", "/nowhere", wrong, b"")
            .refused(401, "token");
        // Whether it lives is no secret, and the page asks for the token itself.
        for open in ["/v2/health/ready", "/"] {
            assert_eq!(server.ask("GET", open, wrong, b"").status, 200);
        }
        server
            .ask("GET", "/metrics", wrong, b"")
            .refused(401, "token");
    }
    server.address = server.metrics.clone().unwrap();
    server.get("/metrics").refused(401, "token");
    server.ask("GET", "/metrics", known, b"").ok();
    std::fs::write(bench.path("token"), "secret").unwrap();
    let refused = bench.neap("serve models --token-file token --http 127.0.0.1:0");
    refused.fails(2, &["16 to 4096 characters"]);
}

#[test]
fn a_server_that_is_asked_to_end_answers_first() {
    let bench = bench_with(&[("layers.onnx", &layers())]);
    let mut server = Server::start(&bench, "--memory-budget 40MiB");
    let x = f32_bytes(&floats(4, 4096));
    let request = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [4, 1024], "parameters": { "binary_data_size": 16384 } },
    ], "parameters": { "binary_data_output": true } });
    let (header, body) = binary(&request, &x);
    let mut stream = server.connect();
    let head = format!(
        "POST /v2/models/layers/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n{header}\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(&body[..100]).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    server.signal(libc::SIGTERM);
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        TcpStream::connect(&server.address).is_err(),
        "it still listens"
    );
    stream.write_all(&body[100..]).unwrap();
    let answer = read_answer(&mut stream);
    assert_eq!(answer.status, 200);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn a_hard_limit_holds_while_clients_ask() {
    let bench = bench_with(&[("layers.onnx", &layers())]);
    if !can_enforce(&bench) {
        return;
    }
    let mut server = Server::start(
        &bench,
        "--memory-budget 32MiB --request-memory 2MiB --enforce",
    );
    let x = floats(5, 4096);
    let first = server.infer("layers", &layers_request(&x)).ok().body;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let (server, x, first) = (&server, &x, &first);
            scope.spawn(move || {
                let mut answered = 0;
                for _ in 0..20 {
                    let answer = server.infer("layers", &layers_request(x));
                    match answer.status {
                        200 => {
                            assert!(answer.body == *first, "another answer");
                            answered += 1;
                        }
                        status => assert_eq!(status, 429),
                    }
                }
                assert!(answered > 0);
            });
        }
    });
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn what_cannot_be_served_is_one_line() {
    let bench = bench_with(&[("a.onnx", b"rubbish")]);
    let neap = |args: &str| bench.neap(&format!("serve {args} --http 127.0.0.1:0"));
    neap("nowhere").fails(2, &["nowhere"]);
    neap("models").fails(2, &["'a'"]);
    neap("models --memory-budget 25%").fails(2, &["give a size"]);
    neap("models --enforce").fails(2, &["--memory-budget"]);
    neap("models --memory-budget 4MiB").fails(3, &["without models"]);
    bench
        .neap("serve models --http nowhere")
        .fails(2, &["--http"]);
    std::fs::remove_file(bench.path("models/a.onnx")).unwrap();
    std::fs::write(bench.path("models/b.onnx"), layers()).unwrap();
    neap("models --memory-budget 40MiB --request-memory 1KB").fails(2, &["--request-memory"]);
    std::fs::write(bench.path("models/b.toml"), "urgency = 'high'").unwrap();
    neap("models").fails(2, &["b.toml", "line 1"]);
    std::fs::write(bench.path("models/b.toml"), "[batch]\nmost = 4").unwrap();
    neap("models").fails(2, &["batches"]);
}
