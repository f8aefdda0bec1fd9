//! `ModelInfer`: tensors in, tensors out, as bytes.

use super::frame::{answer, read_large, refused};
use super::messages::{
    Contents, InferInput, InferOutput, InferRequest, InferResponse, WantedOutput,
};
use super::scan;
use crate::buffer::{Buffer, Sent, Tensor};
use crate::catalogue::{Served, shown};
use crate::core::{Core, Given};
use crate::datatype::{self, Elements};
use crate::pool::Held;
use crate::refusal::{OfModel, Refusal};
use axum::extract::Request;
use axum::response::Response;
use prost::bytes::Bytes;

/// Answers a request.
pub async fn answered(core: &Core, request: Request) -> Response {
    let mut name = None;
    let read = async {
        core.check_ready()?;
        read_large::<InferRequest>(core, request, &mut name, scan::decoded_bytes).await
    };
    let read = read.await;
    let answered = match read {
        Ok((request, held)) => {
            name = Some(request.model_name.clone());
            response_of(core, request, held).await
        }
        Err(refusal) => Err(refusal),
    };
    match answered {
        Ok((response, held)) => answer(&response, Some(held)),
        Err(refusal) => {
            let name = name.unwrap_or_default();
            core.note_refusal(&name, &refusal);
            let mut response = refused(&refusal);
            response.extensions_mut().insert(OfModel(name));
            response
        }
    }
}

/// What a request is answered with, and its memory.
///
/// # Errors
/// Why there is no answer.
pub async fn response_of(
    core: &Core,
    request: InferRequest,
    mut held: Held,
) -> Result<(InferResponse, Held), Refusal> {
    let version = Some(request.model_version.as_str()).filter(|v| !v.is_empty());
    let model = core.catalogue.ready(&request.model_name, version)?;
    let wanted = wanted(&model, &request.outputs)?;
    // The answer is one message, made of the outputs.
    let rows = request.inputs.first().and_then(|i| i.shape.first());
    let rows = rows.map_or(1, |&rows| rows.max(1) as u64);
    if let Some(first) = request.inputs.first().filter(|_| model.takes_rows) {
        model.check_rows(&first.name, rows)?;
    }
    let output_bytes = wanted.iter().map(|&i| model.outputs[i].len_bytes() as u64);
    let output_bytes = output_bytes.fold(0, u64::saturating_add);
    let rows = if model.takes_rows { rows } else { 1 };
    core.hold_more(&mut held, output_bytes.saturating_mul(rows))?;
    let given = given(&model, request.inputs, request.raw_input_contents)?;
    let done = core.infer(&model, given, held).await?;
    let mut response = InferResponse {
        model_name: model.name.to_string(),
        model_version: model.version.clone(),
        id: request.id,
        ..InferResponse::default()
    };
    for index in wanted {
        let (info, tensor) = &done.outputs[index];
        response.outputs.push(InferOutput {
            name: info.name.clone(),
            datatype: datatype::name(info.ty.dtype).into(),
            shape: info.ty.shape.iter().map(|&d| d as i64).collect(),
        });
        let bytes = Bytes::from_owner(Sent(tensor.clone()));
        response.raw_output_contents.push(bytes);
    }
    Ok((response, done.held))
}

/// Which outputs are sent.
fn wanted(model: &Served, outputs: &[WantedOutput]) -> Result<Vec<usize>, Refusal> {
    if outputs.is_empty() {
        return Ok((0..model.outputs.len()).collect());
    }
    let one = |output: &WantedOutput| {
        let fault =
            |reason: &str| Refusal::malformed(format!("output {}: {reason}", shown(&output.name)));
        for unsupported in ["classification", "shared_memory_region"] {
            if output.parameters.contains_key(unsupported) {
                return Err(fault(&format!("{unsupported} is not supported")));
            }
        }
        let index = model.outputs.iter().position(|o| o.name == output.name);
        index.ok_or_else(|| fault("the model has no such output"))
    };
    outputs.iter().map(one).collect()
}

