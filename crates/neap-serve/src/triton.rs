//! What clients of Triton ask beside the protocol: how a model is configured, and what became of its requests. The same
//! messages are sent as JSON and over gRPC.
//!
//! Sources: Triton's "Model Configuration Extension" and "Statistics Extension". Names and numbers of fields are those of the
//! published interface; fields that say nothing here are left out.

use crate::catalogue::Served;
use crate::datatype;
use neaptide::{DType, TensorInfo};
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct ModelConfig {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub platform: String,
    #[prost(string, tag = "17")]
    pub backend: String,
    #[prost(int32, tag = "4")]
    pub max_batch_size: i32,
    #[prost(message, repeated, tag = "5")]
    pub input: Vec<ModelInput>,
    #[prost(message, repeated, tag = "6")]
    pub output: Vec<ModelOutput>,
    #[prost(message, repeated, tag = "7")]
    pub instance_group: Vec<InstanceGroup>,
    #[prost(message, optional, tag = "11")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic_batching: Option<DynamicBatching>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct ModelInput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "2")]
    #[serde(serialize_with = "as_name")]
    pub data_type: i32,
    #[prost(int64, repeated, tag = "4")]
    pub dims: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct ModelOutput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "2")]
    #[serde(serialize_with = "as_name")]
    pub data_type: i32,
    #[prost(int64, repeated, tag = "3")]
    pub dims: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct InstanceGroup {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(int32, tag = "2")]
    pub count: i32,
    /// On a processor.
    #[prost(int32, tag = "4")]
    #[serde(serialize_with = "as_kind")]
    pub kind: i32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct DynamicBatching {
    #[prost(int32, repeated, tag = "1")]
    pub preferred_batch_size: Vec<i32>,
    #[prost(uint64, tag = "2")]
    pub max_queue_delay_microseconds: u64,
}

const KIND_CPU: i32 = 2;

fn as_kind<S: Serializer>(_: &i32, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str("KIND_CPU")
}

/// `TYPE_FP32` and so on, by number.
const TYPES: [(DType, i32); 13] = [
    (DType::Bool, 1),
    (DType::U8, 2),
    (DType::U16, 3),
    (DType::U32, 4),
    (DType::U64, 5),
    (DType::I8, 6),
    (DType::I16, 7),
    (DType::I32, 8),
    (DType::I64, 9),
    (DType::F16, 10),
    (DType::F32, 11),
    (DType::F64, 12),
    (DType::BF16, 14),
];

fn type_number(dtype: DType) -> i32 {
    let found = TYPES.iter().find(|(known, _)| *known == dtype);
    found.map_or(0, |&(_, number)| number)
}

fn as_name<S: Serializer>(number: &i32, to: S) -> Result<S::Ok, S::Error> {
    let found = TYPES.iter().find(|(_, known)| known == number);
    let name = found.map_or("INVALID", |&(dtype, _)| datatype::name(dtype));
    to.serialize_str(&format!("TYPE_{name}"))
}

