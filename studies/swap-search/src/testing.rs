//! Dataflows for tests.

use crate::dataflow::{Dataflow, DataflowSpec, Operator, Tensor, TensorId, TensorKind};
use neap_planner::Random;

/// Operators that read one to three earlier results and mostly a parameter of their own, sometimes a
/// shared one; some change their first input in place.
pub fn random_flow(seed: u64, ops: u32) -> Dataflow {
    let mut r = Random::new(seed, u32::MAX, 0);
    let mut spec = DataflowSpec::default();
    let add = |kind, bytes: usize, spec: &mut DataflowSpec| {
        spec.tensors.push(Tensor {
            bytes: bytes as u64,
            kind,
        });
        TensorId(spec.tensors.len() as u32 - 1)
    };
    let size = |r: &mut Random| (1 + r.below(6)) * 100;
    let input = add(TensorKind::Input, 100, &mut spec);
    let shared = add(TensorKind::Parameter, 300, &mut spec);
    let mut made = vec![input];
    for i in 0..ops {
        let mut reads: Vec<TensorId> = (0..1 + r.below(3))
            .map(|_| made[r.below(made.len())])
            .collect();
        reads.sort_unstable();
        reads.dedup();
        let in_place = reads[0] != input && r.chance(0.15);
        let target = if in_place {
            reads[0]
        } else {
            let kind = if i + 1 == ops {
                TensorKind::Output
            } else {
                TensorKind::Activation
            };
            let bytes = size(&mut r);
            add(kind, bytes, &mut spec)
        };
        if r.chance(0.7) {
            let bytes = size(&mut r);
            reads.push(add(TensorKind::Parameter, bytes, &mut spec));
        } else if r.chance(0.3) {
            reads.push(shared);
        }
        spec.operators.push(Operator {
            name: format!("op{i}"),
            compute_ns: 50 + r.below(200) as u64,
            reads,
            writes: vec![target],
        });
        if !in_place {
            made.push(target);
        }
    }
    Dataflow::new(spec).expect("it is well-formed")
}

/// A dataflow of given operators: (compute ns, reads, writes); tensors are (bytes, kind).
pub fn flow(tensors: &[(u64, TensorKind)], operators: &[(u64, &[u32], &[u32])]) -> Dataflow {
    let ids = |list: &[u32]| list.iter().map(|&t| TensorId(t)).collect();
    let operators = operators
        .iter()
        .enumerate()
        .map(|(i, (ns, reads, writes))| Operator {
            name: format!("op{}", i + 1),
            compute_ns: *ns,
            reads: ids(reads),
            writes: ids(writes),
        });
    let tensors = tensors.iter().map(|&(bytes, kind)| Tensor { bytes, kind });
    Dataflow::new(DataflowSpec {
        name: "by hand".into(),
        operators: operators.collect(),
        tensors: tensors.collect(),
    })
    .expect("it is well-formed")
}
