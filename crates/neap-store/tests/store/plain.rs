//! Files of other formats: the last block may end early, and writes are noticed.

use neap_store::{
    AlignedBuf, BLOCK, IoMode, LoadTag, RangeRead, StoreError, open_joined, open_plain,
};

#[test]
fn a_file_that_ends_within_a_block_is_read_to_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for len in [1, 511, 4095, 4096, 4097, 3 * BLOCK + 777] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        for mode in [IoMode::Auto, IoMode::Pread] {
            let (mut source, mut verifier) = open_plain(&path, mode).unwrap();
            let whole = len.next_multiple_of(BLOCK);
            let mut memory = AlignedBuf::zeroed(whole).unwrap();
            // SAFETY: the memory is not touched until the load is reported.
            unsafe {
                source
                    .submit(LoadTag(3), 0, memory.as_mut_ptr(), whole)
                    .unwrap()
            };
            source
                .poll(true, &mut |tag| assert_eq!(tag, LoadTag(3)))
                .unwrap();
            assert_eq!(&memory[..len], &bytes[..]);
            verifier.verify(0, &memory).unwrap();
            assert!(verifier.check_file().is_ok());
            // SAFETY: nothing is read, as the range is refused.
            let beyond =
                unsafe { source.submit(LoadTag(4), whole as u64, memory.as_mut_ptr(), BLOCK) };
            assert!(matches!(beyond, Err(StoreError::OutOfRange { .. })));
        }
    }
}

#[test]
fn a_file_that_becomes_shorter_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; 2 * BLOCK + 9]).unwrap();
    for mode in [IoMode::Auto, IoMode::Pread] {
        let (mut source, _) = open_plain(&path, mode).unwrap();
        let mut memory = AlignedBuf::zeroed(3 * BLOCK).unwrap();
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.set_len(BLOCK as u64 + 5).unwrap();
        // SAFETY: the memory is not touched until the load is reported.
        unsafe {
            source
                .submit(LoadTag(3), 0, memory.as_mut_ptr(), 3 * BLOCK)
                .unwrap()
        };
        let read = source.poll(true, &mut |_| panic!("it cannot be complete"));
        assert!(matches!(read, Err(StoreError::Read { .. })));
        file.set_len(2 * BLOCK as u64 + 9).unwrap();
    }
}

#[test]
fn writes_to_the_file_are_noticed_whatever_was_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    std::fs::write(&path, vec![7; 2 * BLOCK]).unwrap();
    let (_, mut verifier) = open_plain(&path, IoMode::Auto).unwrap();
    assert!(verifier.check_file().is_ok());
    assert!(verifier.is_verified(0, BLOCK));
    std::fs::write(&path, vec![8; 2 * BLOCK + 1]).unwrap();
    assert!(matches!(
        verifier.check_file(),
        Err(StoreError::Changed { .. })
    ));
}

#[test]
fn a_reader_gives_every_byte_once() {
    use std::io::{Read, Seek, SeekFrom};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let bytes: Vec<u8> = (0..200_001u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = neap_store::BlockReader::open(&path).unwrap();
    let mut all = Vec::new();
    reader.read_to_end(&mut all).unwrap();
    assert!(all == bytes);
    for at in [0, 1, 4095, 4096, 65_535, 65_536, 131_071, 199_999, 200_000] {
        reader.seek(SeekFrom::Start(at as u64)).unwrap();
        let mut one = [0];
        reader.read_exact(&mut one).unwrap();
        assert_eq!(one[0], bytes[at]);
    }
    assert_eq!(reader.seek(SeekFrom::End(3)).unwrap(), 200_004);
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    assert!(reader.seek(SeekFrom::Current(-300_000)).is_err());
}

#[test]
fn several_files_are_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let lengths = [BLOCK + 5, 1, 2 * BLOCK, 3 * BLOCK - 1];
    let mut right = Vec::new();
    let paths: Vec<_> = (1u8..)
        .zip(lengths)
        .map(|(number, len)| {
            let path = folder.path().join(number.to_string());
            let bytes: Vec<u8> = (0..len).map(|i| number ^ (i / 16) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            right.extend(bytes);
            right.resize(right.len().next_multiple_of(BLOCK), 0);
            path
        })
        .collect();
    let blocks = right.len() / BLOCK;
    for mode in [IoMode::Auto, IoMode::Pread] {
        let (mut source, mut verifier) = open_joined(&paths, mode).unwrap();
        let mut memory = AlignedBuf::zeroed(right.len()).unwrap();
        let start = memory.as_mut_ptr();
        for block in 0..blocks {
            let at = block * BLOCK;
            let tag = LoadTag(block as u64);
            // SAFETY: the memory is not touched until all loads are reported.
            unsafe {
                source
                    .submit(tag, at as u64, start.wrapping_add(at), BLOCK)
                    .unwrap()
            };
        }
        assert_eq!(source.in_flight(), blocks);
        let mut done = vec![false; blocks];
        while source.in_flight() > 0 {
            source
                .poll(true, &mut |tag| done[tag.0 as usize] = true)
                .unwrap();
        }
        assert!(done.iter().all(|&done| done));
        assert!(matches!(
            source.poll(true, &mut |_| {}),
            Err(StoreError::NothingInFlight)
        ));
        assert!(memory[..] == right[..]);
        verifier.verify(0, &memory).unwrap();
        memory.fill(0);
        let start = memory.as_mut_ptr();
        let reads: Vec<RangeRead> = (0..blocks)
            .rev()
            .map(|block| RangeRead {
                file_offset: (block * BLOCK) as u64,
                dst: start.wrapping_add(block * BLOCK),
                len_bytes: BLOCK,
            })
            .collect();
        // SAFETY: each has its own memory.
        unsafe { source.read_ranges(&reads).unwrap() };
        assert!(memory[..] == right[..]);
        // SAFETY: nothing is read, as these ranges are refused: over the end of a file, and of all.
        let over = unsafe { source.submit(LoadTag(0), BLOCK as u64, start, 2 * BLOCK) };
        assert!(matches!(over, Err(StoreError::OutOfRange { .. })));
        // SAFETY: as above.
        let beyond = unsafe { source.submit(LoadTag(0), right.len() as u64, start, BLOCK) };
        assert!(matches!(beyond, Err(StoreError::OutOfRange { .. })));
        assert!(verifier.check_file().is_ok());
        let file = std::fs::OpenOptions::new().append(true).open(&paths[1]);
        std::io::Write::write_all(&mut file.unwrap(), b"more").unwrap();
        assert!(matches!(
            verifier.check_file(),
            Err(StoreError::Changed { .. })
        ));
        std::fs::write(&paths[1], [2]).unwrap();
    }
    let none: [&str; 0] = [];
    assert!(open_joined(&none, IoMode::Auto).is_err());
}
