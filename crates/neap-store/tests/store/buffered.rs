//! A filesystem without direct I/O: everything works, by reads and writes that are buffered. And reads that ask for the page cache.

use crate::common::{Rng, names_in, write_packed};
use neap_store::{AlignedBuf, BLOCK, IoMode, LoadTag, PackedFile, RangeRead};
use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::Path;

#[test]
fn files_without_direct_io_are_read_and_written() {
    let folder = tempfile::tempdir().unwrap();
    let target = CString::new(folder.path().to_str().unwrap()).unwrap();
    // SAFETY: strings that end in NUL.
    let failed = unsafe {
        libc::mount(
            c"none".as_ptr(),
            target.as_ptr(),
            c"ramfs".as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    if failed != 0 {
        return neap_testing::skip("mounting a filesystem without direct I/O needs root");
    }
    let _unmount = Unmount(target);
    let data = Rng(50).bytes(3000 * BLOCK + 5);
    let path = write_packed(folder.path(), &data, b"toc");
    assert_eq!(names_in(folder.path()), ["model.neap"]);
    let packed = PackedFile::open(&path).unwrap();
    assert!(!packed.file().is_direct());
    assert_eq!(packed.toc(), b"toc");
    packed.verify_all().unwrap();
    let source = packed.open_source(IoMode::Auto).unwrap();
    assert_eq!(source.name(), "pread");
    for mode in [IoMode::Pread, IoMode::Uring] {
        let Ok(mut source) = packed.open_source(mode) else {
            neap_testing::skip(format_args!("{mode:?} cannot be had here"));
            continue;
        };
        let mut memory = AlignedBuf::zeroed(3001 * BLOCK).unwrap();
        let base = memory.as_mut_ptr();
        let block = BLOCK as u64;
        let read = RangeRead {
            file_offset: block,
            dst: base.wrapping_add(3000 * BLOCK),
            len_bytes: BLOCK,
        };
        // SAFETY: load and batch have parts of their own, and the memory outlives them.
        unsafe {
            source
                .submit(LoadTag(0), block, base, 3000 * BLOCK)
                .unwrap();
            source.read_ranges(&[read]).unwrap();
        }
        source.poll(true, &mut |_| {}).unwrap();
        assert!(memory[..3000 * BLOCK] == data[..3000 * BLOCK]);
        assert!(memory[3000 * BLOCK..] == data[..BLOCK]);
    }
}

/// Pages of the file that are in the page cache.
fn cached_pages(path: &Path, len_bytes: usize) -> usize {
    let file = std::fs::File::open(path).unwrap();
    let mut there = vec![0u8; len_bytes.div_ceil(BLOCK)];
    // SAFETY: the mapping is only looked at by the kernel, which has a byte for each of its pages, and ends here.
    unsafe {
        let protection = libc::PROT_READ;
        let null = std::ptr::null_mut();
        let at = libc::mmap(
            null,
            len_bytes,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        );
        assert_ne!(at, libc::MAP_FAILED);
        assert_eq!(libc::mincore(at, len_bytes, there.as_mut_ptr()), 0);
        libc::munmap(at, len_bytes);
    }
    there.iter().filter(|&&byte| byte & 1 != 0).count()
}

/// What studies compare with: the same bytes, and the file's pages are in the cache afterwards. Otherwise they are not.
#[test]
fn the_page_cache_is_used_only_when_it_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = Rng(51).bytes(700 * BLOCK);
    let path = write_packed(folder.path(), &data, b"toc");
    let packed = PackedFile::open(&path).unwrap();
    if !packed.file().is_direct() {
        return neap_testing::skip("the temporary folder has no direct I/O");
    }
    for (mode, is_cached) in [(IoMode::Cached, true), (IoMode::Pread, false)] {
        // Opening it empties the cache.
        let mut source = packed.open_source(IoMode::Cached).unwrap();
        assert_eq!(cached_pages(&path, data.len()), 0);
        if mode != IoMode::Cached {
            source = packed.open_source(mode).unwrap();
        }
        let mut memory = AlignedBuf::zeroed(data.len()).unwrap();
        let base = memory.as_mut_ptr();
        // SAFETY: the memory outlives the load.
        unsafe { (source.submit(LoadTag(0), BLOCK as u64, base, data.len())).unwrap() };
        source.poll(true, &mut |_| {}).unwrap();
        assert!(memory[..] == data[..]);
        let pages = cached_pages(&path, data.len());
        assert_eq!(pages >= 690, is_cached, "{mode:?}: {pages} pages");
        assert_eq!(pages == 0, !is_cached, "{mode:?}: {pages} pages");
    }
}

struct Unmount(CString);

impl Drop for Unmount {
    fn drop(&mut self) {
        // SAFETY: a string that ends in NUL.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}
