//! The cache file: what is written is found again, what was tampered with is not believed.

use super::file::{self, find, read, write};
use super::profile::{ComputeRates, Machine, Profile, StoragePoint, StorageRates};
use std::fs;

fn profile(threads: u32) -> Profile {
    Profile {
        machine: Machine {
            cpu: "Some CPU".into(),
            isa: "Avx2Fma".into(),
            threads,
            device: 7,
        },
        compute: ComputeRates {
            flops_per_second: 1e11 * f64::from(threads),
            memory_bytes_per_second: 1e10,
            compute_overhead_ns: 1_000,
            slice_overhead_ns: 12_000,
            load_handling_ns: 5_000,
            load_handling_ns_per_byte: 0.05,
        },
        storage: StorageRates {
            sustained_bytes_per_second: 1.2e9,
            burst_bytes_per_second: 3.5e9,
            block_latency_ns: 40_000,
            load_bytes_per_second: 1.1e9,
            load_latency_ns: 90_000,
            group_bytes: 4 << 20,
            points: vec![StoragePoint {
                request_bytes: 1 << 20,
                depth: 4,
                bytes_per_second: 1.3e9,
            }],
        },
        steps: (1..=50)
            .map(|key| (key * 0x9E37_79B9, key * 1000))
            .collect(),
    }
}

#[test]
fn profiles_of_several_machines_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("deeper").join(file::FILE_NAME);
    for threads in 1..=3 {
        write(&path, &profile(threads)).unwrap();
    }
    let mut newer = profile(2);
    newer.steps.insert(1, 5);
    write(&path, &newer).unwrap();
    let cached = read(&path);
    assert_eq!((cached.profiles.len(), cached.remark), (3, None));
    let found = |threads| find(read(&path).profiles, &profile(threads).machine);
    assert_eq!(found(1), Some(profile(1)));
    assert_eq!(found(2), Some(newer));
    assert_eq!(found(4), None);
    let names = fs::read_dir(path.parent().unwrap()).unwrap();
    assert_eq!(names.count(), 1, "nothing else is left there");
}

#[test]
fn the_oldest_profiles_make_room() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file::FILE_NAME);
    for threads in 1..=20 {
        write(&path, &profile(threads)).unwrap();
    }
    let kept: Vec<u32> = read(&path)
        .profiles
        .iter()
        .map(|p| p.machine.threads)
        .collect();
    assert_eq!(kept, (13..=20).collect::<Vec<u32>>());
}

#[test]
fn no_file_is_no_remark() {
    let folder = tempfile::tempdir().unwrap();
    let cached = read(&folder.path().join("none"));
    assert!(cached.profiles.is_empty() && cached.remark.is_none());
}

#[test]
fn what_is_not_a_cache_is_ignored_with_a_remark() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.bin");
    write(&path, &profile(2)).unwrap();
    let good = fs::read(&path).unwrap();
    let refused = |bytes: &[u8], why: &str| {
        fs::write(&path, bytes).unwrap();
        let cached = read(&path);
        let remark = cached.remark.unwrap_or_default();
        assert!(cached.profiles.is_empty());
        assert!(remark.contains(why) && remark.contains("x.bin"), "{remark}");
    };
    refused(b"", "cut short");
    refused(b"hello, this is a text", "another version");
    for len in [7, 8, 20, good.len() - 1] {
        let why = if len < 40 { "cut short" } else { "damaged" };
        refused(&good[..len], why);
    }
    for at in 0..good.len() {
        let mut bytes = good.clone();
        bytes[at] ^= 0x40;
        let why = if at < 8 { "another version" } else { "damaged" };
        refused(&bytes, why);
    }
    refused(&vec![0; 2 << 20], "too large");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let remark = read(&path).remark.unwrap_or_default();
    assert!(remark.contains("not a file"), "{remark}");
}

#[test]
fn numbers_are_checked_even_where_the_hash_is_right() {
    type Spoil = fn(&mut Profile);
    let spoils: [Spoil; 9] = [
        |p| p.storage.group_bytes = u64::MAX,
        |p| p.compute.flops_per_second = f64::NAN,
        |p| p.compute.memory_bytes_per_second = 0.0,
        |p| p.storage.load_bytes_per_second = f64::INFINITY,
        |p| p.storage.sustained_bytes_per_second = -1.0,
        |p| p.compute.load_handling_ns_per_byte = -0.1,
        |p| p.compute.slice_overhead_ns = u64::MAX,
        |p| p.steps.extend([(9, u64::MAX)]),
        |p| p.machine.cpu = "x".repeat(10_000),
    ];
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(file::FILE_NAME);
    for spoil in spoils {
        let mut spoilt = profile(1);
        spoil(&mut spoilt);
        assert!(!spoilt.is_sane());
        let _ = fs::remove_file(&path);
        write(&path, &spoilt).unwrap();
        let cached = read(&path);
        assert!(cached.profiles.is_empty());
        assert!(cached.remark.unwrap().contains("make no sense"));
    }
}
