//! `neap serve` as a child process, and a client of it that sends and takes tensors as bytes.

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longer than any answer takes.
const PATIENCE: Duration = Duration::from_secs(90);

/// A running server; it is killed if nobody has ended it.
pub struct Server {
    child: Child,
    pub http: String,
    pub metrics: String,
    /// What it said before it was ready.
    pub said: Vec<String>,
}

/// A connection.
pub struct Client {
    stream: BufReader<TcpStream>,
}

/// What came back.
pub struct Answer {
    pub status: u16,
    /// Where an error is told.
    pub text: String,
    /// Of the only output.
    pub tensor: Vec<u8>,
    /// Requests that ran together had so many rows.
    pub rows: usize,
}

impl Server {
    /// Waits until all models are loaded.
    pub fn start(neap: &Path, folder: &Path, cache: &Path, options: &[String]) -> Result<Server> {
        let mut command = Command::new(neap);
        command
            .arg("serve")
            .arg(folder)
            .arg("--cache-dir")
            .arg(cache);
        command.args(["--http", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]);
        let mut child = command.args(options).stderr(Stdio::piped()).spawn()?;
        let mut lines = BufReader::new(child.stderr.take().context("stderr")?);
        let mut said = Vec::new();
        loop {
            let mut line = String::new();
            if lines.read_line(&mut line)? == 0 {
                bail!("the server ended: {}", said.join(" "));
            }
            let behind = |mark: &str| {
                let (_, rest) = line.trim().split_once(mark)?;
                rest.split(',').next().map(str::to_string)
            };
            if let (Some(http), Some(metrics)) = (behind("on http://"), behind("metrics http://")) {
                std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::stderr()));
                return Ok(Server {
                    child,
                    http,
                    metrics,
                    said,
                });
            }
            said.push(line.trim().to_string());
        }
    }

    /// Asks it to end, and waits.
    pub fn end(mut self) -> Result<ExitStatus> {
        let id = self.child.id().to_string();
        let asked = Command::new("kill").args(["-TERM", &id]).status()?;
        ensure!(asked.success(), "the server cannot be told to end");
        Ok(self.child.wait()?)
    }

    /// Sends a request with a small body, or an empty one.
    pub fn ask(&self, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
        one_shot(&self.http, method, path, body)
    }

    /// A figure of `/metrics`; 0 where it is not there.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let (_, text) = one_shot(&self.metrics, "GET", "/metrics", "")?;
        let text = String::from_utf8(text)?;
        let line = text.lines().find(|line| line.starts_with(name));
        let value = line.and_then(|line| line.rsplit(' ').next());
        Ok(value.map_or(Ok(0.0), str::parse)?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn one_shot(address: &str, method: &str, path: &str, body: &str) -> Result<(u16, Vec<u8>)> {
    let mut client = Client::connect(address)?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    client.stream.get_mut().write_all(request.as_bytes())?;
    let (status, _, body) = client.read()?;
    Ok((status, body))
}

/// The bytes of a request for one model with one f32 input: head, JSON and tensor.
pub fn request(model: &str, input: &str, shape: &[usize], tensor: &[u8]) -> Vec<u8> {
    let text = json!({
        "inputs": [{
            "name": input, "datatype": "FP32", "shape": shape,
            "parameters": { "binary_data_size": tensor.len() },
        }],
        "parameters": { "binary_data_output": true },
    })
    .to_string();
    let mut bytes = format!(
        "POST /v2/models/{model}/infer HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\
         inference-header-content-length: {}\r\n\r\n{text}",
        text.len() + tensor.len(),
        text.len()
    )
    .into_bytes();
    bytes.extend_from_slice(tensor);
    bytes
}

impl Client {
    pub fn connect(address: &str) -> Result<Client> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        Ok(Client {
            stream: BufReader::new(stream),
        })
    }

    /// Sends a request and goes away without its answer.
    pub fn vanish(mut self, request: &[u8], after: Duration) -> Result<()> {
        self.stream.get_mut().write_all(request)?;
        std::thread::sleep(after);
        Ok(())
    }

    /// Sends a request and waits for its answer.
    pub fn infer(&mut self, request: &[u8]) -> Result<(Answer, Duration)> {
        let began = Instant::now();
        self.stream.get_mut().write_all(request)?;
        let (status, head, body) = self.read()?;
        let took = began.elapsed();
        let header = |name: &str| {
            let mut lines = head.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
        };
        if status != 200 {
            return Ok((
                Answer {
                    status,
                    text: String::from_utf8_lossy(&body).into_owned(),
                    tensor: Vec::new(),
                    rows: 0,
                },
                took,
            ));
        }
        let length = header("inference-header-content-length");
        let length: usize = length.context("no length of the JSON text")?.parse()?;
        let (text, tensor) = body.split_at_checked(length).context("a short body")?;
        let told: Value = serde_json::from_slice(text)?;
        let size = &told["outputs"][0]["parameters"]["binary_data_size"];
        ensure!(
            size.as_u64() == Some(tensor.len() as u64),
            "another size than told"
        );
        let rows = header("server-timing").and_then(|timing| {
            let (_, rest) = timing.split_once("rows;desc=")?;
            rest.trim_matches('"').parse().ok()
        });
        Ok((
            Answer {
                status,
                text: String::new(),
                tensor: tensor.to_vec(),
                rows: rows.unwrap_or(1),
            },
            took,
        ))
    }

    /// Status, head in small letters, body.
    fn read(&mut self) -> Result<(u16, String, Vec<u8>)> {
        let mut head = String::new();
        loop {
            let before = head.len();
            ensure!(self.stream.read_line(&mut head)? > 0, "no answer");
            if head[before..].trim().is_empty() {
                break;
            }
        }
        let head = head.to_ascii_lowercase();
        let status = head.split(' ').nth(1).context("no status")?.parse()?;
        let length = head
            .lines()
            .find_map(|l| l.strip_prefix("content-length: "));
        let mut body = vec![0; length.context("no length")?.parse()?];
        self.stream.read_exact(&mut body)?;
        Ok((status, head, body))
    }
}
