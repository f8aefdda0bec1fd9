//! What `cargo metadata` says of the packages that are built.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

#[derive(Deserialize)]
pub struct Metadata {
    pub packages: Vec<Package>,
    pub resolve: Resolve,
}

#[derive(Deserialize)]
pub struct Package {
    pub id: String,
    pub name: String,
    pub version: String,
    pub license: Option<String>,
    pub description: Option<String>,
    /// The registry; `None` for a package of this repository.
    pub source: Option<String>,
    /// `None` where it may be published to any registry.
    pub publish: Option<Vec<String>>,
    pub repository: Option<String>,
    pub homepage: Option<String>,
}

#[derive(Deserialize)]
pub struct Resolve {
    pub nodes: Vec<Node>,
}

#[derive(Deserialize)]
pub struct Node {
    pub id: String,
    pub deps: Vec<Dependency>,
}

#[derive(Deserialize)]
pub struct Dependency {
    pub pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// `None` for those that become part of the program, else `dev` or `build`.
    kind: Option<String>,
}

impl Dependency {
    /// Whether only tests need it.
    fn is_of_tests(&self) -> bool {
        self.dep_kinds
            .iter()
            .all(|kind| kind.kind.as_deref() == Some("dev"))
    }
}

impl Metadata {
    /// Of the whole workspace, for x86-64 and 64-bit Arm.
    pub fn read(root: &Path) -> Result<Metadata> {
        let mut command = Command::new(env!("CARGO"));
        command.args(["metadata", "--format-version", "1", "--locked"]);
        for processor in ["x86_64", "aarch64"] {
            let target = format!("{processor}-unknown-linux-gnu");
            command.args(["--filter-platform", &target]);
        }
        let output = command
            .current_dir(root)
            .output()
            .context("cannot start cargo")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "cargo metadata: {}", said.trim());
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// A package of this repository with all that is built for it, tests left out.
    pub fn built_for(&self, name: &str) -> Result<BTreeSet<&str>> {
        let mut packages = self.packages.iter();
        let own = packages.find(|p| p.name == name && p.source.is_none());
        let own = own.with_context(|| format!("there is no package {name}"))?;
        let nodes: BTreeMap<&str, &Node> = (self.resolve.nodes.iter())
            .map(|node| (node.id.as_str(), node))
            .collect();
        let mut found = BTreeSet::from([own.id.as_str()]);
        let mut open = vec![own.id.as_str()];
        while let Some(id) = open.pop() {
            for dependency in self.needed(nodes.get(id).copied()) {
                if found.insert(dependency) {
                    open.push(dependency);
                }
            }
        }
        Ok(found)
    }

    /// What a package needs itself, tests left out.
    pub fn needed<'a>(&'a self, node: Option<&'a Node>) -> impl Iterator<Item = &'a str> {
        let dependencies = node.into_iter().flat_map(|node| &node.deps);
        dependencies
            .filter(|dependency| !dependency.is_of_tests())
            .map(|dependency| dependency.pkg.as_str())
    }
}
