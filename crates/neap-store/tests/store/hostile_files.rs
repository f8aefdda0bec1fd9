//! Files made to deceive: errors, quickly, with little memory, and never a panic.

use crate::common::{Rng, fast_folder, write_packed};
use neap_store::{BLOCK, PackedFile, StoreError};
use proptest::prelude::*;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

fn read_all(path: &Path) -> Result<(), StoreError> {
    PackedFile::open(path)?.verify_all()
}

/// Makes the header's own checksum right again, as an attacker would.
fn reseal(bytes: &mut [u8]) {
    let sum = crc32c::crc32c(&bytes[..BLOCK - 4]);
    bytes[BLOCK - 4..BLOCK].copy_from_slice(&sum.to_le_bytes());
}

/// Offsets of the header's eight-byte numbers.
const NUMBERS: std::ops::Range<usize> = 16..72;

#[test]
fn lying_headers_are_refused() {
    let folder = fast_folder();
    let mut rng = Rng(40);
    let path = write_packed(folder.path(), &rng.bytes(5 * BLOCK), &rng.bytes(5000));
    let good = std::fs::read(&path).unwrap();
    let block = BLOCK as u64;
    let tricky = [
        0,
        1,
        block - 1,
        block,
        block + 1,
        2 * block,
        good.len() as u64 - block,
        good.len() as u64,
        good.len() as u64 + block,
        1 << 31,
        1 << 32,
        1 << 40,
        i64::MAX as u64,
        u64::MAX - block,
        u64::MAX - block + 1,
        u64::MAX,
    ];
    for at in NUMBERS.step_by(8) {
        for value in tricky {
            let mut bytes = good.clone();
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            if bytes == good {
                continue;
            }
            reseal(&mut bytes);
            std::fs::write(&path, bytes).unwrap();
            assert!(read_all(&path).is_err(), "{value} at {at} is accepted");
        }
    }
    for at in [12, 72, 76, 80, 1000, BLOCK - 5] {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        reseal(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        assert!(read_all(&path).is_err(), "a change at {at} is accepted");
    }
}

/// A consistent header over a huge file with holes must not make the reader allocate it.
#[test]
fn a_huge_table_of_contents_is_refused() {
    let folder = fast_folder();
    let path = write_packed(folder.path(), b"", b"");
    let toc_len: u64 = 1 << 36;
    let mut header = std::fs::read(&path).unwrap();
    header.truncate(BLOCK);
    let block = BLOCK as u64;
    let numbers = [
        block + toc_len,
        block,
        0,
        block,
        toc_len,
        block + toc_len,
        0,
    ];
    for (number, at) in numbers.iter().zip(NUMBERS.step_by(8)) {
        header[at..at + 8].copy_from_slice(&number.to_le_bytes());
    }
    reseal(&mut header);
    std::fs::write(&path, header).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(block + toc_len).unwrap();
    let start = Instant::now();
    assert!(matches!(
        PackedFile::open(&path),
        Err(StoreError::Header { .. })
    ));
    assert!(start.elapsed() < Duration::from_secs(1));
}

/// Seeded mutations of a good file, with the header's checksum made right again: whatever
/// opens and verifies must hold the bytes that were written.
#[test]
fn mutated_files_are_refused_or_unchanged() {
    let folder = fast_folder();
    let mut rng = Rng(41);
    let data = rng.bytes(6 * BLOCK + 9);
    let toc = rng.bytes(4500);
    let path = write_packed(folder.path(), &data, &toc);
    let good = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let start = Instant::now();
    let mut rounds = 0;
    while start.elapsed() < Duration::from_secs(3) {
        rounds += 1;
        let mut bytes = good.clone();
        for _ in 0..1 + rng.below(4) {
            mutate(&mut bytes, &mut rng);
        }
        if bytes.len() >= BLOCK && rng.below(2) == 0 {
            reseal(&mut bytes);
        }
        file.set_len(bytes.len() as u64).unwrap();
        file.write_all_at(&bytes, 0).unwrap();
        if read_all(&path).is_ok() {
            assert!(
                bytes == good,
                "a changed file is accepted in round {rounds}"
            );
        }
    }
    assert!(rounds > 100);
}

fn mutate(bytes: &mut Vec<u8>, rng: &mut Rng) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len() as u64;
    // Half of all changes go to the fields of the header.
    let at = if rng.below(2) == 0 {
        rng.below(len.min(80))
    } else {
        rng.below(len)
    } as usize;
    match rng.below(6) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.next() as u8,
        2 => bytes.truncate(at),
        3 => bytes.extend(std::iter::repeat_n(0, rng.below(3 * BLOCK as u64) as usize)),
        4 => {
            let value = rng.next() >> rng.below(64);
            let end = (at + 8).min(bytes.len());
            bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
        }
        _ => {
            // Two blocks change places.
            let blocks = len / BLOCK as u64;
            if blocks >= 2 {
                let [a, b] = [(); 2].map(|()| rng.below(blocks) as usize * BLOCK);
                for i in 0..BLOCK {
                    bytes.swap(a + i, b + i);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..3 * BLOCK)) {
        let folder = fast_folder();
        let path = folder.path().join("random");
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(read_all(&path).is_err());
    }

    /// Random numbers behind a right magic, version and checksum.
    #[test]
    fn random_headers_are_refused(
        fields in proptest::collection::vec(any::<u64>(), 7),
        crcs in any::<u64>(),
        blocks in 1usize..4,
    ) {
        let folder = fast_folder();
        let path = write_packed(folder.path(), b"", b"");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.resize(blocks * BLOCK, 0);
        for (field, at) in fields.iter().zip(NUMBERS.step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&field.to_le_bytes());
        }
        bytes[72..80].copy_from_slice(&crcs.to_le_bytes());
        reseal(&mut bytes);
        std::fs::write(&path, &bytes).unwrap();
        prop_assert!(read_all(&path).is_err());
    }

    #[test]
    fn what_is_written_is_read(
        data in proptest::collection::vec(any::<u8>(), 0..4 * BLOCK),
        toc in proptest::collection::vec(any::<u8>(), 0..2 * BLOCK),
    ) {
        let folder = fast_folder();
        let path = write_packed(folder.path(), &data, &toc);
        let file = PackedFile::open(&path).unwrap();
        prop_assert_eq!(file.toc(), &toc[..]);
        file.verify_all().unwrap();
    }
}
