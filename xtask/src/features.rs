//! All programs of the workspace are built from the same libraries as its tests.
//!
//! Cargo gives a library the features that the packages being built ask for. Where a program alone asks for fewer than
//! the workspace with its tests, that library and everything above it are compiled once more. `neap-features` asks
//! for all of them, and this check says when it has to ask for more.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Packages that are built alone: by `cargo xtask`, by tests that need the program, for Python, and for C.
const PROGRAMS: [&str; 6] = [
    "neap-cli",
    "neap-conformance",
    "neap-py",
    "neap-c",
    "neap-ep",
    "xtask",
];

/// A library's features, by its name and version. One that build scripts use too may have two sets of them.
type Libraries = BTreeMap<String, BTreeSet<String>>;

pub fn check(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let all = libraries(root, &["--workspace", "--edges", "normal,build,dev"])?;
    for program in PROGRAMS {
        let own = libraries(
            root,
            &["--package", program, "--edges", "normal,build", "--locked"],
        )?;
        faults.extend(different(&all, &own).into_iter().map(|library| {
            format!("{program} alone has {library}; ask for the same in neap-features")
        }));
    }
    Ok(())
}

fn libraries(root: &Path, selection: &[&str]) -> Result<Libraries> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--prefix", "none", "--format", "{p}|{f}|"])
        .args(selection)
        .current_dir(root)
        .output()
        .context("cannot start cargo tree")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "cargo tree: {}", said.trim());
    Ok(read(&String::from_utf8(output.stdout)?))
}

/// Reads lines such as `libc v0.2.1|default,std| (*)`.
fn read(text: &str) -> Libraries {
    let mut found = Libraries::new();
    for line in text.lines() {
        let mut fields = line.split('|');
        if let (Some(library), Some(features)) = (fields.next(), fields.next()) {
            let sets = found.entry(library.to_owned()).or_default();
            sets.insert(features.to_owned());
        }
    }
    found
}

/// Libraries of both whose features in `own` are none of those in `all`.
fn different(all: &Libraries, own: &Libraries) -> Vec<String> {
    let mut found = Vec::new();
    for (library, sets) in own {
        let Some(known) = all.get(library) else {
            continue;
        };
        for set in sets.difference(known) {
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            let known = known.join("] or [");
            found.push(format!("{library} with [{set}], tests with [{known}]"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_features_than_those_of_the_tests_are_found() {
        let all = read("libc v0.2.1|default,extra,std|\nsyn v3.0.0|full|\nsyn v3.0.0|| (*)\n\n");
        assert_eq!(
            different(
                &all,
                &read("libc v0.2.1|default,extra,std| (*)\nsyn v3.0.0||\npyo3 v1.0.0|abi3|\n")
            ),
            Vec::<String>::new()
        );
        assert_eq!(
            different(&all, &read("libc v0.2.1|default,std|\n")),
            ["libc v0.2.1 with [default,std], tests with [default,extra,std]"]
        );
    }
}
