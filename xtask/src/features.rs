//! All programs of the workspace are built from the same libraries as its tests.
//!
//! Cargo gives a library the features that the packages being built ask for. Where a program alone asks for fewer than
//! the workspace with its tests, that library and everything above it are compiled once more. `neap-features` asks
//! for all of them, and this check says when it has to ask for more. It compares what cargo would compile, library by
//! library: one that build scripts use too is compiled twice, and each time with features of its own.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
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

const WORKSPACE: [&str; 4] = ["--workspace", "--tests", "--lib", "--bins"];

/// What cargo compiles.
#[derive(Deserialize)]
struct Units {
    units: Vec<Unit>,
}

/// One run of the compiler, or of a build script.
#[derive(Deserialize)]
struct Unit {
    pkg_id: String,
    target: Value,
    profile: Value,
    /// `None` for this machine's own, as build scripts are.
    platform: Option<String>,
    mode: String,
    features: BTreeSet<String>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    index: usize,
}

pub fn check(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let all = units(root, &WORKSPACE)?;
    for program in PROGRAMS {
        let own = units(root, &["--package", program])?;
        faults.extend(different(&all, &own).into_iter().map(|library| {
            format!("{program} alone has {library}; ask for what tests have in neap-features")
        }));
    }
    Ok(())
}

fn units(root: &Path, selection: &[&str]) -> Result<Units> {
    let output = Command::new(env!("CARGO"))
        .args(["build", "--release", "--locked"])
        .args(selection)
        .args(["--unit-graph", "-Zunstable-options"])
        // The graph's form is not stable: good enough for a check.
        .env("RUSTC_BOOTSTRAP", "1")
        .current_dir(root)
        .output()
        .context("cannot start cargo")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "cargo build --unit-graph: {}",
        said.trim()
    );
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Units of `own` that nothing in `all` equals, though it has all that they are made from.
fn different(all: &Units, own: &Units) -> Vec<String> {
    let known: BTreeSet<u64> = all.identities().into_iter().collect();
    let identities = own.identities();
    let is_known = |index: usize| known.contains(&identities[index]);
    let mut found: Vec<String> = own
        .units
        .iter()
        .enumerate()
        .filter(|(index, unit)| {
            !is_known(*index) && unit.dependencies.iter().all(|d| is_known(d.index))
        })
        .map(|(_, unit)| unit.shown())
        .collect();
    found.sort();
    found.dedup();
    found
}

impl Units {
    /// Of everything that makes the compiled results of two units the same, what they are made from included.
    fn identities(&self) -> Vec<u64> {
        let mut known = vec![None; self.units.len()];
        (0..self.units.len())
            .map(|index| self.identity(index, &mut known))
            .collect()
    }

    fn identity(&self, index: usize, known: &mut Vec<Option<u64>>) -> u64 {
        if let Some(identity) = known[index] {
            return identity;
        }
        let unit = &self.units[index];
        let from = unit.dependencies.iter();
        let mut from: Vec<u64> = from.map(|d| self.identity(d.index, known)).collect();
        from.sort_unstable();
        let mut hasher = DefaultHasher::new();
        (&unit.pkg_id, &unit.platform, &unit.mode, &unit.features).hash(&mut hasher);
        (unit.target.to_string(), unit.profile.to_string(), from).hash(&mut hasher);
        *known[index].insert(hasher.finish())
    }
}

impl Unit {
    fn shown(&self) -> String {
        let name = self.pkg_id.rsplit('/').next().unwrap_or_default();
        let name = name.strip_prefix("crates.io-index#").unwrap_or(name);
        let features: Vec<&str> = self.features.iter().map(String::as_str).collect();
        format!("{name} with features [{}]", features.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A library with these features, and a program made from it.
    fn graph(features: &[&str]) -> Units {
        let unit = |name: &str, features: &[&str], from: &[usize]| {
            serde_json::json!({
                "pkg_id": format!("registry+https://a/crates.io-index#{name}"),
                "target": {"name": name}, "profile": {"opt_level": "3"}, "platform": null, "mode": "build",
                "features": features,
                "dependencies": from.iter().map(|i| serde_json::json!({"index": i})).collect::<Vec<_>>(),
            })
        };
        let units = [unit("a@1.0.0", features, &[]), unit("b@1.0.0", &[], &[0])];
        serde_json::from_value(serde_json::json!({ "units": units })).unwrap()
    }

    #[test]
    fn other_features_than_those_of_the_tests_are_found() {
        let all = graph(&["extra", "std"]);
        assert_eq!(different(&all, &all), Vec::<String>::new());
        assert_eq!(
            different(&all, &graph(&["std"])),
            ["a@1.0.0 with features [std]"]
        );
    }
}
