//! Memory that the program creates and maps itself.

use crate::agent;
use crate::card::{self, Access, Address, Handle, ON_DEVICE, Properties};
use crate::export::export;
use crate::gate;
use crate::memory::{self, Memory};
use crate::physical::Freed;
use crate::real::{INVALID_VALUE, NOT_SUPPORTED, Status, driver};
use crate::settings::warn;
use std::ffi::c_void;

/// Refuses to share memory with other processes, and says so.
pub fn refuse_sharing(name: &str) -> Status {
    warn(&format!(
        "{name} is refused: memory that can leave the card cannot be shared between processes"
    ));
    NOT_SUPPORTED
}

/// Creates memory of ours; `None` where it is not on the managed card, or is made to be shared.
fn create(bytes: u64, properties: &Properties) -> Option<Result<Handle, Status>> {
    let agent = agent::get()?;
    let is_plain = properties.location.kind == ON_DEVICE && properties.handle_types == 0;
    if let Err(status) = agent.enter() {
        return Some(Err(status));
    }
    let create = || {
        let mut memory = memory::get();
        let device = match memory.device() {
            Ok(device) => device?.ordinal,
            Err(status) => return Some(Err(status)),
        };
        if !is_plain || device != properties.location.id {
            return None;
        }
        Some(memory::back(agent, bytes, || {
            memory.physicals.create(bytes, properties)
        }))
    };
    let made = create();
    gate::leave();
    made
}

/// Changes what is mapped, when the program has its turn: its memory is on the card then.
fn changed(act: impl FnOnce(&mut Memory) -> Result<Freed, Status>) -> Status {
    crate::work::pass(|| match act(&mut memory::get()) {
        Ok(freed) => {
            memory::tell(&freed);
            0
        }
        Err(status) => status,
    })
}

fn has(handle: Handle) -> bool {
    agent::connected().is_some() && memory::get().physicals.has(handle)
}

fn maps(at: Address, bytes: u64) -> bool {
    agent::connected().is_some() && memory::get().physicals.maps(at, bytes)
}

export! {
    fn cuMemCreate(out: *mut Handle, bytes: u64, properties: *const Properties, flags: u64) {
        // SAFETY: the program's pointer is to properties, or null.
        let given = unsafe { properties.as_ref() };
        match given.filter(|_| !out.is_null()).and_then(|given| create(bytes, given)) {
            Some(Ok(handle)) => {
                // SAFETY: the program gave the place, and it is not null.
                unsafe { *out = handle };
                0
            }
            Some(Err(status)) => status,
            None => driver!(cuMemCreate(
                out => *mut Handle, bytes => u64, properties => *const Properties, flags => u64
            )),
        }
    }

    fn cuMemRelease(handle: Handle) {
        match has(handle) {
            true => changed(|memory| memory.physicals.release(handle)),
            false => driver!(cuMemRelease(handle => Handle)),
        }
    }

    fn cuMemMap(at: Address, bytes: u64, offset: u64, handle: Handle, flags: u64) {
        match has(handle) {
            true => changed(|memory| {
                memory.physicals.map(at, bytes, offset, handle)?;
                Ok(Freed::default())
            }),
            false => driver!(cuMemMap(
                at => Address, bytes => u64, offset => u64, handle => Handle, flags => u64
            )),
        }
    }

    fn cuMemUnmap(at: Address, bytes: u64) {
        match maps(at, bytes) {
            true => changed(|memory| memory.physicals.unmap(at, bytes)),
            false => driver!(cuMemUnmap(at => Address, bytes => u64)),
        }
    }

    fn cuMemSetAccess(at: Address, bytes: u64, access: *const Access, count: u64) {
        let plain = || driver!(cuMemSetAccess(
            at => Address, bytes => u64, access => *const Access, count => u64
        ));
        match maps(at, bytes) && !access.is_null() {
            true => changed(|memory| {
                // SAFETY: the program's pointer is to so many descriptions.
                let given = unsafe { std::slice::from_raw_parts(access, count as usize) };
                card::set_access(at, bytes, given)?;
                memory.physicals.set_access(at, bytes, given);
                Ok(Freed::default())
            }),
            false => plain(),
        }
    }

    fn cuMemRetainAllocationHandle(out: *mut Handle, address: *mut c_void) {
        let ours = agent::connected().and_then(|_| memory::get().physicals.retain(address as Address));
        match ours {
            Some(_) if out.is_null() => INVALID_VALUE,
            Some(handle) => {
                // SAFETY: the program gave the place, and it is not null.
                unsafe { *out = handle };
                0
            }
            None => driver!(cuMemRetainAllocationHandle(out => *mut Handle, address => *mut c_void)),
        }
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: *mut Properties, handle: Handle) {
        let ours = agent::connected().and_then(|_| memory::get().physicals.properties(handle));
        match ours {
            Some(properties) if !out.is_null() => {
                // SAFETY: the program gave the place, and it is not null.
                unsafe { *out = properties };
                0
            }
            _ => driver!(cuMemGetAllocationPropertiesFromHandle(
                out => *mut Properties, handle => Handle
            )),
        }
    }

    fn cuMemExportToShareableHandle(out: *mut c_void, handle: Handle, kind: usize, flags: u64) {
        match has(handle) {
            true => refuse_sharing("cuMemExportToShareableHandle"),
            false => driver!(cuMemExportToShareableHandle(
                out => *mut c_void, handle => Handle, kind => usize, flags => u64
            )),
        }
    }

    fn cuMulticastBindMem(group: Handle, at: u64, handle: Handle, offset: u64, bytes: u64, flags: u64) {
        match has(handle) {
            true => refuse_sharing("cuMulticastBindMem"),
            false => driver!(cuMulticastBindMem(
                group => Handle, at => u64, handle => Handle, offset => u64, bytes => u64, flags => u64
            )),
        }
    }

    fn cuIpcGetMemHandle(out: *mut c_void, address: Address) {
        match agent::connected() {
            Some(_) => refuse_sharing("cuIpcGetMemHandle"),
            None => driver!(cuIpcGetMemHandle(out => *mut c_void, address => Address)),
        }
    }
}
