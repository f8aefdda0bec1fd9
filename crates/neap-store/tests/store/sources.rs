//! All sources read the same bytes, whatever the order, sizes and depths.

use crate::common::{Rng, write_packed};
use neap_store::{
    AlignedBuf, BLOCK, DirectFile, FaultScript, IoMode, LoadTag, MemoryModel, MemorySource,
    PackedFile, PreadConfig, PreadSource, RangeRead, Source, StoreError, ThrottledSource,
    UringConfig, UringSource, VirtualClock, measure_bandwidth,
};
use std::path::Path;
use std::sync::Arc;

const PIECE_BYTES: usize = 4 * BLOCK;

/// One source of each kind, with small pieces and depths so that every queue fills up.
fn all_sources(path: &Path, max_loads: usize) -> Vec<Box<dyn Source>> {
    let file = Arc::new(DirectFile::open(path).unwrap());
    let mut sources: Vec<Box<dyn Source>> = Vec::new();
    let uring = UringConfig {
        depth: 3,
        piece_bytes: PIECE_BYTES,
        max_loads,
        batch_depth: 5,
    };
    match UringSource::new(file.clone(), uring) {
        Ok(source) => sources.push(Box::new(source)),
        Err(e) => neap_testing::skip(format_args!("io_uring cannot be had here: {e}")),
    }
    let pread = PreadConfig {
        workers: 3,
        piece_bytes: PIECE_BYTES,
        max_loads,
    };
    sources.push(Box::new(PreadSource::new(file, pread).unwrap()));
    let model = MemoryModel {
        piece_bytes: PIECE_BYTES,
        max_loads,
        ..MemoryModel::default()
    };
    let clock = VirtualClock::new();
    let memory = MemorySource::from_file(path, model, clock, FaultScript::default()).unwrap();
    sources.push(Box::new(memory));
    let slow = PreadSource::new(Arc::new(DirectFile::open(path).unwrap()), pread).unwrap();
    let slow = ThrottledSource::new(Box::new(slow), 1 << 30).unwrap();
    sources.push(Box::new(slow));
    sources
}

fn test_file(folder: &Path, blocks: usize, seed: u64) -> (std::path::PathBuf, Vec<u8>) {
    let path = write_packed(folder, &Rng(seed).bytes(blocks * BLOCK), b"toc");
    let bytes = std::fs::read(&path).unwrap();
    (path, bytes)
}

#[test]
fn random_loads_and_batches_read_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, expected) = test_file(folder.path(), 100, 6);
    let file_blocks = expected.len() / BLOCK;
    for mut source in all_sources(&path, 16) {
        let mut rng = Rng(7);
        let slot_bytes = 20 * BLOCK;
        let mut loads = AlignedBuf::zeroed(16 * slot_bytes).unwrap();
        let mut batch = AlignedBuf::zeroed(64 * BLOCK).unwrap();
        let (loads_base, batch_base) = (loads.as_mut_ptr(), batch.as_mut_ptr());
        let mut in_slot: Vec<Option<(usize, usize)>> = vec![None; 16];
        for round in 0..400 {
            let slot = rng.below(16) as usize;
            if in_slot[slot].is_none() {
                let len = rng.below(21) as usize;
                let first = rng.below((file_blocks - len) as u64 + 1) as usize;
                let dst = loads_base.wrapping_add(slot * slot_bytes);
                // SAFETY: the slot is free, and the source is drained before the buffer goes.
                unsafe {
                    source.submit(
                        LoadTag(slot as u64),
                        (first * BLOCK) as u64,
                        dst,
                        len * BLOCK,
                    )
                }
                .unwrap();
                in_slot[slot] = Some((first, len));
            }
            if round % 10 == 0 {
                let reads: Vec<RangeRead> = (0..32)
                    .map(|i| RangeRead {
                        file_offset: rng.below(file_blocks as u64 - 1) * BLOCK as u64,
                        dst: batch_base.wrapping_add(i * 2 * BLOCK),
                        len_bytes: BLOCK * rng.below(3) as usize,
                    })
                    .collect();
                // SAFETY: the reads have places of their own in `batch`.
                unsafe { source.read_ranges(&reads) }.unwrap();
                for (i, read) in reads.iter().enumerate() {
                    let at = read.file_offset as usize;
                    assert_eq!(
                        batch[i * 2 * BLOCK..][..read.len_bytes],
                        expected[at..at + read.len_bytes]
                    );
                }
            }
            let wait = rng.below(3) == 0 && source.in_flight() > 0;
            let mut done = Vec::new();
            source.poll(wait, &mut |tag| done.push(tag)).unwrap();
            assert!(!wait || !done.is_empty());
            for tag in done {
                let slot = tag.0 as usize;
                let (first, len) = in_slot[slot].take().expect("reported once");
                assert_eq!(
                    loads[slot * slot_bytes..][..len * BLOCK],
                    expected[first * BLOCK..(first + len) * BLOCK],
                    "{}",
                    source.name()
                );
            }
            assert_eq!(source.in_flight(), in_slot.iter().flatten().count());
        }
        source.drain().unwrap();
        assert_eq!(source.in_flight(), 0);
    }
}

