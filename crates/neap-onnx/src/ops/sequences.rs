//! Sequences and optionals that only pass tensors: lists that the reader keeps, so that no kernel has to know them. Where an
//! element is taken must be known when the model is opened.

use crate::containers::Container;
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs, one};
use neap_ir::{DType, Literal, Op, ValueId};

/// Longer ones are lists of a size that no model writes out.
const MOST_ELEMENTS: usize = 1_000;

/// Operators that take a sequence or an optional.
const TAKING: [&str; 9] = [
    "ConcatFromSequence",
    "Identity",
    "Optional",
    "OptionalGetElement",
    "OptionalHasElement",
    "SequenceAt",
    "SequenceErase",
    "SequenceInsert",
    "SequenceLength",
];

/// # Errors
/// The operator reads tensors only, and one of its operands is none.
pub(super) fn check_operands(c: &Ctx, op: &str, domain: &str) -> Result<(), OnnxError> {
    match domain.is_empty() && TAKING.contains(&op) {
        true => Ok(()),
        false => c.builder.check_tensors(c.at(), &c.inputs),
    }
}

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "SequenceEmpty" => sequence(c, Vec::new()),
        "SequenceConstruct" => construct(c),
        "SequenceInsert" => insert(c),
        "SequenceErase" => erase(c),
        "SequenceAt" => one(at(c)),
        "SequenceLength" => length(c),
        "ConcatFromSequence" => one(concat(c)),
        "SplitToSequence" => split(c),
        "Optional" => optional(c),
        "OptionalHasElement" => has_element(c),
        "OptionalGetElement" => one(element(c)),
        "Identity" => return container(c).map(|marker| Ok(vec![Some(marker)])),
        _ => return None,
    })
}

/// The first operand, if it is a sequence or an optional.
fn container(c: &Ctx) -> Option<ValueId> {
    let first = c.optional(0)?;
    c.builder.containers.get(first).map(|_| first)
}

fn elements(c: &Ctx) -> Result<Vec<ValueId>, OnnxError> {
    match c.builder.containers.get(c.input(0)?) {
        Some(Container::Sequence(elements)) => Ok(elements.clone()),
        _ => Err(c.bad("its first input is no sequence")),
    }
}

fn sequence(c: &mut Ctx, elements: Vec<ValueId>) -> Outputs {
    if elements.len() > MOST_ELEMENTS {
        return Err(c.unsupported("so long a sequence"));
    }
    let all: Vec<Option<ValueId>> = elements.iter().copied().map(Some).collect();
    c.builder.check_tensors(c.at(), &all)?;
    let kinds = elements.iter().map(|&v| (c.dtype(v), c.builder.narrow(v)));
    let kinds: Vec<_> = kinds.collect();
    if kinds.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(c.bad("its elements have different types"));
    }
    let marker = c.builder.container(Container::Sequence(elements));
    Ok(vec![Some(marker)])
}

fn construct(c: &mut Ctx) -> Outputs {
    let elements = c.variadic()?;
    sequence(c, elements)
}

/// A place of a sequence that has so many, from the back where it is negative.
fn place(c: &mut Ctx, index: usize, places: usize) -> Result<Option<usize>, OnnxError> {
    let Some(given) = c.known_scalar(index, "its position")? else {
        return Ok(None);
    };
    let from_front = match given < 0 {
        true => given.checked_add(places as i64),
        false => Some(given),
    };
    let place = from_front.and_then(|p| usize::try_from(p).ok());
    match place.filter(|&p| p < places) {
        Some(place) => Ok(Some(place)),
        None => Err(c.bad(format!("position {given} is outside of its sequence"))),
    }
}

fn insert(c: &mut Ctx) -> Outputs {
    let mut all = elements(c)?;
    let tensor = c.input(1)?;
    let last = all.len();
    // From the back it counts the elements that there are.
    let negative = c.known_scalar(2, "its position")?.is_some_and(|p| p < 0);
    let places = if negative { last } else { last + 1 };
    let place = place(c, 2, places)?.unwrap_or(last);
    all.insert(place, tensor);
    sequence(c, all)
}

fn erase(c: &mut Ctx) -> Outputs {
    let mut all = elements(c)?;
    if all.is_empty() {
        return Err(c.bad("its sequence is empty"));
    }
    let place = place(c, 1, all.len())?.unwrap_or(all.len() - 1);
    all.remove(place);
    sequence(c, all)
}

