//! What is not answered, and how that is said: malformed requests, missing tokens, models that cannot be served.

use super::super::onnx::{layers, relu};
use super::server::{Server, bench_with};
use serde_json::{Value, json};
use std::io::{Read, Write};

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
    let encoded = "content-encoding: deflate\r\n";
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

    let chunked = b"POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    server.raw(chunked).refused(411, "Content-Length");
    // A body that never comes, and a head that never ends.
    let half =
        b"POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: 50\r\n\r\n{";
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
fn what_cannot_be_served_is_one_line() {
    let bench = bench_with(&[("a.onnx", b"rubbish")]);
    let neap = |args: &str| bench.neap(&format!("serve {args} --http 127.0.0.1:0"));
    neap("nowhere").fails(2, &["nowhere"]);
    neap("models --strict").fails(2, &["'a'"]);
    neap("models --memory-budget 25%").fails(2, &["give a size"]);
    neap("models --enforce").fails(2, &["--memory-budget"]);
    neap("models --memory-budget 4MiB").fails(3, &["without models"]);
    bench
        .neap("serve models --http nowhere")
        .fails(2, &["--http"]);
    std::fs::remove_file(bench.path("models/a.onnx")).unwrap();
    std::fs::write(bench.path("models/b.onnx"), layers()).unwrap();
    neap("models --strict --memory-budget 40MiB --request-memory 1KB")
        .fails(2, &["--request-memory"]);
    std::fs::write(bench.path("models/b.toml"), "urgency = 'high'").unwrap();
    neap("models --strict").fails(2, &["b.toml", "line 1"]);
    std::fs::write(bench.path("models/b.toml"), "[batch]\nmost = 4").unwrap();
    neap("models --strict").fails(2, &["batches"]);
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
