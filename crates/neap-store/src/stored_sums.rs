//! Checksums of what lies in a spill file: it comes back as it was written, or not at all.

use crate::StoreError;
use crate::checksum::crc;

/// A sum for each place where something is stored. Takes no memory after it is made.
#[derive(Default)]
pub struct StoredSums {
    /// By offset in the file.
    places: Box<[(u64, Option<Stored>)]>,
}

#[derive(Clone, Copy)]
struct Stored {
    len_bytes: u64,
    sum: u32,
}

impl StoredSums {
    /// For stores that begin at these offsets.
    #[must_use]
    pub fn new(offsets: impl Iterator<Item = u64>) -> StoredSums {
        let mut offsets: Vec<u64> = offsets.collect();
        offsets.sort_unstable();
        offsets.dedup();
        StoredSums {
            places: offsets.into_iter().map(|at| (at, None)).collect(),
        }
    }

    /// Whether there are sums for what begins there.
    #[must_use]
    pub fn has(&self, offset: u64) -> bool {
        self.find(offset).is_ok()
    }

    /// These bytes are stored there.
    pub fn store(&mut self, offset: u64, bytes: &[u8]) {
        if let Ok(at) = self.find(offset) {
            self.places[at].1 = Some(Stored {
                len_bytes: bytes.len() as u64,
                sum: crc(bytes),
            });
        }
    }

    /// Something else is written there.
    pub fn forget(&mut self, offset: u64, len_bytes: u64) {
        for (at, stored) in &mut self.places {
            let end = *at + stored.map_or(0, |stored| stored.len_bytes);
            if *at < offset.saturating_add(len_bytes) && offset < end {
                *stored = None;
            }
        }
    }

    /// What was read from there, whole.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where it is not what was stored.
    pub fn verify(&self, offset: u64, bytes: &[u8]) -> Result<(), StoreError> {
        let stored = self.find(offset).ok().and_then(|at| self.places[at].1);
        let differs =
            |stored: Stored| stored.len_bytes == bytes.len() as u64 && stored.sum != crc(bytes);
        match stored.is_some_and(differs) {
            true => Err(StoreError::Corrupt {
                what: "a stored activation",
                offset,
            }),
            false => Ok(()),
        }
    }

    fn find(&self, offset: u64) -> Result<usize, usize> {
        self.places.binary_search_by_key(&offset, |(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_is_what_was_stored_last() {
        let mut sums = StoredSums::new([8192, 0, 8192].into_iter());
        let (first, second) = ([1; 4096], [2; 8192]);
        // Nothing is known of it yet.
        assert!(sums.verify(0, &first).is_ok());
        sums.store(0, &first);
        sums.store(8192, &second);
        assert!(sums.verify(0, &first).is_ok() && sums.verify(8192, &second).is_ok());
        let mut torn = second;
        torn[8191] ^= 1;
        let error = sums.verify(8192, &torn).unwrap_err().to_string();
        assert!(error.contains("8192"), "{error}");
        sums.store(8192, &torn);
        assert!(sums.verify(8192, &torn).is_ok() && sums.verify(8192, &second).is_err());
        sums.forget(4096, 4096);
        assert!(sums.verify(0, &torn[..4096]).is_err());
        sums.forget(12288, 1);
        assert!(sums.verify(8192, &first).is_ok() && sums.verify(8192, &second).is_ok());
    }
}
