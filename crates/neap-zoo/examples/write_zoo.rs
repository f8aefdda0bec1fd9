//! Writes one network of the zoo: `write_zoo NAME OUT.onnx [--seed N] [--dynamic] [--external-data]`.

use std::path::Path;
use std::process::ExitCode;

use neap_zoo::{Batch, Options, list, write};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let mut options = Options::default();
    let mut plain = Vec::new();
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "--dynamic" => options.batch = Batch::Dynamic,
            "--external-data" => options.external_data = true,
            "--seed" => match rest.next().and_then(|s| s.parse().ok()) {
                Some(seed) => options.seed = seed,
                None => return usage(),
            },
            _ => plain.push(arg),
        }
    }
    let [name, out] = plain[..] else {
        return usage();
    };
    match write(name, Path::new(out), &options, &mut |_, _| {}) {
        Ok(written) => {
            println!(
                "{out}: {} bytes, {} parameters",
                written.model_bytes, written.parameters
            );
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: write_zoo NAME OUT.onnx [--seed N] [--dynamic] [--external-data]\n");
    for entry in list() {
        eprintln!("  {:14} {}", entry.name, entry.summary);
    }
    ExitCode::from(2)
}
