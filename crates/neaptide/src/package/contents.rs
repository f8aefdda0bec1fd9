//! The table of contents of a packed file.
//!
//! ```text
//!   versions | weights | skeleton's place and inputs | first binding | programs of it
//! ```
//! There are two versions: of the code that makes programs, and of that which makes the rest. Where only the first is
//! another, programs are made anew.

use super::binding::{Binding, Package};
use super::skeleton::SkeletonAt;
use super::weights::Weight;
use crate::error::{Error, Result};
use crate::versions::{CODE_VERSION, WEIGHTS_VERSION};
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
    /// What packing takes of memory, nearly.
    pub opening_bytes: u64,
}

/// What a user asked for when the model was packed.
#[derive(Serialize, Deserialize)]
struct First {
    binding: Binding,
    keeps_order: bool,
    opening_bytes: u64,
}

/// Programs as they are stored: without weights of their own.
#[derive(Serialize, Deserialize)]
struct Stored {
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

/// Of programs, and of everything else.
const VERSIONS: [u8; 8] = {
    let (code, weights) = (CODE_VERSION.to_le_bytes(), WEIGHTS_VERSION.to_le_bytes());
    [
        code[0], code[1], code[2], code[3], weights[0], weights[1], weights[2], weights[3],
    ]
};

/// Whether all of it was made by code like this build's.
pub(crate) fn is_of_this_build(toc: &[u8]) -> bool {
    toc.starts_with(&VERSIONS)
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
    let first = First {
        binding: cached.binding.clone(),
        keeps_order: cached.order == StepOrder::Given,
        opening_bytes: cached.opening_bytes,
    };
    let stored = Stored {
        parts,
        plain: bare(&programs.plain),
        banded: programs.banded.as_deref().map(bare),
    };
    postcard::to_extend(&(contents, first, stored), VERSIONS.to_vec())
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

/// Reads and checks a table of contents whose weights lie in `data`. There are no programs where those stored were made
/// by another build; [`super::bind`] makes them.
///
/// # Errors
/// A reason.
pub(crate) fn decode(
    toc: &[u8],
    data: Range<u64>,
) -> std::result::Result<(Package, Option<Programs>), String> {
    let (contents, rest) = split(toc, &data)?;
    let (first, rest) = postcard::take_from_bytes::<First>(rest).map_err(unreadable)?;
    let mut values = first.binding.values.values();
    if !values.all(neap_ir::Literal::is_whole) {
        return Err("an input's value has not as much data as its shape says".into());
    }
    let programs = match is_of_this_build(toc) {
        true => Some(programs(rest, &contents.weights, data)?),
        false if contents.skeleton.is_some() => None,
        // A graph that was packed from memory is nowhere else.
        false => return Err(OTHER_BUILD.into()),
    };
    let package = Package {
        skeleton: contents.skeleton,
        binding: first.binding,
        order: match first.keeps_order {
            true => StepOrder::Given,
            false => StepOrder::LeastMemory,
        },
        opening_bytes: first.opening_bytes.min(MOST_OPENING_BYTES),
    };
    Ok((package, programs))
}

/// No model comes near.
const MOST_OPENING_BYTES: u64 = 1 << 40;

const OTHER_BUILD: &str = "packed by another version of neaptide: pack it again";

/// Reads and checks the programs.
fn programs(
    stored: &[u8],
    table: &[Weight],
    data: Range<u64>,
) -> std::result::Result<Programs, String> {
    let stored: Stored = postcard::from_bytes(stored).map_err(unreadable)?;
    let weights = stored.parts.iter().map(|part| whole(part, table));
    let weights = weights.collect::<Option<Vec<Packed>>>();
    let weights = weights.ok_or("a program's weights are not in the table")?;
    let with_weights = |program: Program| Program {
        packed: weights.clone(),
        ..program
    };
    let banded = stored.banded.map(with_weights);
    Programs::checked(with_weights(stored.plain), banded, data)
}

fn unreadable(e: postcard::Error) -> String {
    format!("the table of contents is not readable: {e}")
}

fn split<'t>(
    toc: &'t [u8],
    data: &Range<u64>,
) -> std::result::Result<(Contents, &'t [u8]), String> {
    let (versions, rest) = toc
        .split_first_chunk::<8>()
        .ok_or("the table of contents is empty")?;
    if versions[4..] != VERSIONS[4..] {
        return Err(OTHER_BUILD.into());
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
            let name = packed.name.escape_debug();
            return Err(format!("weights of '{name}' lie outside the file"));
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
