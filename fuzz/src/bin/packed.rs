//! The table of a .neap over weights of a real one, with checksums made right: run, or refused in one line.
#![no_main]

use libfuzzer_sys::fuzz_target;
use neap_fuzz::models::Packed;
use neap_store::{BLOCK, PackWriter};
use std::path::PathBuf;
use std::sync::LazyLock;

static FOLDER: LazyLock<PathBuf> = LazyLock::new(neap_fuzz::scratch);
static PACKED: LazyLock<Vec<Packed>> = LazyLock::new(|| neap_fuzz::models::packed(&FOLDER));

/// Which model's weights, then the table.
fn seeds() -> Vec<Vec<u8>> {
    let seed = |(n, packed): (usize, &Packed)| [&[n as u8][..], &packed.table[..]].concat();
    PACKED.iter().enumerate().map(seed).collect()
}

fuzz_target!(
    init: neap_fuzz::offer_seeds(seeds),
    |data: &[u8]| {
        let Some((&which, table)) = data.split_first() else {
            return;
        };
        let path = FOLDER.join("model.neap");
        let mut writer = PackWriter::create(&path).expect("created");
        let weights = &PACKED[usize::from(which) % PACKED.len()].weights;
        writer.append(weights).expect("written");
        writer.align(BLOCK as u64).expect("written");
        writer.finish(table).expect("written");
        neap_fuzz::check(neap_fuzz::open_and_run(&path, &FOLDER.join("cache")));
    }
);
