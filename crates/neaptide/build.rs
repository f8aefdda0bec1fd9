//! Derives the versions of what packed files hold, weights and programs, from the code that makes them.

#[path = "build/code_version.rs"]
mod code_version;

use std::path::PathBuf;

/// What decides how weights, their table and the skeleton are stored, and by which keys they are found again.
const WEIGHT_MAKERS: [(&str, &str); 17] = [
    ("neap-ir", "src/dtype.rs"),
    ("neap-ir", "src/graph.rs"),
    ("neap-ir", "src/ids.rs"),
    ("neap-ir", "src/literal.rs"),
    ("neap-ir", "src/panel.rs"),
    ("neap-ir", "src/recipe.rs"),
    ("neap-kernels", "src/panel"),
    ("neap-onnx", "src/extract.rs"),
    ("neap-onnx", "src/inputs.rs"),
    ("neap-onnx", "src/proto.rs"),
    ("neap-rewrite", "src/constants.rs"),
    ("neap-rewrite", "src/keys.rs"),
    ("neap-rewrite", "src/stored.rs"),
    ("neaptide", "src/pack.rs"),
    ("neaptide", "src/pack"),
    ("neaptide", "src/package"),
    ("neaptide", "src/source_weights.rs"),
];

/// What makes or folds anything that a packed file stores: a crate, and a folder or file in it.
const MAKERS: [(&str, &str); 12] = [
    ("neap-ir", "src"),
    ("neap-kernels", "src"),
    ("neap-ops", "src"),
    ("neap-onnx", "src"),
    ("neap-autodiff", "src"),
    ("neap-rewrite", "src"),
    ("neap-compile", "src/lowering.rs"),
    ("neap-compile", "src/programs.rs"),
    ("neaptide", "src/pack.rs"),
    ("neaptide", "src/pack"),
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
    let versions: [(&str, &[_]); 2] = [
        ("NEAPTIDE_CODE_VERSION", &MAKERS),
        ("NEAPTIDE_WEIGHTS_VERSION", &WEIGHT_MAKERS),
    ];
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build");
    for (name, makers) in versions {
        let found = code_version::find(&here, own, makers, &LIBRARIES)
            .unwrap_or_else(|error| panic!("cannot derive {name}: {error}"));
        for path in &found.read {
            println!("cargo::rerun-if-changed={}", path.display());
        }
        println!("cargo::rustc-env={name}={}", found.version);
    }
}
