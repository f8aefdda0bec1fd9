//! Who is connected and asks nothing, who asks on behalf of others, and who finds no place.

use super::super::onnx::relu;
use super::server::{Server, bench_with, read_answer};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Connections that never ask, each in another way.
fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    let starts = [&b""[..], &PREFACE[..10], PREFACE, b"GET /v2 HTTP/1.1\r\n"];
    let one = |index: usize| {
        let mut stream = TcpStream::connect(address).unwrap();
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).unwrap();
        stream.write_all(starts[index % starts.len()]).unwrap();
        stream
    };
    (0..count).map(one).collect()
}

#[test]
fn a_connection_on_which_nothing_is_asked_is_closed_over_every_protocol() {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2"], "y"))]);
    let options = "--memory-budget 64MiB --grpc 127.0.0.1:0 --client-timeout 1s";
    let server = Server::start(&bench, options);
    for address in [&server.address, server.grpc.as_ref().unwrap()] {
        for mut stream in silent(address, 40) {
            // Where it was reset instead, it is closed as well.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

#[test]
fn those_who_ask_nothing_keep_nobody_out_and_do_not_delay_the_end() {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2"], "y"))]);
    let options = "--memory-budget 64MiB --grpc 127.0.0.1:0 --max-connections 4 --client-timeout 60s --drain-timeout 50s";
    let mut server = Server::start(&bench, options);
    let _many = silent(&server.address, 12);
    let _grpc = silent(server.grpc.as_ref().unwrap(), 12);
    assert_eq!(server.get("/v2/health/live").ok().json()["live"], true);
    server.get("/v2/models/a").ok();
    let started = Instant::now();
    server.signal(libc::SIGTERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(
        started.elapsed() < Duration::from_secs(40),
        "it waited for nobody"
    );
}

#[test]
fn more_clients_than_places_hear_so_and_health_is_told_all_the_same() {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2"], "y"))]);
    let server = Server::start(&bench, "--memory-budget 64MiB --max-connections 2");
    let start = "POST /v2/repository/index HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{";
    let mut busy: Vec<TcpStream> = (0..2).map(|_| server.connect()).collect();
    for stream in &mut busy {
        stream.write_all(start.as_bytes()).unwrap();
    }
    std::thread::sleep(Duration::from_millis(200));
    let body = vec![b' '; 300_000];
    for _ in 0..20 {
        // All of it arrives after the answer was made.
        let answer = server.ask("POST", "/v2/models/a/infer", "", &body);
        answer.refused(429, "too many clients");
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(server.get("/v2/health/ready").status, 200);
        server.get("/metrics").ok();
    }
    // Those who were there first are answered.
    for mut stream in busy {
        stream.write_all(b"}").unwrap();
        assert_eq!(read_answer(&mut stream).status, 200);
    }
}

#[test]
fn pages_of_other_sites_and_other_names_command_nobody() {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2"], "y"))]);
    let unload = |server: &Server, headers: &str| {
        let text = format!(
            "POST /v2/repository/models/a/unload HTTP/1.1\r\n{headers}connection: close\r\ncontent-length: 0\r\n\r\n"
        );
        server.raw(text.as_bytes())
    };
    let server = Server::start(&bench, "--memory-budget 64MiB");
    for foreign in [
        "host: localhost\r\norigin: http://127.0.0.1:19999\r\n",
        "host: localhost\r\norigin: null\r\n",
        "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n",
        "host: evil.example\r\n",
        "host: evil.example\r\norigin: http://evil.example\r\n",
    ] {
        unload(&server, foreign).refused(403, "--allow-");
    }
    unload(&server, "").refused(400, "Host");
    server.get("/v2/models/a").ok();
    unload(
        &server,
        "host: 127.0.0.1:8000\r\norigin: http://127.0.0.1:8000\r\n",
    )
    .ok();
    drop(server);

    let options =
        "--memory-budget 64MiB --allow-origin https://page.example --allow-host models.example";
    let server = Server::start(&bench, options);
    let question = server.raw(
        b"OPTIONS /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\norigin: https://page.example\r\nconnection: close\r\n\
        access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n\r\n",
    );
    assert_eq!(question.status, 204);
    let allowed = question.header("access-control-allow-headers");
    assert_eq!(allowed, Some("content-type"));
    let page = unload(
        &server,
        "host: models.example\r\norigin: https://page.example\r\n",
    )
    .ok();
    let told = page.header("access-control-allow-origin");
    assert_eq!(told, Some("https://page.example"));
    unload(&server, "host: evil.example\r\n").refused(403, "--allow-host");
}
