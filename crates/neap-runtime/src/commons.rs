//! What the sessions of one process have in common: threads, and work memory that they use in turn.
//!
//! ```text
//!   memory of its own    session A  │ work A │ weights A │      session B  │ work B │ weights B │
//!   in common            session A           │ weights A │      session B           │ weights B │      │ work: the larger one │
//! ```
//! Activations, workspaces and weights in flight are dead between runs. So sessions that take turns need only the
//! largest work memory of any of them. A session holds it from the beginning of a run to the end, and leaves
//! nothing in flight there.

use crate::RuntimeError;
use crate::mapping::{Addresses, HUGE_PAGE_BYTES, Mapping};
use crate::pool::Pool;
use std::sync::{Arc, Mutex, MutexGuard};

/// What sessions share that are opened with [`Session::open_in`](crate::Session::open_in).
#[derive(Clone)]
pub struct Commons {
    pub pool: Arc<Pool>,
    pub work: SharedWork,
}

impl Commons {
    /// With `threads` workers, the calling thread included, and no work memory yet.
    ///
    /// # Errors
    /// [`RuntimeError::Threads`] when they cannot be started; [`RuntimeError::Arena`] when no addresses can be had.
    pub fn new(threads: usize) -> Result<Commons, RuntimeError> {
        let threads = threads.max(1);
        let pool =
            Pool::new(threads).map_err(|source| RuntimeError::Threads { threads, source })?;
        Ok(Commons {
            pool: Arc::new(pool),
            work: SharedWork::new()?,
        })
    }
}

/// Work memory for one run at a time, of whichever session. Clones are of the same memory.
#[derive(Clone)]
pub struct SharedWork(Arc<Mutex<Common>>);

struct Common {
    mapping: Mapping,
    /// Its head was made ready since it was mapped or given back.
    is_ready: bool,
    /// Something may go on in it that nobody can wait for.
    is_broken: bool,
}

impl SharedWork {
    /// Of no bytes.
    fn new() -> Result<SharedWork, RuntimeError> {
        let common = Common {
            mapping: map(0)?,
            is_ready: false,
            is_broken: false,
        };
        Ok(SharedWork(Arc::new(Mutex::new(common))))
    }

    /// How much there is, in whole pages.
    ///
    /// # Errors
    /// [`RuntimeError::Unusable`] when the storage of a session that used it has failed for good.
    pub fn bytes(&self) -> Result<u64, RuntimeError> {
        Ok(self.common()?.mapping.len_bytes())
    }

    /// Makes it as large as that, waiting for the run that uses it. It is charged page by page as runs touch it; what was
    /// charged before is the kernel's.
    ///
    /// # Errors
    /// [`RuntimeError::Arena`] when the addresses cannot be had: it is as it was. As [`SharedWork::bytes`].
    pub fn resize(&self, bytes: u64) -> Result<(), RuntimeError> {
        let mut common = self.common()?;
        if common.mapping.len_bytes() != bytes.next_multiple_of(4096) {
            common.mapping = map(bytes)?;
            common.is_ready = false;
        }
        Ok(())
    }

    /// Gives its pages back to the kernel until a run touches them, waiting for the run that uses it.
    ///
    /// # Errors
    /// As [`SharedWork::bytes`].
    pub fn discard(&self) -> Result<(), RuntimeError> {
        let mut common = self.common()?;
        // SAFETY: no run uses it while this is locked, and runs leave nothing in flight there.
        let discarded = unsafe { common.mapping.discard() };
        common.is_ready = false;
        let bytes = common.mapping.len_bytes();
        discarded.map_err(|source| RuntimeError::Arena { bytes, source })
    }

    /// Overwrites all of it with one byte: a test of whether a run relies on what another left.
    ///
    /// # Errors
    /// As [`SharedWork::bytes`].
    pub fn overwrite(&self, byte: u8) -> Result<(), RuntimeError> {
        let common = self.common()?;
        let bytes = common.mapping.len_bytes();
        if let Some(start) = common.mapping.addresses().at(0, bytes) {
            // SAFETY: the range is in use, no run uses it while this is locked, and runs leave nothing in flight there.
            unsafe { start.write_bytes(byte, bytes as usize) };
        }
        Ok(())
    }

