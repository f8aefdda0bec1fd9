//! Which constants of a model are its parameters.

use crate::error::AutodiffError;
use neap_ir::update::Update;
use neap_ir::{Const, FileId, Graph, Op, ValueId};

/// Constants that a training would move: floating-point weights, biases, scales and tables. Statistics of batch
/// normalisations are none, nor are single numbers outside of a parameter's place, which are part of a formula.
pub fn parameters(graph: &Graph) -> Vec<ValueId> {
    let mut is_parameter = vec![false; graph.values.len()];
    for node in &graph.nodes {
        for (index, input) in node.inputs.iter().enumerate() {
            let Some(value) = *input else {
                continue;
            };
            if graph.value(value).constant.is_none() || !graph.ty(value).dtype.is_float() {
                continue;
            }
            let trained = match node.op {
                Op::Conv(..) | Op::ConvTranspose { .. } | Op::Gemm { .. } => index > 0,
                Op::LayerNorm { .. } | Op::RmsNorm { .. } | Op::InstanceNorm { .. } => index > 0,
                Op::GroupNorm { .. } => index > 0,
                Op::BatchNorm { .. } | Op::BatchNormTraining { .. } => index == 1 || index == 2,
                _ => graph.ty(value).elements() > 1,
            };
            is_parameter[value.index()] |= trained;
        }
    }
    let ids = (0..graph.values.len() as u32).map(ValueId);
    ids.filter(|v| is_parameter[v.index()]).collect()
}

/// Refuses constants that are listed twice, or whose bytes are also another constant's: training one would part them.
pub(crate) fn check_apart(
    graph: &Graph,
    trained: &[(ValueId, Update)],
) -> Result<(), AutodiffError> {
    let mut is_trained = vec![false; graph.values.len()];
    for &(value, _) in trained {
        let Some(slot) = is_trained.get_mut(value.index()) else {
            return Err(AutodiffError::Request("no such value".into()));
        };
        if std::mem::replace(slot, true) {
            let name = &graph.value(value).name;
            return Err(AutodiffError::Request(format!("'{name}' is listed twice")));
        }
    }
    let is_trained = |v: ValueId| is_trained[v.index()];
    match (shared(graph).into_iter())
        .find(|&(first, second)| is_trained(first) || is_trained(second))
    {
        Some((first, second)) => Err(AutodiffError::Request(format!(
            "'{}' and '{}' share their data: training one would part them",
            graph.value(first).name,
            graph.value(second).name
        ))),
        None => Ok(()),
    }
}

/// Pairs of constants that nodes read and that have stored bytes in common. Each such constant is in one pair or more.
pub(crate) fn shared(graph: &Graph) -> Vec<(ValueId, ValueId)> {
    let mut read = vec![false; graph.values.len()];
    for node in &graph.nodes {
        node.present_inputs().for_each(|v| read[v.index()] = true);
    }
    let ids = (0..graph.values.len() as u32).map(ValueId);
    let mut stored: Vec<_> = ids
        .filter(|v| read[v.index()])
        .filter_map(|v| match graph.constant(v) {
            Some(Const::Stored { range, .. }) => Some((range.file, range.offset, range.bytes, v)),
            _ => None,
        })
        .collect();
    stored.sort();
    let mut pairs = Vec::new();
    // Of those so far the one that ends last.
    let mut last: Option<(FileId, u64, ValueId)> = None;
    for (file, offset, bytes, value) in stored {
        let end = offset + bytes;
        let before = last.filter(|&(of, last_end, _)| of == file && offset < last_end);
        if let Some((_, _, other)) = before {
            pairs.push((other, value));
        }
        if before.is_none_or(|(_, last_end, _)| last_end < end) {
            last = Some((file, end, value));
        }
    }
    pairs
}
