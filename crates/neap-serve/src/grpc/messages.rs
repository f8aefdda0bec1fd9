//! Messages of the service `inference.GRPCInferenceService`.
//!
//! Sources: Open Inference Protocol, "gRPC"; Triton's "Model Repository Extension"; "gRPC Health Checking Protocol". Names and numbers of fields are those
//! of the published interface; fields that are not looked at here are left out, as the wire format allows.

use crate::triton::ModelConfig;
use prost::bytes::Bytes;
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, prost::Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Live {
    #[prost(bool, tag = "1")]
    pub live: bool,
}

/// Of the server or of a model.
#[derive(Clone, PartialEq, prost::Message)]
pub struct IsReady {
    #[prost(bool, tag = "1")]
    pub ready: bool,
}

/// A model that is asked about.
#[derive(Clone, PartialEq, prost::Message)]
pub struct NamedModel {
    #[prost(string, tag = "1")]
    pub name: String,
    /// Empty for any.
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ServerMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(string, repeated, tag = "3")]
    pub extensions: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct TensorMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelMetadata {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, repeated, tag = "2")]
    pub versions: Vec<String>,
    #[prost(string, tag = "3")]
    pub platform: String,
    #[prost(message, repeated, tag = "4")]
    pub inputs: Vec<TensorMetadata>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<TensorMetadata>,
}

/// Of a tensor; which of its kinds a value has does not matter here.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Parameter {
    #[prost(string, optional, tag = "3")]
    pub string_param: Option<String>,
}

/// Elements one by one, in the list of their type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub bool_contents: Vec<bool>,
    /// Of 8, 16 and 32 bits.
    #[prost(int32, repeated, tag = "2")]
    pub int_contents: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub int64_contents: Vec<i64>,
    /// Of 8, 16 and 32 bits.
    #[prost(uint32, repeated, tag = "4")]
    pub uint_contents: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub uint64_contents: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub fp32_contents: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub fp64_contents: Vec<f64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferInput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(btree_map = "string, message", tag = "4")]
    pub parameters: BTreeMap<String, Parameter>,
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct WantedOutput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(btree_map = "string, message", tag = "2")]
    pub parameters: BTreeMap<String, Parameter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<InferInput>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<WantedOutput>,
    /// Bytes of the inputs, in their order; those with contents have none here.
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub raw_input_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferOutput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferResponse {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<InferOutput>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub raw_output_contents: Vec<Bytes>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct IndexRequest {
    /// Only models that are ready.
    #[prost(bool, tag = "2")]
    pub ready: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Indexed {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(string, tag = "3")]
    pub state: String,
    #[prost(string, tag = "4")]
    pub reason: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Index {
    #[prost(message, repeated, tag = "1")]
    pub models: Vec<Indexed>,
}

/// A model that is to be loaded or unloaded.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Change {
    #[prost(string, tag = "2")]
    pub model_name: String,
    /// What they are does not matter here.
    #[prost(btree_map = "string, message", tag = "3")]
    pub parameters: BTreeMap<String, Nothing>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct ModelConfigResponse {
    #[prost(message, optional, tag = "1")]
    pub config: Option<ModelConfig>,
}

/// On a stream: an answer, or why there is none.
#[derive(Clone, PartialEq, prost::Message)]
pub struct StreamResponse {
    #[prost(string, tag = "1")]
    pub error_message: String,
    #[prost(message, optional, tag = "2")]
    pub infer_response: Option<InferResponse>,
}

impl StreamResponse {
    pub fn of(response: InferResponse) -> StreamResponse {
        StreamResponse {
            error_message: String::new(),
            infer_response: Some(response),
        }
    }

    pub fn refused(error_message: String) -> StreamResponse {
        StreamResponse {
            error_message,
            infer_response: Some(InferResponse::default()),
        }
    }
}

/// Of the service `grpc.health.v1.Health`.
#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthAsked {
    #[prost(string, tag = "1")]
    pub service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Health {
    /// 1 is SERVING, 2 is NOT_SERVING, 3 is SERVICE_UNKNOWN.
    #[prost(int32, tag = "1")]
    pub status: i32,
}
