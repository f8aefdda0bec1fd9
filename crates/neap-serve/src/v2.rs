//! Requests and answers of the protocol as JSON.
//!
//! Sources: Open Inference Protocol, "HTTP/REST"; Triton's "Binary Tensor Data Extension", whose tensors follow the
//! JSON text in the body.

use crate::catalogue::shown;
use crate::refusal::Refusal;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

/// More tensors than this no model has.
const MOST_TENSORS: usize = 256;
/// More dimensions than this no tensor has.
const MOST_RANK: usize = 32;

#[derive(Debug, Deserialize)]
pub struct InferRequest<'a> {
    pub id: Option<String>,
    #[serde(borrow)]
    pub inputs: Few<Object<InputTensor<'a>>, MOST_TENSORS>,
    #[serde(default)]
    pub outputs: Option<Few<Object<WantedOutput>, MOST_TENSORS>>,
    #[serde(default, deserialize_with = "object_or_null")]
    pub parameters: RequestParameters,
}

#[derive(Debug, Deserialize)]
pub struct InputTensor<'a> {
    pub name: String,
    pub datatype: String,
    pub shape: Few<u64, MOST_RANK>,
    #[serde(default, deserialize_with = "object_or_null")]
    pub parameters: TensorParameters,
    /// Looked into when its type is known.
    #[serde(borrow)]
    pub data: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
pub struct WantedOutput {
    pub name: String,
    #[serde(default, deserialize_with = "object_or_null")]
    pub parameters: TensorParameters,
}

/// Others are ignored, as the protocol says.
#[derive(Debug, Default, Deserialize)]
pub struct RequestParameters {
    pub binary_data_output: Option<bool>,
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

/// What a load or an unload is to do beside the usual: nothing that is done here.
#[derive(Debug, Default, Deserialize)]
pub struct LoadRequest {
    #[serde(default, deserialize_with = "object_or_null")]
    parameters: BTreeMap<String, serde_json::Value>,
}

impl LoadRequest {
    /// # Errors
    /// A parameter that would change what is loaded, and does not.
    pub fn check(&self) -> Result<(), Refusal> {
        let names = self.parameters.iter().filter(|(_, value)| !value.is_null());
        check_load_parameters(names.map(|(name, _)| name.as_str()))
    }
}

/// # Errors
/// As [`LoadRequest::check`].
pub fn check_load_parameters<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
    // No model depends on another.
    match names.into_iter().find(|&name| name != "unload_dependents") {
        None => Ok(()),
        Some(name) => Err(Refusal::malformed(format!(
            "the parameter {} is not supported: a model's settings are in its TOML file",
            shown(name)
        ))),
    }
}

/// An object, not a list of its values.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries<T>(std::marker::PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Entries<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        from.deserialize_map(Entries(std::marker::PhantomData))
    }
}

/// An object, or `null` for one that is left out.
fn object_or_null<'de, T, D>(from: D) -> Result<T, D::Error>
where
    T: Deserialize<'de> + Default,
    D: Deserializer<'de>,
{
    let object = Option::<Object<T>>::deserialize(from)?;
    Ok(object.map(|Object(object)| object).unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_may_be_null_and_objects_are_no_lists() {
        let read = |text: &str| serde_json::from_str::<Object<InferRequest>>(text).is_ok();
        let with = |request: &str, tensor: &str| {
            format!(
                r#"{{"id": null, "outputs": null, "parameters": {request}, "inputs": [
                {{"name": "x", "datatype": "FP32", "shape": [1], "parameters": {tensor}, "data": [1]}}]}}"#
            )
        };
        for ok in [
            "null",
            "{}",
            r#"{"binary_data_output": null, "other": [1]}"#,
        ] {
            assert!(read(&with(ok, "null")) && read(&with("null", ok)), "{ok}");
        }
        for wrong in ["[]", "[null]", "1", "\"text\""] {
            assert!(
                !read(&with(wrong, "{}")) && !read(&with("{}", wrong)),
                "{wrong}"
            );
        }
        assert!(!read(r#"[null, [["x", "FP32", [1], {}, [1]]], null, {}]"#));
        assert!(!read(r#"{"inputs": [["x", "FP32", [1], {}, [1]]]}"#));
        assert!(!read(r#"{"inputs": [], "outputs": [["y", {}]]}"#));
    }

    #[test]
    fn a_load_that_is_to_do_more_is_refused() {
        let check = |text: &str| {
            let asked: Object<LoadRequest> = serde_json::from_str(text).unwrap();
            asked.0.check()
        };
        for ok in [
            "{}",
            r#"{"parameters": null}"#,
            r#"{"parameters": {"unload_dependents": false}}"#,
        ] {
            check(ok).unwrap();
        }
        let refusal = check(r#"{"parameters": {"config": "{}"}}"#).unwrap_err();
        assert!(refusal.message.contains("'config'"), "{refusal:?}");
        assert!(check(r#"{"parameters": {"file:1/model.onnx": "AA=="}}"#).is_err());
    }

    #[test]
    fn lists_have_an_end() {
        let many = format!("[{}1]", "1,".repeat(MOST_RANK));
        let few: Result<Few<u64, MOST_RANK>, _> = serde_json::from_str(&many);
        assert!(few.unwrap_err().to_string().contains("more than"));
    }
}
