//! Running out of space: a clean error, and nothing left under any name.

use crate::common::names_in;
use neap_store::{PackWriter, StoreError};
use std::ffi::CString;
use std::path::Path;

/// Appends until that fails.
fn fill(path: &Path) -> StoreError {
    let mut writer = PackWriter::create(path).unwrap();
    let chunk = vec![0x77; 1 << 20];
    loop {
        if let Err(e) = writer.append(&chunk) {
            // A writer that failed stays failed, and does not make a file with a hole.
            assert!(writer.append(&chunk).is_err());
            assert!(writer.finish(b"toc").is_err());
            return e;
        }
        assert!(writer.offset() < 1 << 30, "the disk never fills up");
    }
}

#[test]
fn a_full_filesystem_is_a_clean_error() {
    let folder = tempfile::tempdir().unwrap();
    let Some(_mounted) = Tmpfs::mount(folder.path(), "size=4m") else {
        return neap_testing::skip("mounting a small filesystem needs root");
    };
    let path = folder.path().join("m.neap");
    let error = fill(&path);
    assert!(error.is_disk_full(), "{error}");
    assert!(error.to_string().contains("m.neap"), "{error}");
    assert!(names_in(folder.path()).is_empty());
    // The space is free again, and files fit that leave room for their tables.
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&vec![1; 2 << 20]).unwrap();
    writer.finish(b"toc").unwrap();
    neap_store::PackedFile::open(&path)
        .unwrap()
        .verify_all()
        .unwrap();
    // Full only when finishing: what was there before stays.
    let before = std::fs::read(&path).unwrap();
    let mut writer = PackWriter::create(&path).unwrap();
    writer.append(&vec![2; 1 << 20]).unwrap();
    let error = writer.finish(&vec![3; 4 << 20]).unwrap_err();
    assert!(error.is_disk_full(), "{error}");
    assert_eq!(names_in(folder.path()), ["m.neap"]);
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_limit_on_file_size_is_a_clean_error() {
    // In a process of its own: the limit would hit other tests too.
    let child = "NEAP_STORE_TEST_FILE_SIZE_LIMIT";
    if std::env::var_os(child).is_none() {
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "full_disk::a_limit_on_file_size_is_a_clean_error",
            ])
            .env(child, "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let limit = libc::rlimit {
        rlim_cur: 3 << 20,
        rlim_max: libc::RLIM_INFINITY,
    };
    // SAFETY: plain calls; without the signal's default action, writes fail with `EFBIG`.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        assert_eq!(libc::setrlimit(libc::RLIMIT_FSIZE, &limit), 0);
    }
    let error = fill(&folder.path().join("m.neap"));
    assert!(error.is_disk_full(), "{error}");
    assert!(names_in(folder.path()).is_empty());
}

/// A small filesystem in memory, unmounted when dropped.
struct Tmpfs(CString);

impl Tmpfs {
    fn mount(folder: &Path, options: &str) -> Option<Tmpfs> {
        let target = CString::new(folder.to_str()?).ok()?;
        let options = CString::new(options).ok()?;
        // SAFETY: strings that end in NUL.
        let failed = unsafe {
            libc::mount(
                c"none".as_ptr(),
                target.as_ptr(),
                c"tmpfs".as_ptr(),
                0,
                options.as_ptr().cast(),
            )
        };
        (failed == 0).then_some(Tmpfs(target))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        // SAFETY: a string that ends in NUL.
        unsafe { libc::umount2(self.0.as_ptr(), libc::MNT_DETACH) };
    }
}
