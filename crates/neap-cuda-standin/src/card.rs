//! How much of the card's memory each process holds: a file that all of them map.
//!
//! A process that is dead holds nothing.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

const SLOTS: u64 = 64;
const SLOT_BYTES: u64 = 16;

pub struct Card {
    file: Option<File>,
    pub bytes: u64,
    /// Of copies, each way.
    pub bytes_per_second: u64,
    pub host_bytes: u64,
}

static CARD: OnceLock<Card> = OnceLock::new();

/// The card as the environment describes it.
pub fn get() -> &'static Card {
    CARD.get_or_init(|| {
        let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
        let path = std::env::var_os("NEAP_STANDIN_CARD");
        let open = |path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)
        };
        Card {
            file: path.map(|path| open(path).expect("NEAP_STANDIN_CARD cannot be opened")),
            bytes: number("NEAP_STANDIN_BYTES").unwrap_or(256 << 20),
            bytes_per_second: number("NEAP_STANDIN_RATE").unwrap_or(8 << 30),
            host_bytes: number("NEAP_STANDIN_HOST_BYTES").unwrap_or(u64::MAX),
        }
    })
}

impl Card {
    /// Takes memory of the card, if it has so much.
    pub fn take(&self, bytes: u64) -> bool {
        self.change(|used| used.checked_add(bytes))
    }

    pub fn give(&self, bytes: u64) {
        self.change(|used| Some(used.saturating_sub(bytes)));
    }

    pub fn free_bytes(&self) -> u64 {
        let mut used = 0;
        self.slots(|slots| {
            used = slots.iter().map(|s| s.1).sum();
            None
        });
        self.bytes.saturating_sub(used)
    }

    /// Changes what this process holds; false, with nothing changed, where all would be more than there is.
    fn change(&self, change: impl FnOnce(u64) -> Option<u64>) -> bool {
        let own = u64::from(std::process::id());
        let mut done = false;
        self.slots(|slots| {
            let total: u64 = slots.iter().map(|s| s.1).sum();
            let known = slots.iter().position(|s| s.0 == own);
            let slot = known.or_else(|| slots.iter().position(|s| s.0 == 0))?;
            let before = if known.is_some() { slots[slot].1 } else { 0 };
            let after = change(before)?;
            done = after <= before || total - before + after <= self.bytes;
            done.then_some((slot as u64, (own, after)))
        });
        done
    }

    /// Shows what each process holds, and writes what is to be changed.
    fn slots(&self, act: impl FnOnce(&[(u64, u64)]) -> Option<(u64, (u64, u64))>) {
        let file = self.file.as_ref().expect("NEAP_STANDIN_CARD names no file");
        // SAFETY: the file is open.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX) };
        let mut all = vec![0; (SLOTS * SLOT_BYTES) as usize];
        let _ = file.read_at(&mut all, 0);
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&all[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let slots = (0..SLOTS).map(|i| {
            let at = (i * SLOT_BYTES) as usize;
            match number(at) {
                pid if pid != 0 && is_alive(pid) => (pid, number(at + 8)),
                _ => (0, 0),
            }
        });
        let slots: Vec<(u64, u64)> = slots.collect();
        if let Some((slot, (pid, used))) = act(&slots) {
            let mut bytes = pid.to_le_bytes().to_vec();
            bytes.extend(used.to_le_bytes());
            file.write_all_at(&bytes, slot * SLOT_BYTES)
                .expect("NEAP_STANDIN_CARD cannot be written");
        }
        // SAFETY: the file is open.
        unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_UN) };
    }
}

/// Whether a process runs. One that ended and was not waited for does not.
fn is_alive(pid: u64) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.trim().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}
