//! A file system in this process whose reads and writes fail when the test says so: the kernel's own errors, on
//! their way through direct I/O, io_uring and threads.

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Chances in thousandths of what goes wrong with one read or write.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub seed: u64,
    /// `EIO`.
    pub error_per_mille: u64,
    /// Fewer bytes than were asked for.
    pub short_per_mille: u64,
    /// Writes: `ENOSPC`.
    pub full_per_mille: u64,
    /// Reads: one bit is wrong.
    pub flip_per_mille: u64,
    /// Reads past here find the end of the file.
    pub ends_at: Option<u64>,
}

/// How to make the drive fail, and what it did.
#[derive(Clone, Default)]
pub struct Control(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    faults: Faults,
    random: u64,
    injected: usize,
}

impl Control {
    pub fn set(&self, faults: Faults) {
        let mut state = self.0.lock().unwrap();
        state.random = faults.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        state.faults = faults;
    }

    /// Faults so far.
    pub fn injected(&self) -> usize {
        self.0.lock().unwrap().injected
    }

    fn outcome(&self, is_write: bool) -> Outcome {
        let mut state = self.0.lock().unwrap();
        state.random ^= state.random << 13;
        state.random ^= state.random >> 7;
        state.random ^= state.random << 17;
        let draw = state.random >> 20;
        let faults = state.faults;
        let mut chance = draw % 1000;
        let mut hit = |per_mille: u64| {
            let is_hit = chance < per_mille;
            chance = chance.wrapping_sub(per_mille);
            is_hit
        };
        let found = if hit(faults.error_per_mille) {
            Outcome::Error(Errno::EIO)
        } else if hit(faults.short_per_mille) {
            Outcome::Short
        } else if is_write && hit(faults.full_per_mille) {
            Outcome::Error(Errno::ENOSPC)
        } else if !is_write && hit(faults.flip_per_mille) {
            Outcome::Flip(draw as usize / 1000)
        } else {
            return Outcome::Good;
        };
        state.injected += 1;
        state.injected += 1;
        found
    }

    fn ends_at(&self) -> Option<u64> {
        self.0.lock().unwrap().faults.ends_at
    }
}

enum Outcome {
    Good,
    Error(Errno),
    Short,
    Flip(usize),
}

/// Mounts a drive that holds one file of this name, and room for others.
///
/// # Errors
/// Where file systems of user space cannot be had.
pub fn mount(
    folder: &Path,
    name: &str,
    content: Vec<u8>,
) -> std::io::Result<(BackgroundSession, Control)> {
    let control = Control::default();
    let drive = Drive {
        control: control.clone(),
        files: Mutex::new(Files {
            names: BTreeMap::from([(name.to_string(), FIRST)]),
            contents: BTreeMap::from([(FIRST, content)]),
        }),
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("neap-faulty".into())];
    Ok((fuser::spawn_mount(drive, folder, &config)?, control))
}

const FIRST: u64 = 2;

/// Nothing is cached: each look and each read comes here.
const NOT_AT_ALL: Duration = Duration::ZERO;

struct Drive {
    control: Control,
    files: Mutex<Files>,
}

struct Files {
    names: BTreeMap<String, u64>,
    contents: BTreeMap<u64, Vec<u8>>,
}

fn attributes(ino: u64, size: usize) -> FileAttr {
    let is_root = ino == 1;
    FileAttr {
        ino: INodeNo(ino),
        size: size as u64,
        blocks: size.div_ceil(512) as u64,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: if is_root {
            FileType::Directory
        } else {
            FileType::RegularFile
        },
        perm: 0o755,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        flags: 0,
        blksize: 4096,
    }
}

impl Drive {
    fn attributes(&self, ino: u64) -> Option<FileAttr> {
        if ino == 1 {
            return Some(attributes(1, 0));
        }
        let files = self.files.lock().unwrap();
        files.contents.get(&ino).map(|c| attributes(ino, c.len()))
    }
}

impl Filesystem for Drive {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = name.to_str().and_then(|name| {
            let files = self.files.lock().unwrap();
            files.names.get(name).copied()
        });
        match found.and_then(|ino| self.attributes(ino)) {
            Some(attr) => reply.entry(&NOT_AT_ALL, &attr, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino.0) {
            Some(attr) => reply.attr(&NOT_AT_ALL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some(size) = size {
            let mut files = self.files.lock().unwrap();
            if let Some(content) = files.contents.get_mut(&ino.0) {
                content.resize(size as usize, 0);
            }
        }
        match self.attributes(ino.0) {
            Some(attr) => reply.attr(&NOT_AT_ALL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn create(
        &self,
        _: &Request,
        _: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        let mut files = self.files.lock().unwrap();
        let ino = files.contents.keys().last().map_or(FIRST, |last| last + 1);
        let name = name.to_string_lossy().into_owned();
        files.names.insert(name, ino);
        files.contents.insert(ino, Vec::new());
        let attr = attributes(ino, 0);
        let flags = FopenFlags::FOPEN_DIRECT_IO;
        reply.created(&NOT_AT_ALL, &attr, Generation(0), FileHandle(0), flags);
    }

    /// The name goes, what is open stays.
    fn unlink(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_string_lossy();
        self.files.lock().unwrap().names.remove(name.as_ref());
        reply.ok();
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let files = self.files.lock().unwrap();
        let Some(content) = files.contents.get(&ino.0) else {
            return reply.error(Errno::ENOENT);
        };
        let len = content.len() as u64;
        let end = self.control.ends_at().unwrap_or(len).min(len) as usize;
        let begin = (offset as usize).min(end);
        let mut data = content[begin..(begin + size as usize).min(end)].to_vec();
        match self.control.outcome(false) {
            Outcome::Good => {}
            Outcome::Error(errno) => return reply.error(errno),
            Outcome::Short => data.truncate(data.len() / 2 / 512 * 512),
            Outcome::Flip(at) => {
                let at = at % data.len().max(1);
                if let Some(byte) = data.get_mut(at) {
                    *byte ^= 1;
                }
            }
        }
        reply.data(&data);
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = match self.control.outcome(true) {
            Outcome::Good | Outcome::Flip(_) => data,
            Outcome::Error(errno) => return reply.error(errno),
            Outcome::Short => &data[..data.len() / 2 / 512 * 512],
        };
        let mut files = self.files.lock().unwrap();
        let Some(content) = files.contents.get_mut(&ino.0) else {
            return reply.error(Errno::ENOENT);
        };
        let begin = offset as usize;
        let end = begin + data.len();
        content.resize(content.len().max(end), 0);
        content[begin..end].copy_from_slice(data);
        reply.written(data.len() as u32);
    }
}
