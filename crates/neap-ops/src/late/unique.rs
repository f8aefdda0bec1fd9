//! Unique: distinct values, or distinct parts along an axis.

use super::Call;
use crate::args::{Scratch, scratch_bytes};
use crate::scalar::with_any;
use crate::{Context, OpError};
use neap_ir::TensorType;
use std::cmp::Ordering;

/// Lists of one number per part.
const LISTS: usize = 5;

pub(super) fn workspace_bytes(shape: &[usize]) -> usize {
    // Along any axis there are no more parts than elements.
    let parts = shape
        .iter()
        .fold(1usize, |n, &d| n.saturating_mul(d.max(1)));
    scratch_bytes::<u32>(parts).saturating_mul(LISTS)
}

/// How a tensor is divided into parts: part `i` has `run` elements at each of `outer` places.
#[derive(Clone, Copy)]
struct Parts {
    outer: usize,
    count: usize,
    run: usize,
}

impl Parts {
    fn elements(self, part: usize) -> impl Iterator<Item = usize> {
        let starts = (0..self.outer).map(move |o| (o * self.count + part) * self.run);
        starts.flat_map(move |start| start..start + self.run)
    }
}

pub(super) fn unique(
    axis: Option<usize>,
    sorted: bool,
    call: &mut Call,
    ctx: &mut Context,
) -> Result<(), OpError> {
    let x = call.args.input(0)?;
    let flat = [x.elements()];
    let (shape, axis) = match axis {
        Some(axis) => (x.shape(), axis),
        None => (&flat[..], 0),
    };
    call.args.require(axis < shape.len(), "has no such axis")?;
    let parts = Parts {
        outer: shape[..axis].iter().product(),
        count: shape[axis],
        run: shape[axis + 1..].iter().product(),
    };
    call.args
        .require(u32::try_from(parts.count).is_ok(), "takes so long an axis")?;
    let mut scratch = Scratch::new(call.args.op, ctx.workspace);
    let mut list = || scratch.take::<u32>(parts.count);
    let (order, first, counts) = (list()?, list()?, list()?);
    let (group, rank) = (list()?, list()?);

    with_any!(x.dtype(), T => {
        let from = x.as_ptr().cast::<T>();
        // SAFETY: the element is inside the tensor.
        let at = |i: usize| unsafe { *from.add(i) };
        let compare = |a: usize, b: usize| {
            let mut pairs = parts.elements(a).zip(parts.elements(b));
            pairs.find_map(|(i, j)| Some(by_value(&at(i), &at(j))).filter(|o| o.is_ne()))
                .unwrap_or(Ordering::Equal)
        };
        // What is not equal to itself, such as NaN, is distinct from all.
        let same = |a: usize, b: usize| {
            parts.elements(a).zip(parts.elements(b)).all(|(i, j)| at(i) == at(j))
        };
        for (i, o) in order.iter_mut().enumerate() {
            *o = i as u32;
        }
        sort(order, &|a, b| compare(a as usize, b as usize).then(a.cmp(&b)));
        let mut groups = 0;
        for i in 0..parts.count {
            let part = order[i];
            if i == 0 || !same(order[i - 1] as usize, part as usize) {
                (first[groups], counts[groups]) = (part, 0);
                groups += 1;
            }
            counts[groups - 1] += 1;
            group[part as usize] = groups as u32 - 1;
        }
        // From here on `order` lists groups in the order in which they are given.
        let order = &mut order[..groups];
        for (i, o) in order.iter_mut().enumerate() {
            *o = i as u32;
        }
        if !sorted {
            sort(order, &|g, h| first[g as usize].cmp(&first[h as usize]));
        }
        for (i, &g) in order.iter().enumerate() {
            rank[g as usize] = i as u32;
        }

        let mut given = shape.to_vec();
        given[axis] = groups;
        let ty = TensorType::new(x.dtype(), &given);
        if let Some(place) = call.admit(0, &ty)? {
            let to = place.as_ptr().cast::<T>();
            let result = Parts { count: groups, ..parts };
            for (i, &g) in order.iter().enumerate() {
                let pairs = result.elements(i).zip(parts.elements(first[g as usize] as usize));
                for (to_at, from_at) in pairs {
                    // SAFETY: the place holds `groups` parts.
                    unsafe { to.add(to_at).write(at(from_at)) };
                }
            }
        }
        let outputs = call.args.outputs.len();
        if outputs > 1 {
            let firsts = order.iter().map(|&g| i64::from(first[g as usize]));
            call.indices(1, &[groups], firsts)?;
        }
        if outputs > 2 {
            let inverse = group.iter().map(|&g| i64::from(rank[g as usize]));
            call.indices(2, &[parts.count], inverse)?;
        }
        if outputs > 3 {
            let counts = order.iter().map(|&g| i64::from(counts[g as usize]));
            call.indices(3, &[groups], counts)?;
        }
        Ok(())
    })
}

/// One function for all types of elements: sorting is much code.
fn sort(order: &mut [u32], before: &dyn Fn(u32, u32) -> Ordering) {
    order.sort_unstable_by(|&a, &b| before(a, b));
}

/// What has no order, such as NaN, comes last.
fn by_value<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    a.partial_cmp(b).unwrap_or_else(|| {
        let is_odd = |x: &T| x.partial_cmp(x).is_none();
        is_odd(a).cmp(&is_odd(b))
    })
}
