//! What a request will take once it is decoded, known before it is.
//!
//! A few bytes of a message can become many in memory: an empty tensor is two bytes on the wire and a hundred as a value.
//! So the parts are counted first.

use crate::refusal::Refusal;
use prost::bytes::Buf;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// More inputs, outputs or data no model has.
const MOST_TENSORS: usize = 256;
/// More parameters no tensor needs.
const MOST_PARAMETERS: usize = 64;

/// An element of one byte on the wire is at most so many as a value. Lists that grow take twice that for a moment.
const GROWTH: u64 = 3 * 8;

/// The key of a request's first field, its model's name, on the wire.
const NAME_KEY: u8 = 0x0a;

/// Fields of a request, and of an input or output that is asked for.
const INPUTS: u32 = 5;
const OUTPUTS: u32 = 6;
const RAW: u32 = 7;
const SHAPE: u32 = 3;
const INPUT_PARAMETERS: u32 = 4;
const OUTPUT_PARAMETERS: u32 = 2;
const CONTENTS: u32 = 5;

/// Bytes that lists of elements and dimensions take at most when `message`, an `InferRequest`, is decoded.
///
/// # Errors
/// One line, for a message with impossibly many parts or that is none.
pub fn decoded_bytes(message: &[u8]) -> Result<u64, Refusal> {
    let mut tensors = [0usize; 3];
    let mut bytes = 0;
    each_field(message, &mut |tag, part| {
        let place = match tag {
            INPUTS => 0,
            OUTPUTS => 1,
            RAW => 2,
            _ => return Ok(()),
        };
        tensors[place] += 1;
        if tensors[place] > MOST_TENSORS {
            return Err("it has too many tensors".into());
        }
        if tag == RAW {
            return Ok(());
        }
        let parameters_tag = if tag == INPUTS {
            INPUT_PARAMETERS
        } else {
            OUTPUT_PARAMETERS
        };
        let mut parameters = 0;
        each_field(part.unwrap_or_default(), &mut |inner, list| {
            parameters += usize::from(inner == parameters_tag);
            if parameters > MOST_PARAMETERS {
                return Err("a tensor has too many parameters".into());
            }
            if tag == INPUTS && [SHAPE, CONTENTS].contains(&inner) {
                // One that is not in a list of its own has a tag beside it.
                bytes += list.map_or(1, <[u8]>::len) as u64 * GROWTH;
            }
            Ok(())
        })
    })
    .map_err(|reason| Refusal::malformed(format!("the message is not a request: {reason}")))?;
    Ok(bytes)
}

/// The name of the model, which clients send first; `None` where that is not so, or not all of it is there. `start` is the
/// beginning of an `InferRequest`.
pub fn model_name(start: &[u8]) -> Option<&str> {
    let &[NAME_KEY, len, ref rest @ ..] = start else {
        return None;
    };
    // A longer one is no name.
    let name = rest.get(..usize::from(len)).filter(|_| len < 0x80)?;
    std::str::from_utf8(name).ok()
}

/// Hears of a field: its number, and its bytes where it has a length.
type Visit<'a> = dyn FnMut(u32, Option<&[u8]>) -> Result<(), String> + 'a;

/// Calls `visit` with the number of each field, and its bytes where it has a length.
fn each_field(mut message: &[u8], visit: &mut Visit) -> Result<(), String> {
    while message.has_remaining() {
        let (tag, wire) = decode_key(&mut message).map_err(|e| e.to_string())?;
        if wire != WireType::LengthDelimited {
            skip_field(wire, tag, &mut message, DecodeContext::default())
                .map_err(|e| e.to_string())?;
            visit(tag, None)?;
            continue;
        }
        let len = decode_varint(&mut message).map_err(|e| e.to_string())?;
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len <= message.len());
        let (part, rest) = message.split_at(len.ok_or("a field is longer than the message")?);
        visit(tag, Some(part))?;
        message = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::messages::{Contents, InferInput, InferRequest, Parameter};
    use super::*;
    use prost::Message;

    #[test]
    fn lists_are_charged_and_raw_data_is_not() {
        let mut request = InferRequest {
            inputs: vec![InferInput {
                shape: vec![1, 2],
                ..InferInput::default()
            }],
            raw_input_contents: vec![vec![0; 1000].into()],
            ..InferRequest::default()
        };
        assert_eq!(decoded_bytes(&request.encode_to_vec()).unwrap(), 2 * GROWTH);
        request.inputs[0].contents = Some(Contents {
            int64_contents: vec![0; 100],
            ..Contents::default()
        });
        let charged = decoded_bytes(&request.encode_to_vec()).unwrap();
        assert!(charged >= 2 * 8 * 100, "{charged}");
    }

    #[test]
    fn the_name_is_seen_in_the_first_bytes() {
        let request = InferRequest {
            model_name: "a-model".into(),
            model_version: "1".into(),
            ..InferRequest::default()
        };
        let message = request.encode_to_vec();
        assert_eq!(model_name(&message), Some("a-model"));
        assert_eq!(model_name(&message[..9]), Some("a-model"));
        for start in [&message[..8], &message[9..], &[], &[0x0a], &[0x0a, 0x80, 1]] {
            assert_eq!(model_name(start), None, "{start:?}");
        }
        assert_eq!(model_name(&[0x0a, 1, 0xff]), None);
    }

    #[test]
    fn many_empty_parts_are_refused() {
        let empty_inputs = [0x2a, 0].repeat(MOST_TENSORS + 1);
        assert!(decoded_bytes(&empty_inputs).is_err());
        let raw = [0x3a, 0].repeat(MOST_TENSORS + 1);
        assert!(decoded_bytes(&raw).is_err());
        let parameters = (0..=MOST_PARAMETERS).map(|i| (i.to_string(), Parameter::default()));
        let input = InferInput {
            parameters: parameters.collect(),
            ..InferInput::default()
        };
        let request = InferRequest {
            inputs: vec![input],
            ..InferRequest::default()
        };
        assert!(decoded_bytes(&request.encode_to_vec()).is_err());
        for rubbish in [&[0xff; 20][..], &[0x2a, 100], &[0x2a], b"rubbish"] {
            assert!(decoded_bytes(rubbish).is_err(), "{rubbish:?}");
        }
    }
}
