//! What the tests share: seeded bytes and small packed files.
#![allow(dead_code, reason = "each test file uses its own part of this")]

use neap_store::{PackWriter, Sighting};
use std::path::{Path, PathBuf};

/// SplitMix64: seeded, with no dependency.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// Writes a packed file of `data` and `toc` into `folder`.
pub fn write_packed(folder: &Path, data: &[u8], toc: &[u8]) -> PathBuf {
    let path = folder.join("model.neap");
    let mut writer = PackWriter::create(&path).expect("create");
    for chunk in data.chunks(10_007) {
        writer.append(chunk).expect("append");
    }
    writer.finish(toc).expect("finish");
    path
}

/// Waits until a later write to the file would be told from those before it.
pub fn settle(path: &Path) {
    let file = std::fs::File::open(path).expect("opens");
    while Sighting::of(&file).expect("is told").is_fresh {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

/// A folder in memory where there is one: tests that change a file thousands of times would
/// wait for the disk each time.
pub fn fast_folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .expect("a temporary folder")
}

/// The names in a folder, sorted.
pub fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("list the folder")
        .map(|e| e.expect("entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