    /// Holds it for a run that needs so many bytes: the last ones, as its end lies at a boundary of huge pages.
    ///
    /// # Errors
    /// [`RuntimeError::Mismatch`] when there is less; as [`SharedWork::bytes`].
    pub(crate) fn lease(&self, bytes: u64) -> Result<Lease<'_>, RuntimeError> {
        let mut common = self.common()?;
        let all = common.mapping.len_bytes();
        let before = all
            .checked_sub(bytes)
            .ok_or_else(|| RuntimeError::Mismatch {
                what: "plan",
                reason: format!("it needs {bytes} bytes of work memory, {all} are shared"),
            })?;
        if !common.is_ready {
            // A huge page is charged for a moment, of which the rest is to be charged anyway.
            if all >= HUGE_PAGE_BYTES {
                // SAFETY: no run uses it while this is locked.
                unsafe { common.mapping.join_head() };
            }
            common.is_ready = true;
        }
        let addresses = common.mapping.addresses().from(before);
        Ok(Lease { common, addresses })
    }

    fn common(&self) -> Result<MutexGuard<'_, Common>, RuntimeError> {
        // Poisoned: a run ended in a way that left unknown what goes on in the memory.
        let common = self.0.lock().map_err(|_| RuntimeError::Unusable)?;
        match common.is_broken {
            false => Ok(common),
            true => Err(RuntimeError::Unusable),
        }
    }
}

/// Work memory in the hands of one run. Whoever gives it back has nothing in flight there, or says that it is broken.
pub(crate) struct Lease<'a> {
    common: MutexGuard<'a, Common>,
    addresses: Addresses,
}

impl Lease<'_> {
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Nobody can use it any more.
    pub fn give_up(mut self) {
        self.common.is_broken = true;
    }
}

fn map(bytes: u64) -> Result<Mapping, RuntimeError> {
    let mapped = Mapping::reserve(bytes, bytes).and_then(|mut mapping| {
        mapping.resize(bytes, true)?;
        Ok(mapping)
    });
    mapped.map_err(|source| RuntimeError::Arena { bytes, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_gets_the_end_of_it() {
        let work = SharedWork::new().expect("addresses");
        assert!(work.lease(1).is_err());
        let bytes = (3 << 20) + 4096;
        work.resize(bytes).expect("addresses");
        assert_eq!(work.bytes().expect("usable"), bytes);
        for own in [bytes, 1 << 20, 4096] {
            let lease = work.lease(own).expect("usable");
            let memory = lease.addresses();
            let end = memory.at(own, 0).expect("in it");
            assert!(end.addr().is_multiple_of(HUGE_PAGE_BYTES as usize));
            assert!(memory.at(own, 1).is_none());
        }
        assert!(work.lease(bytes + 1).is_err());
        work.resize(4096).expect("addresses");
        assert!(work.lease(8192).is_err());
    }

    #[test]
    fn contents_go_and_come() {
        let work = SharedWork::new().expect("addresses");
        work.resize(8192).expect("addresses");
        let last = |expected: u8| {
            let lease = work.lease(4096).expect("usable");
            let at = lease.addresses().at(4095, 1).expect("in it");
            // SAFETY: the byte lies in memory that the lease is of.
            assert_eq!(unsafe { at.read() }, expected);
        };
        last(0);
        work.overwrite(7).expect("usable");
        last(7);
        work.discard().expect("usable");
        last(0);
    }

    #[test]
    fn what_is_given_up_is_used_no_more() {
        let work = SharedWork::new().expect("addresses");
        work.lease(0).expect("usable").give_up();
        assert!(matches!(work.lease(0), Err(RuntimeError::Unusable)));
        assert!(matches!(work.resize(4096), Err(RuntimeError::Unusable)));
    }
}
