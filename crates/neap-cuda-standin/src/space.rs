//! Addresses and memory: files in memory, mapped where the program says. What is not mapped cannot be touched.

use crate::card;
use crate::status::*;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

struct Physical {
    file: i32,
    bytes: u64,
    references: u32,
}

struct Mapping {
    bytes: u64,
    handle: u64,
    accessible: bool,
    /// Kernels and copies that use it now.
    users: u32,
}

#[derive(Default)]
pub struct Space {
    physicals: BTreeMap<u64, Physical>,
    mappings: BTreeMap<u64, Mapping>,
    reserved: BTreeMap<u64, u64>,
    /// Allocations of the plain kind: their bytes.
    plain: BTreeMap<u64, u64>,
    pub hosts: BTreeMap<u64, u64>,
    next: u64,
}

static SPACE: Mutex<Option<Space>> = Mutex::new(None);

/// The unit of physical memory.
pub const GRANULE: u64 = 2 << 20;

pub fn with<T>(act: impl FnOnce(&mut Space) -> T) -> T {
    let mut space: MutexGuard<Option<Space>> = SPACE.lock().unwrap_or_else(|p| p.into_inner());
    act(space.get_or_insert_default())
}

/// Says what the program did that a card would punish, and ends it: no test may overlook it.
fn die(what: &str) -> ! {
    eprintln!("stand-in: {what}");
    std::process::abort()
}

fn map_nothing(at: u64, bytes: u64) -> u64 {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
    // SAFETY: a fixed place is one that was reserved here.
    let found = unsafe { libc::mmap(at as *mut _, bytes as usize, libc::PROT_NONE, flags, -1, 0) };
    if found == libc::MAP_FAILED {
        0
    } else {
        found as u64
    }
}

