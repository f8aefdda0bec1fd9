//! Elements of a tensor from a JSON list, flat or nested as its shape is.
//!
//! Each number is read from its digits as the type that it becomes: going by way of another type would round it twice.
//! Source: Open Inference Protocol, "Tensor Data".

use crate::catalogue::shown;
use crate::datatype::{self, Elements};
use neaptide::DType;
use serde_json::value::RawValue;

/// More levels than dimensions are never right.
const MOST_LEVELS: usize = 33;

/// Reads `data`, which is known to be JSON, into memory of exactly as many elements as `shape` has.
///
/// # Errors
/// What is wrong with them, on one line.
pub fn read_data(
    data: &RawValue,
    dtype: DType,
    shape: &[usize],
    bytes: &mut [u8],
) -> Result<(), String> {
    let mut elements = Elements::new(dtype, bytes);
    let mut nesting = Nesting::new(shape);
    let mut text = data.get().trim_ascii();
    while let Some(&first) = text.as_bytes().first() {
        let len = match first {
            b'[' => {
                nesting.begin()?;
                1
            }
            b']' => {
                nesting.end()?;
                1
            }
            b',' | b' ' | b'\n' | b'\r' | b'\t' => 1,
            b'"' => {
                let end = text[1..].find('"').map_or(text.len(), |end| end + 2);
                let what = shown(text[..end].trim_matches('"'));
                return Err(format!("the string {what} where a number is expected"));
            }
            b'{' => {
                return Err(format!(
                    "elements of {} are no objects",
                    datatype::name(dtype)
                ));
            }
            _ => {
                let is_end = |c: char| ",]} \n\r\t".contains(c);
                let len = text.find(is_end).unwrap_or(text.len());
                nesting.element()?;
                push(&mut elements, &text[..len])?;
                len
            }
        };
        text = &text[len..];
    }
    match elements.is_full() {
        true => Ok(()),
        false => Err("it has fewer elements than its shape".into()),
    }
}

/// One element of JSON: a number, `true`, `false` or `null`.
fn push(elements: &mut Elements, text: &str) -> Result<(), String> {
    let dtype = elements.dtype();
    match text {
        "true" | "false" if dtype == DType::Bool => elements.push_integer((text == "true").into()),
        "true" | "false" => Err("a boolean where a number is expected".into()),
        "null" => Err("null where a number is expected".into()),
        _ if dtype == DType::F32 => {
            // Infinite for what is out of range.
            let value = text.parse::<f32>().map_err(|e| format!("{text}: {e}"))?;
            match value.is_finite() {
                true => elements.push_float(value.into()),
                false => Err(format!("{} is not in the range of FP32", shown(text))),
            }
        }
        _ if dtype.is_float() => {
            let value = text.parse::<f64>().map_err(|e| format!("{text}: {e}"))?;
            match value.is_finite() {
                true => elements.push_float(value),
                false => Err(format!(
                    "{} is not in the range of {}",
                    shown(text),
                    datatype::name(dtype)
                )),
            }
        }
        _ => {
            let value = text.parse::<i128>();
            let value = value.map_err(|_| {
                let name = datatype::name(dtype);
                format!(
                    "{} is not a whole number in the range of {name}",
                    shown(text)
                )
            })?;
            elements.push_integer(value)
        }
    }
}

/// Lists within lists: one list of all elements, or lists as long as the dimensions say.
struct Nesting<'a> {
    shape: &'a [usize],
    /// Of each list that is open: how many elements or lists it has so far.
    open: Vec<usize>,
    /// The lists have lists.
    is_nested: bool,
}

