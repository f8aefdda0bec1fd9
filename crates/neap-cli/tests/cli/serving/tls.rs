//! The server behind TLS, with a certificate that it signed itself.

use super::server::{Answer, Server, answer_of, bench_with};
use crate::onnx::relu;
use crate::support::Bench;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

const OPTIONS: &str = "--memory-budget 64MiB --tls-cert cert.pem --tls-key key.pem";

fn bench() -> (Bench, RootCertStore) {
    let bench = bench_with(&[("a.onnx", &relu("x", &["2"], "y"))]);
    let own = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    bench.write("cert.pem", own.cert.pem().as_bytes());
    bench.write("key.pem", own.signing_key.serialize_pem().as_bytes());
    let mut roots = RootCertStore::empty();
    roots.add(own.cert.der().clone()).unwrap();
    (bench, roots)
}

/// A client that knows these certificates.
fn client(server: &Server, roots: RootCertStore) -> StreamOwned<ClientConnection, TcpStream> {
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(ring);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    StreamOwned::new(session, server.connect())
}

fn ask(server: &Server, roots: &RootCertStore, text: &[u8]) -> Answer {
    let mut stream = client(server, roots.clone());
    stream.write_all(text).unwrap();
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    answer_of(&all)
}

#[test]
fn requests_come_through_tls_and_not_without() {
    let (bench, roots) = bench();
    let server = Server::start(&bench, OPTIONS);
    // Somebody who says nothing keeps nobody waiting.
    let _silent = server.connect();
    let body = r#"{"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "data": [3, -1]}]}"#;
    let request = format!(
        "POST /v2/models/a/infer HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..3 {
        let answer = ask(&server, &roots, request.as_bytes()).ok().json();
        assert_eq!(answer["outputs"][0]["data"], serde_json::json!([3.0, 0.0]));
    }
    // A large answer, in many records.
    let page = ask(
        &server,
        &roots,
        b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
    );
    assert!(page.ok().body.ends_with(b"</script>\n"));
    let mut stranger = client(&server, RootCertStore::empty());
    assert!(stranger.write_all(request.as_bytes()).is_err());
    let mut plain = server.connect();
    plain.write_all(request.as_bytes()).unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard);
    assert!(!heard.starts_with(b"HTTP"), "answered in plain text");
}

#[test]
fn certificates_that_cannot_be_used_are_one_line() {
    let (bench, _) = bench();
    let neap = |args: &str| bench.neap(&format!("serve models --http 127.0.0.1:0 {args}"));
    neap("--tls-cert cert.pem").fails(2, &["--tls-key"]);
    neap("--tls-cert none.pem --tls-key key.pem").fails(2, &["none.pem"]);
    neap("--tls-cert key.pem --tls-key key.pem").fails(2, &["no certificate in key.pem"]);
    neap("--tls-cert cert.pem --tls-key cert.pem").fails(2, &["no private key", "cert.pem"]);
    let other = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
    bench.write("other.pem", other.signing_key.serialize_pem().as_bytes());
    neap("--tls-cert cert.pem --tls-key other.pem").fails(2, &["do not go together"]);
}
