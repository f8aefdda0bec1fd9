//! Running the binary, and reading what it writes.

use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const NEAP: &str = env!("CARGO_BIN_EXE_neap");

/// A folder of its own for a test; the binary runs in it.
pub struct Bench {
    pub dir: tempfile::TempDir,
}

pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Bench {
    pub fn new() -> Bench {
        Bench {
            dir: tempfile::tempdir().unwrap(),
        }
    }

    /// With `m.onnx` in it.
    pub fn with_model(model: &[u8]) -> Bench {
        let bench = Bench::new();
        bench.write("m.onnx", model);
        bench
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    pub fn command(&self, args: &str) -> Command {
        let mut command = Command::new(NEAP);
        command
            .args(args.split_whitespace())
            .current_dir(self.dir.path())
            .env_remove("RUST_BACKTRACE")
            .stdin(Stdio::null());
        command
    }

    pub fn neap(&self, args: &str) -> Ran {
        let output = self.command(args).output().unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Succeeds; standard output as JSON.
    pub fn json(&self, args: &str) -> Value {
        let ran = self.neap(args).ok();
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// Names in the folder that a finished or failed command should not have left.
    pub fn leftovers(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .filter(|name| {
                name.contains("partial") || name.contains("tmp") || name.contains(".neap.")
            })
            .collect();
        names.sort();
        names
    }
}

impl Ran {
    pub fn ok(self) -> Ran {
        assert_eq!(self.code, 0, "{}", self.stderr);
        self
    }

    /// Failed with this code and one clear line that says all of `parts`.
    pub fn fails(self, code: i32, parts: &[&str]) -> String {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        let errors: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| line.starts_with("neap: "))
            .collect();
        assert_eq!(errors.len(), 1, "{}", self.stderr);
        assert!(
            self.stderr.ends_with(&format!("{}\n", errors[0])),
            "{}",
            self.stderr
        );
        for part in parts {
            assert!(
                errors[0].contains(part),
                "'{part}' is not in: {}",
                errors[0]
            );
        }
        errors[0].to_string()
    }
}

/// An array file as numpy writes it.
pub fn npy(descr: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    bytes.extend(data);
    bytes
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// The floats of an array file.
pub fn read_f32(path: &Path) -> Vec<f32> {
    let bytes = fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[10 + header..]
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

/// Whether memory cgroups can be made here; says so where not.
pub fn can_enforce(bench: &Bench) -> bool {
    bench.write("probe.onnx", &super::onnx::relu("x", &["4"], "y"));
    let ran = bench.neap("run probe.onnx --memory-budget 256MiB --enforce");
    if ran.code == 2 && ran.stderr.contains("the right to make memory cgroups") {
        neap_testing::skip(ran.stderr.trim());
        return false;
    }
    ran.ok();
    true
}
