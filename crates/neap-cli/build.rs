//! Links `neap` at a fixed address.
//!
//! A program that may lie anywhere has its tables of pointers (`.data.rel.ro`, a quarter of a megabyte) rewritten when it
//! starts. They are then this process's own memory, charged to every budget. At a fixed address they are
//! pages of the file, in memory only while they are in use. Libraries, heap and stacks still lie at random addresses.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |what: &str| std::env::var(format!("CARGO_CFG_TARGET_{what}")).unwrap_or_default();
    // Elsewhere it was not measured, and programs are linked in other ways.
    if target("ARCH") == "x86_64" && target("OS") == "linux" && target("ENV") == "gnu" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
}