#[test]
fn misuse_is_an_error_and_queues_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (path, expected) = test_file(folder.path(), 10, 8);
    let file_len = expected.len() as u64;
    for mut source in all_sources(&path, 2) {
        let mut memory = AlignedBuf::zeroed(8 * BLOCK).unwrap();
        let base = memory.as_mut_ptr();
        let block = BLOCK as u64;
        let bad = [
            (1, base, BLOCK),
            (0, base.wrapping_add(8), BLOCK),
            (0, base, 100),
            (file_len, base, BLOCK),
            (file_len - block, base, 2 * BLOCK),
            (u64::MAX - 4095, base, BLOCK),
        ];
        for (offset, dst, len) in bad {
            // SAFETY: nothing is read, which is what is tested.
            assert!(unsafe { source.submit(LoadTag(0), offset, dst, len) }.is_err());
            let read = RangeRead {
                file_offset: offset,
                dst,
                len_bytes: len,
            };
            // SAFETY: as above.
            assert!(unsafe { source.read_ranges(&[read]) }.is_err());
        }
        assert_eq!(source.in_flight(), 0);
        assert!(matches!(
            source.poll(true, &mut |_| {}),
            Err(StoreError::NothingInFlight)
        ));
        source
            .poll(false, &mut |_| panic!("nothing to report"))
            .unwrap();
        for i in 0..2 {
            let dst = base.wrapping_add(i * BLOCK);
            // SAFETY: each load has its own block.
            unsafe { source.submit(LoadTag(i as u64), block, dst, BLOCK) }.unwrap();
        }
        // SAFETY: nothing is read.
        let third = unsafe { source.submit(LoadTag(2), 0, base.wrapping_add(4 * BLOCK), BLOCK) };
        assert!(matches!(
            third,
            Err(StoreError::TooManyLoads { capacity: 2 })
        ));
        source.drain().unwrap();
    }
}

#[test]
fn a_file_cut_short_while_open_gives_errors() {
    let folder = tempfile::tempdir().unwrap();
    let (path, expected) = test_file(folder.path(), 40, 9);
    // The memory source has a copy of the file, which nobody cuts.
    for mut source in all_sources(&path, 8)
        .into_iter()
        .filter(|s| s.name() != "memory")
    {
        std::fs::write(&path, &expected).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.set_len(20 * BLOCK as u64).unwrap();
        let mut memory = AlignedBuf::zeroed(30 * BLOCK).unwrap();
        let base = memory.as_mut_ptr();
        // SAFETY: the memory lives until the source is drained; loads have their own parts.
        unsafe {
            source.submit(LoadTag(1), 0, base, 10 * BLOCK).unwrap();
            let dst = base.wrapping_add(10 * BLOCK);
            source
                .submit(LoadTag(2), 10 * BLOCK as u64, dst, 20 * BLOCK)
                .unwrap();
        }
        let mut seen = Vec::new();
        let mut failed = Vec::new();
        while source.in_flight() > 0 {
            match source.poll(true, &mut |tag| seen.push(tag)) {
                Ok(()) => {}
                Err(StoreError::Read { tag, offset, .. }) => {
                    assert!(offset >= 20 * BLOCK as u64);
                    failed.push(tag);
                }
                Err(e) => panic!("{e}"),
            }
        }
        assert_eq!(seen, [LoadTag(1)]);
        assert_eq!(failed, [Some(LoadTag(2))]);
        assert_eq!(memory[..10 * BLOCK], expected[..10 * BLOCK]);
        let read = RangeRead {
            file_offset: 25 * BLOCK as u64,
            dst: memory.as_mut_ptr(),
            len_bytes: BLOCK,
        };
        // SAFETY: nothing else uses the memory.
        let result = unsafe { source.read_ranges(&[read]) };
        assert!(matches!(result, Err(StoreError::Read { tag: None, .. })));
        // It still works for what is there.
        let read = RangeRead {
            file_offset: 0,
            ..read
        };
        // SAFETY: as above.
        unsafe { source.read_ranges(&[read]) }.unwrap();
    }
}

