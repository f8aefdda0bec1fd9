//! `Limits`: sizes of memory, of bindings and of grids.

/// What a device can take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of one import.
    pub allocation_bytes: u64,
    /// Of one binding.
    pub binding_bytes: u64,
    /// A binding begins at a multiple of that.
    pub binding_align: u64,
    /// An import begins and ends at a multiple of that.
    pub import_align: u64,
    pub groups: [u32; 3],
}

impl Limits {
    /// Operands up to this size can be bound wherever they lie: some import holds them, and rounding their beginning down to
    /// where a binding may begin leaves them within its size.
    pub(crate) fn operand_bytes(&self) -> u64 {
        let binding_bytes = self.binding_bytes.saturating_sub(self.binding_align);
        binding_bytes.min(self.import_stride())
    }

    /// Imports begin that far apart, and are twice as long.
    pub(crate) fn import_stride(&self) -> u64 {
        self.allocation_bytes / 2 / self.import_align * self.import_align
    }

    pub(crate) fn least(self, other: Limits) -> Limits {
        let groups = [0, 1, 2].map(|i| self.groups[i].min(other.groups[i]));
        Limits {
            allocation_bytes: self.allocation_bytes.min(other.allocation_bytes),
            binding_bytes: self.binding_bytes.min(other.binding_bytes),
            binding_align: self.binding_align.max(other.binding_align),
            import_align: self.import_align.max(other.import_align),
            groups,
        }
    }
}
