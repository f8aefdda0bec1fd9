//! Protobuf's wire format, written; and messages in memory whose fields are exchanged.

use std::io::{self, Write};

/// Tag and length of a field that holds `len` bytes; its number is below 16, so the tag is one byte.
pub(super) fn frame(out: &mut dyn Write, number: u64, len: u64) -> io::Result<()> {
    varint(out, number << 3 | 2)?;
    varint(out, len)
}

pub(super) fn framed_len(len: u64) -> u64 {
    1 + varint_len(len) + len
}

pub(super) fn varint(out: &mut dyn Write, mut value: u64) -> io::Result<()> {
    while value >= 0x80 {
        out.write_all(&[value as u8 | 0x80])?;
        value >>= 7;
    }
    out.write_all(&[value as u8])
}

pub(super) fn varint_len(value: u64) -> u64 {
    u64::from((64 - value.max(1).leading_zeros()).div_ceil(7))
}

/// A message's fields in order, each with its number and its bytes as they stand, tag and length before them.
pub(super) struct Fields<'m>(pub Vec<(u64, &'m [u8])>);

impl<'m> Fields<'m> {
    /// `None` where the bytes are no message.
    pub fn of(message: &'m [u8]) -> Option<Fields<'m>> {
        let mut fields = Vec::new();
        let mut rest = message;
        while !rest.is_empty() {
            let before = rest;
            let tag = take_varint(&mut rest)?;
            let len = match tag & 7 {
                0 => {
                    take_varint(&mut rest)?;
                    0
                }
                1 => 8,
                2 => usize::try_from(take_varint(&mut rest)?).ok()?,
                5 => 4,
                _ => return None,
            };
            rest = rest.get(len..)?;
            fields.push((tag >> 3, &before[..before.len() - rest.len()]));
        }
        Some(Fields(fields))
    }
}

/// What a field of bytes holds, without its tag and length.
pub(super) fn inner(field: &[u8]) -> Option<&[u8]> {
    let mut rest = field;
    let tag = take_varint(&mut rest)?;
    let len = usize::try_from(take_varint(&mut rest)?).ok()?;
    (tag & 7 == 2 && len == rest.len()).then_some(rest)
}

/// What a field of a number holds.
pub(super) fn number(field: &[u8]) -> Option<u64> {
    let mut rest = field;
    let tag = take_varint(&mut rest)?;
    (tag & 7 == 0).then(|| take_varint(&mut rest))?
}

/// A field of bytes.
pub(super) fn bytes_field(number: u64, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 8);
    // Writing to memory cannot fail.
    let _ = frame(&mut out, number, bytes.len() as u64);
    out.extend_from_slice(bytes);
    out
}

/// A field of a number.
pub(super) fn number_field(number: u64, value: u64) -> Vec<u8> {
    let mut out = Vec::new();
    // Writing to memory cannot fail.
    let _ = varint(&mut out, number << 3);
    let _ = varint(&mut out, value);
    out
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_as_they_were_written() {
        let message = [
            bytes_field(2, b"hi"),
            number_field(3, 300),
            vec![0x25, 1, 2, 3, 4],
        ]
        .concat();
        let fields = Fields::of(&message).unwrap().0;
        let numbers: Vec<u64> = fields.iter().map(|f| f.0).collect();
        assert_eq!(numbers, [2, 3, 4]);
        assert_eq!(inner(fields[0].1), Some(&b"hi"[..]));
        assert_eq!(number(fields[1].1), Some(300));
        for end in [1, 3, 5, message.len() - 1] {
            assert!(Fields::of(&message[..end]).is_none(), "{end}");
        }
    }
}
