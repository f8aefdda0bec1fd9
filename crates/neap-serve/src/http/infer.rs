//! A request for tensors: its JSON, its binary tensors, and the answer in the form that was asked for.

use super::answer::{refused, with_json};
use super::body::{self, elsewhere};
use crate::buffer::{Buffer, Sent, Tensor};
use crate::catalogue::{Served, shown};
use crate::core::{Core, Given};
use crate::datatype;
use crate::elements::read_data;
use crate::executor::Done;
use crate::pool::Held;
use crate::refusal::OfModel;
use crate::refusal::{Refusal, Why};
use crate::v2::{
    BinaryOutput, InferAnswer, InferRequest, InputTensor, Object, OutputTensor, WantedOutput,
};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::body::Frame;
use neaptide::TensorInfo;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// How long the JSON text is; binary tensors follow it.
const JSON_LENGTH: &str = "inference-header-content-length";

/// Names, shapes and the like of one request.
const FIXED_BYTES: u64 = 8 << 10;

/// A body of more JSON than this is read beside the thread that serves all clients.
const MUCH_JSON: usize = 64 << 10;

/// Answers a request.
pub async fn answer(
    core: &Arc<Core>,
    name: &str,
    version: Option<&str>,
    request: Request,
) -> Response {
    match answered(core, name, version, request).await {
        Ok(response) => response,
        Err(refusal) => {
            core.note_refusal(name, &refusal);
            let mut response = refused(&refusal);
            response.extensions_mut().insert(OfModel(name.into()));
            response
        }
    }
}

async fn answered(
    core: &Arc<Core>,
    name: &str,
    version: Option<&str>,
    request: Request,
) -> Result<Response, Refusal> {
    let (model, json_bytes) = match begun(core, name, version, request.headers()) {
        Ok(begun) => begun,
        Err(refusal) => {
            body::discard(core, request).await;
            return Err(refusal);
        }
    };
    // Tensors of JSON are made beside it; names and shapes are copied.
    let made_bytes = match json_bytes {
        Some(_) => 0,
        None => {
            model
                .inputs
                .iter()
                .map(|i| i.len_bytes() as u64)
                .sum::<u64>()
                * model.most_rows() as u64
        }
    };
    let (buffer, held) = body::read(
        core,
        &model.name,
        request,
        json_bytes.unwrap_or(0),
        made_bytes + FIXED_BYTES,
    )
    .await?;
    let its = model.clone();
    let read = move || read(buffer, json_bytes, &its);
    let is_much = json_bytes.unwrap_or(usize::MAX) > MUCH_JSON;
    let asked = match is_much && made_bytes > 0 {
        true => elsewhere(read).await?,
        false => read()?,
    };
    let wanted = asked.wanted(&model)?;
    let mut held = held;
    hold_answer(core, &model, &wanted, asked.rows, &mut held)?;
    let done = core.infer(&model, asked.given, held).await?;
    let id = asked.id;
    if wanted.iter().any(|w| !w.is_binary) {
        return elsewhere(move || written(&model, id, &wanted, done)).await;
    }
    written(&model, id, &wanted, done)
}

/// What is known before the body is read: the model, and how long the JSON text is.
fn begun(
    core: &Core,
    name: &str,
    version: Option<&str>,
    headers: &HeaderMap,
) -> Result<(Arc<Served>, Option<usize>), Refusal> {
    core.check_ready()?;
    let model = core.catalogue.ready(name, version)?;
    body::check_encoding(headers)?;
    Ok((model, json_bytes(headers)?))
}

/// The length of the JSON text, where binary tensors follow it.
fn json_bytes(headers: &HeaderMap) -> Result<Option<usize>, Refusal> {
    let Some(value) = headers.get(JSON_LENGTH) else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Refusal::malformed("Inference-Header-Content-Length is no number"))
}

/// A request that was read.
struct Asked {
    id: Option<String>,
    given: Vec<Given>,
    outputs: Option<Vec<WantedOutput>>,
    is_binary: bool,
    /// Of the first input, as it claims; checked later.
    rows: u64,
}

/// An output that is sent.
struct Wanted {
    index: usize,
    is_binary: bool,
}