fn given(model: &Served, inputs: Vec<InferInput>, raw: Vec<Bytes>) -> Result<Vec<Given>, Refusal> {
    let mut raw = raw.into_iter();
    let mut all = Vec::with_capacity(inputs.len());
    for input in inputs {
        let fault =
            |reason: &str| Refusal::malformed(format!("input {}: {reason}", shown(&input.name)));
        if input.parameters.contains_key("shared_memory_region") {
            return Err(fault("shared memory is not supported"));
        }
        let shape: Result<Vec<u64>, _> = input.shape.iter().map(|&d| u64::try_from(d)).collect();
        let shape = shape.map_err(|_| fault("its shape has a negative dimension"))?;
        let data = match &input.contents {
            Some(contents) => {
                let info = model.inputs.iter().find(|i| i.name == input.name);
                let info = info.ok_or_else(|| fault("the model has no such input"))?;
                let rows = model.rows_of(info, &input.datatype, &shape)?;
                let mut buffer = Buffer::zeroed(info.len_bytes() * rows);
                fill(
                    contents,
                    &mut Elements::new(info.ty.dtype, buffer.bytes_mut()),
                )
                .map_err(|reason| fault(&reason))?;
                Tensor::new(buffer)
            }
            None => {
                let bytes = raw.next().ok_or_else(|| fault("it has no data"))?;
                Tensor::new(Buffer::of(&bytes))
            }
        };
        all.push(Given {
            name: input.name,
            datatype: input.datatype,
            shape,
            data,
        });
    }
    match raw.next() {
        None => Ok(all),
        Some(_) => Err(Refusal::malformed("there are more data than inputs")),
    }
}

/// Writes the elements of whichever list has any.
fn fill(contents: &Contents, elements: &mut Elements) -> Result<(), String> {
    let c = contents;
    c.bool_contents
        .iter()
        .try_for_each(|&v| elements.push_integer(v.into()))?;
    c.int_contents
        .iter()
        .try_for_each(|&v| elements.push_integer(v.into()))?;
    c.int64_contents
        .iter()
        .try_for_each(|&v| elements.push_integer(v.into()))?;
    c.uint_contents
        .iter()
        .try_for_each(|&v| elements.push_integer(v.into()))?;
    c.uint64_contents
        .iter()
        .try_for_each(|&v| elements.push_integer(v.into()))?;
    c.fp32_contents
        .iter()
        .try_for_each(|&v| elements.push_float(v.into()))?;
    c.fp64_contents
        .iter()
        .try_for_each(|&v| elements.push_float(v))?;
    match elements.is_full() {
        true => Ok(()),
        false => Err("it has fewer elements than its shape".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use neaptide::DType;

    #[test]
    fn contents_of_every_list() {
        let filled = |contents: Contents, dtype: DType| {
            let mut bytes = vec![0; 2 * dtype.size_bytes()];
            fill(&contents, &mut Elements::new(dtype, &mut bytes)).map(|()| bytes)
        };
        let ints = Contents {
            int_contents: vec![-1, 2],
            ..Contents::default()
        };
        assert_eq!(filled(ints.clone(), DType::I8).unwrap(), [255, 2]);
        assert!(filled(ints, DType::U8).is_err());
        let floats = Contents {
            fp32_contents: vec![0.5, -2.0],
            ..Contents::default()
        };
        let expected: Vec<u8> = [0.5f32, -2.0]
            .iter()
            .flat_map(|v| v.to_le_bytes())
            .collect();
        assert_eq!(filled(floats.clone(), DType::F32).unwrap(), expected);
        assert!(filled(floats, DType::I64).is_err());
        let bools = Contents {
            bool_contents: vec![true, false],
            ..Contents::default()
        };
        assert_eq!(filled(bools, DType::Bool).unwrap(), [1, 0]);
        assert!(filled(Contents::default(), DType::F32).is_err());
    }
}
