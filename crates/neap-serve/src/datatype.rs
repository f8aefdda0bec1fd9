//! Element types by the names that the protocol has for them, and their elements as JSON.
//!
//! Source: Open Inference Protocol, "Tensor Data Types" and "Tensor Data".

use neaptide::DType;
use std::fmt::Write;

/// Every type with its name in the protocol.
const NAMES: [(DType, &str); 13] = [
    (DType::Bool, "BOOL"),
    (DType::U8, "UINT8"),
    (DType::U16, "UINT16"),
    (DType::U32, "UINT32"),
    (DType::U64, "UINT64"),
    (DType::I8, "INT8"),
    (DType::I16, "INT16"),
    (DType::I32, "INT32"),
    (DType::I64, "INT64"),
    (DType::F16, "FP16"),
    (DType::BF16, "BF16"),
    (DType::F32, "FP32"),
    (DType::F64, "FP64"),
];

/// `FP32` and so on.
pub fn name(dtype: DType) -> &'static str {
    let found = NAMES.iter().find(|(known, _)| *known == dtype);
    found.map_or("", |(_, name)| name)
}

/// The most characters that an element takes as JSON, with a comma.
pub fn most_text_bytes(dtype: DType) -> u64 {
    match dtype {
        DType::Bool => 6,
        DType::U8 | DType::I8 => 5,
        DType::U16 | DType::I16 => 7,
        DType::U32 | DType::I32 => 12,
        DType::U64 | DType::I64 => 21,
        // Sign, nine digits, point, exponent with its sign.
        DType::F16 | DType::BF16 | DType::F32 => 17,
        DType::F64 => 26,
    }
}

/// Writes elements as a JSON array of numbers, or of `true` and `false`.
///
/// # Errors
/// What cannot be written as JSON: infinities and NaN.
pub fn write_json(dtype: DType, bytes: &[u8], out: &mut String) -> Result<(), String> {
    out.push('[');
    match dtype {
        DType::Bool => each(bytes, out, |b: [u8; 1]| b[0] != 0),
        DType::U8 => each(bytes, out, u8::from_le_bytes),
        DType::U16 => each(bytes, out, u16::from_le_bytes),
        DType::U32 => each(bytes, out, u32::from_le_bytes),
        DType::U64 => each(bytes, out, u64::from_le_bytes),
        DType::I8 => each(bytes, out, i8::from_le_bytes),
        DType::I16 => each(bytes, out, i16::from_le_bytes),
        DType::I32 => each(bytes, out, i32::from_le_bytes),
        DType::I64 => each(bytes, out, i64::from_le_bytes),
        DType::F16 => floats(bytes, out, |b| half::f16::from_le_bytes(b).to_f32())?,
        DType::BF16 => floats(bytes, out, |b| half::bf16::from_le_bytes(b).to_f32())?,
        DType::F32 => floats(bytes, out, f32::from_le_bytes)?,
        DType::F64 => floats(bytes, out, f64::from_le_bytes)?,
    }
    out.push(']');
    Ok(())
}

fn each<const N: usize, T: std::fmt::Display>(
    bytes: &[u8],
    out: &mut String,
    read: impl Fn([u8; N]) -> T,
) {
    let (elements, _) = bytes.as_chunks::<N>();
    for (index, &element) in elements.iter().enumerate() {
        let comma = if index > 0 { "," } else { "" };
        // A string takes everything.
        let _ = write!(out, "{comma}{}", read(element));
    }
}

/// Shortest digits that give the same number when they are read again.
fn floats<const N: usize, T: Into<f64> + serde::Serialize + Copy>(
    bytes: &[u8],
    out: &mut String,
    read: impl Fn([u8; N]) -> T,
) -> Result<(), String> {
    let (elements, _) = bytes.as_chunks::<N>();
    for (index, &element) in elements.iter().enumerate() {
        let value = read(element);
        if !value.into().is_finite() {
            return Err("infinity or NaN, which JSON cannot hold: ask for binary_data".into());
        }
        if index > 0 {
            out.push(',');
        }
        out.push_str(&serde_json::to_string(&value).map_err(|e| e.to_string())?);
    }
    Ok(())
}

/// Elements that are written one by one into memory of their number.
pub struct Elements<'a> {
    dtype: DType,
    bytes: &'a mut [u8],
    at: usize,
}

