//! The packed file: what is written is read back, and nothing else is ever accepted.

use crate::common::{Rng, fast_folder, names_in, settle, write_packed};
use neap_store::{AlignedBuf, BLOCK, PackWriter, PackedFile, StoreError};
use std::os::unix::fs::FileExt;

#[test]
fn round_trip_keeps_data_and_toc() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng(1);
    // Lengths around the writer's buffer, blocks, and nothing at all.
    for (data_len, toc_len) in [
        (0, 0),
        (1, 1),
        (BLOCK, BLOCK),
        (BLOCK + 1, BLOCK - 1),
        ((1 << 20) - 1, 5_000),
        (1 << 20, 0),
        ((3 << 20) + 17, (1 << 20) + 3),
    ] {
        let data = rng.bytes(data_len);
        let toc = rng.bytes(toc_len);
        let path = write_packed(folder.path(), &data, &toc);
        let mut file = PackedFile::open(&path).unwrap();
        assert_eq!(file.toc(), toc);
        file.verify_all().unwrap();
        let range = file.data_range();
        let padded = (range.end - range.start) as usize;
        assert_eq!(padded, data_len.next_multiple_of(BLOCK));
        let mut read = AlignedBuf::zeroed(padded).unwrap();
        file.file().read_exact_at(range.start, &mut read).unwrap();
        assert_eq!(read[..data_len], data);
        assert!(read[data_len..].iter().all(|&b| b == 0));
        let mut verifier = file.take_verifier().unwrap();
        verifier.verify(range.start, &read).unwrap();
        assert_eq!(verifier.unchecked_blocks(), 0);
        assert!(file.take_verifier().is_err());
        file.drop_toc().unwrap();
        assert!(file.toc().is_empty());
        assert_eq!(names_in(folder.path()), ["model.neap"]);
    }
}

#[test]
fn any_bytes_of_the_data_are_read_and_checked() {
    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng(3);
    let data = rng.bytes((1 << 20) + 77);
    let path = write_packed(folder.path(), &data, b"contents");
    let file = PackedFile::open(&path).unwrap();
    assert_eq!(file.read_toc().unwrap(), b"contents");
    let reader = file.data_reader().unwrap();
    let start = file.data_range().start;
    for (skip, len) in [(0, 1), (5, 0), (4095, 2), (17, 700_000), (1 << 20, 77)] {
        let mut read = vec![0; len];
        reader.read(start + skip as u64, &mut read).unwrap();
        assert!(read == data[skip..skip + len], "{skip} {len}");
    }
    let end = file.data_range().end;
    for (offset, len) in [(0, 8), (end - 4, 8), (end, 1), (u64::MAX, 2)] {
        let refused = reader.read(offset, &mut vec![0; len]);
        assert!(matches!(refused, Err(StoreError::OutOfRange { .. })));
    }
    let raw = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    raw.write_all_at(&[data[9000] ^ 1], start + 9000).unwrap();
    raw.sync_all().unwrap();
    reader.read(start, &mut [0; 100]).unwrap();
    let damaged = reader.read(start + 8200, &mut [0; 4]);
    assert!(matches!(damaged, Err(StoreError::Corrupt { .. })));
}

#[test]
fn appended_offsets_are_absolute_and_aligned_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.neap");
    let mut writer = PackWriter::create(&path).unwrap();
    assert_eq!(writer.append(b"abc").unwrap(), BLOCK as u64);
    assert_eq!(writer.append(b"d").unwrap(), BLOCK as u64 + 3);
    assert_eq!(writer.align(64).unwrap(), BLOCK as u64 + 64);
    assert_eq!(writer.append(&[7; 100]).unwrap(), BLOCK as u64 + 64);
    assert_eq!(writer.align(16384).unwrap(), 16384);
    assert_eq!(writer.align(16384).unwrap(), 16384);
    assert_eq!(writer.append(b"end").unwrap(), 16384);
    assert!(writer.align(3).is_err());
    writer.finish(b"t").unwrap();
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(&bytes[BLOCK..BLOCK + 4], b"abcd");
    assert_eq!(&bytes[BLOCK + 4..BLOCK + 64], &[0; 60]);
    assert_eq!(&bytes[16384..16387], b"end");
}

#[test]
fn an_unfinished_file_leaves_nothing_and_replaces_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_packed(folder.path(), b"old", b"old toc");
    let before = std::fs::read(&path).unwrap();
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&vec![1; 3 << 20]).unwrap();
    assert_eq!(names_in(folder.path()).len(), 2);
    drop(writer);
    assert_eq!(names_in(folder.path()), ["model.neap"]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn two_writers_of_one_name_do_not_meet() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.neap");
    let mut first = PackWriter::create(&path).unwrap();
    let mut second = PackWriter::create(&path).unwrap();
    first.append(b"first").unwrap();
    second.append(b"second").unwrap();
    first.finish(b"1").unwrap();
    second.finish(b"2").unwrap();
    assert_eq!(PackedFile::open(&path).unwrap().toc(), b"2");
    assert_eq!(names_in(folder.path()), ["m.neap"]);
}

