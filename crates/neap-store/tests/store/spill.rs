//! The spill file: what is written comes back, and what cannot be written is said.

use crate::common::Rng;
use neap_store::{
    AlignedBuf, BLOCK, Fault, FaultScript, IoMode, LoadTag, MemoryModel, MemorySource, Spill,
    StoreError, ThrottledSource, VirtualClock, open_spill,
};

const BLOCKS: usize = 40;

fn memory(faults: FaultScript) -> MemorySource {
    let model = MemoryModel {
        piece_bytes: 4 * BLOCK,
        ..MemoryModel::default()
    };
    MemorySource::spill(BLOCKS * BLOCK, model, VirtualClock::new(), faults).unwrap()
}

/// Waits for all that is in flight; the first error.
fn settle(spill: &mut dyn Spill) -> Result<(), StoreError> {
    let mut result = Ok(());
    while spill.in_flight() > 0 {
        result = result.and(spill.poll(true, &mut |_| {}));
    }
    result
}

fn write(spill: &mut dyn Spill, data: &AlignedBuf) -> Result<(), StoreError> {
    // SAFETY: the data is not touched until all is complete.
    unsafe { spill.submit_write(LoadTag(1), 0, data.as_ptr(), data.len())? };
    settle(spill)
}

fn read_back(spill: &mut dyn Spill) -> AlignedBuf {
    let mut back = AlignedBuf::zeroed(BLOCKS * BLOCK).unwrap();
    for block in 0..BLOCKS {
        // SAFETY: within the buffer, which is not touched until all is complete.
        unsafe {
            let dst = back.as_mut_ptr().add(block * BLOCK);
            spill
                .submit(LoadTag(2), (block * BLOCK) as u64, dst, BLOCK)
                .unwrap();
        }
    }
    settle(spill).unwrap();
    back
}

fn data(seed: u64) -> AlignedBuf {
    let mut data = AlignedBuf::zeroed(BLOCKS * BLOCK).unwrap();
    data.copy_from_slice(&Rng(seed).bytes(BLOCKS * BLOCK));
    data
}

#[test]
fn what_is_written_comes_back_and_leaves_no_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut spills: Vec<Box<dyn Spill>> = vec![Box::new(memory(FaultScript::default()))];
    for mode in [IoMode::Uring, IoMode::Pread, IoMode::Auto] {
        match open_spill(folder.path(), (BLOCKS * BLOCK) as u64 - 5, mode) {
            Ok(spill) => spills.push(spill),
            Err(StoreError::NoSpill { reason, .. }) => neap_testing::skip(reason),
            Err(e) if mode == IoMode::Uring => {
                neap_testing::skip(format_args!("no io_uring here: {e}"));
            }
            Err(e) => panic!("{e}"),
        }
    }
    let slow = ThrottledSource::new(Box::new(memory(FaultScript::default())), 1 << 30);
    spills.push(Box::new(slow.unwrap()));
    for mut spill in spills {
        assert_eq!(spill.len_bytes(), (BLOCKS * BLOCK) as u64);
        for seed in 1..4 {
            let data = data(seed);
            write(&mut *spill, &data).unwrap();
            assert_eq!(read_back(&mut *spill)[..], data[..]);
        }
        let data = data(9);
        // SAFETY: refused, so nothing is read.
        let beyond =
            unsafe { spill.submit_write(LoadTag(3), BLOCK as u64, data.as_ptr(), data.len()) };
        assert!(matches!(beyond, Err(StoreError::OutOfRange { .. })));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn short_writes_go_on_and_errors_are_said() {
    let short = FaultScript::at([
        (0, Fault::Short { bytes: BLOCK + 7 }),
        (1, Fault::Error { errno: 4 }),
        (3, Fault::Delay { ns: 1_000_000 }),
    ]);
    let mut spill = memory(short);
    let wanted = data(5);
    write(&mut spill, &wanted).unwrap();
    assert_eq!(read_back(&mut spill)[..], wanted[..]);
    for (errno, is_full) in [(28, true), (5, false)] {
        let mut spill = memory(FaultScript::at([(2, Fault::Error { errno })]));
        let error = write(&mut spill, &wanted).unwrap_err();
        assert!(matches!(
            error,
            StoreError::Write {
                tag: LoadTag(1),
                ..
            }
        ));
        assert_eq!(error.is_disk_full(), is_full);
        // The next one is not affected.
        write(&mut spill, &wanted).unwrap();
        assert_eq!(read_back(&mut spill)[..], wanted[..]);
    }
}

#[test]
fn a_file_that_no_drive_has_room_for_is_refused_when_it_is_opened() {
    let folder = tempfile::tempdir().unwrap();
    for bytes in [1 << 55, u64::MAX] {
        let refused = open_spill(folder.path(), bytes, IoMode::Pread)
            .err()
            .unwrap();
        let is_clear = refused.is_disk_full() || matches!(refused, StoreError::NoSpill { .. });
        assert!(is_clear, "{refused}");
    }
    let nowhere = open_spill(&folder.path().join("none"), 4096, IoMode::Pread);
    assert!(matches!(nowhere.err(), Some(StoreError::File { .. })));
}
