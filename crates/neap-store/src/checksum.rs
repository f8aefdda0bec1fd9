//! The checksum of the format: CRC-32C (Castagnoli), in hardware where there is any.

/// CRC-32C of `bytes`.
pub(crate) fn crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}