fn read(buffer: Buffer, json_bytes: Option<usize>, model: &Served) -> Result<Asked, Refusal> {
    let buffer = Arc::new(buffer);
    let body = buffer.bytes();
    let json_bytes = json_bytes.unwrap_or(body.len());
    let json = body.get(..json_bytes).ok_or_else(|| {
        Refusal::malformed("Inference-Header-Content-Length is larger than the body")
    })?;
    let Object(request): Object<InferRequest> = serde_json::from_slice(json)
        .map_err(|e| Refusal::malformed(format!("the JSON text is not a request: {e}")))?;
    let mut at = json_bytes;
    let mut given = Vec::with_capacity(request.inputs.0.len());
    let mut rows = 1;
    for Object(input) in request.inputs.0 {
        let range = binary_range(&input, &mut at, body.len())?;
        if model.takes_rows {
            rows = input.shape.0.first().copied().unwrap_or(1);
            model.check_rows(&input.name, rows)?;
        }
        let data = match (range, input.data) {
            (Some(range), None) => Tensor::within(&buffer, range),
            (None, Some(data)) => from_json(model, &input, data)?,
            (None, None) => return Err(of_input(&input, "it has no data")),
            (Some(_), Some(_)) => {
                return Err(of_input(&input, "it has data as JSON and as bytes"));
            }
        };
        given.push(Given {
            name: input.name,
            datatype: input.datatype,
            shape: input.shape.0,
            data,
        });
    }
    if at != body.len() {
        return Err(Refusal::malformed(format!(
            "{} bytes follow the last tensor",
            body.len() - at
        )));
    }
    Ok(Asked {
        id: request.id,
        given,
        outputs: request
            .outputs
            .map(|few| few.0.into_iter().map(|Object(o)| o).collect()),
        is_binary: request.parameters.binary_data_output.unwrap_or(false),
        rows,
    })
}

/// Where the bytes of a binary tensor are, the next from `at` on.
fn binary_range(
    input: &InputTensor,
    at: &mut usize,
    end: usize,
) -> Result<Option<Range<usize>>, Refusal> {
    if input.parameters.shared_memory_region.is_some() {
        return Err(of_input(input, "shared memory is not supported"));
    }
    let Some(bytes) = input.parameters.binary_data_size else {
        return Ok(None);
    };
    let begin = *at;
    let after = usize::try_from(bytes)
        .ok()
        .and_then(|b| begin.checked_add(b));
    *at = after
        .filter(|&after| after <= end)
        .ok_or_else(|| of_input(input, "the body is too short for its binary_data_size"))?;
    Ok(Some(begin..*at))
}

fn of_input(input: &InputTensor, reason: &str) -> Refusal {
    Refusal::malformed(format!("input {}: {reason}", shown(&input.name)))
}

/// Elements of a tensor from JSON; only of one that the model takes, so that its size is bounded.
fn from_json(model: &Served, input: &InputTensor, data: &RawValue) -> Result<Tensor, Refusal> {
    let info = model.inputs.iter().find(|i| i.name == input.name);
    let info = info.ok_or_else(|| of_input(input, "the model has no such input"))?;
    let rows = model.rows_of(info, &input.datatype, &input.shape.0)?;
    let mut buffer = Buffer::zeroed(info.len_bytes() * rows);
    let shape: Vec<usize> = input.shape.0.iter().map(|&d| d as usize).collect();
    read_data(data, info.ty.dtype, &shape, buffer.bytes_mut())
        .map_err(|reason| of_input(input, &reason))?;
    Ok(Tensor::new(buffer))
}

impl Asked {
    /// Which outputs are sent, and how.
    fn wanted(&self, model: &Served) -> Result<Vec<Wanted>, Refusal> {
        let Some(outputs) = &self.outputs else {
            let all = 0..model.outputs.len();
            return Ok(all
                .map(|index| Wanted {
                    index,
                    is_binary: self.is_binary,
                })
                .collect());
        };
        let one = |output: &WantedOutput| {
            let fault = |reason: &str| {
                Refusal::malformed(format!("output {}: {reason}", shown(&output.name)))
            };
            if output.parameters.classification.is_some() {
                return Err(fault("classification is not supported"));
            }
            if output.parameters.shared_memory_region.is_some() {
                return Err(fault("shared memory is not supported"));
            }
            let index = model.outputs.iter().position(|o| o.name == output.name);
            Ok(Wanted {
                index: index.ok_or_else(|| fault("the model has no such output"))?,
                is_binary: output.parameters.binary_data.unwrap_or(self.is_binary),
            })
        };
        outputs.iter().map(one).collect()
    }
}