#[test]
fn bad_paths_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    assert!(PackWriter::create(folder.path()).is_err());
    assert!(PackWriter::create(&folder.path().join("no/such/folder.neap")).is_err());
    assert!(PackedFile::open(&folder.path().join("missing")).is_err());
    assert!(matches!(
        PackedFile::open(folder.path()),
        Err(StoreError::NotPacked { .. })
    ));
    // A FIFO must neither block nor be read.
    let fifo = folder.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: a path that ends in NUL.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(matches!(
        PackedFile::open(&fifo),
        Err(StoreError::NotPacked { .. })
    ));
}

/// Opens a file and reads all of it, as a session would.
fn read_all(path: &std::path::Path) -> Result<(), StoreError> {
    PackedFile::open(path)?.verify_all()
}

#[test]
fn every_corrupted_byte_is_detected() {
    let folder = fast_folder();
    let mut rng = Rng(2);
    // Padding behind the data, the table of contents and the checksums.
    let path = write_packed(folder.path(), &rng.bytes(BLOCK + 100), &rng.bytes(300));
    let good = std::fs::read(&path).unwrap();
    assert_eq!(good.len(), 6 * BLOCK);
    let tag = PackedFile::open(&path).unwrap().content_tag();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for at in 0..good.len() {
        let wrong = good[at] ^ (1 << (at % 8));
        file.write_all_at(&[wrong], at as u64).unwrap();
        assert!(read_all(&path).is_err(), "byte {at} is not protected");
        file.write_all_at(&good[at..=at], at as u64).unwrap();
    }
    read_all(&path).unwrap();
    assert_eq!(PackedFile::open(&path).unwrap().content_tag(), tag);
}

#[test]
fn every_other_length_is_detected() {
    let folder = fast_folder();
    let path = write_packed(folder.path(), &Rng(3).bytes(BLOCK), b"toc");
    let good = std::fs::read(&path).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    for len in (0..good.len()).rev() {
        file.set_len(len as u64).unwrap();
        assert!(read_all(&path).is_err(), "length {len} is accepted");
    }
    for extra in [1, BLOCK, 10 * BLOCK] {
        std::fs::write(&path, [&good[..], &vec![0; extra]].concat()).unwrap();
        assert!(matches!(read_all(&path), Err(StoreError::Length { .. })));
    }
    std::fs::write(&path, &good).unwrap();
    read_all(&path).unwrap();
}

#[test]
fn errors_name_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = write_packed(folder.path(), &Rng(4).bytes(3 * BLOCK), b"toc");
    let good = std::fs::read(&path).unwrap();
    let outcome = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        std::fs::write(&path, bytes).unwrap();
        read_all(&path).unwrap_err()
    };
    let text = outcome(&|b| b[0] = b'P').to_string();
    assert!(text.contains("not a packed model"), "{text}");
    let text = outcome(&|b| b[8] = 9).to_string();
    assert!(text.contains("format version 9"), "{text}");
    let text = outcome(&|b| b[2 * BLOCK + 5] ^= 1).to_string();
    assert!(text.contains("data at file offset 8192"), "{text}");
    let text = outcome(&|b| b[4 * BLOCK] ^= 1).to_string();
    assert!(text.contains("table of contents"), "{text}");
    let text = outcome(&|b| b[5 * BLOCK] ^= 1).to_string();
    assert!(text.contains("checksum table"), "{text}");
    let text = outcome(&|b| b[6 * BLOCK] ^= 1).to_string();
    assert!(text.contains("stamp"), "{text}");
    let text = outcome(&|b| b.truncate(6 * BLOCK)).to_string();
    assert!(text.contains("truncated"), "{text}");
    for text in [outcome(&|b| b.clear()), outcome(&|b| b.truncate(100))] {
        assert!(text.to_string().contains("shorter than a header"));
    }
}

#[test]
fn a_verifier_checks_each_block_once_and_refuses_what_it_does_not_know() {
    let folder = tempfile::tempdir().unwrap();
    let data = Rng(5).bytes(4 * BLOCK);
    let path = write_packed(folder.path(), &data, b"");
    settle(&path);
    let mut verifier = PackedFile::open(&path).unwrap().take_verifier().unwrap();
    let at = |block: usize| ((block + 1) * BLOCK) as u64;
    let mut loaded = data.clone();
    loaded[2 * BLOCK] ^= 1;
    assert!(matches!(
        verifier.verify(at(0), &loaded),
        Err(StoreError::Corrupt { what: "data", offset }) if offset == at(2)
    ));
    // What came before the error counts, the wrong block does not.
    assert!(verifier.is_verified(at(0), 2 * BLOCK));
    assert!(!verifier.is_verified(at(2), BLOCK));
    assert!(
        verifier
            .verify(at(2), &loaded[2 * BLOCK..3 * BLOCK])
            .is_err()
    );
    verifier.verify(at(1), &data[BLOCK..]).unwrap();
    assert_eq!(verifier.unchecked_blocks(), 0);
    assert!(verifier.memory_bytes() < 64);
    // Once checked, not checked again.
    verifier.verify(at(0), &loaded).unwrap();
    for (offset, len) in [
        (0, BLOCK),
        (at(4), BLOCK),
        (at(3), 2 * BLOCK),
        (at(0) + 1, BLOCK),
        (at(0), 100),
        (u64::MAX - 4095, BLOCK),
    ] {
        assert!(verifier.verify(offset, &data[..len]).is_err());
        assert!(!verifier.is_verified(offset, len));
    }
}

