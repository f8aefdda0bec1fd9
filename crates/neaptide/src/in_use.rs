//! The packed file of a session, and what is done when it turns out to be damaged.

use crate::error::{Error, packed_error};
use crate::model::Packed;
use neap_runtime::RuntimeError;
use neap_store::{AlignedBuf, BLOCK, DirectFile, PackedFile, StoreError};
use std::sync::Arc;

pub(crate) struct InUse {
    packed: Packed,
    file: Arc<DirectFile>,
}

impl InUse {
    pub fn new(packed: Packed, file: &PackedFile) -> InUse {
        InUse {
            packed,
            file: file.file().clone(),
        }
    }

    /// An error of the runtime, in words that name the file where it is at fault. A damaged file of a cache is
    /// removed, so that the model is packed again when it is opened next.
    pub fn told(&self, error: RuntimeError) -> Error {
        match &error {
            RuntimeError::Store(damage) if damage.is_damage() && self.is_at_fault(damage) => {
                self.damaged(damage)
            }
            _ => error.into(),
        }
    }

    fn damaged(&self, damage: &StoreError) -> Error {
        let text = packed_error(&self.packed.path, damage);
        if !self.packed.is_cached {
            return Error::Machine(text);
        }
        if self.file.is_at_its_path()
            && let Err(error) = std::fs::remove_file(&self.packed.path)
        {
            return Error::Machine(format!(
                "{text} and cannot be removed ({error}): give --cache-dir"
            ));
        }
        Error::DamagedCache(text)
    }

    /// The spill file is read, too: an error of reading is the packed file's where that cannot be read.
    fn is_at_fault(&self, damage: &StoreError) -> bool {
        let StoreError::Read { offset, .. } = damage else {
            return true;
        };
        let Ok(mut block) = AlignedBuf::zeroed(BLOCK) else {
            return false;
        };
        let offset = offset - offset % BLOCK as u64;
        self.file.read_exact_at(offset, &mut block).is_err()
    }
}
