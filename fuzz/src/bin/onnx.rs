//! The bytes of an .onnx model: opened, packed, planned and run, or refused in one line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use std::path::PathBuf;
use std::sync::LazyLock;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(neap_fuzz::scratch);

fuzz_target!(
    init: neap_fuzz::offer_seeds(neap_fuzz::models::onnx),
    |data: &[u8]| {
        let path = FOLDER.join("model.onnx");
        let cache = FOLDER.join("cache");
        std::fs::write(&path, data).expect("written");
        neap_fuzz::check(neap_fuzz::open_and_run(&path, &cache));
        // The next input is another model.
        let _ = std::fs::remove_dir_all(&cache);
    }
);
