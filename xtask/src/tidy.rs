//! The house rules that a machine can check; ARCHITECTURE.md explains them.

use crate::{circles, features, licences, locks, published};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Each crate's floor; a crate depends only on lower floors.
const FLOORS: &[(&str, u32)] = &[
    ("neap-gguf", 0),
    ("neap-ir", 0),
    ("neap-plan", 0),
    ("neap-kernels", 0),
    ("neap-store", 0),
    ("neap-zoo", 0),
    ("neap-testing", 0),
    ("neap-features", 0),
    ("neap-realtime", 0),
    ("neap-card", 0),
    ("neap-cuda-standin", 0),
    ("neap-picture", 0),
    ("neap-diffusion", 0),
    ("neap-blocks", 1),
    ("neap-ops", 1),
    ("neap-gpud", 1),
    ("neap-hook", 1),
    ("neap-sim", 1),
    ("neap-autodiff", 1),
    ("neap-tokenizer", 1),
    ("neap-onnx", 2),
    ("neap-rewrite", 2),
    ("neap-planner", 2),
    ("neap-runtime", 2),
    ("neap-compile", 3),
    ("neap-vulkan", 3),
    ("neaptide", 4),
    ("neap-serve", 7),
    ("neap-llm", 5),
    ("neap-chat", 6),
    ("neap-train", 5),
    ("neap-cli", 8),
    ("neap-py", 8),
    ("neap-c", 8),
    ("neap-ep", 8),
    ("xtask", 9),
    ("conformance", 10),
    ("studies", 10),
];

/// Where `unsafe` may appear; every other crate forbids it.
const UNSAFE_ALLOWED: &[&str] = &[
    "neap-blocks",
    "neap-kernels",
    "neap-llm",
    "neap-ops",
    "neap-store",
    "neap-runtime",
    "neap-vulkan",
    "neap-testing",
    "neaptide",
    "neap-cli",
    "neap-py",
    "neap-c",
    "neap-ep",
    // The driver's functions have C's pointers.
    "neap-hook",
    // Who is at the other end of a socket.
    "neap-gpud",
    // Memory that it maps itself.
    "neap-cuda-standin",
];

/// Crates that compute only: no files, clocks, environment, threads.
const PURE: &[&str] = &[
    "neap-ir",
    "neap-plan",
    "neap-blocks",
    "neap-kernels",
    "neap-ops",
    "neap-sim",
    "neap-rewrite",
    "neap-planner",
    "neap-compile",
    "neap-autodiff",
    "neap-realtime",
];

const IMPURE: &[&str] = &[
    "std::fs",
    "std::env",
    "std::net",
    "std::thread",
    "Instant::now",
    "SystemTime",
    "File::open",
];

/// One idea a file; past this a file has several.
const MAX_LINES: usize = 650;

/// Crates whose functions have at most [`MAX_FUNCTION_LINES`].
const SHORT_FUNCTIONS: &[&str] = &["neap-compile", "neaptide"];

/// A longer function has steps that deserve names.
const MAX_FUNCTION_LINES: usize = 100;

pub fn run(root: &Path) -> Result<()> {
    let mut faults = Vec::new();
    let mut crates: Vec<PathBuf> = fs::read_dir(root.join("crates"))
        .context("crates/ is missing")?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    crates.extend(["xtask", "conformance", "studies"].map(|folder| root.join(folder)));
    crates.sort();
    for dir in &crates {
        check_crate(dir, &mut faults)?;
    }
    for folder in ["fuzz", "studies"] {
        locks::check(root, folder, &mut faults)?;
    }
    features::check(root, &mut faults)?;
    licences::check(root, &mut faults)?;
    for fault in &faults {
        eprintln!("tidy: {fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults", faults.len());
    }
    println!("tidy: {} crates are in order", crates.len());
    Ok(())
}

