//! A number that changes with code: of whole crates, of single files, and of the libraries they are built with.
//!
//! Comments, empty lines and files of tests do not count.

use std::fs;
use std::path::{Path, PathBuf};

pub struct CodeVersion {
    pub version: u32,
    /// Folders and files that it is of.
    pub read: Vec<PathBuf>,
}

/// Of `makers`, which are crates and paths in them, and of the versions of `libraries`. The crate in `here` has the
/// name and version `own`, and the others lie beside it. Where not all of them do, as when a registry's packages are
/// unpacked one by one, it is of the version `own` alone: all crates of a release have the same, and the code of a
/// release does not change.
///
/// # Errors
/// Says what cannot be read, and what is missing of a crate that is there.
pub fn find(
    here: &Path,
    own: (&str, &str),
    makers: &[(&str, &str)],
    libraries: &[&str],
) -> Result<CodeVersion, String> {
    let mut hash = Fnv::default();
    let mut read = Vec::new();
    if makers
        .iter()
        .any(|(maker, _)| locate(here, own, maker).is_none())
    {
        hash.add(b"release");
        hash.add(own.1.as_bytes());
        let version = hash.folded();
        return Ok(CodeVersion { version, read });
    }
    for (maker, inside) in makers {
        let Some(folder) = locate(here, own, maker) else {
            continue;
        };
        let path = folder.join(inside);
        hash.add(maker.as_bytes());
        hash.add(inside.as_bytes());
        add(&path, &path, &mut hash)?;
        read.push(path);
    }
    // A published crate has none; then the versions are those that cargo chose, and nobody knows them here.
    let lock = here.ancestors().map(|folder| folder.join("Cargo.lock"));
    if let Some(lock) = lock.into_iter().find(|path| path.is_file()) {
        let text = text_of(&lock)?;
        for library in libraries {
            hash.add(locked_version(&text, library)?.as_bytes());
        }
        read.push(lock);
    }
    Ok(CodeVersion {
        version: hash.folded(),
        read,
    })
}

/// Crates lie side by side in the repository and when vendored, and with their version in a registry's folder.
fn locate(here: &Path, own: (&str, &str), maker: &str) -> Option<PathBuf> {
    let (name, version) = own;
    if maker == name {
        return Some(here.to_path_buf());
    }
    let beside = here.parent().unwrap_or(here);
    let places = [
        beside.join(maker),
        beside.join(format!("{maker}-{version}")),
    ];
    places.into_iter().find(|path| path.is_dir())
}

/// Adds a file, or all of a folder in the order of names.
fn add(path: &Path, root: &Path, hash: &mut Fnv) -> Result<(), String> {
    if path.is_file() {
        let name = path.file_name().unwrap_or_default();
        if path.extension().is_some_and(|e| e == "rs") && name != "tests.rs" {
            let inside = path.strip_prefix(root).unwrap_or(path);
            hash.add(inside.as_os_str().as_encoded_bytes());
            let text = text_of(path)?;
            let code = text.lines().map(str::trim);
            code.filter(|line| !line.is_empty() && !line.starts_with("//"))
                .for_each(|line| hash.add(line.as_bytes()));
        }
        return Ok(());
    }
    let entries = fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut paths: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    paths.iter().try_for_each(|path| add(path, root, hash))
}

fn text_of(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// All versions of a package in a lock file.
fn locked_version(lock: &str, package: &str) -> Result<String, String> {
    let name = format!("name = \"{package}\"");
    let versions: Vec<&str> = lock
        .split("[[package]]")
        .filter(|entry| entry.lines().any(|line| line == name))
        .filter_map(|entry| entry.lines().find(|line| line.starts_with("version = ")))
        .collect();
    if versions.is_empty() {
        return Err(format!("Cargo.lock does not name {package}"));
    }
    Ok(versions.join(" "))
}

/// Fowler-Noll-Vo (FNV-1a), 64 bits: the same on every machine and with every compiler.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds `bytes` and an end.
    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes.iter().chain(b"\n") {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn folded(&self) -> u32 {
        (self.0 >> 32) as u32 ^ self.0 as u32
    }
}
