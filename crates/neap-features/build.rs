//! Does nothing: Cargo considers dependencies of build scripts only where there is a build script.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
