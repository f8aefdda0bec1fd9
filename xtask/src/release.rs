//! `cargo xtask release`: what a release needs and a change does not: addresses, one version, its part of the changelog.

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

pub fn run(root: &Path) -> Result<()> {
    let read = |name: &str| {
        fs::read_to_string(root.join(name)).with_context(|| format!("{name} is missing"))
    };
    let (cargo, python) = (read("Cargo.toml")?, read("pyproject.toml")?);
    let metadata = Metadata::read(root)?;
    let version = version(&cargo).context("Cargo.toml has no version")?;
    let mut missing = Vec::new();
    addresses(&metadata, &python, &mut missing);
    versions(&cargo, version, &mut missing);
    changes(&read("CHANGELOG.md")?, version, &mut missing);
    for line in &missing {
        eprintln!("release: {line}");
    }
    if !missing.is_empty() {
        bail!(
            "{version} is not ready: {} things are missing",
            missing.len()
        );
    }
    println!("release: {version} has what it needs");
    Ok(())
}

fn version(cargo: &str) -> Option<&str> {
    let package = cargo.split("[workspace.package]").nth(1)?;
    let line = package
        .lines()
        .find_map(|line| line.strip_prefix("version = "))?;
    Some(line.trim_matches('"'))
}

/// Where the project is: readers of a registry's page look for it.
fn addresses(metadata: &Metadata, python: &str, missing: &mut Vec<String>) {
    let is_address = |text: &Option<String>| {
        let address = text
            .as_deref()
            .and_then(|text| text.strip_prefix("https://"));
        address.is_some_and(|rest| rest.contains('.') && !rest.contains("example"))
    };
    let own = metadata.packages.iter().filter(|p| p.source.is_none());
    let is_published = |p: &&Package| p.publish.as_ref().is_none_or(|to| !to.is_empty());
    let published: Vec<&Package> = own.filter(is_published).collect();
    let mut wanted = |key: &str, value: fn(&Package) -> &Option<String>| {
        let without = published
            .iter()
            .filter(|package| !is_address(value(package)));
        let names: Vec<&str> = without.map(|package| package.name.as_str()).collect();
        if !names.is_empty() {
            missing.push(format!("no {key} in {}", names.join(", ")));
        }
    };
    wanted("repository", |package| &package.repository);
    wanted("homepage", |package| &package.homepage);
    let urls = python.split("[project.urls]\n").nth(1).unwrap_or_default();
    let urls = urls.split("\n[").next().unwrap_or_default();
    for key in ["Repository", "Homepage", "Changelog"] {
        let line = urls.lines().find_map(|line| line.strip_prefix(key));
        let value = line.map(|line| line.trim_matches([' ', '=', '"']).to_string());
        if !is_address(&value) {
            missing.push(format!("pyproject.toml has no {key} in [project.urls]"));
        }
    }
}

/// Crates name each other by the version that they are published with.
fn versions(cargo: &str, version: &str, missing: &mut Vec<String>) {
    let own = cargo
        .lines()
        .filter(|line| line.contains("{ path = \"crates/"));
    for line in own {
        let other = line.split("version = \"").nth(1);
        let other = other.and_then(|rest| rest.split('"').next());
        if other.is_some_and(|other| other != version) {
            let name = line.split(' ').next().unwrap_or_default();
            missing.push(format!(
                "Cargo.toml names another version of {name} than {version}"
            ));
        }
    }
}

fn changes(changelog: &str, version: &str, missing: &mut Vec<String>) {
    let parts: Vec<&str> = changelog.split("\n## ").skip(1).collect();
    let heading = |part: &&str| part.lines().next().unwrap_or_default().to_string();
    let own = format!("[{version}] - ");
    let dated = parts.iter().map(heading).any(|line| {
        let date = line.strip_prefix(&own).unwrap_or_default();
        let is_digit = |(at, c): (usize, char)| {
            matches!(at, 4 | 7) == (c == '-') && (c == '-' || c.is_ascii_digit())
        };
        date.len() == 10 && date.chars().enumerate().all(is_digit)
    });
    if !dated {
        missing.push(format!("CHANGELOG.md has no part '## {own}YEAR-MONTH-DAY'"));
    }
    let open = parts.iter().find(|part| part.starts_with("[Unreleased]"));
    let is_empty = open.is_some_and(|part| part.lines().skip(1).all(|line| line.trim().is_empty()));
    if !is_empty {
        missing.push("CHANGELOG.md has no empty part '## [Unreleased]'".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: impl Fn(&mut Vec<String>)) -> Vec<String> {
        let mut missing = Vec::new();
        check(&mut missing);
        missing
    }

    #[test]
    fn the_changelog_has_the_version_and_a_place_for_the_next() {
        let good = "# C\n\n## [Unreleased]\n\n## [0.1.0] - 2026-12-01\n\n### Added\n";
        let of = |text: &str, version: &str| found(|m| changes(text, version, m)).len();
        assert_eq!(of(good, "0.1.0"), 0);
        assert_eq!(of(good, "0.2.0"), 1);
        assert_eq!(of(&good.replace("2026-12-01", "soon"), "0.1.0"), 1);
        assert_eq!(
            of(&good.replace("]\n\n## [0", "]\n\n- x\n\n## [0"), "0.1.0"),
            1
        );
        assert_eq!(of("# C\n", "0.1.0"), 2);
    }

    #[test]
    fn crates_name_each_other_by_one_version() {
        let cargo = "[workspace.package]\nversion = \"0.2.0\"\n[workspace.dependencies]\n\
                     a = { path = \"crates/a\", version = \"0.2.0\" }\nb = { path = \"crates/b\", version = \"0.1.0\" }\n\
                     c = { path = \"crates/c\" }\n";
        assert_eq!(version(cargo), Some("0.2.0"));
        let missing = found(|m| versions(cargo, "0.2.0", m));
        assert_eq!(
            missing,
            ["Cargo.toml names another version of b than 0.2.0"]
        );
    }

    #[test]
    fn addresses_are_real_ones() {
        let metadata = |repository: &str| {
            let text = format!(
                r#"{{"packages": [
                    {{"id": "a", "name": "a", "version": "1.0.0", "publish": null, "repository": {repository}, "homepage": "https://a.org"}},
                    {{"id": "b", "name": "b", "version": "1.0.0", "publish": []}}
                ], "resolve": {{"nodes": []}}}}"#
            );
            serde_json::from_str::<Metadata>(&text).unwrap()
        };
        let python = "[project]\n[project.urls]\nRepository = \"https://a.org/a\"\nHomepage = \"https://a.org\"\n\
                      Changelog = \"https://a.org/c\"\n[tool.x]\n";
        let of = |repository: &str, python: &str| {
            found(|m| addresses(&metadata(repository), python, m)).len()
        };
        assert_eq!(of("\"https://a.org/a\"", python), 0);
        assert_eq!(of("null", python), 1);
        assert_eq!(of("\"https://example.org/a\"", python), 1);
        assert_eq!(of("\"https://a.org/a\"", "[project]\n"), 3);
    }
}
