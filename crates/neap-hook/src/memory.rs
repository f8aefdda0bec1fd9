//! The program's memory on the card: allocations in [`crate::range`], and what it maps itself in [`crate::physical`].
//!
//! What changes here is told to the scheduler: it counts as the hook does.

use crate::agent::{Agent, connected, lock};
use crate::card::{self, Address, Device};
use crate::gate;
use crate::physical::{Freed, Physicals};
use crate::range::{Moved, Range};
use crate::real::{INVALID_VALUE, OUT_OF_MEMORY, Status};
use crate::settings::{self, warn};
use neap_card::Say;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Chunks that asynchronous frees leave on the card for the next allocation.
pub const KEPT: usize = 8;

/// How long memory that was granted may be missing.
const PATIENCE: Duration = Duration::from_secs(2);

/// Bytes in each place.
pub struct Held {
    pub resident: u64,
    pub away: u64,
    pub fixed: u64,
}

static RESIDENT: AtomicU64 = AtomicU64::new(0);
static AWAY: AtomicU64 = AtomicU64::new(0);
static FIXED: AtomicU64 = AtomicU64::new(0);

/// Captures of streams into graphs that have not ended: the card must not be waited for.
pub static CAPTURES: AtomicU32 = AtomicU32::new(0);

pub fn held() -> Held {
    Held {
        resident: RESIDENT.load(Relaxed),
        away: AWAY.load(Relaxed),
        fixed: FIXED.load(Relaxed),
    }
}

/// The memory of the first card; 0 where it cannot be known yet.
pub fn card_bytes() -> u64 {
    card::total_bytes(0).unwrap_or(0)
}

pub struct Memory {
    /// The card that the program uses first. Others are left to the driver.
    device: Option<Device>,
    pub range: Option<Range>,
    pub physicals: Physicals,
    /// What the driver allocated for the program, which cannot leave the card.
    fixed: BTreeMap<Address, u64>,
    /// Frees that wait for the end of a capture.
    deferred: Vec<Address>,
}

static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    device: None,
    range: None,
    physicals: Physicals::new(),
    fixed: BTreeMap::new(),
    deferred: Vec::new(),
});

/// The program's memory, for one at a time.
pub fn get() -> MutexGuard<'static, Memory> {
    lock(&MEMORY)
}

fn less(counter: &AtomicU64, bytes: u64) {
    let _ = counter.fetch_update(Relaxed, Relaxed, |old| Some(old.saturating_sub(bytes)));
}

/// Tells of memory that is gone.
pub fn tell(freed: &Freed) {
    less(&RESIDENT, freed.resident);
    less(&AWAY, freed.away);
    let Some(agent) = connected() else { return };
    if freed.resident > 0 {
        agent.say(&Say::Gave {
            bytes: freed.resident,
            fixed: false,
        });
    }
    if freed.away > 0 {
        agent.say(&Say::Forgot { bytes: freed.away });
    }
}

/// Asks for memory, of the scheduler. The caller has passed the gate.
pub fn need(agent: &Agent, bytes: u64, fixed: bool) -> Result<(), Status> {
    if !agent.need(bytes, fixed) {
        return Err(OUT_OF_MEMORY);
    }
    let counter = if fixed { &FIXED } else { &RESIDENT };
    counter.fetch_add(bytes, Relaxed);
    Ok(())
}

