//! How byte-level vocabularies write bytes as letters: visible bytes of Latin-1 as themselves, others as U+0100 and so on.
//!
//! Source: the GPT-2 tokenizer's published table.

const fn is_visible(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

const HIDDEN: usize = 68;

/// The bytes that U+0100 and what follows stand for.
const fn hidden() -> [u8; HIDDEN] {
    let mut bytes = [0; HIDDEN];
    let mut found = 0;
    let mut byte = 0u8;
    while found < HIDDEN {
        if !is_visible(byte) {
            bytes[found] = byte;
            found += 1;
        }
        byte = byte.wrapping_add(1);
    }
    bytes
}

const HIDDEN_BYTES: [u8; HIDDEN] = hidden();

/// The byte that a letter stands for.
pub(crate) fn byte_of(letter: char) -> Option<u8> {
    match u32::from(letter) {
        code @ 0..256 => Some(code as u8).filter(|byte| is_visible(*byte)),
        code => HIDDEN_BYTES.get(code as usize - 256).copied(),
    }
}
