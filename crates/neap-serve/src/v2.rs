//! Requests and answers of the protocol as JSON.
//!
//! Sources: Open Inference Protocol, "HTTP/REST"; Triton's "Binary Tensor Data Extension", whose tensors follow the
//! JSON text in the body.

use crate::catalogue::shown;
use crate::datatype::Elements;
use neaptide::DType;
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::fmt;

/// More tensors than this no model has.
const MOST_TENSORS: usize = 256;
/// More dimensions than this no tensor has.
const MOST_RANK: usize = 32;

#[derive(Debug, Deserialize)]
pub struct InferRequest<'a> {
    pub id: Option<String>,
    #[serde(borrow)]
    pub inputs: Few<InputTensor<'a>, MOST_TENSORS>,
    #[serde(default)]
    pub outputs: Option<Few<WantedOutput, MOST_TENSORS>>,
    #[serde(default)]
    pub parameters: RequestParameters,
}

#[derive(Debug, Deserialize)]
pub struct InputTensor<'a> {
    pub name: String,
    pub datatype: String,
    pub shape: Few<u64, MOST_RANK>,
    #[serde(default)]
    pub parameters: TensorParameters,
    /// Looked into when its type is known.
    #[serde(borrow)]
    pub data: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub struct WantedOutput {
    pub name: String,
    #[serde(default)]
    pub parameters: TensorParameters,
}

/// Others are ignored, as the protocol says.
#[derive(Debug, Default, Deserialize)]
pub struct RequestParameters {
    #[serde(default)]
    pub binary_data_output: bool,
}

#[derive(Debug, Default, Deserialize)]
pub struct TensorParameters {
    pub binary_data_size: Option<u64>,
    pub binary_data: Option<bool>,
    pub classification: Option<u64>,
    pub shared_memory_region: Option<String>,
}

#[derive(Debug, Serialize)]
pub struct InferAnswer<'a> {
    pub model_name: &'a str,
    pub model_version: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    pub outputs: Vec<OutputTensor<'a>>,
}

#[derive(Debug, Serialize)]
pub struct OutputTensor<'a> {
    pub name: &'a str,
    pub datatype: &'static str,
    pub shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<BinaryOutput>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

#[derive(Debug, Serialize)]
pub struct BinaryOutput {
    pub binary_data_size: usize,
}

/// At most `MOST` of something.
#[derive(Debug)]
pub struct Few<T, const MOST: usize>(pub Vec<T>);

impl<'de, T: Deserialize<'de>, const MOST: usize> Deserialize<'de> for Few<T, MOST> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Items<T, const MOST: usize>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MOST: usize> Visitor<'de> for Items<T, MOST> {
            type Value = Few<T, MOST>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                write!(f, "a list of at most {MOST}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    if items.len() == MOST {
                        return Err(A::Error::custom(format!("a list has more than {MOST}")));
                    }
                    items.push(item);
                }
                Ok(Few(items))
            }
        }
        from.deserialize_seq(Items(std::marker::PhantomData))
    }
}

/// Reads elements from a JSON list, flat or nested, into memory of exactly as many.
///
/// # Errors
/// What is wrong with them, on one line.
pub fn read_data(data: &RawValue, dtype: DType, bytes: &mut [u8]) -> Result<(), String> {
    let mut elements = Elements::new(dtype, bytes);
    let mut json = serde_json::Deserializer::from_str(data.get());
    Item(&mut elements)
        .deserialize(&mut json)
        .map_err(|error| json_fault(&error))?;
    match elements.is_full() {
        true => Ok(()),
        false => Err("it has fewer elements than its shape".into()),
    }
}

/// A fault in JSON without the place, which is within a part that the client does not see.
fn json_fault(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_string(),
        None => text,
    }
}

/// An element or a list of elements.
struct Item<'a, 'b>(&'a mut Elements<'b>);

impl<'de> DeserializeSeed<'de> for Item<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<(), D::Error> {
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Item<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let dtype = self.0.dtype();
        write!(f, "elements of {}", crate::datatype::name(dtype))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.0.dtype() {
            DType::Bool => self.0.push_integer(i128::from(value)).map_err(E::custom),
            _ => Err(E::custom("a boolean where a number is expected")),
        }
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.0.push_integer(i128::from(value)).map_err(E::custom)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.0.push_integer(i128::from(value)).map_err(E::custom)
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.0.push_float(value).map_err(E::custom)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        Err(E::custom(format!(
            "the string {} where a number is expected",
            shown(text)
        )))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(Item(self.0))?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, dtype: DType, count: usize) -> Result<Vec<u8>, String> {
        let raw: Box<RawValue> = serde_json::from_str(json).unwrap();
        let mut bytes = vec![0; count * dtype.size_bytes()];
        read_data(&raw, dtype, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn data_may_be_flat_or_nested() {
        let flat = read("[1, 2.5, -3e-1, 0]", DType::F32, 4).unwrap();
        let nested = read("[[1, 2.5], [-0.3, 0.0]]", DType::F32, 4).unwrap();
        assert_eq!(flat, nested);
        let expected: Vec<u8> = [1.0f32, 2.5, -0.3, 0.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(flat, expected);
        assert_eq!(read("[true, 0]", DType::Bool, 2).unwrap(), [1, 0]);
        assert_eq!(
            read("[9223372036854775807]", DType::I64, 1).unwrap(),
            i64::MAX.to_le_bytes()
        );
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
            ("[300]", DType::U8, 1),
            ("[1e39]", DType::F32, 1),
        ] {
            let error = read(json, dtype, count);
            let error = match error {
                Err(error) => error,
                Ok(_) => panic!("{json} was read"),
            };
            assert!(!error.contains('\n') && !error.contains("line"), "{error}");
        }
        let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(
            serde_json::from_str::<Box<RawValue>>(&deep).is_err()
                || read(&deep, DType::F32, 1).is_err()
        );
    }

    #[test]
    fn lists_have_an_end() {
        let many = format!("[{}1]", "1,".repeat(MOST_RANK));
        let few: Result<Few<u64, MOST_RANK>, _> = serde_json::from_str(&many);
        assert!(few.unwrap_err().to_string().contains("more than"));
    }
}
