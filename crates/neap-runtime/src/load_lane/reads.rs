//! Reads beside the plan's loads: rows of tables, and after a run kept activations and states in the spill file.

use super::{LoadLane, loaded};
use crate::RuntimeError;
use neap_plan::{Place, whole_blocks};
use neap_store::{AlignedBuf, RangeRead, StoreError};

/// What is read or written at once.
const PIECE_BYTES: u64 = 256 << 10;

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

    /// Writes `len` bytes, which `fill` makes piece by piece, to the spill file from `place` on, between two runs. What was
    /// loaded for the next run is forgotten. `fill` gets a piece's offset and what lies there now.
    pub(crate) fn write_spilled(
        &mut self,
        place: Place,
        len: u64,
        fill: &mut dyn FnMut(u64, &mut [u8]),
    ) -> Result<(), RuntimeError> {
        self.stop();
        if self.broken {
            return Err(RuntimeError::Unusable);
        }
        let mut piece = AlignedBuf::zeroed(PIECE_BYTES as usize)?;
        for at in (0..len).step_by(PIECE_BYTES as usize) {
            let len_bytes = whole_blocks(PIECE_BYTES.min(len - at)) as usize;
            let file_offset = place.offset + at;
            let read = RangeRead {
                file_offset,
                dst: piece.as_mut_ptr(),
                len_bytes,
            };
            // SAFETY: `piece` is ours alone; where the file breaks, it is not freed.
            let mut moved = unsafe { self.spill.read(read) };
            if moved.is_ok() {
                fill(at, &mut piece[..len_bytes]);
                // SAFETY: as above.
                moved = unsafe { self.spill.write(file_offset, piece.as_ptr(), len_bytes) };
            }
            if let Err(RuntimeError::Store(StoreError::Broken { .. })) = &moved {
                self.broken = true;
                std::mem::forget(piece);
                return moved;
            }
            moved?;
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
