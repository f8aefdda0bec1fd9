//! Protobuf's wire format, walked over a file without reading the payloads.

use crate::error::OnnxError;
use crate::source::Source;

/// Bytes of the file; what a length-delimited field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Field {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Span),
}

/// The fields of one message, in file order.
pub(crate) struct Message<'a> {
    source: &'a Source,
    pos: u64,
    end: u64,
}

impl<'a> Message<'a> {
    pub(crate) fn whole(source: &'a Source) -> Message<'a> {
        Message {
            source,
            pos: 0,
            end: source.len(),
        }
    }

    pub(crate) fn new(source: &'a Source, span: Span) -> Message<'a> {
        Message {
            source,
            pos: span.offset,
            end: span.offset + span.len,
        }
    }

    pub(crate) fn position(&self) -> u64 {
        self.pos
    }

    /// Next field's number and value; `None` at the end of the message.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Field)>, OnnxError> {
        if self.pos == self.end {
            return Ok(None);
        }
        let start = self.pos;
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3)
            .ok()
            .filter(|&n| n != 0)
            .ok_or_else(|| self.source.malformed(start, "bad field number"))?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(u64::from_le_bytes(self.fixed()?)),
            2 => {
                let len = self.varint()?;
                if len > self.end - self.pos {
                    return Err(self
                        .source
                        .malformed(start, "a field is longer than what holds it"));
                }
                let span = Span {
                    offset: self.pos,
                    len,
                };
                self.pos += len;
                Field::Bytes(span)
            }
            5 => Field::Fixed32(u32::from_le_bytes(self.fixed()?)),
            _ => return Err(self.source.malformed(start, "unknown wire type")),
        };
        Ok(Some((number, field)))
    }

    /// Next bare varint, as packed repeated fields hold them; `None` at the end.
    pub(crate) fn packed_varint(&mut self) -> Result<Option<u64>, OnnxError> {
        if self.pos == self.end {
            return Ok(None);
        }
        self.varint().map(Some)
    }

    /// Next bare float's bits (8 bytes when `wide`), as packed repeated fields hold them.
    pub(crate) fn packed_fixed(&mut self, wide: bool) -> Result<Option<u64>, OnnxError> {
        if self.pos == self.end {
            return Ok(None);
        }
        Ok(Some(if wide {
            u64::from_le_bytes(self.fixed()?)
        } else {
            u32::from_le_bytes(self.fixed()?).into()
        }))
    }

    fn varint(&mut self) -> Result<u64, OnnxError> {
        let start = self.pos;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.take()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.source.malformed(start, "a number is too long"))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], OnnxError> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.take()?;
        }
        Ok(bytes)
    }

    fn take(&mut self) -> Result<u8, OnnxError> {
        if self.pos >= self.end {
            return Err(self.source.malformed(self.pos, "it ends too early"));
        }
        let byte = self.source.byte(self.pos)?;
        self.pos += 1;
        Ok(byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn fields(bytes: &[u8]) -> Result<Vec<(u32, Field)>, OnnxError> {
        let mut file = tempfile::NamedTempFile::new().expect("temporary file");
        file.write_all(bytes).expect("write");
        let source = Source::open(file.path())?;
        let mut message = Message::whole(&source);
        let mut all = Vec::new();
        while let Some(field) = message.next()? {
            all.push(field);
        }
        Ok(all)
    }

    #[test]
    fn all_wire_types() {
        let bytes = [
            0x08, 0xac, 0x02, // 1: varint 300
            0x12, 0x02, b'h', b'i', // 2: two bytes
            0x1d, 1, 0, 0, 0, // 3: fixed32
            0x21, 2, 0, 0, 0, 0, 0, 0, 0, // 4: fixed64
        ];
        assert_eq!(
            fields(&bytes).expect("valid"),
            [
                (1, Field::Varint(300)),
                (2, Field::Bytes(Span { offset: 5, len: 2 })),
                (3, Field::Fixed32(1)),
                (4, Field::Fixed64(2)),
            ]
        );
    }

    #[test]
    fn broken_messages_are_errors() {
        for (bytes, reason) in [
            (&[0x08u8][..], "ends too early"),
            (&[0x08, 0x80], "ends too early"),
            (
                &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 2],
                "too long",
            ),
            (
                &[0x08, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255],
                "too long",
            ),
            (&[0x12, 5, 0], "longer than what holds it"),
            (&[0x1d, 0, 0], "ends too early"),
            (&[0x0b], "wire type"),
            (&[0x00, 0x00], "field number"),
        ] {
            let error = fields(bytes).expect_err("malformed").to_string();
            assert!(error.contains(reason), "{bytes:?}: {error}");
        }
    }
}
