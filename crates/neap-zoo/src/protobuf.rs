//! The three protobuf wire shapes that ONNX needs, appended to a byte vector.

/// A varint field.
pub(crate) fn varint(out: &mut Vec<u8>, field: u32, value: u64) {
    raw_varint(out, u64::from(field) << 3);
    raw_varint(out, value);
}

/// A signed int64 field (two's complement, as protobuf's `int64` is).
pub(crate) fn int64(out: &mut Vec<u8>, field: u32, value: i64) {
    varint(out, field, value as u64);
}

/// A 32-bit float field.
pub(crate) fn float(out: &mut Vec<u8>, field: u32, value: f32) {
    raw_varint(out, (u64::from(field) << 3) | 5);
    out.extend(value.to_le_bytes());
}

/// A length-delimited field: string, bytes or nested message.
pub(crate) fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    length(out, field, value.len() as u64);
    out.extend(value);
}

/// Only the head of a length-delimited field; the caller supplies the `len` bytes that follow.
pub(crate) fn length(out: &mut Vec<u8>, field: u32, len: u64) {
    raw_varint(out, (u64::from(field) << 3) | 2);
    raw_varint(out, len);
}

fn raw_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes_as_the_wire_format_says() {
        let mut out = Vec::new();
        varint(&mut out, 1, 300);
        int64(&mut out, 2, -1);
        float(&mut out, 3, 1.0);
        bytes(&mut out, 16, b"hi");
        let expected: &[u8] = &[
            0x08, 0xac, 0x02, // field 1, 300
            0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, // field 2, -1
            0x1d, 0x00, 0x00, 0x80, 0x3f, // field 3, 1.0
            0x82, 0x01, 0x02, b'h', b'i', // field 16, "hi"
        ];
        assert_eq!(out, expected);
    }
}