#[test]
fn sources_may_be_dropped_with_loads_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = test_file(folder.path(), 300, 10);
    for _ in 0..20 {
        for mut source in all_sources(&path, 64) {
            let mut memory = AlignedBuf::zeroed(64 * 20 * BLOCK).unwrap();
            for i in 0..64 {
                let dst = memory.as_mut_ptr().wrapping_add(i * 20 * BLOCK);
                let offset = (i * 4 * BLOCK) as u64;
                // SAFETY: the source is dropped before the memory.
                unsafe { source.submit(LoadTag(i as u64), offset, dst, 20 * BLOCK) }.unwrap();
            }
            drop(source);
            // Nothing writes any more: a pattern stays what it is.
            memory.fill(0x11);
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(memory.iter().all(|&b| b == 0x11));
        }
    }
}

#[test]
fn a_source_may_move_to_another_thread_between_calls() {
    let folder = tempfile::tempdir().unwrap();
    let (path, expected) = test_file(folder.path(), 64, 11);
    for mut source in all_sources(&path, 4) {
        let mut memory = AlignedBuf::zeroed(64 * BLOCK).unwrap();
        // SAFETY: the memory outlives the load.
        unsafe { source.submit(LoadTag(0), 0, memory.as_mut_ptr(), 64 * BLOCK) }.unwrap();
        let mut source = std::thread::spawn(move || {
            source.poll(true, &mut |_| {}).unwrap();
            source
        })
        .join()
        .unwrap();
        assert_eq!(memory[..], expected[..64 * BLOCK]);
        // SAFETY: as above.
        unsafe { source.submit(LoadTag(1), 0, memory.as_mut_ptr(), 64 * BLOCK) }.unwrap();
        source.poll(true, &mut |_| {}).unwrap();
    }
}

#[test]
fn modes_open_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = test_file(folder.path(), 64, 13);
    let file = PackedFile::open(&path).unwrap();
    assert_eq!(file.open_source(IoMode::Pread).unwrap().name(), "pread");
    assert!(["uring", "pread"].contains(&file.open_source(IoMode::Auto).unwrap().name()));
    assert_eq!("uring".parse::<IoMode>().unwrap(), IoMode::Uring);
    assert!("fast".parse::<IoMode>().is_err());
    for mode in [IoMode::Auto, IoMode::Pread] {
        let measured = measure_bandwidth(&path, mode, 4 * BLOCK, 4, 1 << 20).unwrap();
        assert_eq!(measured.bytes, 1 << 20);
        assert_eq!(measured.reads, 64);
        assert!(measured.bytes_per_second() > 0.0);
        assert!(measure_bandwidth(&path, mode, 100, 4, 1 << 20).is_err());
        assert!(measure_bandwidth(&path, mode, BLOCK, 0, 1 << 20).is_err());
        assert!(measure_bandwidth(&path, mode, 1 << 30, 1, 1 << 30).is_err());
    }
}

#[test]
fn direct_reads_leave_no_page_cache() {
    // A folder on a real disk: the usual place for temporary files may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (path, _) = test_file(folder.path(), 2000, 14);
    let file = std::fs::File::open(&path).unwrap();
    // The test itself has read the file, to compare.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    let packed = PackedFile::open(&path).unwrap();
    if !packed.file().is_direct() {
        return neap_testing::skip(format_args!("no direct I/O at {}", path.display()));
    }
    packed.verify_all().unwrap();
    let len = packed.file_len_bytes() as usize;
    let mut source = packed.open_source(IoMode::Auto).unwrap();
    let mut memory = AlignedBuf::zeroed(len).unwrap();
    // SAFETY: the memory outlives the load.
    unsafe { source.submit(LoadTag(0), 0, memory.as_mut_ptr(), len) }.unwrap();
    source.poll(true, &mut |_| {}).unwrap();
    assert_eq!(resident_pages(&file, len), 0);
}

