//! `neap serve` as clients meet it: the real program, a port of its own, bytes over TCP.

mod advice;
mod connections;
mod halves;
mod memory;
mod promises;
mod refusals;
mod reloading;
mod server;
mod telling;
mod tls;

use super::onnx::{FLOAT, INT64, Model, layers, relu};
use super::support::f32_bytes;
use serde_json::{Value, json};
use server::{Server, bench_with, binary, expected, floats, layers_request, read_answer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

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
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len}\r\n{close}\r\n")
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
fn requests_that_wait_run_together() {
    let settings = b"[batch]\nmost = 4\nwait = '200ms'\n";
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
    let memory = |kind: &str, model: &str| {
        value(&format!(
            "neap_memory_bytes{{kind=\"{kind}\",model=\"{model}\"}}"
        ))
    };
    assert_eq!(memory("budget", ""), f64::from(64 << 20));
    assert!(memory("process", "") < f64::from(64 << 20));
    assert!(memory("model", "early") > 0.0);
    assert!(!text.contains("made-up"));
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
        "POST /v2/models/layers/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n{header}\r\n",
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