fn check_crate(dir: &Path, faults: &mut Vec<String>) -> Result<()> {
    let name = dir
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let manifest = fs::read_to_string(dir.join("Cargo.toml"))
        .with_context(|| format!("{name} has no manifest"))?;
    let Some(floor) = floor_of(&name) else {
        faults.push(format!(
            "{name} has no floor: add it to xtask/src/tidy.rs and ARCHITECTURE.md"
        ));
        return Ok(());
    };
    let normal = manifest
        .split("[dev-dependencies]")
        .next()
        .unwrap_or_default();
    for (other, below) in FLOORS {
        let named = normal
            .lines()
            .any(|l| l.starts_with(other) && l[other.len()..].starts_with(['.', ' ', '=']));
        if named && *below >= floor {
            faults.push(format!(
                "{name} (floor {floor}) depends on {other} (floor {below})"
            ));
        }
    }
    published::check(&name, &manifest, floor_of, faults);
    let mut sources = Vec::new();
    rust_files(dir, &mut sources)?;
    circles::check(dir, &sources, faults)?;
    let mut forbids = false;
    for path in sources {
        let text = fs::read_to_string(&path)?;
        let shown = path
            .strip_prefix(dir.parent().unwrap_or(dir))
            .unwrap_or(&path)
            .display()
            .to_string();
        if !text.starts_with("//!") {
            faults.push(format!("{shown} does not begin with a //! header"));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            faults.push(format!("{shown} has {lines} lines, more than {MAX_LINES}"));
        }
        forbids |= text.contains("#![forbid(unsafe_code)]");
        let is_library = path.starts_with(dir.join("src")) && !is_test(&path);
        if PURE.contains(&name.as_str()) && is_library {
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in code.lines().filter(|l| !l.trim_start().starts_with("//")) {
                if let Some(what) = IMPURE.iter().find(|w| line.contains(**w)) {
                    faults.push(format!("{shown} uses {what}, but {name} only computes"));
                }
            }
        }
        if SHORT_FUNCTIONS.contains(&name.as_str()) {
            for (function, lines) in long_functions(&text) {
                faults.push(format!(
                    "{shown}: {function} has {lines} lines, more than {MAX_FUNCTION_LINES}"
                ));
            }
        }
        if ["todo!(", "unimplemented!(", "dbg!("]
            .iter()
            .any(|w| text.contains(w))
            && name != "xtask"
        {
            faults.push(format!("{shown} has an unfinished place"));
        }
    }
    if !UNSAFE_ALLOWED.contains(&name.as_str()) && name != "xtask" && !forbids {
        faults.push(format!("{name} does not forbid unsafe code"));
    }
    Ok(())
}

/// Functions that are too long, with their lines. In formatted code a function ends at the first closing brace that is
/// indented as its first line is.
fn long_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let indent = &line[..line.len() - code.len()];
        let Some(name) = function_name(code) else {
            continue;
        };
        let is_end = |line: &&str| {
            line.strip_prefix(indent)
                .is_some_and(|rest| rest == "}" || rest.ends_with(';') && !rest.starts_with(' '))
        };
        let is_one_line = line.ends_with(';') || line.ends_with('}');
        let length = match is_one_line {
            true => 1,
            false => {
                1 + lines[first..]
                    .iter()
                    .skip(1)
                    .take_while(|l| !is_end(l))
                    .count()
                    + 1
            }
        };
        if length > MAX_FUNCTION_LINES {
            found.push((name.to_owned(), length));
        }
    }
    found
}

/// Of a line that begins a function.
fn function_name(code: &str) -> Option<&str> {
    let (before, after) = code.split_once("fn ")?;
    let is_modifier =
        |word: &str| word.starts_with("pub") || ["const", "unsafe", "async"].contains(&word);
    let name = after.split(['(', '<']).next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    (before.split_whitespace().all(is_modifier) && is_name).then_some(name)
}

fn floor_of(name: &str) -> Option<u32> {
    FLOORS
        .iter()
        .find(|(n, _)| *n == name)
        .map(|(_, floor)| *floor)
}

fn is_test(path: &Path) -> bool {
    path.components().any(|c| {
        let c = c.as_os_str().to_string_lossy();
        c.starts_with("test") || c.ends_with("tests.rs") || c == "bin"
    })
}

fn rust_files(dir: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if path
                .file_name()
                .is_some_and(|n| n != "target" && n != "corpus")
            {
                rust_files(&path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found.sort();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_functions_are_found() {
        let body = |lines: usize| "        work();\n".repeat(lines);
        let text = format!(
            "trait T {{\n    fn declared(\n        &self,\n    );\n}}\nimpl T {{\n    pub(crate) fn long(&self) {{\n{}    }}\n\n    fn short() {{\n{}    }}\n}}\n",
            body(MAX_FUNCTION_LINES - 1),
            body(MAX_FUNCTION_LINES - 2),
        );
        let expected = vec![("long".to_owned(), MAX_FUNCTION_LINES + 1)];
        assert_eq!(long_functions(&text), expected);
    }
}