/// Pages of a file in the page cache, as `mincore` counts them.
fn resident_pages(file: &std::fs::File, len: usize) -> usize {
    use std::os::fd::AsRawFd;
    let pages = len.div_ceil(BLOCK);
    let mut resident = vec![0u8; pages];
    // SAFETY: a fresh shared mapping of the file, only asked about and unmapped again.
    unsafe {
        let map = libc::mmap(
            std::ptr::null_mut(),
            len,
            libc::PROT_READ,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(map, libc::MAP_FAILED);
        assert_eq!(libc::mincore(map, len, resident.as_mut_ptr()), 0);
        libc::munmap(map, len);
    }
    resident.iter().filter(|&&b| b & 1 == 1).count()
}

#[test]
fn throttled_loads_are_reported_no_earlier_than_their_rate_allows() {
    let folder = tempfile::tempdir().unwrap();
    let (path, expected) = test_file(folder.path(), 64, 21);
    let inner = neap_store::open_source(&path, IoMode::Auto).unwrap();
    let mut source = ThrottledSource::new(inner, 4 << 20).unwrap();
    let mut memory = AlignedBuf::zeroed(64 * BLOCK).unwrap();
    let base = memory.as_mut_ptr();
    let started = std::time::Instant::now();
    for i in 0..4u64 {
        let at = i as usize * 16 * BLOCK;
        // SAFETY: each load has its own part of the memory, and all are reported before it goes.
        unsafe {
            source
                .submit(LoadTag(i), at as u64, base.wrapping_add(at), 16 * BLOCK)
                .unwrap();
        }
    }
    // 64 KiB at 4 MiB per second take 15.6 ms, one after the other.
    let mut next = 0;
    while source.in_flight() > 0 {
        source
            .poll(true, &mut |tag| {
                assert_eq!(tag, LoadTag(next));
                next += 1;
                let due = std::time::Duration::from_micros(15_625 * next);
                assert!(started.elapsed() >= due, "load {next} is early");
            })
            .unwrap();
    }
    assert_eq!(next, 4);
    assert_eq!(&memory[..], &expected[..64 * BLOCK]);
    let started = std::time::Instant::now();
    let read = RangeRead {
        file_offset: 0,
        dst: memory.as_mut_ptr(),
        len_bytes: 16 * BLOCK,
    };
    // SAFETY: the memory is not touched while this runs.
    unsafe { source.read_ranges(&[read]).unwrap() };
    assert!(started.elapsed() >= std::time::Duration::from_micros(15_625));
    let none = source.poll(true, &mut |_| {});
    assert!(matches!(none, Err(StoreError::NothingInFlight)));
    let inner = neap_store::open_source(&path, IoMode::Auto).unwrap();
    assert!(ThrottledSource::new(inner, 0).is_err());
}

#[test]
fn throttled_loads_fail_as_those_beneath() {
    let folder = tempfile::tempdir().unwrap();
    let (path, _) = test_file(folder.path(), 64, 22);
    let faults = FaultScript::at([(1, neap_store::Fault::Error { errno: 5 })]);
    let memory =
        MemorySource::from_file(&path, MemoryModel::default(), VirtualClock::new(), faults)
            .unwrap();
    let mut source = ThrottledSource::new(Box::new(memory), 1 << 30).unwrap();
    let mut buffer = AlignedBuf::zeroed(3 * BLOCK).unwrap();
    let base = buffer.as_mut_ptr();
    for i in 0..3 {
        let dst = base.wrapping_add(i * BLOCK);
        // SAFETY: as above.
        unsafe {
            source
                .submit(LoadTag(i as u64), (i * BLOCK) as u64, dst, BLOCK)
                .unwrap()
        };
    }
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    while source.in_flight() > 0 {
        match source.poll(true, &mut |tag| done.push(tag.0)) {
            Ok(()) => {}
            Err(StoreError::Read { tag: Some(tag), .. }) => failed.push(tag.0),
            Err(e) => panic!("{e}"),
        }
    }
    done.sort_unstable();
    assert_eq!((done, failed), (vec![0, 2], vec![1]));
}
