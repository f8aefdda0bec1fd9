//! That the spaces make sense, and that everything lies in a space of the right kind, inside it and aligned.

use crate::{BLOCK_BYTES, ExecutionPlan as Plan, Place, SpaceKind, Violation};

/// Sizes that address arithmetic can be done with, and alignments that blocks can be read to.
pub(super) fn check_spaces(plan: &Plan) -> Result<(), Violation> {
    const LIMIT: u64 = 1 << 46;
    if plan.spaces.len() > usize::from(u8::MAX) {
        return Err(Violation::Spaces("there are too many".into()));
    }
    for (i, space) in plan.spaces.iter().enumerate() {
        let is_aligned = space.align.is_power_of_two() && space.align >= BLOCK_BYTES;
        if space.bytes >= LIMIT || !is_aligned {
            return Err(Violation::Spaces(format!(
                "space {i}, {:?}, has {} bytes aligned to {}",
                space.name, space.bytes, space.align
            )));
        }
    }
    Ok(())
}

/// Whether `bytes` at a place lie in a space of that kind.
pub(super) fn inside(
    plan: &Plan,
    what: impl Fn() -> String,
    at: Place,
    bytes: u64,
    kind: SpaceKind,
) -> Result<(), Violation> {
    let space = plan.space(at.space).filter(|space| space.kind == kind);
    let Some(space) = space else {
        return Err(Violation::WrongSpace {
            what: what(),
            at,
            kind,
        });
    };
    match at.offset.checked_add(bytes) {
        Some(end) if end <= space.bytes => Ok(()),
        _ => Err(Violation::OutsideSpace {
            what: what(),
            at,
            bytes,
            space_bytes: space.bytes,
        }),
    }
}

/// Whether a place is a multiple of `align`.
pub(super) fn aligned(what: impl Fn() -> String, at: Place, align: u64) -> Result<(), Violation> {
    match at.offset.is_multiple_of(align) {
        true => Ok(()),
        false => Err(Violation::Misaligned {
            what: what(),
            offset: at.offset,
            align,
        }),
    }
}

/// Whole blocks of the packed file.
pub(super) fn check_file_range(
    plan: &Plan,
    what: impl Fn() -> String,
    from: Place,
    bytes: u64,
) -> Result<(), Violation> {
    let what = || format!("the file range of {}", what());
    aligned(what, from, BLOCK_BYTES)?;
    if !bytes.is_multiple_of(BLOCK_BYTES) || bytes == 0 {
        return Err(Violation::Misaligned {
            what: what(),
            offset: bytes,
            align: BLOCK_BYTES,
        });
    }
    inside(plan, what, from, bytes, SpaceKind::Packed)
}