/// Memory for the text of outputs that are sent as JSON.
fn hold_answer(
    core: &Core,
    model: &Served,
    wanted: &[Wanted],
    rows: u64,
    held: &mut Held,
) -> Result<(), Refusal> {
    let text_bytes = wanted.iter().filter(|w| !w.is_binary).map(|w| {
        let ty = &model.outputs[w.index].ty;
        let count: usize = ty.shape.iter().product();
        (count as u64).saturating_mul(datatype::most_text_bytes(ty.dtype))
    });
    // The text of a tensor is copied into that of the answer.
    let text_bytes = text_bytes
        .fold(0, u64::saturating_add)
        .saturating_mul(rows.saturating_mul(2));
    core.hold_more(held, text_bytes)
}

/// The response.
fn written(
    model: &Served,
    id: Option<String>,
    wanted: &[Wanted],
    done: Done,
) -> Result<Response, Refusal> {
    let mut outputs = Vec::with_capacity(wanted.len());
    let mut parts = Vec::new();
    for want in wanted {
        let (info, tensor) = &done.outputs[want.index];
        let data = match want.is_binary {
            true => {
                parts.push(tensor.clone());
                None
            }
            false => Some(as_json(info, tensor)?),
        };
        outputs.push(OutputTensor {
            name: &info.name,
            datatype: datatype::name(info.ty.dtype),
            shape: &info.ty.shape,
            parameters: want.is_binary.then(|| BinaryOutput {
                binary_data_size: tensor.bytes().len(),
            }),
            data,
        });
    }
    let text_bytes = outputs.iter().filter_map(|o| o.data.as_ref());
    let text_bytes: usize = text_bytes.map(|data| data.get().len()).sum();
    // Grown step by step it would take twice as much for a moment.
    let mut head = Vec::with_capacity(text_bytes + FIXED_BYTES as usize);
    let answer = InferAnswer {
        model_name: &model.name,
        model_version: &model.version,
        id,
        outputs,
    };
    serde_json::to_writer(&mut head, &answer)
        .map_err(|e| Refusal::new(Why::Internal, e.to_string()))?;
    let json_bytes = head.len();
    let timing = timing(&done);
    let has_parts = !parts.is_empty();
    let all_bytes = json_bytes + parts.iter().map(|p| p.bytes().len()).sum::<usize>();
    let mut response = with_json(StatusCode::OK, pieces(head, parts, done.held));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(all_bytes));
    if let Ok(timing) = HeaderValue::from_str(&timing) {
        headers.insert("server-timing", timing);
    }
    if has_parts {
        let binary = HeaderValue::from_static("application/octet-stream");
        headers.insert(header::CONTENT_TYPE, binary);
        headers.insert(JSON_LENGTH, HeaderValue::from(json_bytes));
    }
    Ok(response)
}

/// Milliseconds that the request waited and ran, and the rows that ran together (the `Server-Timing` header).
fn timing(done: &Done) -> String {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    format!(
        "wait;dur={:.3}, run;dur={:.3}, rows;desc=\"{}\"",
        ms(done.waited),
        ms(done.ran),
        done.rows
    )
}

fn as_json(info: &TensorInfo, tensor: &Tensor) -> Result<Box<RawValue>, Refusal> {
    let fault = |reason| Refusal::malformed(format!("output '{}': {reason}", info.name));
    let count: usize = info.ty.shape.iter().product();
    let most_bytes = count as u64 * datatype::most_text_bytes(info.ty.dtype);
    let mut text = String::with_capacity(most_bytes as usize + 2);
    datatype::write_json(info.ty.dtype, tensor.bytes(), &mut text).map_err(fault)?;
    RawValue::from_string(text).map_err(|e| fault(e.to_string()))
}

/// What is sent, from where it lies. The memory is given back when all of it is gone.
struct Pieces {
    rest: VecDeque<Bytes>,
    _held: Held,
}

impl hyper::body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.rest.pop_front().map(|piece| Ok(Frame::data(piece))))
    }
}

fn pieces(head: Vec<u8>, parts: Vec<Tensor>, held: Held) -> Body {
    let parts = parts
        .into_iter()
        .map(|tensor| Bytes::from_owner(Sent(tensor)));
    Body::new(Pieces {
        rest: std::iter::once(Bytes::from(head)).chain(parts).collect(),
        _held: held,
    })
}
