//! Derives the version of stored programs from the code that makes them.

#[path = "build/code_version.rs"]
mod code_version;

use std::path::PathBuf;

/// What makes or folds anything that a packed file stores: a crate, and a folder or file in it.
const MAKERS: [(&str, &str); 10] = [
    ("neap-ir", "src"),
    ("neap-kernels", "src"),
    ("neap-ops", "src"),
    ("neap-onnx", "src"),
    ("neap-rewrite", "src"),
    ("neap-compile", "src/programs.rs"),
    ("neaptide", "src/lowering.rs"),
    ("neaptide", "src/pack.rs"),
    ("neaptide", "src/package"),
    ("neaptide", "src/source_weights.rs"),
];

/// Other people's libraries that shape stored bytes.
const LIBRARIES: [&str; 3] = ["half", "postcard", "serde"];

fn main() {
    let variable = |name: &str| std::env::var(name).expect("set by cargo");
    let here = PathBuf::from(variable("CARGO_MANIFEST_DIR"));
    let own = (
        &*variable("CARGO_PKG_NAME"),
        &*variable("CARGO_PKG_VERSION"),
    );
    let found = code_version::find(&here, own, &MAKERS, &LIBRARIES);
    let found =
        found.unwrap_or_else(|error| panic!("cannot derive the version of programs: {error}"));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    for path in &found.read {
        println!("cargo::rerun-if-changed={}", path.display());
    }
    println!("cargo::rustc-env=NEAPTIDE_CODE_VERSION={}", found.version);
}
