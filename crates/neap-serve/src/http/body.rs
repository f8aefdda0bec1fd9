//! Bodies of requests, read into memory that was held before; gzipped ones are unpacked.

use crate::buffer::Buffer;
use crate::core::Core;
use crate::pool::Held;
use crate::refusal::{Refusal, Why};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use flate2::bufread::GzDecoder;
use http_body_util::BodyExt;
use std::io::Read;

/// A body where nothing large is expected.
const SMALL_BYTES: u64 = 16 << 10;

/// A body for a model, whose byte `aligned` lies at a multiple of eight, with its memory and `more_bytes` beside it.
///
/// # Errors
/// A body without or with another length than was said, that is too large, too slow, or for which there is no memory.
pub async fn read(
    core: &Core,
    model: &str,
    request: Request,
    aligned: usize,
    more_bytes: u64,
) -> Result<(Buffer, Held), Refusal> {
    let is_gzipped = check_encoding(request.headers())?;
    let len = content_length(&request)?
        .ok_or_else(|| Refusal::new(Why::NoLength, "say the length of the body: Content-Length"))?;
    if len > core.limits.body_bytes {
        return Err(too_large(core.limits.body_bytes));
    }
    let mut body = request.into_body();
    let held = match core.hold(Some(model), len + more_bytes) {
        Ok(held) => held,
        Err(refusal) => {
            let _ = within(core, skip(&mut body)).await;
            return Err(refusal);
        }
    };
    let at = if is_gzipped { 0 } else { aligned };
    let mut buffer = Buffer::aligned_at(len as usize, at);
    within(core, fill(&mut body, buffer.bytes_mut())).await?;
    match is_gzipped {
        true => unpacked(core, buffer, held, aligned).await,
        false => Ok((buffer, held)),
    }
}

/// What a gzipped body holds, in memory that is held before: the last four bytes say how much that is.
async fn unpacked(
    core: &Core,
    packed: Buffer,
    mut held: Held,
    aligned: usize,
) -> Result<(Buffer, Held), Refusal> {
    let len = packed.bytes().last_chunk().copied();
    let len = len.map_or(0, u32::from_le_bytes);
    if u64::from(len) > core.limits.body_bytes {
        return Err(too_large(core.limits.body_bytes));
    }
    core.hold_more(&mut held, len.into())?;
    let buffer = elsewhere(move || {
        let mut buffer = Buffer::aligned_at(len as usize, aligned);
        let mut unpacking = GzDecoder::new(packed.bytes());
        // Its end is read, too, where the checksum is.
        let read =
            (unpacking.read_exact(buffer.bytes_mut())).and_then(|()| unpacking.read(&mut [0]));
        match read {
            Ok(0) if unpacking.get_ref().is_empty() => Ok(buffer),
            Ok(_) => Err(Refusal::malformed(
                "the body is more than one gzip file, or longer than it says",
            )),
            Err(error) => Err(Refusal::malformed(format!(
                "the body cannot be unpacked: {error}"
            ))),
        }
    });
    Ok((buffer.await?, held))
}

/// Work that takes a while, beside the thread that serves all clients.
pub async fn elsewhere<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| {
        Err(Refusal::new(
            Why::Internal,
            "reading or writing it panicked",
        ))
    })
}

/// Whether a body is gzipped.
///
/// # Errors
/// [`Why::MediaType`] for another way of packing it: none but gzip says how long it is.
pub fn check_encoding(headers: &HeaderMap) -> Result<bool, Refusal> {
    let encoding = headers.get(header::CONTENT_ENCODING);
    match encoding.map(|encoding| encoding.as_bytes()) {
        None | Some(b"identity") => Ok(false),
        Some(b"gzip") => Ok(true),
        Some(_) => Err(Refusal::new(
            Why::MediaType,
            "compressed bodies are read as gzip only",
        )),
    }
}

/// Reads a body that nobody needs, and forgets it: a client that is still sending would not see the answer, and its
/// connection could not be used again.
pub async fn discard(core: &Core, request: Request) {
    let is_fair = content_length(&request).is_ok_and(|len| {
        let len = len.unwrap_or(0);
        len <= core.limits.body_bytes
    });
    if is_fair {
        let _ = within(core, skip(&mut request.into_body())).await;
    }
}

/// A body that is small, or none.
///
/// # Errors
/// As [`read`].
pub async fn read_small(core: &Core, request: Request) -> Result<Vec<u8>, Refusal> {
    let len = match content_length(&request)? {
        Some(len) if len > SMALL_BYTES => return Err(too_large(SMALL_BYTES)),
        len => len,
    };
    let mut body = http_body_util::Limited::new(request.into_body(), SMALL_BYTES as usize);
    let all = async {
        let mut all = Vec::with_capacity(len.unwrap_or(0) as usize);
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| Refusal::malformed(format!("the body: {e}")))?;
            all.extend_from_slice(frame.data_ref().map_or(&[][..], |d| d));
        }
        Ok(all)
    };
    within(core, all).await
}

fn too_large(limit: u64) -> Refusal {
    let message = format!("the body is larger than {limit} bytes");
    Refusal::new(Why::TooLarge, message)
}

fn content_length(request: &Request) -> Result<Option<u64>, Refusal> {
    let Some(value) = request.headers().get(header::CONTENT_LENGTH) else {
        return Ok(None);
    };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number
        .map(Some)
        .ok_or_else(|| Refusal::malformed("Content-Length is no number"))
}

/// What `work` gives, or a refusal when that takes too long.
async fn within<T>(
    core: &Core,
    work: impl Future<Output = Result<T, Refusal>>,
) -> Result<T, Refusal> {
    let limit = core.limits.arriving;
    tokio::time::timeout(limit, work).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {limit:?}");
        Err(Refusal::new(Why::TooSlow, message))
    })
}

async fn fill(body: &mut Body, mut rest: &mut [u8]) -> Result<(), Refusal> {
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Refusal::malformed("the body ends early"))?;
        let Ok(data) = frame.into_data() else {
            continue;
        };
        let (place, behind) = rest
            .split_at_mut_checked(data.len())
            .ok_or_else(|| Refusal::malformed("the body is longer than was said"))?;
        place.copy_from_slice(&data);
        rest = behind;
    }
    match rest.is_empty() {
        true => Ok(()),
        false => Err(Refusal::malformed("the body ends early")),
    }
}

async fn skip(body: &mut Body) -> Result<(), Refusal> {
    while let Some(frame) = body.frame().await {
        if frame.is_err() {
            break;
        }
    }
    Ok(())
}
