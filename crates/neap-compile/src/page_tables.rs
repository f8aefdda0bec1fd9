//! Page tables of an arena.

pub(crate) const TABLE_BYTES: u64 = 4096;

/// One for each 2 MiB, also where those are one page, which keeps a table for the day on which it is split.
pub fn tables_of(arena_bytes: u64) -> u64 {
    const MAPPED_BY_ONE: u64 = 2 << 20;
    arena_bytes.div_ceil(MAPPED_BY_ONE) * TABLE_BYTES
}

pub(crate) fn with_tables(arena_bytes: u64) -> u64 {
    arena_bytes.saturating_add(tables_of(arena_bytes))
}
