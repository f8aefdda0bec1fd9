//! Element types of files into those of the model: the same, or wider without loss.

use half::f16;
use neaptide::DType;

/// Turns elements of a file into little-endian elements of the model, a piece at a time.
#[derive(Clone, Copy)]
pub struct Converter {
    from: DType,
    to: DType,
    /// The file's bytes are big-endian.
    swap: bool,
}

impl Converter {
    /// `None` when values could be lost.
    pub fn new(from: DType, to: DType, swap: bool) -> Option<Converter> {
        (from == to || widens(from, to)).then_some(Converter { from, to, swap })
    }

    pub fn widens(&self) -> bool {
        self.from != self.to
    }

    /// Appends `piece`, whole elements, to `out`. Returns `false` for a bool that is neither 0 nor 1.
    pub fn append(&self, piece: &mut [u8], out: &mut Vec<u8>) -> bool {
        if self.swap {
            for element in piece.chunks_exact_mut(self.from.size_bytes()) {
                element.reverse();
            }
        }
        if self.from == DType::Bool && piece.iter().any(|&b| b > 1) {
            return false;
        }
        if self.from == self.to {
            out.extend_from_slice(piece);
            return true;
        }
        for element in piece.chunks_exact(self.from.size_bytes()) {
            if self.to.is_float() {
                let value = float(self.from, element);
                match self.to {
                    DType::F64 => out.extend(value.to_le_bytes()),
                    _ => out.extend((value as f32).to_le_bytes()),
                }
            } else {
                let value = integer(self.from, element);
                out.extend(&value.to_le_bytes()[..self.to.size_bytes()]);
            }
        }
        true
    }
}

/// Whether every value of `from` is one of `to`.
fn widens(from: DType, to: DType) -> bool {
    use DType::*;
    matches!(
        (from, to),
        (F16, F32 | F64)
            | (F32, F64)
            | (U8 | I8 | U16 | I16, F32 | F64)
            | (U32 | I32, F64)
            | (U8, U16 | U32 | U64 | I16 | I32 | I64)
            | (U16, U32 | U64 | I32 | I64)
            | (U32, U64 | I64)
            | (I8, I16 | I32 | I64)
            | (I16, I32 | I64)
            | (I32, I64)
    )
}

/// `element` has the dtype's size, as chunks of it do.
fn integer(dtype: DType, element: &[u8]) -> i64 {
    let mut bytes = [0u8; 8];
    bytes[..element.len()].copy_from_slice(element);
    let value = i64::from_le_bytes(bytes);
    let shift = 64 - 8 * element.len() as u32;
    match dtype.is_signed_int() {
        true => (value << shift) >> shift,
        false => value,
    }
}

fn float(dtype: DType, element: &[u8]) -> f64 {
    match (dtype, element) {
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f64(),
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]).into(),
        _ => integer(dtype, element) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn convert(from: DType, to: DType, swap: bool, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let converter = Converter::new(from, to, swap).expect("widens");
        assert!(converter.append(&mut bytes.to_vec(), &mut out));
        out
    }

    #[test]
    fn widening_keeps_values() {
        let minus_two = convert(DType::I32, DType::I64, false, &(-2i32).to_le_bytes());
        assert_eq!(minus_two, (-2i64).to_le_bytes());
        let high = convert(DType::U32, DType::I64, false, &u32::MAX.to_le_bytes());
        assert_eq!(high, i64::from(u32::MAX).to_le_bytes());
        let half = convert(
            DType::F16,
            DType::F32,
            false,
            &f16::from_f32(0.5).to_le_bytes(),
        );
        assert_eq!(half, 0.5f32.to_le_bytes());
        assert_eq!(
            convert(DType::I8, DType::I16, false, &[0x80]),
            (-128i16).to_le_bytes()
        );
        assert_eq!(
            convert(DType::U8, DType::F32, false, &[200]),
            200f32.to_le_bytes()
        );
    }

    #[test]
    fn big_endian_files() {
        let value = convert(DType::F32, DType::F32, true, &1.5f32.to_be_bytes());
        assert_eq!(value, 1.5f32.to_le_bytes());
        let value = convert(DType::I16, DType::I64, true, &(-3i16).to_be_bytes());
        assert_eq!(value, (-3i64).to_le_bytes());
    }

    #[test]
    fn what_could_lose_values_is_refused() {
        use DType::*;
        for (from, to) in [
            (F64, F32),
            (I64, I32),
            (I32, F32),
            (I8, U8),
            (Bool, F32),
            (F32, I64),
        ] {
            assert!(Converter::new(from, to, false).is_none(), "{from} to {to}");
        }
    }

    #[test]
    fn a_bool_is_zero_or_one() {
        let converter = Converter::new(DType::Bool, DType::Bool, false).unwrap();
        assert!(!converter.append(&mut [0, 1, 2], &mut Vec::new()));
    }
}