#[test]
fn blocks_of_a_file_that_was_written_to_are_checked_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = Rng(7).bytes(4 * BLOCK);
    let path = write_packed(folder.path(), &data, b"contents");
    settle(&path);
    let mut verifier = PackedFile::open(&path).unwrap().take_verifier().unwrap();
    let at = BLOCK as u64;
    let rewrite = |bytes: &[u8], offset: u64| {
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(bytes, offset).unwrap();
    };
    let mut wrong = data.clone();
    wrong[BLOCK] ^= 1;
    verifier.verify(at, &data).unwrap();
    verifier.check_file().unwrap();
    // Passed without looking, and told once the file is looked at.
    verifier.verify(at, &wrong).unwrap();
    rewrite(&wrong, at);
    let error = verifier.check_file().unwrap_err();
    assert!(matches!(error, StoreError::Changed { .. }), "{error}");
    verifier.check_file().unwrap();
    let error = verifier.verify(at, &wrong).unwrap_err();
    assert!(matches!(error, StoreError::Overwritten { .. }), "{error}");
    // So shortly after a write, each block is looked at each time.
    verifier.verify(at, &data).unwrap();
    let is_fresh = verifier.verify(at, &wrong).is_err();
    settle(&path);
    verifier.check_file().unwrap();
    assert_eq!(verifier.unchecked_blocks(), if is_fresh { 4 } else { 0 });
    verifier.verify(at, &data).unwrap();
    verifier.check_file().unwrap();
    verifier.verify(at, &wrong).unwrap();

    // Without its table nothing can be checked.
    let table_at = 2 * BLOCK as u64 + data.len() as u64;
    rewrite(&[0xAA; 4], table_at);
    verifier.check_file().unwrap_err();
    let error = verifier.verify(at, &data).unwrap_err();
    assert!(matches!(error, StoreError::Overwritten { .. }), "{error}");
}

#[test]
fn a_stamp_is_changed_in_place_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.neap");
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&Rng(6).bytes(BLOCK)).unwrap();
    writer.set_stamp([1; 32]);
    writer.finish(b"toc").unwrap();
    let before = std::fs::read(&path).unwrap();
    let mut file = PackedFile::open(&path).unwrap();
    assert_eq!(file.stamp(), Some([1; 32]));
    file.restamp([2; 32]).unwrap();
    assert_eq!(file.stamp(), Some([2; 32]));
    let after = std::fs::read(&path).unwrap();
    assert_eq!(PackedFile::open(&path).unwrap().stamp(), Some([2; 32]));
    let stamp_at = before.len() - BLOCK;
    assert!(before[..stamp_at] == after[..stamp_at]);
    read_all(&path).unwrap();

    // A write that was cut short: a cache goes on without, a file that the user names is damaged.
    std::fs::write(
        &path,
        [&after[..stamp_at + 16], &vec![0; BLOCK - 16]].concat(),
    )
    .unwrap();
    assert_eq!(PackedFile::open_own(&path).unwrap().stamp(), None);
    let error = PackedFile::open(&path).err().unwrap();
    assert!(error.is_damage(), "{error}");

    // Another file took the name: it keeps its own stamp.
    write_packed(folder.path(), b"other", b"toc");
    std::fs::rename(folder.path().join("model.neap"), &path).unwrap();
    assert!(!file.is_at_its_path());
    assert!(file.restamp([3; 32]).is_err());
    assert_eq!(PackedFile::open(&path).unwrap().stamp(), Some([0; 32]));
}

#[test]
fn a_cache_trusts_only_what_its_user_wrote() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = write_packed(folder.path(), b"data", b"toc");
    PackedFile::open_own(&path).unwrap();
    let untrusted = |path: &std::path::Path| {
        matches!(
            PackedFile::open_own(path),
            Err(StoreError::Untrusted { .. })
        )
    };
    let link = folder.path().join("link.neap");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(untrusted(&link));
    PackedFile::open(&link).unwrap();
    for mode in [0o664, 0o646, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(untrusted(&path), "{mode:o}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    PackedFile::open_own(&path).unwrap();
    // Only the administrator can give files away.
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_ok() {
        assert!(untrusted(&path));
    }
}

#[test]
fn a_file_in_memory_says_so() {
    let on_drive = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = write_packed(on_drive.path(), b"data", b"toc");
    let on_drive = PackedFile::open(&path).unwrap();
    let Ok(in_memory) = tempfile::tempdir_in("/dev/shm") else {
        neap_testing::skip("there is no /dev/shm");
        return;
    };
    let path = write_packed(in_memory.path(), b"data", b"toc");
    assert!(PackedFile::open(&path).unwrap().is_in_memory());
    assert!(!on_drive.is_in_memory());
}
