//! Deadlines that are promised, beside everything else that clients may do.

use super::server::{Answer, Server, bench_with, binary, floats, layers_request};
use crate::onnx::layers;
use crate::support::f32_bytes;
use serde_json::json;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Deadlines are promised where that can be kept, beside clients that ask for another model as fast as they can.
#[test]
fn promised_requests_go_first_and_promises_have_bounds() {
    let bench = bench_with(&[
        ("promised.onnx", &layers()),
        ("promised.toml", b"period = '2s'\ndeadline = '30s'"),
        ("impossible.onnx", &layers()),
        ("impossible.toml", b"period = '10us'"),
        ("other.onnx", &layers()),
    ]);
    let mut server = Server::start(
        &bench,
        "--memory-budget 64MiB --exact --metrics 127.0.0.1:0",
    );
    let listed = server.ask("POST", "/v2/repository/index", "", b"{}").ok();
    let listed = listed.json();
    assert_eq!(listed[0]["name"], "impossible");
    let reason = listed[0]["reason"].as_str().unwrap();
    assert!(reason.contains("more work than time"), "{reason}");
    let x = layers_request(&floats(6, 4096));
    let first = server.infer("other", &x).ok().json();
    server
        .infer("impossible", &x)
        .refused(503, "more work than time");
    let told = server.get("/memory").ok().json();
    assert_eq!(told["promises"]["promised"]["deadline_ms"], 30_000.0);
    let run_ms = told["promises"]["promised"]["longest_run_ms"].as_f64();
    assert!(run_ms.unwrap() > 1.0, "{told}");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (server, x, first) = (&server, &x, &first);
            scope.spawn(move || {
                for _ in 0..30 {
                    let answer = server.infer("other", x).ok().json();
                    assert_eq!(answer["outputs"], first["outputs"]);
                }
            });
        }
        // The first runs at once, the second a period later, and a third would be too early.
        for _ in 0..2 {
            let answer = server.infer("promised", &x).ok().json();
            assert_eq!(answer["outputs"], first["outputs"]);
        }
        let again = server.infer("promised", &x).ok().json();
        assert_eq!(again["outputs"], first["outputs"]);
    });
    std::thread::scope(|scope| {
        let answers: Vec<_> = (0..4)
            .map(|_| {
                let (server, x) = (&server, &x);
                scope.spawn(move || server.infer("promised", x))
            })
            .collect();
        let answers: Vec<Answer> = answers.into_iter().map(|a| a.join().unwrap()).collect();
        let refused = answers.iter().filter(|a| a.status == 429).count();
        assert!(refused >= 1, "nobody comes too often");
        for answer in answers {
            match answer.status {
                200 => assert_eq!(answer.json()["outputs"], first["outputs"]),
                _ => {
                    answer.refused(429, "more often");
                    assert!(answer.header("retry-after").is_some());
                }
            }
        }
    });
    // A promise that comes later is made, or not, too.
    let post = |path: &str| server.ask("POST", path, "", b"");
    post("/v2/repository/models/impossible/load").refused(400, "more work than time");
    std::fs::write(bench.path("models/impossible.toml"), "period = '60s'").unwrap();
    post("/v2/repository/models/impossible/load").ok();
    server.infer("impossible", &x).ok();
    post("/v2/repository/models/promised/unload").ok();
    let told = server.get("/memory").ok().json();
    assert_eq!(told["promises"].as_object().unwrap().len(), 1);
    server.infer("other", &x).ok();
    server.address = server.metrics.clone().unwrap();
    let text = String::from_utf8(server.get("/metrics").ok().body).unwrap();
    assert!(
        text.contains("neap_deadlines_met_total{model=\"promised\"}"),
        "{text}"
    );
    assert!(text.contains("neap_refusals_total{model=\"promised\",why=\"too_often\"}"));
    assert!(
        text.contains("neap_deadlines_missed_total{model=\"promised\"} 0\n"),
        "{text}"
    );
}

