//! Memory that the program creates and maps itself, such as PyTorch's expandable segments.
//!
//! The program gets handles of ours. Behind each is a handle of the driver while the memory is on the card; after a
//! swap-in it is another one, mapped where the first was. What is not mapped anywhere stays where it is.

use crate::card::{self, Access, Address, Device, Handle, Properties};
use crate::range::Moved;
use crate::real::{INVALID_VALUE, Status};
use crate::settings::warn;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::time::Instant;

/// Handles of ours begin here; the driver's are not so large.
const FIRST: Handle = 0x6e65_6170_0000_0000;

struct Physical {
    bytes: u64,
    properties: Properties,
    /// `None` while it is away.
    real: Option<Handle>,
    references: u32,
    host: Option<*mut c_void>,
    stays: bool,
}

struct Mapping {
    bytes: u64,
    offset: u64,
    handle: Handle,
    access: Vec<Access>,
}

// SAFETY: the pointers are to pinned memory of the hook's own, which only the card reads and writes.
unsafe impl Send for Physicals {}

pub struct Physicals {
    all: BTreeMap<Handle, Physical>,
    mappings: BTreeMap<Address, Mapping>,
    next: Handle,
}

/// Bytes that no longer count: on the card, and away.
#[derive(Default)]
pub struct Freed {
    pub resident: u64,
    pub away: u64,
}

impl Physicals {
    pub const fn new() -> Physicals {
        Physicals {
            all: BTreeMap::new(),
            mappings: BTreeMap::new(),
            next: FIRST,
        }
    }

    /// Whether a handle is one of ours.
    pub fn has(&self, handle: Handle) -> bool {
        self.all.contains_key(&handle)
    }

    pub fn create(&mut self, bytes: u64, properties: &Properties) -> Result<Handle, Status> {
        let real = card::create(bytes, properties)?;
        let handle = self.next;
        self.next += 1;
        let physical = Physical {
            bytes,
            properties: *properties,
            real: Some(real),
            references: 1,
            host: None,
            stays: false,
        };
        self.all.insert(handle, physical);
        Ok(handle)
    }

    /// The driver's handle, while the memory is on the card.
    pub fn real(&self, handle: Handle) -> Option<Handle> {
        self.all.get(&handle)?.real
    }

    pub fn properties(&self, handle: Handle) -> Option<Properties> {
        Some(self.all.get(&handle)?.properties)
    }

    pub fn map(
        &mut self,
        at: Address,
        bytes: u64,
        offset: u64,
        handle: Handle,
    ) -> Result<(), Status> {
        let real = self.real(handle).ok_or(INVALID_VALUE)?;
        card::map(at, bytes, offset, real)?;
        let mapping = Mapping {
            bytes,
            offset,
            handle,
            access: Vec::new(),
        };
        self.mappings.insert(at, mapping);
        Ok(())
    }

    /// What the program allows for a range of addresses, which may hold several mappings.
    pub fn set_access(&mut self, at: Address, bytes: u64, access: &[Access]) {
        for (_, mapping) in self.mappings.range_mut(at..at + bytes) {
            for new in access {
                mapping.access.retain(|old| old.location != new.location);
                mapping.access.push(*new);
            }
        }
    }

    /// The bytes of an address's mapping, of which it is the start.
    pub fn mapping(&self, at: Address) -> Option<(Address, u64)> {
        let (&start, mapping) = self.mappings.range(..=at).next_back()?;
        (at < start + mapping.bytes).then_some((start, mapping.bytes))
    }

    /// Whether any of our mappings begins within these addresses.
    pub fn maps(&self, at: Address, bytes: u64) -> bool {
        self.mappings
            .range(at..at.saturating_add(bytes))
            .next()
            .is_some()
    }

    /// Unmaps what begins within these addresses.
    pub fn unmap(&mut self, at: Address, bytes: u64) -> Result<Freed, Status> {
        let inside: Vec<Address> = self
            .mappings
            .range(at..at + bytes)
            .map(|(&a, _)| a)
            .collect();
        let mut freed = Freed::default();
        for address in inside {
            let Some(mapping) = self.mappings.get(&address) else {
                continue;
            };
            let handle = mapping.handle;
            if self.real(handle).is_some() {
                card::unmap(address, mapping.bytes)?;
            }
            self.mappings.remove(&address);
            self.forget_if_unused(handle, &mut freed);
        }
        Ok(freed)
    }

    /// A new reference to the memory at an address.
    pub fn retain(&mut self, at: Address) -> Option<Handle> {
        let (start, _) = self.mapping(at)?;
        let handle = self.mappings.get(&start)?.handle;
        self.all.get_mut(&handle)?.references += 1;
        Some(handle)
    }

