//! Whether every dependency that is not of tests alone has a licence that `deny.toml` allows, and comes from the registry. It is what `cargo deny check licenses
//! sources` asks, of a machine that does not have it.

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Where packages may come from.
const REGISTRY: &str = "registry+";

/// Adds dependencies that may not be.
pub fn check(root: &Path, faults: &mut Vec<String>) -> Result<()> {
    let rules = fs::read_to_string(root.join("deny.toml")).context("deny.toml is missing")?;
    let allowed = allowed(&rules);
    let metadata = Metadata::read(root)?;
    let mut built = BTreeSet::new();
    for own in metadata
        .packages
        .iter()
        .filter(|package| package.source.is_none())
    {
        built.extend(metadata.built_for(&own.name)?);
    }
    let packages = metadata.packages.iter();
    let packages = packages.filter(|package| built.contains(package.id.as_str()));
    faults.extend(packages.filter_map(|package| fault(package, &allowed)));
    Ok(())
}

fn fault(package: &Package, allowed: &[&str]) -> Option<String> {
    let (name, version) = (&package.name, &package.version);
    let source = package.source.as_deref();
    if source.is_some_and(|source| !source.starts_with(REGISTRY)) {
        return Some(format!("{name} {version} is not from the registry"));
    }
    let licence = package.license.as_deref().unwrap_or("none");
    (!is_allowed(licence, allowed))
        .then(|| format!("{name} {version} has licence {licence}, which deny.toml does not allow"))
}

/// The licences of the list `allow`.
fn allowed(rules: &str) -> Vec<&str> {
    let list = rules.split("\nallow = [").nth(1).unwrap_or_default();
    let list = list.split(']').next().unwrap_or_default();
    list.split('"').skip(1).step_by(2).collect()
}

/// Whether the expression is true where exactly the allowed licences are.
fn is_allowed(expression: &str, allowed: &[&str]) -> bool {
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    either(&mut words, allowed) == Some(true) && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

/// `A OR B OR …`; `None` where it is malformed.
fn either(words: &mut Words, allowed: &[&str]) -> Option<bool> {
    let mut value = both(words, allowed)?;
    while words.next_if_eq(&"OR").is_some() {
        value |= both(words, allowed)?;
    }
    Some(value)
}

/// `A AND B AND …`
fn both(words: &mut Words, allowed: &[&str]) -> Option<bool> {
    let mut value = one(words, allowed)?;
    while words.next_if_eq(&"AND").is_some() {
        value &= one(words, allowed)?;
    }
    Some(value)
}

/// A licence, with its exception; or an expression in parentheses.
fn one(words: &mut Words, allowed: &[&str]) -> Option<bool> {
    if words.next_if_eq(&"(").is_some() {
        let value = either(words, allowed)?;
        return words.next_if_eq(&")").map(|_| value);
    }
    let mut name = vec![words.next()?];
    while let Some(word) = words.next_if(|word| !matches!(*word, "AND" | "OR" | "(" | ")")) {
        name.push(word);
    }
    Some(allowed.contains(&name.join(" ").as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_are_read() {
        let rules = "[licenses]\nallow = [\n  \"MIT\",\n  \"Apache-2.0\",\n  \"Apache-2.0 WITH LLVM-exception\",\n  \"Unicode-3.0\",\n]\n";
        let allowed = allowed(rules);
        assert_eq!(allowed.len(), 4);
        for good in [
            "MIT",
            "MIT OR GPL-3.0",
            "GPL-3.0/MIT",
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0",
            "MIT AND Unicode-3.0",
            "(MIT OR GPL-3.0) AND Unicode-3.0",
            "Unicode-3.0 AND (GPL-3.0 OR Apache-2.0)",
        ] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in [
            "",
            "none",
            "GPL-3.0",
            "MIT AND GPL-3.0",
            "(MIT OR GPL-3.0) AND GPL-2.0",
            "(GPL-3.0 OR GPL-2.0) AND MIT",
            "(MIT",
            "MIT)",
            "MIT AND",
        ] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }

    #[test]
    fn packages_from_elsewhere_are_faults() {
        let package = |source: &str| Package {
            id: String::new(),
            name: "a".into(),
            version: "1.0.0".into(),
            license: Some("MIT".into()),
            description: None,
            source: Some(source.into()),
            publish: None,
            repository: None,
            homepage: None,
        };
        assert_eq!(fault(&package("registry+x"), &["MIT"]), None);
        assert!(fault(&package("registry+x"), &["ISC"]).is_some());
        assert!(fault(&package("git+x"), &["MIT"]).is_some());
    }
}
