//! The version of stored programs follows the code that makes them.

#[path = "../../build/code_version.rs"]
mod finder;

use std::fs;
use std::path::Path;

const LOCK: &str = "[[package]]\nname = \"half\"\nversion = \"2.0.0\"\n";

/// A crate `facade` with a file that counts, beside a crate `maker`.
fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("in a folder")).expect("made");
    fs::write(path, text).expect("written");
}

fn version(root: &Path) -> Result<u32, String> {
    version_of(root, "0.1.0")
}

fn version_of(root: &Path, release: &str) -> Result<u32, String> {
    let makers = [("maker", "src"), ("facade", "src/pack.rs")];
    let here = root.join("crates/facade");
    let found = finder::find(&here, ("facade", release), &makers, &["half"])?;
    assert!(found.read.iter().all(|path| path.exists()));
    Ok(found.version)
}

#[test]
fn it_changes_with_code_and_with_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    write(root, "Cargo.lock", LOCK);
    write(root, "crates/maker/src/lib.rs", "mod a;\nfn f() {}\n");
    write(root, "crates/maker/src/a/mod.rs", "fn g() -> u32 { 1 }\n");
    write(root, "crates/facade/src/pack.rs", "fn pack() {}\n");
    let first = version(root).expect("found");

    for (path, text) in [
        (
            "crates/maker/src/lib.rs",
            "//! What it is for.\nmod a;\n\n    fn f() {}\n",
        ),
        ("crates/maker/src/tests.rs", "#[test]\nfn t() {}\n"),
        ("crates/maker/src/notes.txt", "words"),
        ("crates/maker/tests/all.rs", "#[test]\nfn t() {}\n"),
        ("crates/facade/src/lib.rs", "mod pack;\n"),
    ] {
        write(root, path, text);
        assert_eq!(version(root), Ok(first), "{path}");
    }
    for (path, text) in [
        ("crates/maker/src/a/mod.rs", "fn g() -> u32 { 2 }\n"),
        ("crates/maker/src/b.rs", "fn h() {}\n"),
        ("crates/facade/src/pack.rs", "fn pack() { }\n"),
        ("Cargo.lock", &LOCK.replace("2.0.0", "2.0.1")),
    ] {
        let before = version(root);
        write(root, path, text);
        assert_ne!(version(root), before, "{path}");
    }
}

#[test]
fn it_is_the_same_where_crates_lie_as_a_registry_has_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let (here, there) = (folder.path().join("here"), folder.path().join("there"));
    for (root, maker) in [(&here, "maker"), (&there, "maker-0.1.0")] {
        write(root, "Cargo.lock", LOCK);
        write(root, &format!("crates/{maker}/src/lib.rs"), "fn f() {}\n");
        write(root, "crates/facade/src/pack.rs", "fn pack() {}\n");
    }
    assert_eq!(version(&here), version(&there));
}

#[test]
fn where_crates_are_not_together_it_is_that_of_the_release() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = folder.path();
    write(root, "crates/facade/src/pack.rs", "fn pack() {}\n");
    let alone = version(root).expect("the release's");
    assert_ne!(version_of(root, "0.1.1"), Ok(alone));
    write(root, "crates/maker/src/lib.rs", "fn f() {}\n");
    write(root, "Cargo.lock", LOCK);
    assert_ne!(version(root), Ok(alone));
    // A crate that is there and lacks a part is none of a release.
    std::fs::remove_file(root.join("crates/facade/src/pack.rs")).expect("removed");
    let error = version(root).expect_err("no part");
    assert!(error.contains("pack.rs"), "{error}");
}
