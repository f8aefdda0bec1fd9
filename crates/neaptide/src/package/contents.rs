//! The table of contents of a packed file.
//!
//! ```text
//!   version | weights | skeleton's place and inputs | programs of the first binding
//! ```

use super::binding::{Binding, Package};
use super::skeleton::SkeletonAt;
use super::weights::Weight;
use crate::error::{Error, Result};
use crate::lowering::CODE_VERSION;
use neap_compile::{Programs, StepOrder};
use neap_ir::Program;
use neap_ir::recipe::{Packed, PackedForm};
use neap_store::BLOCK;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// What the packed file holds for every binding.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub weights: Vec<Weight>,
    pub skeleton: Option<SkeletonAt>,
}

/// Programs of one binding.
pub(crate) struct Cached {
    pub programs: Programs,
    pub binding: Binding,
    pub order: StepOrder,
}

/// As they are stored: the programs have no weights of their own.
#[derive(Serialize, Deserialize)]
struct Stored {
    binding: Binding,
    keeps_order: bool,
    /// The programs' weights, in their order.
    parts: Vec<Part>,
    plain: Program,
    banded: Option<Program>,
}

/// An entry of the table of weights, or a piece of a raw one.
#[derive(Serialize, Deserialize)]
struct Part {
    weight: u32,
    piece: Option<(u64, u64)>,
}

/// Encodes the table of contents.
pub(crate) fn encode(contents: &Contents, cached: &Cached) -> Result<Vec<u8>> {
    let programs = &cached.programs;
    let parts: Option<Vec<Part>> = programs
        .plain
        .packed
        .iter()
        .map(|packed| part_of(packed, &contents.weights))
        .collect();
    let parts = parts.ok_or_else(|| Error::Defect("a weight is not in the table".into()))?;
    let bare = |program: &Program| Program {
        packed: Vec::new(),
        ..program.clone()
    };
    let stored = Stored {
        binding: cached.binding.clone(),
        keeps_order: cached.order == StepOrder::Given,
        parts,
        plain: bare(&programs.plain),
        banded: programs.banded.as_deref().map(bare),
    };
    let toc = CODE_VERSION.to_le_bytes().to_vec();
    postcard::to_extend(&(contents, stored), toc)
        .map_err(|e| Error::Defect(format!("cannot encode the table of contents: {e}")))
}

/// Reads the part that all bindings share.
///
/// # Errors
/// A reason.
pub(crate) fn decode_contents(
    toc: &[u8],
    data: &Range<u64>,
) -> std::result::Result<(Contents, Vec<u8>), String> {
    let (contents, rest) = split(toc, data)?;
    Ok((contents, rest.to_vec()))
}

/// Reads and checks a table of contents whose weights lie in `data`.
///
/// # Errors
/// A reason.
pub(crate) fn decode(
    toc: &[u8],
    data: Range<u64>,
) -> std::result::Result<(Package, Programs), String> {
    let (contents, rest) = split(toc, &data)?;
    let stored: Stored = postcard::from_bytes(rest).map_err(unreadable)?;
    if !stored
        .binding
        .values
        .values()
        .all(neap_ir::Literal::is_whole)
    {
        return Err("an input's value has not as much data as its shape says".into());
    }
    let weights = stored
        .parts
        .iter()
        .map(|part| whole(part, &contents.weights));
    let weights = weights.collect::<Option<Vec<Packed>>>();
    let weights = weights.ok_or("a program's weights are not in the table")?;
    let with_weights = |program: Program| Program {
        packed: weights.clone(),
        ..program
    };
    let banded = stored.banded.map(with_weights);
    let programs = Programs::checked(with_weights(stored.plain), banded, data)?;
    let package = Package {
        skeleton: contents.skeleton,
        binding: stored.binding,
        order: match stored.keeps_order {
            true => StepOrder::Given,
            false => StepOrder::LeastMemory,
        },
    };
    Ok((package, programs))
}

fn unreadable(e: postcard::Error) -> String {
    format!("the table of contents is not readable: {e}")
}

fn split<'t>(
    toc: &'t [u8],
    data: &Range<u64>,
) -> std::result::Result<(Contents, &'t [u8]), String> {
    let (version, rest) = toc
        .split_first_chunk::<4>()
        .ok_or("the table of contents is empty")?;
    if *version != CODE_VERSION.to_le_bytes() {
        return Err("packed by another version of neaptide: pack it again".into());
    }
    let (contents, rest) = postcard::take_from_bytes::<Contents>(rest).map_err(unreadable)?;
    let is_inside = |offset: u64, bytes: u64| {
        let end = offset.checked_add(bytes);
        offset >= data.start
            && offset.is_multiple_of(BLOCK as u64)
            && end.is_some_and(|end| end <= data.end)
    };
    for weight in &contents.weights {
        let packed = &weight.packed;
        let raw_fits = weight.source.is_none_or(|source| {
            let elements = source.range.bytes / source.dtype.size_bytes() as u64;
            let bytes = elements.checked_mul(source.packed_dtype.size_bytes() as u64);
            matches!(packed.form, PackedForm::Raw)
                && source
                    .range
                    .offset
                    .checked_add(source.range.bytes)
                    .is_some()
                && bytes == Some(packed.bytes)
        });
        if !is_inside(packed.offset, packed.bytes) || !raw_fits {
            return Err(format!("weights of '{}' lie outside the file", packed.name));
        }
    }
    if let Some(skeleton) = &contents.skeleton
        && !is_inside(skeleton.offset, skeleton.bytes)
    {
        return Err("its skeleton lies outside the file".into());
    }
    Ok((contents, rest))
}

fn part_of(packed: &Packed, weights: &[Weight]) -> Option<Part> {
    let found = weights.iter().position(|weight| {
        let whole = &weight.packed;
        packed.offset >= whole.offset && packed.offset + packed.bytes <= whole.offset + whole.bytes
    })?;
    let whole = &weights[found].packed;
    let is_whole = (packed.offset, packed.bytes) == (whole.offset, whole.bytes);
    Some(Part {
        weight: found as u32,
        piece: (!is_whole).then_some((packed.offset - whole.offset, packed.bytes)),
    })
}

fn whole(part: &Part, weights: &[Weight]) -> Option<Packed> {
    let whole = &weights.get(part.weight as usize)?.packed;
    let Some((skip, bytes)) = part.piece else {
        return Some(whole.clone());
    };
    let fits = skip.checked_add(bytes)? <= whole.bytes;
    (fits && matches!(whole.form, PackedForm::Raw)).then(|| Packed {
        offset: whole.offset + skip,
        bytes,
        ..whole.clone()
    })
}
