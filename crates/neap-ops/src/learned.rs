//! Classical models: n-grams that are counted, and ensembles of decision trees.

use crate::args::Args;
use crate::nd::{GRAIN, Ptr, split};
use crate::scalar::{Scalar, with_float, with_int};
use crate::{Context, OpError};
use neap_ir::learned::{Aggregate, Branch, Test, TfIdf, TreeNode, Trees, Weighting};
use std::cmp::Ordering;

pub(crate) fn tf_idf(attrs: &TfIdf, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let width = attrs.width;
    if width == 0 {
        return Ok(());
    }
    let length = x.shape()[x.shape().len() - 1];
    let to = Ptr::<f32>(y.as_ptr().cast());
    with_int!(args.op, x.dtype(), T => {
        let from = Ptr::<T>::of(x.as_ptr());
        split(ctx.par, y.elements() / width, 1, &|range, _| {
            for row in range {
                // SAFETY: rows do not overlap.
                let result = unsafe { to.slice_mut(row * width, width) };
                // SAFETY: counted places are within the row.
                let item = |at: usize| unsafe { from.read(row * length + at) }.to_i64();
                count(attrs, length, &item, result);
            }
        });
        Ok(())
    })
}

/// Counts the n-grams of one list.
fn count(attrs: &TfIdf, length: usize, item: &dyn Fn(usize) -> i64, result: &mut [f32]) {
    result.fill(0.0);
    let (least, most) = attrs.lengths;
    for distance in 1..=attrs.max_skip.min(length) + 1 {
        // Of a single element nothing can be skipped.
        let least = if distance > 1 { least.max(2) } else { least };
        for size in least..=most.min(length) {
            let reach = (size - 1).saturating_mul(distance);
            if reach >= length {
                break;
            }
            for start in 0..length - reach {
                let items = |i: usize| item(start + i * distance);
                let found = attrs.grams.binary_search_by(|gram| {
                    let mut pairs = gram.items.iter().zip(0..size);
                    let differing = pairs.find_map(|(&a, i)| match a.cmp(&items(i)) {
                        Ordering::Equal => None,
                        other => Some(other),
                    });
                    differing.unwrap_or_else(|| gram.items.len().cmp(&size))
                });
                let Ok(at) = found else { continue };
                let gram = &attrs.grams[at];
                match attrs.weighting {
                    Weighting::Tf => result[gram.place] += 1.0,
                    Weighting::Idf => result[gram.place] = gram.weight,
                    Weighting::TfIdf => result[gram.place] += gram.weight,
                }
            }
        }
    }
}

/// Rows that go through a tree one after the other, while its nodes are near.
const ROWS: usize = 32;

pub(crate) fn trees(attrs: &Trees, args: &Args, ctx: &mut Context) -> Result<(), OpError> {
    let (x, y) = (args.input(0)?, args.output(0)?);
    let (features, targets) = (x.shape()[1], attrs.targets);
    let per_task = GRAIN / (attrs.roots.len() * 32).max(1);
    with_float!(args.op, x.dtype(), T => {
        let (from, to) = (Ptr::<T>::of(x.as_ptr()), Ptr::<T>(y.as_ptr().cast()));
        split(ctx.par, x.shape()[0], per_task, &|range, _| {
            for start in range.clone().step_by(ROWS) {
                let rows = start..range.end.min(start + ROWS);
                // SAFETY: rows of the output do not overlap.
                let sums = unsafe { to.slice_mut(start * targets, rows.len() * targets) };
                together(attrs, sums, rows.len(), &|row, feature| {
                    // SAFETY: features of nodes are below the row's.
                    unsafe { from.read((start + row) * features + feature as usize) }.to_f64()
                });
            }
        });
        Ok(())
    })
}

/// Adds up what all trees say to some rows, in the order of the trees and in the type of the result.
fn together<T: Scalar>(
    attrs: &Trees,
    sums: &mut [T],
    rows: usize,
    feature: &dyn Fn(usize, u32) -> f64,
) {
    let targets = attrs.targets;
    let is_sum = matches!(attrs.aggregate, Aggregate::Sum | Aggregate::Average);
    // Of the least and the largest, NaN says that there is none yet.
    sums.fill(T::from_f64(if is_sum { 0.0 } else { f64::NAN }));
    for &root in &attrs.roots {
        for row in 0..rows {
            let leaf = leaf_of(attrs, root, &|index| feature(row, index));
            for vote in attrs.votes_of(leaf) {
                let sum = &mut sums[row * targets + vote.target as usize];
                let (before, weight) = (sum.to_f64(), T::from_f64(vote.weight).to_f64());
                let after = match attrs.aggregate {
                    Aggregate::Sum | Aggregate::Average => before + weight,
                    Aggregate::Min => before.min(weight),
                    Aggregate::Max => before.max(weight),
                };
                *sum = T::from_f64(after);
            }
        }
    }
    let trees = attrs.roots.len() as f64;
    for sum in sums {
        let value = sum.to_f64();
        let value = match attrs.aggregate {
            Aggregate::Sum => continue,
            Aggregate::Average => value / trees,
            Aggregate::Min | Aggregate::Max if value.is_nan() => 0.0,
            Aggregate::Min | Aggregate::Max => value,
        };
        *sum = T::from_f64(value);
    }
}

/// Where a row comes to in one tree. Branches lead to later nodes only, so there is an end.
fn leaf_of(attrs: &Trees, root: Branch, feature: &impl Fn(u32) -> f64) -> usize {
    let mut at = root;
    loop {
        match at {
            Branch::Leaf(leaf) => return leaf as usize,
            Branch::Node(index) => {
                let node = &attrs.nodes[index as usize];
                let passes = passes(node, feature(node.feature), &attrs.members);
                at = if passes { node.passed } else { node.failed };
            }
        }
    }
}

fn passes(node: &TreeNode, x: f64, members: &[f64]) -> bool {
    if x.is_nan() && node.missing_passes {
        return true;
    }
    match node.test {
        Test::LessOrEqual => x <= node.value,
        Test::Less => x < node.value,
        Test::GreaterOrEqual => x >= node.value,
        Test::Greater => x > node.value,
        Test::Equal => x == node.value,
        Test::NotEqual => x != node.value,
        Test::Member { start, end } => {
            let set = &members[start as usize..end as usize];
            set.binary_search_by(|m| m.partial_cmp(&x).unwrap_or(Ordering::Less))
                .is_ok()
        }
    }
}
