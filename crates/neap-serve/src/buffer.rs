//! Bytes at addresses that suit every element type, and tensors in them.

use std::ops::Range;
use std::sync::Arc;

/// The largest element.
const UNIT: usize = 8;

/// Bytes of which a chosen one lies at a multiple of eight.
#[derive(Debug)]
pub struct Buffer {
    words: Vec<u64>,
    start: usize,
    len: usize,
}

impl Buffer {
    pub fn zeroed(len: usize) -> Buffer {
        Buffer::aligned_at(len, 0)
    }

    /// Byte `at` lies at a multiple of eight.
    pub fn aligned_at(len: usize, at: usize) -> Buffer {
        let start = (UNIT - at % UNIT) % UNIT;
        Buffer {
            words: vec![0; (start + len).div_ceil(UNIT)],
            start,
            len,
        }
    }

    pub fn of(bytes: &[u8]) -> Buffer {
        let mut buffer = Buffer::zeroed(bytes.len());
        buffer.bytes_mut().copy_from_slice(bytes);
        buffer
    }

    pub fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[self.start..self.start + self.len]
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[self.start..self.start + self.len]
    }
}

/// Elements of a tensor: row-major, little-endian, at a multiple of eight.
#[derive(Debug, Clone)]
pub struct Tensor {
    buffer: Arc<Buffer>,
    range: Range<usize>,
}

impl Tensor {
    /// All of a buffer.
    pub fn new(buffer: Buffer) -> Tensor {
        let range = 0..buffer.len;
        Tensor {
            buffer: Arc::new(buffer),
            range,
        }
    }

    /// A part of a buffer. A copy where its address does not suit every element type.
    pub fn within(buffer: &Arc<Buffer>, range: Range<usize>) -> Tensor {
        if (buffer.start + range.start).is_multiple_of(UNIT) {
            return Tensor {
                buffer: buffer.clone(),
                range,
            };
        }
        Tensor::new(Buffer::of(&buffer.bytes()[range]))
    }

    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.range.clone()]
    }
}

/// A tensor as bytes that are sent from where they lie.
pub struct Sent(pub Tensor);

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(UNIT)
    }

    #[test]
    fn the_chosen_byte_is_aligned() {
        for at in 0..20 {
            let mut buffer = Buffer::aligned_at(40, at);
            buffer.bytes_mut()[at] = 7;
            assert!(is_aligned(&buffer.bytes()[at..]), "{at}");
            let buffer = Arc::new(buffer);
            for first in 0..20 {
                let tensor = Tensor::within(&buffer, first..40);
                assert!(is_aligned(tensor.bytes()));
                assert_eq!(tensor.bytes(), &buffer.bytes()[first..]);
            }
        }
        assert!(Buffer::zeroed(0).bytes().is_empty());
    }
}
