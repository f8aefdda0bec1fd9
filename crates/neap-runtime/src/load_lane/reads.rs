//! Reads beside the plan's loads: rows of tables, and kept activations after a run.

use super::{LoadLane, loaded};
use crate::RuntimeError;
use neap_plan::{Place, whole_blocks};
use neap_store::{AlignedBuf, RangeRead, StoreError};

impl LoadLane {
    /// Hands the bytes of a kept activation, after a run and before anything else is started, to `visit`.
    pub(crate) fn read_kept(
        &mut self,
        place: Place,
        bytes: u64,
        visit: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RuntimeError> {
        if !self.is_spill(place) {
            // SAFETY: a kept buffer that is in the arena lives to the end of the run, and until the
            // next one begins nothing is written there.
            visit(unsafe { loaded(&self.arena, place, bytes)? });
            return Ok(());
        }
        const PIECE_BYTES: u64 = 256 << 10;
        let mut piece = AlignedBuf::zeroed(PIECE_BYTES as usize)?;
        for at in (0..bytes).step_by(PIECE_BYTES as usize) {
            let len = PIECE_BYTES.min(bytes - at);
            let read = RangeRead {
                file_offset: place.offset + at,
                dst: piece.as_mut_ptr(),
                len_bytes: whole_blocks(len) as usize,
            };
            // SAFETY: `piece` is ours alone; where the file breaks, it is not freed.
            let result = unsafe { self.spill.read(read) };
            if let Err(RuntimeError::Store(StoreError::Broken { .. })) = &result {
                self.broken = true;
                std::mem::forget(piece);
                return result;
            }
            result?;
            visit(&piece[..len as usize]);
        }
        Ok(())
    }

    /// Reads and checks a batch of ranges at once, while loads go on.
    ///
    /// # Safety
    /// The destinations lie in the arena, and are used by nothing else.
    pub(crate) unsafe fn read_now(&mut self, windows: &[RangeRead]) -> Result<(), RuntimeError> {
        // SAFETY: destinations are the caller's to vouch for; the call returns when all reads are
        // complete, or the source is broken and is dropped before the arena.
        let result = unsafe { self.source.read_ranges(windows) };
        if matches!(result, Err(StoreError::Broken { .. })) {
            self.broken = true;
        }
        result?;
        for window in windows {
            // SAFETY: the read is complete; the destination is the caller's.
            let bytes = unsafe { std::slice::from_raw_parts(window.dst, window.len_bytes) };
            self.verifier.verify(window.file_offset, bytes)?;
            self.loaded_bytes += window.len_bytes as u64;
        }
        Ok(())
    }
}
