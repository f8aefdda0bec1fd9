//! A server under test, and what its clients say and hear.

use crate::support::{Bench, f32_bytes, npy, read_f32};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub struct Server {
    pub child: Child,
    pub address: String,
    /// Where `/metrics` is, if anywhere.
    pub metrics: Option<String>,
    /// Where gRPC is spoken, if anywhere.
    pub grpc: Option<String>,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Server {
    pub fn start(bench: &Bench, options: &str) -> Server {
        let mut child = bench
            .command(&format!("serve models --http 127.0.0.1:0 {options}"))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = child.stderr.take().unwrap();
        let mut said = String::new();
        let mut lines = BufReader::new(stderr);
        let (address, grpc, metrics) = loop {
            let mut line = String::new();
            assert!(lines.read_line(&mut line).unwrap() > 0, "it ended: {said}");
            let behind = |mark: &str| {
                let (_, rest) = line.trim().split_once(mark)?;
                let (_, rest) = rest.split_once("://")?;
                rest.split(',').next().map(str::to_string)
            };
            if let Some(address) = behind(" on http") {
                break (address, behind(", grpc"), behind("metrics http"));
            }
            said += &line;
        };
        // What it says later is of no interest, but must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
        Server {
            child,
            address,
            metrics,
            grpc,
        }
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        let patience = Some(Duration::from_secs(60));
        stream.set_read_timeout(patience).unwrap();
        stream
    }

    /// Sends bytes as they are, and reads to the end.
    pub fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // It may have answered and closed before it has read everything.
        let _ = stream.write_all(bytes);
        read_answer(&mut stream)
    }

    pub fn ask(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Answer {
        let mut bytes = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {}\r\n{headers}\r\n",
            body.len()
        )
        .into_bytes();
        bytes.extend(body);
        self.raw(&bytes)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.ask("GET", path, "", b"")
    }

    pub fn infer(&self, model: &str, request: &Value) -> Answer {
        let path = format!("/v2/models/{model}/infer");
        self.ask("POST", &path, "", request.to_string().as_bytes())
    }

    pub fn signal(&self, number: i32) {
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(self.child.id() as i32, number) };
    }

    /// Waits, but not forever.
    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "it goes on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    answer_of(&all)
}

pub fn answer_of(all: &[u8]) -> Answer {
    let end = all.windows(4).position(|w| w == b"\r\n\r\n");
    let end = end.unwrap_or_else(|| panic!("no answer: {:?}", String::from_utf8_lossy(all)));
    let head = String::from_utf8(all[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer {
        status,
        head: head.to_ascii_lowercase(),
        body: all[end + 4..].to_vec(),
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|_| panic!("{}", String::from_utf8_lossy(&self.body)))
    }

    pub fn ok(self) -> Answer {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, 200, "{text}");
        self
    }

    /// Refused with this status and one line that says `part`.
    pub fn refused(&self, status: u16, part: &str) {
        let text = String::from_utf8_lossy(&self.body);
        assert_eq!(self.status, status, "{text}");
        let error = self.json()["error"].as_str().unwrap_or("").to_string();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// A folder `models` with these files.
pub fn bench_with(files: &[(&str, &[u8])]) -> Bench {
    let bench = Bench::new();
    for (name, bytes) in files {
        let path = bench.path("models").join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    bench
}

pub fn floats(seed: u32, count: usize) -> Vec<f32> {
    let value = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) ^ seed) as f32 / 2e9 - 1.0;
    (0..count).map(value).collect()
}

/// What `neap run` gives for the three layers.
pub fn expected(bench: &Bench, x: &[f32]) -> Vec<u8> {
    bench.write("x.npy", &npy("<f4", "(4, 1024)", &f32_bytes(x)));
    let run = "run models/layers.onnx --exact --input x=x.npy --output-dir out -q";
    bench.neap(run).ok();
    let file = std::fs::read_dir(bench.path("out")).unwrap().next();
    f32_bytes(&read_f32(&file.unwrap().unwrap().path()))
}

pub fn layers_request(x: &[f32]) -> Value {
    json!({
        "id": "seven",
        "inputs": [{ "name": "x", "datatype": "FP32", "shape": [4, 1024], "data": x }],
    })
}

/// JSON and tensors, and the header that says where they meet.
pub fn binary(request: &Value, tensors: &[u8]) -> (String, Vec<u8>) {
    let mut body = request.to_string().into_bytes();
    let header = format!("inference-header-content-length: {}\r\n", body.len());
    body.extend(tensors);
    (header, body)
}
