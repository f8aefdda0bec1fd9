//! Memory while clients ask: the budget changes, is full, or is a hard limit.

use super::super::onnx::{layers, relu};
use super::super::support::{can_enforce, f32_bytes};
use super::server::{Server, bench_with, binary, floats, layers_request};
use serde_json::{Value, json};
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

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
    let head = b"POST /v2/models/layers/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20000\r\ninference-header-content-length: 100\r\n\r\n";
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
    // Each is in the middle of a request. Others that were answered are gone by then.
    std::thread::sleep(Duration::from_millis(300));
    let mut busy: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut busy {
        stream.write_all(b"POST /v2/repository/index HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{").unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    server.get("/v2").refused(429, "connected");
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
