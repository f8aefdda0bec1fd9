//! `Intake`: how the packed file's bytes come to where the plan wants them: straight, or through the ring of a device with
//! memory of its own.

use crate::staged::Staged;
use neap_store::{LoadTag, RangeRead, Source, StoreError, Verifier};

pub(crate) enum Intake {
    Straight(Box<dyn Source>),
    Staged(Box<Staged<dyn Source>>),
}

impl Intake {
    /// Whether [`Intake::poll`] checks what arrives; if not, whoever polls does.
    pub fn checks(&self) -> bool {
        matches!(self, Intake::Staged(_))
    }

    /// # Safety
    /// As [`Source::submit`].
    pub unsafe fn submit(
        &mut self,
        tag: LoadTag,
        file_offset: u64,
        dst: *mut u8,
        len_bytes: usize,
    ) -> Result<(), StoreError> {
        // SAFETY: passed on.
        unsafe {
            match self {
                Intake::Straight(source) => source.submit(tag, file_offset, dst, len_bytes),
                Intake::Staged(staged) => staged.submit(tag, file_offset, dst, len_bytes, false),
            }
        }
    }

    pub fn flush(&mut self) {
        match self {
            Intake::Straight(source) => source.flush(),
            Intake::Staged(staged) => staged.flush(),
        }
    }

    /// As [`Source::poll`].
    pub fn poll(
        &mut self,
        wait: bool,
        verifier: &mut Verifier,
        done: &mut dyn FnMut(LoadTag),
    ) -> Result<(), StoreError> {
        match self {
            Intake::Straight(source) => source.poll(wait, done),
            Intake::Staged(staged) => {
                staged.poll(wait, &mut |at, bytes| verifier.verify(at, bytes), done)
            }
        }
    }

    pub fn in_flight(&self) -> usize {
        match self {
            Intake::Straight(source) => source.in_flight(),
            Intake::Staged(staged) => staged.in_flight(),
        }
    }

    /// # Safety
    /// As [`Source::read_ranges`].
    pub unsafe fn read_ranges(&mut self, reads: &[RangeRead]) -> Result<(), StoreError> {
        // SAFETY: passed on.
        unsafe {
            match self {
                Intake::Straight(source) => source.read_ranges(reads),
                Intake::Staged(staged) => staged.read_ranges(reads),
            }
        }
    }

    pub fn drain(&mut self) -> Result<(), StoreError> {
        match self {
            Intake::Straight(source) => source.drain(),
            Intake::Staged(staged) => staged.drain(),
        }
    }

    /// Bytes of loads that came from copies in the host's memory.
    pub fn copied_bytes(&self) -> u64 {
        match self {
            Intake::Straight(_) => 0,
            Intake::Staged(staged) => staged.copied_bytes(),
        }
    }

    /// With nothing in flight: what was read may be wrong.
    pub fn forget_copies(&mut self) {
        if let Intake::Staged(staged) = self {
            staged.forget_copies();
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Intake::Straight(source) => source.name(),
            Intake::Staged(staged) => staged.name(),
        }
    }
}