/// How a model is configured. Shapes are those of one row where it takes several.
pub fn config(model: &Served) -> ModelConfig {
    let rest = |shape: Vec<i64>| match model.takes_rows {
        true => shape.into_iter().skip(1).collect(),
        false => shape,
    };
    let input = |info: &TensorInfo| ModelInput {
        name: info.name.clone(),
        data_type: type_number(info.ty.dtype),
        dims: rest(model.told_shape(info)),
    };
    let output = |(at, info): (usize, &TensorInfo)| ModelOutput {
        name: info.name.clone(),
        data_type: type_number(info.ty.dtype),
        dims: rest(model.told_output_shape(at)),
    };
    let batch = model.settings.batch.filter(|_| model.takes_rows);
    ModelConfig {
        name: model.name.to_string(),
        platform: "onnx_neaptide".into(),
        backend: "neaptide".into(),
        max_batch_size: batch.map_or(0, |batch| batch.most_rows as i32),
        input: model.inputs.iter().map(input).collect(),
        output: model.outputs.iter().enumerate().map(output).collect(),
        instance_group: vec![InstanceGroup {
            name: model.name.to_string(),
            count: 1,
            kind: KIND_CPU,
        }],
        dynamic_batching: batch.map(|batch| DynamicBatching {
            preferred_batch_size: vec![batch.most_rows as i32],
            max_queue_delay_microseconds: batch.wait.as_micros() as u64,
        }),
    }
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct AllStatistics {
    #[prost(message, repeated, tag = "1")]
    pub model_stats: Vec<ModelStatistics>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct ModelStatistics {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub version: String,
    /// Milliseconds since 1970.
    #[prost(uint64, tag = "3")]
    pub last_inference: u64,
    /// Rows.
    #[prost(uint64, tag = "4")]
    pub inference_count: u64,
    /// Runs.
    #[prost(uint64, tag = "5")]
    pub execution_count: u64,
    #[prost(message, optional, tag = "6")]
    pub inference_stats: Option<InferStatistics>,
    #[prost(message, repeated, tag = "7")]
    pub batch_stats: Vec<BatchStatistics>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct InferStatistics {
    #[prost(message, optional, tag = "1")]
    pub success: Option<Times>,
    #[prost(message, optional, tag = "2")]
    pub fail: Option<Times>,
    #[prost(message, optional, tag = "3")]
    pub queue: Option<Times>,
    #[prost(message, optional, tag = "4")]
    pub compute_input: Option<Times>,
    #[prost(message, optional, tag = "5")]
    pub compute_infer: Option<Times>,
    #[prost(message, optional, tag = "6")]
    pub compute_output: Option<Times>,
    #[prost(message, optional, tag = "7")]
    pub cache_hit: Option<Times>,
    #[prost(message, optional, tag = "8")]
    pub cache_miss: Option<Times>,
}

/// Of runs of one size.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
pub struct BatchStatistics {
    #[prost(uint64, tag = "1")]
    pub batch_size: u64,
    #[prost(message, optional, tag = "2")]
    pub compute_input: Option<Times>,
    #[prost(message, optional, tag = "3")]
    pub compute_infer: Option<Times>,
    #[prost(message, optional, tag = "4")]
    pub compute_output: Option<Times>,
}

#[derive(Clone, Copy, PartialEq, prost::Message, Serialize)]
pub struct Times {
    #[prost(uint64, tag = "1")]
    pub count: u64,
    #[prost(uint64, tag = "2")]
    pub ns: u64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        self.count += 1;
        self.ns += time.as_nanos() as u64;
    }
}

/// What became of the requests of every model.
#[derive(Debug, Default)]
pub struct Statistics {
    models: Mutex<BTreeMap<String, Tally>>,
}

#[derive(Debug, Default)]
struct Tally {
    last_ms: u64,
    rows: u64,
    success: Times,
    fail: Times,
    queue: Times,
    infer: Times,
    /// By the rows that ran together: parts of runs, and time of whole runs by parts.
    batches: BTreeMap<usize, (f64, f64)>,
}

/// A request that was answered.
pub struct Answered {
    pub rows: usize,
    pub rows_together: usize,
    pub waited: Duration,
    pub ran: Duration,
    pub latency: Duration,
}

impl Statistics {
    pub fn answered(&self, model: &str, answered: &Answered) {
        let mut models = self.models();
        let tally = models.entry(model.into()).or_default();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        tally.last_ms = now.map_or(0, |now| now.as_millis() as u64);
        tally.rows += answered.rows as u64;
        tally.success.add(answered.latency);
        tally.queue.add(answered.waited);
        tally.infer.add(answered.ran);
        let part = answered.rows as f64 / answered.rows_together.max(1) as f64;
        let batch = tally.batches.entry(answered.rows_together).or_default();
        batch.0 += part;
        batch.1 += part * answered.ran.as_nanos() as f64;
    }

    pub fn failed(&self, model: &str) {
        let mut models = self.models();
        models.entry(model.into()).or_default().fail.count += 1;
    }

    pub fn of(&self, model: &Served) -> ModelStatistics {
        let models = self.models();
        let none = Tally::default();
        let tally = models.get(&*model.name).unwrap_or(&none);
        let runs = |parts: f64| parts.round() as u64;
        let batch = |(&rows, &(parts, ns)): (&usize, &(f64, f64))| BatchStatistics {
            batch_size: rows as u64,
            compute_input: Some(Times::default()),
            compute_infer: Some(Times {
                count: runs(parts),
                ns: ns.round() as u64,
            }),
            compute_output: Some(Times::default()),
        };
        ModelStatistics {
            name: model.name.to_string(),
            version: model.version.clone(),
            last_inference: tally.last_ms,
            inference_count: tally.rows,
            execution_count: tally.batches.values().map(|&(parts, _)| runs(parts)).sum(),
            inference_stats: Some(InferStatistics {
                success: Some(tally.success),
                fail: Some(tally.fail),
                queue: Some(tally.queue),
                compute_input: Some(Times::default()),
                compute_infer: Some(tally.infer),
                compute_output: Some(Times::default()),
                cache_hit: Some(Times::default()),
                cache_miss: Some(Times::default()),
            }),
            batch_stats: tally.batches.iter().map(batch).collect(),
        }
    }

    fn models(&self) -> MutexGuard<'_, BTreeMap<String, Tally>> {
        self.models.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
