//! Types of classical models, whose tables are checked, as they may come from a file.

use super::{Inferred, Operands, is_int};
use crate::learned::{Branch, Test, TfIdf, Trees};
use crate::{DType, TensorType};

pub(super) fn tf_idf(attrs: &TfIdf, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require(is_int(x.dtype), "takes integers")?;
    o.require(
        (1..=2).contains(&x.shape.len()),
        "takes one or several lists",
    )?;
    let grams = &attrs.grams;
    let fits = grams.iter().all(|g| g.place < attrs.width)
        && grams.is_sorted_by(|a, b| a.items <= b.items)
        && attrs.lengths.0 > 0;
    o.require(fits, "has n-grams that do not fit its results")?;
    let mut shape = x.shape[..x.shape.len() - 1].to_vec();
    shape.push(attrs.width);
    Ok(vec![TensorType::new(DType::F32, &shape)])
}

pub(super) fn trees(attrs: &Trees, o: &Operands) -> Inferred<Vec<TensorType>> {
    let x = o.get(0)?;
    o.require(
        matches!(x.dtype, DType::F32 | DType::F64),
        "takes float32 or float64",
    )?;
    let &[rows, features] = &x.shape[..] else {
        return o.fail("takes a matrix");
    };
    o.require(features >= attrs.features, "has nodes of other features")?;
    let is_there = |branch: &Branch, after: Option<usize>| match branch {
        Branch::Leaf(leaf) => (*leaf as usize) < attrs.leaves.len(),
        Branch::Node(node) => {
            let node = *node as usize;
            node < attrs.nodes.len() && after.is_none_or(|after| node > after)
        }
    };
    let mut nodes = attrs.nodes.iter().enumerate();
    let whole = attrs.roots.iter().all(|root| is_there(root, None))
        && nodes.all(|(i, node)| {
            let members = match node.test {
                Test::Member { start, end } => start <= end && end as usize <= attrs.members.len(),
                _ => true,
            };
            members
                && (node.feature as usize) < attrs.features
                && is_there(&node.passed, Some(i))
                && is_there(&node.failed, Some(i))
        })
        && attrs.leaves.is_sorted()
        && (attrs.leaves.last()).is_none_or(|&end| end as usize <= attrs.votes.len())
        && (attrs.votes.iter()).all(|vote| (vote.target as usize) < attrs.targets);
    o.require(whole, "has trees that are not whole")?;
    Ok(vec![TensorType::new(x.dtype, &[rows, attrs.targets])])
}
