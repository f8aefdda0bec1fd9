//! Models that are loaded again while clients ask, and folders in which not all is as it should be.

use super::server::{Server, bench_with};
use crate::onnx::{FLOAT, Model, relu};
use crate::support::Bench;
use serde_json::{Value, json};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

fn negated() -> Vec<u8> {
    Model::default()
        .input("x", FLOAT, &["2"])
        .node("Neg", &["x"], &["y"])
        .output("y", FLOAT, &["2"])
        .finish()
}

fn put(bench: &Bench, name: &str, bytes: &[u8]) {
    std::fs::write(bench.path("models").join(name), bytes).unwrap();
}

fn asked() -> Value {
    json!({ "inputs": [{ "name": "x", "datatype": "FP32", "shape": [2], "data": [1, -2] }] })
}

fn load(server: &Server, name: &str) -> super::server::Answer {
    let path = format!("/v2/repository/models/{name}/load");
    server.ask("POST", &path, "", b"")
}

/// With a promise and without, in little memory and in much: every request is answered, by one of the two.
#[test]
fn a_reload_never_interrupts_and_one_that_fails_keeps_the_old_model() {
    for (budget, settings) in [
        ("64MiB", ""),
        ("64MiB", "period = '50ms'\ndeadline = '10s'"),
    ] {
        let bench = bench_with(&[("m.onnx", &relu("x", &["2"], "y"))]);
        put(&bench, "m.toml", settings.as_bytes());
        let options = format!("--memory-budget {budget} --exact");
        let server = Server::start(&bench, &options);
        let is_over = AtomicBool::new(false);
        let answered = AtomicU32::new(0);
        std::thread::scope(|scope| {
            let (server, is_over, answered) = (&server, &is_over, &answered);
            scope.spawn(move || {
                while !is_over.load(Relaxed) {
                    let answer = server.infer("m", &asked());
                    if answer.status == 429 {
                        continue;
                    }
                    let data = answer.ok().json()["outputs"][0]["data"].clone();
                    let known = data == json!([1.0, 0.0]) || data == json!([-1.0, 2.0]);
                    assert!(known, "{data}");
                    answered.fetch_add(1, Relaxed);
                }
            });
            let answers = |wanted: Value| {
                let answer = loop {
                    let answer = server.infer("m", &asked());
                    if answer.status != 429 {
                        break answer.ok().json();
                    }
                    std::thread::sleep(std::time::Duration::from_millis(20));
                };
                assert_eq!(answer["outputs"][0]["data"], wanted);
            };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..2 {
                    put(&bench, "m.onnx", &negated());
                    load(server, "m").ok();
                    answers(json!([-1.0, 2.0]));
                    put(&bench, "m.onnx", &relu("x", &["2"], "y"));
                    load(server, "m").ok();
                    answers(json!([1.0, 0.0]));
                }
                put(&bench, "m.onnx", b"rubbish");
                load(server, "m").refused(400, "m.onnx");
                answers(json!([1.0, 0.0]));
                put(&bench, "m.onnx", &relu("x", &["9000000"], "y"));
                load(server, "m").refused(400, "--request-memory");
                put(&bench, "m.onnx", &negated());
                put(&bench, "m.toml", b"period = '1us'");
                load(server, "m").refused(400, "more work than time");
                answers(json!([1.0, 0.0]));
                assert_eq!(server.get("/v2/health/ready").status, 200);
            }));
            is_over.store(true, Relaxed);
            if let Err(panic) = result {
                std::panic::resume_unwind(panic);
            }
        });
        assert!(answered.into_inner() > 10);
        let told = server.get("/memory").ok().json();
        let models = told["models"]["models"].as_array().unwrap();
        assert_eq!(models.len(), 1, "{told}");
        assert_eq!(models[0]["name"], "m");
    }
}

/// What cannot be loaded is told, and the others are served; `--strict` wants all.
#[test]
fn one_bad_file_does_not_keep_the_others_from_being_served() {
    let bench = bench_with(&[
        ("good.onnx", &relu("x", &["2"], "y")),
        ("bad.onnx", b"rubbish"),
        ("large.onnx", &relu("x", &["9000000"], "y")),
        ("twice.onnx", &relu("x", &["2"], "y")),
        ("twice/1/model.onnx", &relu("x", &["2"], "y")),
        ("pipe.onnx", &relu("x", &["2"], "y")),
    ]);
    let pipe = bench.path("models/pipe.toml");
    let pipe = CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: the path ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    bench
        .neap("serve models --strict --http 127.0.0.1:0")
        .fails(2, &["'bad'"]);
    let mut server = Server::start(&bench, "--memory-budget 64MiB");
    server.infer("good", &asked()).ok();
    assert_eq!(server.get("/v2/health/ready").status, 200);
    let listed = server.ask("POST", "/v2/repository/index", "", b"{}").ok();
    let listed = listed.json();
    for (name, reason) in [
        ("bad", "bad.onnx"),
        ("large", "--request-memory"),
        ("pipe", "pipe.toml is not a file"),
        ("twice", "two models have this name"),
    ] {
        let found = listed.as_array().unwrap().iter();
        let found: Vec<&Value> = found.filter(|m| m["name"] == name).collect();
        assert_eq!(found[0]["state"], "UNAVAILABLE", "{name}");
        let told = found[0]["reason"].as_str().unwrap();
        assert!(told.contains(reason), "{name}: {told}");
        server.infer(name, &asked()).refused(503, reason);
    }
    std::fs::remove_dir_all(bench.path("models/twice")).unwrap();
    load(&server, "twice").ok();
    server.infer("twice", &asked()).ok();
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
}
