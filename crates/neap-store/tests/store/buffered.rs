//! A filesystem without direct I/O: everything works, by reads and writes that are buffered.

use crate::common::{Rng, names_in, write_packed};
use neap_store::{AlignedBuf, BLOCK, IoMode, LoadTag, PackedFile, RangeRead};
use std::ffi::CString;

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

struct Unmount(CString);

impl Drop for Unmount {
    fn drop(&mut self) {
        // SAFETY: a string that ends in NUL.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}