fn at(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let all = elements(c)?;
    let place = place(c, 1, all.len())?;
    let place = place.ok_or_else(|| c.bad("input 1 is missing"))?;
    Ok(all[place])
}

fn length(c: &mut Ctx) -> Outputs {
    let length = elements(c)?.len() as i64;
    one(Ok(c.constant(Literal::from_i64(&[], &[length]))))
}

fn concat(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let mut all = elements(c)?;
    let Some(&first) = all.first() else {
        return Err(c.bad("its sequence is empty"));
    };
    let is_new = c.flag("new_axis", false)?;
    let axis = c.optional_int("axis")?;
    let axis = axis.ok_or_else(|| c.bad("attribute 'axis' is missing"))?;
    let axis = c.axis(axis, c.rank(first) + usize::from(is_new))?;
    if is_new {
        for value in &mut all {
            let mut shape = c.shape(*value);
            if axis > shape.len() {
                return Err(c.bad("its elements have different numbers of axes"));
            }
            shape.insert(axis, 1);
            *value = c.reshape(*value, &shape)?;
        }
    }
    let whole = c.emit(Op::Concat { axis }, &all)?;
    if let Some(narrow) = c.builder.narrow(first) {
        c.builder.set_narrow(whole, narrow);
    }
    Ok(whole)
}

fn split(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    if c.builder.is_late(x) {
        return Err(c.unsupported("a size that is known only when running"));
    }
    let mut shape = c.shape(x);
    let axis = c.axis(c.int("axis", 0)?, shape.len())?;
    let size = shape[axis];
    // Before there is a list of them.
    let check = |c: &Ctx, parts: usize| match parts > MOST_ELEMENTS {
        true => Err(c.unsupported("so long a sequence")),
        false => Ok(()),
    };
    let sizes = match c.optional(1) {
        None => {
            check(c, size)?;
            vec![1; size]
        }
        Some(given) => {
            let is_one = c.rank(given) == 0;
            let given = c.known_i64(given, "its split")?;
            let given = given.iter().map(|&v| c.checked_size("a size", v));
            let given = given.collect::<Result<Vec<_>, _>>()?;
            match given[..] {
                [0] if is_one => return Err(c.bad("it splits into parts of 0")),
                [part] if is_one => {
                    check(c, size.div_ceil(part))?;
                    let starts = (0..size).step_by(part);
                    starts.map(|start| part.min(size - start)).collect()
                }
                _ => given,
            }
        }
    };
    check(c, sizes.len())?;
    let sum = sizes
        .iter()
        .try_fold(0usize, |sum, &part| sum.checked_add(part));
    if sum != Some(size) {
        return Err(c.bad(format!("its parts {sizes:?} are not {size} together")));
    }
    if sizes.is_empty() {
        return sequence(c, Vec::new());
    }
    let wanted = vec![true; sizes.len()];
    let parts = c.emit_wanted(Op::Split { axis, sizes }, &[Some(x)], &wanted)?;
    let mut parts: Vec<ValueId> = parts.into_iter().flatten().collect();
    if c.optional(1).is_none() && !c.flag("keepdims", true)? {
        shape.remove(axis);
        for part in &mut parts {
            *part = c.reshape(*part, &shape)?;
        }
    }
    if let Some(narrow) = c.builder.narrow(x) {
        for &part in &parts {
            c.builder.set_narrow(part, narrow);
        }
    }
    sequence(c, parts)
}

fn optional(c: &mut Ctx) -> Outputs {
    let held = c.optional(0);
    if let Some(Container::Optional(_)) = held.and_then(|v| c.builder.containers.get(v)) {
        return Err(c.unsupported("an optional of an optional"));
    }
    let marker = c.builder.container(Container::Optional(held));
    Ok(vec![Some(marker)])
}

fn has_element(c: &mut Ctx) -> Outputs {
    let has = match c.optional(0) {
        None => false,
        Some(value) => c.builder.containers.get(value) != Some(&Container::Optional(None)),
    };
    let mut literal = Literal::zeros(DType::Bool, &[]);
    literal.bytes_mut()[0] = has.into();
    one(Ok(c.constant(literal)))
}

fn element(c: &mut Ctx) -> Result<ValueId, OnnxError> {
    let value = c.input(0)?;
    match c.builder.containers.get(value) {
        Some(Container::Optional(Some(held))) => Ok(*held),
        Some(Container::Optional(None)) => Err(c.bad("its optional holds nothing")),
        // Since opset 18.
        Some(Container::Sequence(_)) | None => Ok(value),
    }
}