impl Nesting<'_> {
    fn new(shape: &[usize]) -> Nesting<'_> {
        Nesting {
            shape,
            open: Vec::new(),
            is_nested: false,
        }
    }

    fn begin(&mut self) -> Result<(), String> {
        self.is_nested |= !self.open.is_empty();
        self.count();
        if self.open.len() == MOST_LEVELS || (self.is_nested && self.open.len() == self.shape.len())
        {
            return Err("its lists are nested deeper than its shape".into());
        }
        self.open.push(0);
        Ok(())
    }

    fn element(&mut self) -> Result<(), String> {
        if self.is_nested && self.open.len() != self.shape.len() {
            return Err("its lists are not nested as its shape is".into());
        }
        self.count();
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        let count = self.open.pop().unwrap_or(0);
        let level = self.open.len();
        if !self.is_nested {
            return Ok(());
        }
        match self.shape.get(level) {
            Some(&expected) if expected != count => {
                Err(format!("a list of {count} where its shape has {expected}"))
            }
            _ => Ok(()),
        }
    }

    fn count(&mut self) {
        if let Some(last) = self.open.last_mut() {
            *last += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, dtype: DType, shape: &[usize]) -> Result<Vec<u8>, String> {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        let count: usize = shape.iter().product();
        let mut bytes = vec![0; count * dtype.size_bytes()];
        read_data(&raw, dtype, shape, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn data_may_be_flat_or_nested() {
        let flat = read("[1, 2.5, -3e-1, 0]", DType::F32, &[2, 2]).unwrap();
        let nested = read(" [[1, 2.5],\n[-0.3, 0.0]]", DType::F32, &[2, 2]).unwrap();
        assert_eq!(flat, nested);
        let expected: Vec<u8> = [1.0f32, 2.5, -0.3, 0.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(flat, expected);
        assert_eq!(read("[true, 0]", DType::Bool, &[2]).unwrap(), [1, 0]);
        assert_eq!(
            read("[[[1]], [[2]]]", DType::U8, &[2, 1, 1]).unwrap(),
            [1, 2]
        );
        assert_eq!(
            read("[9223372036854775807]", DType::I64, &[1]).unwrap(),
            i64::MAX.to_le_bytes()
        );
        for (json, shape) in [("[]", &[0, 3][..]), ("[[], []]", &[2, 0]), ("[]", &[0])] {
            assert!(read(json, DType::F32, shape).unwrap().is_empty(), "{json}");
        }
        for scalar in ["7", "[7]"] {
            assert_eq!(read(scalar, DType::U8, &[]).unwrap(), [7]);
        }
    }

    #[test]
    fn lists_that_are_not_as_the_shape_are_refused() {
        for (json, shape) in [
            ("[[1],[2,3,4,5,6]]", &[2, 3][..]),
            ("[[1,2],[3,4],[5,6]]", &[2, 3]),
            ("[[1,2,3],4,5,6]", &[2, 3]),
            ("[1,2,3,[4,5,6]]", &[2, 3]),
            ("[[[1,2,3],[4,5,6]]]", &[2, 3]),
            ("[[1,2,3,4,5,6]]", &[2, 3]),
            ("[[1,2,3,4,5,6]]", &[6]),
            ("[[1,2,3],[4,5,6],[]]", &[2, 3]),
            ("[[1]]", &[]),
            ("[[], [], []]", &[2, 0]),
        ] {
            let error = read(json, DType::F32, shape);
            assert!(error.is_err(), "{json} was read as {shape:?}");
        }
    }

    #[test]
    fn every_number_is_the_nearest_to_its_digits() {
        // Just below the middle of two f32; as f64 it is the middle.
        let long = "1.00000017881393432617187499";
        let nearest = read(&format!("[{long}]"), DType::F32, &[1]).unwrap();
        assert_eq!(nearest, long.parse::<f32>().unwrap().to_le_bytes());
        assert_ne!(nearest, (long.parse::<f64>().unwrap() as f32).to_le_bytes());
        let mut seed = 7u64;
        for _ in 0..2000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let value = f64::from_bits(seed & !(1 << 62) | (1 << 61));
            for text in [
                format!("{value}"),
                format!("{value:e}"),
                format!("{value:.30e}"),
            ] {
                let got = read(&format!("[{text}]"), DType::F64, &[1]).unwrap();
                assert_eq!(got, value.to_le_bytes(), "{text}");
            }
        }
        assert_eq!(
            read("[-0]", DType::F64, &[1]).unwrap(),
            (-0.0f64).to_le_bytes()
        );
        let large = "123456789012345678901234567890";
        let got = read(&format!("[{large}]"), DType::F32, &[1]).unwrap();
        assert_eq!(got, large.parse::<f32>().unwrap().to_le_bytes());
    }

    #[test]
    fn wrong_data_is_one_line() {
        for (json, dtype, count) in [
            ("[1, 2]", DType::F32, 3),
            ("[1, 2, 3]", DType::F32, 2),
            ("[1, \"two\\nwords\"]", DType::F32, 2),
            ("[1, null]", DType::F32, 2),
            ("{\"a\": 1}", DType::F32, 1),
            ("[true]", DType::F32, 1),
            ("[1.5]", DType::I32, 1),
            ("[1e3]", DType::I32, 1),
            ("[300]", DType::U8, 1),
            ("[1e39]", DType::F32, 1),
            ("[1e400]", DType::F64, 1),
            (
                "[99999999999999999999999999999999999999999999]",
                DType::I64,
                1,
            ),
        ] {
            let error = match read(json, dtype, &[count]) {
                Err(error) => error,
                Ok(_) => panic!("{json} was read"),
            };
            assert!(!error.contains('\n') && !error.contains("line"), "{error}");
        }
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        let raw = serde_json::from_str::<Box<RawValue>>(&deep);
        assert!(raw.is_err() || read(&deep, DType::F32, &[1]).is_err());
    }
}
