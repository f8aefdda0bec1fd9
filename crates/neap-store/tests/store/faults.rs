//! A device that misbehaves: loads give the right bytes or a clean error, and always end.

use crate::common::Rng;
use neap_store::{
    AlignedBuf, BLOCK, Fault, FaultScript, LoadTag, MemoryModel, MemorySource, RandomFaults,
    RangeRead, Source, StoreError, Verifier, VirtualClock,
};

const MODEL: MemoryModel = MemoryModel {
    bytes_per_second: 1_000_000_000,
    latency_ns: 100_000,
    depth: 4,
    piece_bytes: 4 * BLOCK,
    max_loads: 32,
};

fn source(data: &[u8], faults: FaultScript) -> (MemorySource, VirtualClock) {
    let clock = VirtualClock::new();
    let source = MemorySource::new(data, MODEL, clock.clone(), faults).unwrap();
    (source, clock)
}

/// Loads the first `blocks` blocks in one load, and waits for it.
fn load(source: &mut MemorySource, blocks: usize) -> (Result<(), StoreError>, AlignedBuf) {
    let mut memory = AlignedBuf::zeroed(blocks * BLOCK).unwrap();
    // SAFETY: the load is waited for below, before the memory goes anywhere.
    unsafe { source.submit(LoadTag(5), 0, memory.as_mut_ptr(), blocks * BLOCK) }.unwrap();
    let mut seen = 0;
    let result = source.poll(true, &mut |tag| {
        assert_eq!(tag, LoadTag(5));
        seen += 1;
    });
    assert_eq!(seen, usize::from(result.is_ok()));
    assert_eq!(source.in_flight(), 0);
    (result, memory)
}

#[test]
fn time_is_latency_plus_bytes_over_bandwidth() {
    let data = Rng(30).bytes(64 * BLOCK);
    let (mut source, clock) = source(&data, FaultScript::default());
    let (result, memory) = load(&mut source, 4);
    result.unwrap();
    assert_eq!(memory[..], data[..4 * BLOCK]);
    assert_eq!(clock.now_ns(), 100_000 + 4 * 4096);
    // Several reads: their latencies overlap, their bytes share the channel.
    load(&mut source, 16).0.unwrap();
    assert_eq!(clock.now_ns(), 2 * 100_000 + (4 + 16) * 4096);
}

#[test]
fn nothing_arrives_before_its_time_and_early_use_is_visible() {
    let data = Rng(31).bytes(4 * BLOCK);
    let (mut source, clock) = source(&data, FaultScript::default());
    let mut memory = AlignedBuf::zeroed(4 * BLOCK).unwrap();
    // SAFETY: the memory is only read until the load is done, on this thread.
    unsafe { source.submit(LoadTag(1), 0, memory.as_mut_ptr(), 4 * BLOCK) }.unwrap();
    assert!(memory.iter().all(|&b| b == 0xA5));
    clock.advance_ns(100_000 + 4 * 4096 - 1);
    source.poll(false, &mut |_| panic!("too early")).unwrap();
    clock.advance_ns(1);
    let mut seen = false;
    source.poll(false, &mut |_| seen = true).unwrap();
    assert!(seen);
    assert_eq!(memory[..], data[..]);
}

#[test]
fn short_and_interrupted_reads_are_completed() {
    let data = Rng(32).bytes(16 * BLOCK);
    for fault in [
        Fault::Short { bytes: 1 },
        Fault::Short { bytes: BLOCK },
        Fault::Short {
            bytes: 2 * BLOCK + 7,
        },
        Fault::Error { errno: libc::EINTR },
        Fault::Error {
            errno: libc::EAGAIN,
        },
        Fault::Delay { ns: 1_000_000 },
    ] {
        let faults = FaultScript::at([(0, fault), (2, fault)]);
        let (mut faulty, clock) = source(&data, faults);
        let (result, memory) = load(&mut faulty, 16);
        result.unwrap();
        assert_eq!(memory[..], data[..], "{fault:?}");
        let (mut sound, sound_clock) = source(&data, FaultScript::default());
        load(&mut sound, 16).0.unwrap();
        assert!(clock.now_ns() > sound_clock.now_ns(), "{fault:?}");
    }
}

#[test]
fn endless_retries_end() {
    let data = Rng(33).bytes(BLOCK);
    for fault in [
        Fault::Error {
            errno: libc::EAGAIN,
        },
        Fault::Short { bytes: 5 },
    ] {
        let faults = FaultScript::at((0..10_000).map(|i| (i, fault)));
        let (mut source, _) = source(&data, faults);
        assert!(load(&mut source, 1).0.is_err());
        assert!(source.reads_started() < 100);
    }
}

#[test]
fn a_failed_read_names_its_offset_and_load_once() {
    let data = Rng(34).bytes(64 * BLOCK);
    // The second piece of the load.
    let faults = FaultScript::at([(1, Fault::Error { errno: libc::EIO })]);
    let (mut faulty, _) = source(&data, faults);
    match load(&mut faulty, 64).0 {
        Err(StoreError::Read {
            tag,
            offset,
            source,
        }) => {
            assert_eq!(tag, Some(LoadTag(5)));
            assert_eq!(offset, 4 * BLOCK as u64);
            assert_eq!(source.raw_os_error(), Some(libc::EIO));
        }
        other => panic!("{other:?}"),
    }
    // The device is fine from then on.
    let (result, memory) = load(&mut faulty, 64);
    result.unwrap();
    assert_eq!(memory[..], data[..]);
    // The end of the file, early.
    let (mut faulty, _) = source(&data, FaultScript::at([(0, Fault::Short { bytes: 0 })]));
    let text = load(&mut faulty, 1).0.unwrap_err().to_string();
    assert!(text.contains("offset 0"), "{text}");
}