impl<'a> Elements<'a> {
    pub fn new(dtype: DType, bytes: &'a mut [u8]) -> Elements<'a> {
        Elements {
            dtype,
            bytes,
            at: 0,
        }
    }

    /// Whether as many were written as there is room for.
    pub fn is_full(&self) -> bool {
        self.at == self.bytes.len()
    }

    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// # Errors
    /// The number does not fit the type, or there are too many.
    pub fn push_integer(&mut self, value: i128) -> Result<(), String> {
        let outside = || format!("{value} is not in the range of {}", name(self.dtype));
        macro_rules! integer {
            ($t:ty) => {{
                let element = <$t>::try_from(value).map_err(|_| outside())?;
                self.push(&element.to_le_bytes())
            }};
        }
        match self.dtype {
            DType::Bool if (0..=1).contains(&value) => self.push(&[value as u8]),
            DType::Bool => Err(outside()),
            DType::U8 => integer!(u8),
            DType::U16 => integer!(u16),
            DType::U32 => integer!(u32),
            DType::U64 => integer!(u64),
            DType::I8 => integer!(i8),
            DType::I16 => integer!(i16),
            DType::I32 => integer!(i32),
            DType::I64 => integer!(i64),
            _ => self.push_float(value as f64),
        }
    }

    /// # Errors
    /// As [`Elements::push_integer`].
    pub fn push_float(&mut self, value: f64) -> Result<(), String> {
        let is_finite = match self.dtype {
            DType::F16 => half::f16::from_f64(value).is_finite(),
            DType::BF16 => half::bf16::from_f64(value).is_finite(),
            DType::F32 => (value as f32).is_finite(),
            DType::F64 => value.is_finite(),
            _ => false,
        };
        // Infinities and NaN, which JSON does not have, are what they are.
        let is_kept = self.dtype.is_float() && !value.is_finite();
        if !is_finite && !is_kept {
            return Err(format!(
                "{value} is not in the range of {}",
                name(self.dtype)
            ));
        }
        match self.dtype {
            DType::F16 => self.push(&half::f16::from_f64(value).to_le_bytes()),
            DType::BF16 => self.push(&half::bf16::from_f64(value).to_le_bytes()),
            DType::F32 => self.push(&(value as f32).to_le_bytes()),
            _ => self.push(&value.to_le_bytes()),
        }
    }

    fn push(&mut self, element: &[u8]) -> Result<(), String> {
        let place = self.bytes.get_mut(self.at..self.at + element.len());
        let place = place.ok_or("it has more elements than its shape")?;
        place.copy_from_slice(element);
        self.at += element.len();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(dtype: DType, bytes: &[u8]) -> Result<String, String> {
        let mut out = String::new();
        write_json(dtype, bytes, &mut out).map(|()| out)
    }

    fn pushed(dtype: DType, values: &[f64]) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; values.len() * dtype.size_bytes()];
        let mut elements = Elements::new(dtype, &mut bytes);
        for &value in values {
            match value.fract() == 0.0 && value.abs() < 1e18 {
                true => elements.push_integer(value as i128)?,
                false => elements.push_float(value)?,
            }
        }
        assert!(elements.is_full());
        Ok(bytes)
    }

    #[test]
    fn every_type_goes_there_and_back() {
        for (dtype, shown) in NAMES {
            let bytes = pushed(dtype, &[0.0, 1.0]).unwrap();
            let expected = match dtype {
                DType::Bool => "[false,true]",
                t if t.is_float() => "[0.0,1.0]",
                _ => "[0,1]",
            };
            assert_eq!(json(dtype, &bytes).unwrap(), expected, "{shown}");
            assert_eq!(name(dtype), shown);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        for (dtype, value) in [
            (DType::U8, 256.0),
            (DType::U8, -1.0),
            (DType::I8, 128.0),
            (DType::Bool, 2.0),
            (DType::I64, 0.5),
            (DType::F16, 1e5),
            (DType::F32, 1e39),
        ] {
            assert!(pushed(dtype, &[value]).is_err(), "{dtype} {value}");
        }
        assert!(json(DType::F32, &f32::NAN.to_le_bytes()).is_err());
        let mut one = [0; 4];
        let mut elements = Elements::new(DType::F32, &mut one);
        elements.push_float(0.5).unwrap();
        assert!(elements.push_float(0.5).is_err());
    }

    #[test]
    fn text_is_never_longer_than_promised() {
        let longest = [
            f32::MIN_POSITIVE,
            -f32::MAX,
            -1.175_494_2e-38,
            -1.000_000_1e-5,
        ];
        for value in longest {
            let text = json(DType::F32, &value.to_le_bytes()).unwrap();
            assert!(
                text.len() as u64 - 1 <= most_text_bytes(DType::F32),
                "{text}"
            );
            assert_eq!(text[1..text.len() - 1].parse::<f32>().unwrap(), value);
        }
        for value in [f64::MIN_POSITIVE, -f64::MAX, -1.234_567_890_123_456_7e-300] {
            let text = json(DType::F64, &value.to_le_bytes()).unwrap();
            assert!(
                text.len() as u64 - 1 <= most_text_bytes(DType::F64),
                "{text}"
            );
        }
        for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
            let mut bytes = vec![0; dtype.size_bytes()];
            bytes[dtype.size_bytes() - 1] = 0x80;
            let text = json(dtype, &bytes).unwrap();
            assert!(text.len() as u64 - 1 <= most_text_bytes(dtype), "{text}");
        }
    }
}
