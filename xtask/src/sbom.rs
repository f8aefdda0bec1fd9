//! `cargo xtask sbom FILE`: the packages that a program is built from, as CycloneDX 1.5 in JSON.

use crate::metadata::{Metadata, Package};
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

#[derive(clap::Args)]
pub struct SbomArgs {
    /// The file to write
    file: std::path::PathBuf,
    /// The package of this repository: neap-cli, neap-py, neap-c or neap-ep
    #[arg(long, default_value = "neap-cli")]
    package: String,
}

pub fn run(root: &Path, args: &SbomArgs) -> Result<()> {
    let metadata = Metadata::read(root)?;
    let bill = bill(&metadata, &args.package)?;
    let text = serde_json::to_string_pretty(&bill)? + "\n";
    let file = &args.file;
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
    let count = bill["components"].as_array().map_or(0, Vec::len);
    println!("{}: {count} packages of {}", file.display(), args.package);
    Ok(())
}

fn bill(metadata: &Metadata, name: &str) -> Result<Value> {
    let built = metadata.built_for(name)?;
    let mut packages: Vec<&Package> = (metadata.packages.iter())
        .filter(|package| built.contains(package.id.as_str()))
        .collect();
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    let is_own = |package: &&Package| package.name == name && package.source.is_none();
    let own = packages
        .iter()
        .copied()
        .find(is_own)
        .context("no package")?;
    let of_id = |id: &str| packages.iter().find(|package| package.id == id);
    let nodes = metadata.resolve.nodes.iter();
    let dependencies = nodes.filter_map(|node| {
        let needed = metadata.needed(Some(node)).filter_map(of_id);
        Some(json!({
            "ref": purl(of_id(&node.id)?),
            "dependsOn": needed.map(|package| purl(package)).collect::<Vec<_>>(),
        }))
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(own, "application") },
        "components": (packages.iter())
            .filter(|package| package.id != own.id)
            .map(|package| component(package, "library"))
            .collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

fn component(package: &Package, kind: &str) -> Value {
    let mut component = json!({
        "type": kind,
        "bom-ref": purl(package),
        "name": package.name,
        "version": package.version,
        "purl": purl(package),
    });
    if let Some(license) = &package.license {
        // The way of old manifests to write "or".
        let expression = license.replace('/', " OR ");
        let words: Vec<&str> = expression.split_whitespace().collect();
        component["licenses"] = json!([{ "expression": words.join(" ") }]);
    }
    if let Some(description) = &package.description {
        component["description"] = json!(description.trim());
    }
    component
}

/// The name of a package that all registries' tools understand.
fn purl(package: &Package) -> String {
    format!("pkg:cargo/{}@{}", package.name, package.version)
}

#[cfg(test)]
mod tests {
    use super::*;

    const METADATA: &str = r#"{
        "packages": [
            {"id": "a", "name": "own", "version": "0.1.0", "license": "MIT", "publish": null},
            {"id": "b", "name": "used", "version": "2.0.0", "license": "MIT/Apache-2.0", "source": "registry+r", "publish": null},
            {"id": "c", "name": "of-tests", "version": "1.0.0", "source": "registry+r", "publish": null},
            {"id": "d", "name": "below", "version": "3.1.0", "source": "registry+r", "publish": null}
        ],
        "resolve": {"nodes": [
            {"id": "a", "deps": [
                {"pkg": "b", "dep_kinds": [{"kind": null}, {"kind": "dev"}]},
                {"pkg": "c", "dep_kinds": [{"kind": "dev"}]}
            ]},
            {"id": "b", "deps": [{"pkg": "d", "dep_kinds": [{"kind": "build"}]}]},
            {"id": "c", "deps": []},
            {"id": "d", "deps": []}
        ]}
    }"#;

    #[test]
    fn all_that_is_built_is_named_with_its_licence() {
        let metadata: Metadata = serde_json::from_str(METADATA).unwrap();
        let bill = bill(&metadata, "own").unwrap();
        assert_eq!(bill["metadata"]["component"]["purl"], "pkg:cargo/own@0.1.0");
        let names: Vec<_> = bill["components"].as_array().unwrap().iter().collect();
        assert_eq!(names.len(), 2, "{bill}");
        assert_eq!(
            (&names[0]["name"], &names[1]["name"]),
            (&json!("below"), &json!("used"))
        );
        let licence = &names[1]["licenses"][0]["expression"];
        assert_eq!(licence, "MIT OR Apache-2.0");
        let needs = bill["dependencies"].as_array().unwrap();
        let of_own = needs
            .iter()
            .find(|d| d["ref"] == "pkg:cargo/own@0.1.0")
            .unwrap();
        assert_eq!(of_own["dependsOn"], json!(["pkg:cargo/used@2.0.0"]));
        assert!(super::bill(&metadata, "none").is_err());
    }

    #[test]
    fn the_program_is_built_from_known_packages() {
        let metadata = Metadata::read(&crate::root()).unwrap();
        let bill = bill(&metadata, "neap-cli").unwrap();
        let components = bill["components"].as_array().unwrap();
        let find = |name: &str| components.iter().find(|c| c["name"] == name);
        assert!(components.len() > 100 && find("clap").is_some());
        assert!(find("neap-kernels").is_some() && find("neap-testing").is_none());
        assert!(
            components.iter().all(|c| c["licenses"].is_array()),
            "{bill}"
        );
    }
}