#[test]
fn corruption_is_for_the_verifier_to_find() {
    let data = Rng(35).bytes(16 * BLOCK);
    for at_byte in [0, 1, BLOCK, 4 * BLOCK - 1] {
        let faults = FaultScript::at([(1, Fault::Corrupt { at_byte })]);
        let (mut faulty, _) = source(&data, faults);
        let (result, memory) = load(&mut faulty, 16);
        result.unwrap();
        let mut verifier = Verifier::from_data(0, &data).unwrap();
        let wrong_block = ((4 * BLOCK + at_byte) / BLOCK * BLOCK) as u64;
        assert!(matches!(
            verifier.verify(0, &memory),
            Err(StoreError::Corrupt { offset, .. }) if offset == wrong_block
        ));
    }
}

#[test]
fn a_batch_failing_leaves_loads_alone() {
    let data = Rng(36).bytes(64 * BLOCK);
    // The load takes reads 0 to 3 at once; the batch comes next.
    let faults = FaultScript::at([(5, Fault::Error { errno: libc::EIO })]);
    let (mut source, _) = source(&data, faults);
    let mut memory = AlignedBuf::zeroed(64 * BLOCK).unwrap();
    let base = memory.as_mut_ptr();
    let reads: Vec<RangeRead> = (0..20)
        .map(|i| RangeRead {
            file_offset: (i * BLOCK) as u64,
            dst: base.wrapping_add((40 + i) * BLOCK),
            len_bytes: BLOCK,
        })
        .collect();
    // SAFETY: load and batch have parts of their own.
    unsafe { source.submit(LoadTag(1), 0, base, 32 * BLOCK) }.unwrap();
    // SAFETY: as above.
    match unsafe { source.read_ranges(&reads) } {
        Err(StoreError::Read {
            tag: None, offset, ..
        }) => assert!(offset < 20 * BLOCK as u64),
        other => panic!("{other:?}"),
    }
    assert_eq!(source.in_flight(), 1);
    // SAFETY: as above.
    unsafe { source.read_ranges(&reads) }.unwrap();
    assert_eq!(memory[40 * BLOCK..60 * BLOCK], data[..20 * BLOCK]);
    source.poll(true, &mut |_| {}).unwrap();
    assert_eq!(memory[..32 * BLOCK], data[..32 * BLOCK]);
}

#[test]
fn random_faults_give_right_bytes_or_an_error_and_repeat_exactly() {
    let data = Rng(37).bytes(256 * BLOCK);
    let run = |seed: u64| {
        let faults = RandomFaults {
            seed,
            short_per_mille: 150,
            error_per_mille: 10,
            retry_per_mille: 150,
            delay_per_mille: 100,
            max_delay_ns: 5_000_000,
            corrupt_per_mille: 10,
        };
        let (mut source, clock) = source(&data, FaultScript::random(faults));
        let mut verifier = Verifier::from_data(0, &data).unwrap();
        let mut memory = AlignedBuf::zeroed(32 * 8 * BLOCK).unwrap();
        let base = memory.as_mut_ptr();
        let mut rng = Rng(seed);
        let mut history = Vec::new();
        for _ in 0..8 {
            let mut offsets = [0; 32];
            for (i, offset) in offsets.iter_mut().enumerate() {
                *offset = rng.below(248) as usize * BLOCK;
                let dst = base.wrapping_add(i * 8 * BLOCK);
                let tag = LoadTag(i as u64);
                // SAFETY: loads have parts of their own, and are drained below.
                unsafe { source.submit(tag, *offset as u64, dst, 8 * BLOCK) }.unwrap();
            }
            let mut reported = 0;
            while source.in_flight() > 0 {
                let mut done = Vec::new();
                let result = source.poll(true, &mut |tag| done.push(tag.0 as usize));
                reported += done.len() + usize::from(result.is_err());
                for i in done {
                    let offset = offsets[i];
                    let loaded = &memory[i * 8 * BLOCK..][..8 * BLOCK];
                    // A block checked before is not checked again, so look at fresh ones only.
                    let fresh =
                        !(0..8).any(|b| verifier.is_verified((offset + b * BLOCK) as u64, BLOCK));
                    let right = loaded == &data[offset..offset + 8 * BLOCK];
                    let verified = verifier.verify(offset as u64, loaded).is_ok();
                    assert!(!fresh || right == verified);
                    history.push((i, right));
                }
                match result {
                    Ok(()) | Err(StoreError::Read { .. }) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            assert_eq!(reported, 32);
        }
        (history, clock.now_ns(), source.reads_started())
    };
    let mut wrong = 0;
    for seed in 0..50 {
        let once = run(seed);
        assert_eq!(once, run(seed));
        wrong += once.0.iter().filter(|(_, right)| !right).count();
    }
    assert!(wrong > 0, "no fault came through: the test tests nothing");
}