/// Takes memory from the card after asking for it. Programs that have just ended, or are not known to a new scheduler
/// yet, may still hold what was granted.
pub fn back<T>(
    agent: &Agent,
    bytes: u64,
    mut take: impl FnMut() -> Result<T, Status>,
) -> Result<T, Status> {
    let started = Instant::now();
    loop {
        need(agent, bytes, false)?;
        match take() {
            Err(status) => {
                decline(bytes, false);
                if status != OUT_OF_MEMORY || started.elapsed() > PATIENCE {
                    return Err(status);
                }
            }
            taken => return taken,
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What was granted is not taken.
pub fn decline(bytes: u64, fixed: bool) {
    let counter = if fixed { &FIXED } else { &RESIDENT };
    less(counter, bytes);
    if let Some(agent) = connected() {
        agent.say(&Say::Gave { bytes, fixed });
    }
}

impl Memory {
    /// The card that is managed, if the current context is on it. The first that is asked about is the one.
    pub fn device(&mut self) -> Result<Option<&Device>, Status> {
        let ordinal = card::current_device()?;
        if self.device.is_none() {
            self.device = Some(Device {
                ordinal,
                context: card::current_context()?,
                stream: card::new_stream()?,
            });
        }
        Ok(self.device.as_ref().filter(|d| d.ordinal == ordinal))
    }

    /// Allocates on the managed card; `None` on any other.
    pub fn allocate(&mut self, agent: &Agent, bytes: u64) -> Result<Option<Address>, Status> {
        if self.device()?.is_none() {
            return Ok(None);
        }
        let Some(device) = &self.device else {
            return Ok(None);
        };
        if bytes == 0 {
            return Err(INVALID_VALUE);
        }
        if self.range.is_none() {
            let chunk_bytes = settings::get().map_or(settings::SMALLEST_CHUNK, |s| s.chunk_bytes);
            self.range = Some(Range::reserve(device, chunk_bytes)?);
        }
        let Some(range) = &mut self.range else {
            return Ok(None);
        };
        let (at, blank) = range.take(bytes).ok_or(OUT_OF_MEMORY)?;
        if !blank.is_empty() {
            let new_bytes = blank.len() as u64 * range.chunk_bytes();
            let backed = back(agent, new_bytes, || range.back(device, &blank));
            if let Err(status) = backed {
                range.arena.give(at);
                return Err(status);
            }
            if agent.pins_early() {
                range.pin(&blank);
            }
        }
        Ok(Some(range.address(at)))
    }

    /// Whether an allocation of ours begins at an address.
    pub fn is_ours(&self, address: Address) -> bool {
        self.find(address)
            .is_some_and(|(start, _)| start == address)
    }

    /// The allocation that holds an address: its start, and its length.
    pub fn find(&self, address: Address) -> Option<(Address, u64)> {
        let range = self.range.as_ref()?;
        let (at, bytes) = range.arena.find(range.offset(address)?)?;
        Some((range.address(at), bytes))
    }

    /// Gives an allocation back whose work is done. So many chunks without allocations stay.
    pub fn free(&mut self, address: Address, kept: usize) {
        if CAPTURES.load(Relaxed) > 0 {
            self.deferred.push(address);
            return;
        }
        let Some(range) = &mut self.range else { return };
        let emptied = range.offset(address).and_then(|at| range.arena.give(at));
        if emptied.is_some_and(|chunks| !chunks.is_empty()) {
            self.trim(kept);
        }
    }

    /// Gives up chunks without allocations.
    pub fn trim(&mut self, kept: usize) {
        let Some(range) = &mut self.range else { return };
        let (resident, away) = range.trim(kept);
        tell(&Freed { resident, away });
    }

    /// What a capture put off.
    pub fn free_deferred(&mut self) {
        for address in std::mem::take(&mut self.deferred) {
            self.free(address, 0);
        }
    }

    pub fn add_fixed(&mut self, address: Address, bytes: u64) {
        self.fixed.insert(address, bytes);
    }

    /// The driver frees what it allocated.
    pub fn remove_fixed(&mut self, address: Address) {
        if let Some(bytes) = self.fixed.remove(&address) {
            decline(bytes, true);
        }
    }

    /// The context was reset or destroyed: all that was allocated is gone.
    pub fn clear(&mut self) {
        if let Some(range) = self.range.take() {
            range.clear();
        }
        self.physicals = Physicals::new();
        self.fixed.clear();
        self.deferred.clear();
        self.device = None;
        let held = held();
        let (resident, away) = (held.resident, held.away);
        tell(&Freed { resident, away });
        decline(held.fixed, true);
    }

    /// Whether a context is the one that memory is moved in.
    pub fn is_in(&self, context: card::Context) -> bool {
        self.device.as_ref().is_some_and(|d| d.context == context)
    }
}

/// Waits until the card has done all that the program gave it.
pub fn wait_for_card() {
    let context = get().device.as_ref().map(|d| d.context as usize);
    if let Some(context) = context
        && CAPTURES.load(Relaxed) == 0
    {
        let waited = card::within(context as card::Context, card::synchronize);
        if let Ok(Err(status)) | Err(status) = waited {
            warn(&format!(
                "the card's work failed: error {status} of the driver"
            ));
        }
    }
}

/// Waits as the driver's free does, unless nothing can be running.
pub fn wait_before_free() {
    if gate::is_open() {
        wait_for_card();
    }
}

/// Moves at least so many bytes to the host, as far as there are.
pub fn swap_out(wanted: u64) -> Moved {
    let mut memory = get();
    let memory = &mut *memory;
    let Some(device) = &memory.device else {
        return Moved::default();
    };
    let mut moved = Moved::default();
    let mut add = |part: Result<Moved, Status>| match part {
        Ok(part) => {
            moved.bytes += part.bytes;
            moved.copied += part.copied;
            moved.ns += part.ns;
            moved.bytes
        }
        Err(status) => {
            warn(&format!(
                "memory cannot leave the card: error {status} of the driver"
            ));
            moved.bytes
        }
    };
    let swapped = card::within(device.context, || {
        let mut so_far = 0;
        if let Some(range) = &mut memory.range {
            so_far = add(range.swap_out(device, wanted));
        }
        if so_far < wanted {
            add(memory.physicals.swap_out(device, wanted - so_far));
        }
    });
    if let Err(status) = swapped {
        warn(&format!(
            "the context cannot be used: error {status} of the driver"
        ));
    }
    less(&RESIDENT, moved.bytes);
    AWAY.fetch_add(moved.copied, Relaxed);
    moved
}

/// Brings back all that is away, as far as the card has memory, and adds it to `bytes`.
pub fn swap_in(bytes: &mut u64) -> Status {
    let mut memory = get();
    let memory = &mut *memory;
    let Some(device) = &memory.device else {
        return 0;
    };
    let mut failed = None;
    let swapped = card::within(device.context, || {
        let mut add = |(part, status): (u64, Option<Status>)| {
            *bytes += part;
            RESIDENT.fetch_add(part, Relaxed);
            less(&AWAY, part);
            failed = failed.or(status);
        };
        if let Some(range) = &mut memory.range {
            add(range.swap_in(device));
        }
        add(memory.physicals.swap_in(device));
    });
    swapped.err().or(failed).unwrap_or(0)
}
