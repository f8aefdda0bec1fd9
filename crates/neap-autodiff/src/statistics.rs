//! Batch normalisations that normalise by the batch's statistics, and move the model's towards them.

use crate::emit::Emit;
use crate::error::AutodiffError;
use neap_ir::{Op, ValueId};

/// A statistic of the model, and what it becomes.
pub(crate) struct Moved {
    pub running: ValueId,
    pub replaced_by: ValueId,
}

/// Makes every normalisation by constant statistics one by the batch's. Gives what becomes of the statistics.
pub(crate) fn of_batches(emit: &mut Emit, momentum: f32) -> Result<Vec<Moved>, AutodiffError> {
    let mut found = Vec::new();
    for index in 0..emit.graph.nodes.len() {
        let node = &emit.graph.nodes[index];
        let Op::BatchNorm { epsilon } = node.op else {
            continue;
        };
        let [Some(x), Some(scale), Some(bias), Some(mean), Some(variance)] = node.inputs[..] else {
            continue;
        };
        let is_constant = |v: ValueId| emit.graph.value(v).constant.is_some();
        if !is_constant(mean) || !is_constant(variance) {
            continue;
        }
        let name = node.name.clone();
        let shape = emit.shape(x);
        let count = shape.iter().product::<usize>() / shape[1].max(1);
        if count < 2 {
            return Err(AutodiffError::NoDerivative {
                node: name,
                op: "BatchNormalization",
                reason: "a batch of one value has no variance".into(),
            });
        }
        let ty = emit.ty(mean).clone();
        let batch = ["mean", "variance"].map(|what| {
            let name = format!("{name}/{what}");
            emit.graph.add_value(name, ty.clone())
        });
        let node = &mut emit.graph.nodes[index];
        node.op = Op::BatchNormTraining { epsilon };
        node.inputs = vec![Some(x), Some(scale), Some(bias)];
        node.outputs = vec![node.outputs[0], Some(batch[0]), Some(batch[1])];
        found.push(([mean, variance], batch, count));
    }
    let mut moved = Vec::new();
    for (running, batch, count) in found {
        let unbiased = count as f64 / (count - 1) as f64;
        for (i, factor) in [1.0, unbiased].into_iter().enumerate() {
            let momentum = f64::from(momentum);
            let kept = emit.scale(running[i], 1.0 - momentum)?;
            let taken = emit.scale(batch[i], momentum * factor)?;
            moved.push(Moved {
                running: running[i],
                replaced_by: emit.add(kept, taken)?,
            });
        }
    }
    Ok(moved)
}