    /// One reference fewer.
    pub fn release(&mut self, handle: Handle) -> Result<Freed, Status> {
        let physical = self.all.get_mut(&handle).ok_or(INVALID_VALUE)?;
        physical.references = physical.references.checked_sub(1).ok_or(INVALID_VALUE)?;
        let mut freed = Freed::default();
        self.forget_if_unused(handle, &mut freed);
        Ok(freed)
    }

    fn forget_if_unused(&mut self, handle: Handle, freed: &mut Freed) {
        let is_mapped = self.mappings.values().any(|m| m.handle == handle);
        let is_held = self.all.get(&handle).is_some_and(|p| p.references > 0);
        if is_mapped || is_held {
            return;
        }
        let Some(physical) = self.all.remove(&handle) else {
            return;
        };
        match physical.real {
            Some(real) => {
                let _ = card::release(real);
                freed.resident += physical.bytes;
            }
            None => freed.away += physical.bytes,
        }
        if let Some(host) = physical.host {
            card::free_host_memory(host);
        }
    }

    /// The mappings of each memory that is mapped.
    fn places(&self) -> BTreeMap<Handle, Vec<Address>> {
        let mut places: BTreeMap<Handle, Vec<Address>> = BTreeMap::new();
        for (&at, mapping) in &self.mappings {
            places.entry(mapping.handle).or_default().push(at);
        }
        places
    }

    /// Moves at least so many bytes to the host, as far as there are.
    pub fn swap_out(&mut self, device: &Device, wanted: u64) -> Result<Moved, Status> {
        let mut moved = Moved::default();
        let mut chosen = Vec::new();
        for (handle, places) in self.places() {
            if moved.bytes >= wanted {
                break;
            }
            let Some(physical) = self.all.get_mut(&handle) else {
                continue;
            };
            // Parts that are not mapped could not be read.
            let whole = places.iter().find(|at| {
                let mapping = &self.mappings[at];
                mapping.offset == 0 && mapping.bytes == physical.bytes && !mapping.access.is_empty()
            });
            let (Some(&whole), false, Some(_)) = (whole, physical.stays, physical.real) else {
                continue;
            };
            if physical.host.is_none() {
                physical.host = card::host_memory(physical.bytes).ok();
            }
            let Some(host) = physical.host else {
                physical.stays = true;
                warn(
                    "the host has no memory to swap to: a part of the program's memory stays on the card",
                );
                continue;
            };
            let started = Instant::now();
            card::copy_out(host, whole, physical.bytes, device.stream)?;
            moved.ns += started.elapsed().as_nanos() as u64;
            moved.bytes += physical.bytes;
            moved.copied += physical.bytes;
            chosen.push((handle, places));
        }
        let started = Instant::now();
        card::wait_for(device.stream)?;
        for (handle, places) in chosen {
            for at in places {
                card::unmap(at, self.mappings[&at].bytes)?;
            }
            if let Some(real) = self.all.get_mut(&handle).and_then(|p| p.real.take()) {
                card::release(real)?;
            }
        }
        moved.ns += started.elapsed().as_nanos() as u64;
        Ok(moved)
    }

    /// Brings back all that is away, as far as the card has memory. What came back, and what went wrong.
    pub fn swap_in(&mut self, device: &Device) -> (u64, Option<Status>) {
        let mut bytes = 0;
        let mut failed = None;
        for (handle, places) in self.places() {
            match self.bring_back(device, handle, &places) {
                Ok(back) => bytes += back,
                Err(status) => {
                    failed = Some(status);
                    break;
                }
            }
        }
        if let Err(status) = card::wait_for(device.stream) {
            failed = failed.or(Some(status));
        }
        (bytes, failed)
    }

    fn bring_back(
        &mut self,
        device: &Device,
        handle: Handle,
        places: &[Address],
    ) -> Result<u64, Status> {
        let Some(physical) = self.all.get_mut(&handle).filter(|p| p.real.is_none()) else {
            return Ok(0);
        };
        let real = card::create(physical.bytes, &physical.properties)?;
        physical.real = Some(real);
        let mut whole = None;
        for at in places {
            let mapping = &self.mappings[at];
            card::map(*at, mapping.bytes, mapping.offset, real)?;
            if !mapping.access.is_empty() {
                card::set_access(*at, mapping.bytes, &mapping.access)?;
                if mapping.bytes == physical.bytes {
                    whole = Some(*at);
                }
            }
        }
        if let (Some(at), Some(host)) = (whole, physical.host) {
            card::copy_in(at, host, physical.bytes, device.stream)?;
        }
        Ok(physical.bytes)
    }
}
