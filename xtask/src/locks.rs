//! Whether lock files of folders that are not members of the workspace (`fuzz`, `studies`) know what the crates depend on
//! by now: such folders are built with `--locked`.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Adds crates whose dependencies the lock file does not have as their manifests name them.
///
/// # Errors
/// A file cannot be read.
pub fn check(root: &Path, folder: &str, faults: &mut Vec<String>) -> Result<()> {
    let path = root.join(folder).join("Cargo.lock");
    let lock =
        fs::read_to_string(&path).with_context(|| format!("{folder}/Cargo.lock is missing"))?;
    for (name, locked) in packages(&lock) {
        let manifest = root.join("crates").join(name).join("Cargo.toml");
        let Ok(manifest) = fs::read_to_string(manifest) else {
            continue;
        };
        let (required, optional) = dependencies(&manifest);
        let are_known = locked
            .iter()
            .all(|d| required.contains(d) || optional.contains(d));
        if !are_known || !required.is_subset(&locked) {
            faults.push(format!(
                "{folder}/Cargo.lock has other dependencies of {name} than its manifest: run `cargo fetch` in {folder}/"
            ));
        }
    }
    Ok(())
}

/// Name and dependencies of each package in a lock file.
fn packages(lock: &str) -> impl Iterator<Item = (&str, BTreeSet<&str>)> {
    lock.split("[[package]]").filter_map(|entry| {
        let mut lines = entry.lines();
        let name = lines.find_map(|line| line.strip_prefix("name = "))?;
        let dependencies = lines
            .skip_while(|line| *line != "dependencies = [")
            .skip(1)
            .take_while(|line| *line != "]")
            // A version follows where there are several.
            .filter_map(|line| line.trim().trim_matches(['"', ',']).split(' ').next());
        Some((name.trim_matches('"'), dependencies.collect()))
    })
}

/// Packages that a manifest names, those of its tests left out: which it always needs, and which a feature asks for.
fn dependencies(manifest: &str) -> (BTreeSet<&str>, BTreeSet<&str>) {
    let mut is_in = false;
    let (mut required, mut optional) = (BTreeSet::new(), BTreeSet::new());
    for line in manifest.lines() {
        if line.starts_with('[') {
            is_in = line.ends_with("dependencies]") && line != "[dev-dependencies]";
        } else if is_in && !line.starts_with('#') {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            let package = line.split("package = \"").nth(1);
            let name = package.map_or(name, |rest| rest.split('"').next().unwrap_or(name));
            if name.is_empty() {
                continue;
            }
            match line.contains("optional = true") {
                true => optional.insert(name),
                false => required.insert(name),
            };
        }
    }
    (required, optional)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dependency_that_the_lock_lacks_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        let manifest = root.join("crates/a/Cargo.toml");
        fs::create_dir_all(root.join("fuzz")).expect("made");
        fs::create_dir_all(root.join("crates/a")).expect("made");
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\ndependencies = [\n \"b\",\n \"c 0.1.0\",\n]\n\n\
            [[package]]\nname = \"b\"\nversion = \"1\"\n";
        fs::write(root.join("fuzz/Cargo.lock"), lock).expect("written");
        let faults = |text: &str| {
            fs::write(&manifest, text).expect("written");
            let mut faults = Vec::new();
            check(root, "fuzz", &mut faults).expect("read");
            faults
        };
        let right = "[package]\nname = \"a\"\n\n[dependencies]\nb.workspace = true\nc = \"0.1\"\n\n[dev-dependencies]\nd = \"1\"\n";
        assert!(faults(right).is_empty());
        let more = right.replace("c = ", "e.workspace = true\nc = ");
        assert_eq!(faults(&more).len(), 1);
        assert_eq!(faults(&right.replace("b.workspace = true\n", "")).len(), 1);
    }
}