/// Tells clients to end, also when the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Models come, go and are refused while others are asked: those are answered all the time, with the same bits.
#[test]
fn models_come_and_go_beside_requests() {
    let bench = bench_with(&[
        ("promised.onnx", &layers()),
        ("promised.toml", b"period = '2s'\ndeadline = '20s'"),
        ("other.onnx", &layers()),
        ("guest.onnx", &layers()),
    ]);
    let options = "--memory-budget 48MiB --exact --metrics 127.0.0.1:0";
    let mut server = Server::start(&bench, options);
    std::fs::write(bench.path("models/impossible.onnx"), layers()).unwrap();
    std::fs::write(bench.path("models/impossible.toml"), "period = '10us'").unwrap();
    let x = layers_request(&floats(7, 4096));
    let first = server.infer("other", &x).ok().json();
    let is_over = AtomicBool::new(false);
    let answered = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for name in ["other", "other", "promised", "guest"] {
            let (server, x, first) = (&server, &x, &first);
            let (is_over, answered) = (&is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let answer = server.infer(name, x);
                    match answer.status {
                        503 if name == "guest" => {}
                        429 if name == "promised" => {}
                        _ => {
                            assert_eq!(answer.ok().json()["outputs"], first["outputs"]);
                            answered.fetch_add(1, Relaxed);
                        }
                    }
                    if name == "promised" {
                        std::thread::sleep(Duration::from_millis(500));
                    }
                }
            });
        }
        let _over = Over(&is_over);
        let post = |path: &str| server.ask("POST", path, "", b"");
        for _ in 0..5 {
            post("/v2/repository/models/guest/unload").ok();
            post("/v2/repository/models/impossible/load").refused(400, "more work than time");
            post("/v2/repository/models/guest/load").ok();
        }
    });
    assert!(answered.into_inner() > 10);
    let listed = server.ask("POST", "/v2/repository/index", "", b"{}").ok();
    let listed = listed.json();
    let states = listed.as_array().unwrap().iter();
    let states: Vec<_> = states.map(|m| m["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["READY", "UNAVAILABLE", "READY", "READY"]);
    server.address = server.metrics.clone().unwrap();
    let text = String::from_utf8(server.get("/metrics").ok().body).unwrap();
    assert!(
        text.contains("neap_deadlines_missed_total{model=\"promised\"} 0\n"),
        "{text}"
    );
}

/// Others may take what there is for all, but not what is set aside.
#[test]
fn promised_requests_have_memory_of_their_own() {
    let bench = bench_with(&[
        ("promised.onnx", &layers()),
        ("promised.toml", b"period = '1s'\ndeadline = '1s'"),
        ("other.onnx", &layers()),
    ]);
    let options = "--memory-budget 48MiB --request-memory 400KB --margin 0";
    let server = Server::start(&bench, options);
    let told = server.get("/memory").ok().json();
    let promised_bytes = told["requests"]["promised_bytes"].as_u64().unwrap();
    assert!(promised_bytes > 3 * 2 * 32768, "{promised_bytes}");
    let request = json!({ "inputs": [
        { "name": "x", "datatype": "FP32", "shape": [4, 1024], "parameters": { "binary_data_size": 16384 } },
    ], "parameters": { "binary_data_output": true } });
    let (header, body) = binary(&request, &f32_bytes(&floats(8, 4096)));
    let ask = |name: &str| {
        let path = format!("/v2/models/{name}/infer");
        server.ask("POST", &path, &header, &body)
    };
    let first = ask("other").ok();
    // A slow client takes nearly all that is for all.
    let left_bytes = 20_000;
    let common_bytes = 400 * 1024 - promised_bytes - left_bytes;
    let head = format!(
        "POST /v2/models/other/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {common_bytes}\r\n\
         inference-header-content-length: 100\r\n\r\n"
    );
    let mut slow = server.connect();
    slow.write_all(head.as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    ask("other").refused(429, "they may");
    for _ in 0..2 {
        assert!(
            ask("promised")
                .ok()
                .body
                .ends_with(&first.body[first.body.len() - 16384..])
        );
    }
    ask("other").refused(429, "they may");
    // A promise that its requests leave no room for is not made.
    std::fs::write(bench.path("models/second.onnx"), layers()).unwrap();
    std::fs::write(bench.path("models/second.toml"), "period = '60s'").unwrap();
    let load = "/v2/repository/models/second/load";
    let refused = server.ask("POST", load, "", b"");
    refused.refused(400, "--request-memory");
    // What waits for memory goes on as soon as it is there.
    let path = "/v2/repository/models/other/unload";
    server.ask("POST", path, "", b"").ok();
    let path = "/v2/repository/models/other/load";
    std::thread::scope(|scope| {
        let loaded = scope.spawn(|| server.ask("POST", path, "", b""));
        std::thread::sleep(Duration::from_millis(500));
        drop(slow);
        loaded.join().unwrap().ok();
    });
    ask("other").ok();
}