impl Space {
    pub fn reserve(&mut self, bytes: u64) -> Result<u64, Status> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(INVALID_VALUE);
        }
        let found = map_nothing(0, bytes + GRANULE);
        if found == 0 {
            return Err(OUT_OF_MEMORY);
        }
        let at = found.next_multiple_of(GRANULE);
        self.reserved.insert(at, bytes);
        Ok(at)
    }

    pub fn free_reserved(&mut self, at: u64, bytes: u64) -> Result<(), Status> {
        if self.reserved.get(&at) != Some(&bytes)
            || self.mappings.range(at..at + bytes).next().is_some()
        {
            return Err(INVALID_VALUE);
        }
        self.reserved.remove(&at);
        // SAFETY: the range was reserved here, and nothing is mapped there.
        unsafe { libc::munmap(at as *mut _, bytes as usize) };
        Ok(())
    }

    pub fn create(&mut self, bytes: u64) -> Result<u64, Status> {
        if bytes == 0 || !bytes.is_multiple_of(GRANULE) {
            return Err(INVALID_VALUE);
        }
        if !card::get().take(bytes) {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: the name ends with a zero.
        let file = unsafe { libc::memfd_create(c"card".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the file was made just now.
        if file < 0 || unsafe { libc::ftruncate(file, bytes as i64) } != 0 {
            die("no memory file");
        }
        self.next += 1;
        let physical = Physical {
            file,
            bytes,
            references: 1,
        };
        self.physicals.insert(self.next, physical);
        Ok(self.next)
    }

    pub fn release(&mut self, handle: u64) -> Result<(), Status> {
        let physical = self.physicals.get_mut(&handle).ok_or(INVALID_VALUE)?;
        physical.references = physical.references.checked_sub(1).ok_or(INVALID_VALUE)?;
        self.forget_if_unused(handle);
        Ok(())
    }

    fn forget_if_unused(&mut self, handle: u64) {
        let is_mapped = self.mappings.values().any(|m| m.handle == handle);
        let is_held = self
            .physicals
            .get(&handle)
            .is_some_and(|p| p.references > 0);
        if !is_mapped
            && !is_held
            && let Some(physical) = self.physicals.remove(&handle)
        {
            // SAFETY: the file is this handle's alone.
            unsafe { libc::close(physical.file) };
            card::get().give(physical.bytes);
        }
    }

    pub fn map(&mut self, at: u64, bytes: u64, offset: u64, handle: u64) -> Result<(), Status> {
        let physical = self.physicals.get(&handle).ok_or(INVALID_VALUE)?;
        let inside = self
            .reserved
            .range(..=at)
            .next_back()
            .is_some_and(|(s, l)| at + bytes <= s + l);
        let before = self.mappings.range(..at + bytes).next_back();
        let is_taken = before.is_some_and(|(start, m)| start + m.bytes > at);
        if !inside
            || is_taken
            || offset + bytes > physical.bytes
            || !at.is_multiple_of(GRANULE)
            || bytes == 0
        {
            return Err(INVALID_VALUE);
        }
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        // SAFETY: the place was reserved here, and nothing is mapped there.
        let found = unsafe {
            libc::mmap(
                at as *mut _,
                bytes as usize,
                libc::PROT_NONE,
                flags,
                physical.file,
                offset as i64,
            )
        };
        if found == libc::MAP_FAILED {
            die("a mapping failed");
        }
        let mapping = Mapping {
            bytes,
            handle,
            accessible: false,
            users: 0,
        };
        self.mappings.insert(at, mapping);
        Ok(())
    }

    /// The mappings that a range consists of, if it is mapped as a whole.
    fn parts(&self, at: u64, bytes: u64) -> Option<Vec<u64>> {
        let (mut reached, mut parts) = (at, Vec::new());
        while reached < at + bytes {
            let (&start, mapping) = self.mappings.range(..=reached).next_back()?;
            if start + mapping.bytes <= reached {
                return None;
            }
            parts.push(start);
            reached = start + mapping.bytes;
        }
        Some(parts)
    }

    pub fn set_access(&mut self, at: u64, bytes: u64) -> Result<(), Status> {
        let parts = self.parts(at, bytes).ok_or(INVALID_VALUE)?;
        for part in parts {
            let mapping = self.mappings.get_mut(&part).ok_or(INVALID_VALUE)?;
            mapping.accessible = true;
            let rights = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: the range is mapped.
            unsafe { libc::mprotect(part as *mut _, mapping.bytes as usize, rights) };
        }
        Ok(())
    }

    /// Unmaps whole mappings.
    pub fn unmap(&mut self, at: u64, bytes: u64) -> Result<(), Status> {
        let parts = self.parts(at, bytes).ok_or(INVALID_VALUE)?;
        let whole: u64 = parts.iter().map(|part| self.mappings[part].bytes).sum();
        if parts.first() != Some(&at) || whole != bytes {
            return Err(INVALID_VALUE);
        }
        for part in parts {
            let Some(mapping) = self.mappings.remove(&part) else {
                continue;
            };
            if mapping.users > 0 {
                die(&format!(
                    "memory at {part:#x} is unmapped while the card uses it"
                ));
            }
            map_nothing(part, mapping.bytes);
            self.forget_if_unused(mapping.handle);
        }
        Ok(())
    }

    pub fn retain(&mut self, at: u64) -> Result<u64, Status> {
        let part = self.parts(at, 1).ok_or(INVALID_VALUE)?[0];
        let handle = self.mappings[&part].handle;
        self.physicals
            .get_mut(&handle)
            .ok_or(INVALID_VALUE)?
            .references += 1;
        Ok(handle)
    }

    pub fn allocate(&mut self, bytes: u64) -> Result<u64, Status> {
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        let whole = bytes
            .checked_next_multiple_of(GRANULE)
            .ok_or(OUT_OF_MEMORY)?;
        let handle = self.create(whole)?;
        let at = self.reserve(whole)?;
        self.map(at, whole, 0, handle)?;
        self.set_access(at, whole)?;
        self.release(handle)?;
        self.plain.insert(at, bytes);
        Ok(at)
    }

    pub fn free(&mut self, at: u64) -> Result<(), Status> {
        let bytes = self.plain.remove(&at).ok_or(INVALID_VALUE)?;
        let whole = bytes.next_multiple_of(GRANULE);
        self.unmap(at, whole)?;
        self.free_reserved(at, whole)
    }

    /// The allocation or mapping that holds an address.
    pub fn range(&self, at: u64) -> Option<(u64, u64)> {
        let plain = self
            .plain
            .range(..=at)
            .next_back()
            .filter(|&(s, l)| at < s + l);
        let mapped = self
            .mappings
            .range(..=at)
            .next_back()
            .map(|(s, m)| (*s, m.bytes));
        plain
            .map(|(s, l)| (*s, *l))
            .or(mapped.filter(|(s, l)| at < s + l))
    }

    pub fn is_host(&self, at: u64) -> bool {
        self.hosts
            .range(..=at)
            .next_back()
            .is_some_and(|(s, l)| at < s + l)
    }

    /// Whether an address is one that was reserved: the card's, not the host's.
    pub fn is_device(&self, at: u64) -> bool {
        self.reserved
            .range(..=at)
            .next_back()
            .is_some_and(|(s, l)| at < s + l)
    }

    pub fn pin_host(&mut self, bytes: u64) -> Result<u64, Status> {
        let held: u64 = self.hosts.values().sum();
        if held.saturating_add(bytes) > card::get().host_bytes {
            return Err(OUT_OF_MEMORY);
        }
        let at = map_nothing(0, bytes.max(1));
        if at == 0 {
            return Err(OUT_OF_MEMORY);
        }
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range was mapped just now.
        if unsafe { libc::mprotect(at as *mut _, bytes as usize, rights) } != 0 {
            return Err(OUT_OF_MEMORY);
        }
        self.hosts.insert(at, bytes);
        Ok(at)
    }

    pub fn free_host(&mut self, at: u64) -> Result<(), Status> {
        let bytes = self.hosts.remove(&at).ok_or(INVALID_VALUE)?;
        // SAFETY: it was mapped by `pin_host`, and is forgotten now.
        unsafe { libc::munmap(at as *mut _, bytes.max(1) as usize) };
        Ok(())
    }

    /// A reset: plain allocations and pinned memory go.
    pub fn reset(&mut self) {
        for at in self.plain.keys().copied().collect::<Vec<_>>() {
            let _ = self.free(at);
        }
        for at in self.hosts.keys().copied().collect::<Vec<_>>() {
            let _ = self.free_host(at);
        }
    }

    fn change_users(&mut self, parts: &[u64], by: i32) {
        for part in parts {
            if let Some(mapping) = self.mappings.get_mut(part) {
                mapping.users = mapping.users.wrapping_add_signed(by);
            }
        }
    }
}

/// Does something with ranges of the card's memory that must be there until it is done.
pub fn using<T>(what: &str, ranges: &[(u64, u64)], act: impl FnOnce() -> T) -> T {
    let mut all = Vec::new();
    with(|space| {
        for &(at, bytes) in ranges.iter().filter(|r| r.1 > 0) {
            let parts = space.parts(at, bytes);
            let usable = |parts: &Vec<u64>| parts.iter().all(|p| space.mappings[p].accessible);
            match parts.filter(usable) {
                Some(parts) => all.extend(parts),
                None => die(&format!(
                    "{what} touches {bytes} bytes at {at:#x}, which are not mapped"
                )),
            }
        }
        space.change_users(&all, 1);
    });
    let done = act();
    with(|space| space.change_users(&all, -1));
    done
}
