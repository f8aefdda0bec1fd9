//! From a graph to programs.

use crate::error::LowerError;
use crate::programs::{Programs, StepOrder, check_supported};
use crate::{Kernels, Target, workload};
use neap_ir::{Const, Graph, Program};
use neap_kernels::simd::Isa;
use neap_rewrite::{ConstReader, Lowered};

/// No machine has so much memory; a workload's check refuses what is larger.
const MOST_BYTES: u64 = 1 << 44;

/// Lowers a graph whose constants `constants` reads; its weights have no offsets yet.
///
/// # Errors
/// For what is not supported, cannot be read or could never be planned.
pub fn lower(graph: Graph, constants: &mut dyn ConstReader) -> Result<Lowered, LowerError> {
    let digest = digest(&graph);
    let lowered = neap_rewrite::lower(graph, digest, constants)?;
    check_supported(&lowered.program)?;
    // Before hours are spent on weights that no plan could be made of.
    let target = Target {
        threads: 1,
        isa: Isa::detect(),
    };
    let workload = workload(&lowered.program, target, Kernels::Direct);
    let bytes = workload.buffers.iter().map(|b| b.bytes).max().unwrap_or(0);
    if bytes >= MOST_BYTES {
        return Err(LowerError::TooLarge { bytes });
    }
    neap_plan::check_workload(&workload)
        .map_err(|reason| LowerError::Unplannable(reason.to_string()))?;
    Ok(lowered)
}

/// Lowers a graph as it is: nothing fused, constants in the model's own layout.
///
/// # Errors
/// For what is not supported.
pub fn lower_plainly(graph: Graph) -> Result<Program, LowerError> {
    let digest = digest(&graph);
    let program = neap_rewrite::lower_plainly(graph, digest)?;
    check_supported(&program)?;
    Ok(program)
}

/// Of a program whose weights have their offsets.
///
/// # Errors
/// For a program that does not hold together, or one of whose variants is not supported.
pub fn finished(program: Program, order: StepOrder) -> Result<Programs, LowerError> {
    program.check()?;
    let programs = Programs::new(program, order);
    if let Some(banded) = &programs.banded {
        banded.check()?;
        check_supported(banded)?;
    }
    Ok(programs)
}

/// Of the graph and its shapes, wherever its files lie.
fn digest(graph: &Graph) -> String {
    let mut hasher = blake3::Hasher::new();
    let Graph {
        values,
        nodes,
        inputs,
        outputs,
        states,
        ..
    } = graph;
    let parts = (values, nodes, inputs, outputs, states);
    let mut encoded = postcard::to_allocvec(&parts).expect("encoding into memory cannot fail");
    for data in &graph.consts {
        match data {
            Const::Inline(literal) => {
                let ty = literal.ty();
                encoded = postcard::to_extend(&ty, encoded).expect("as above");
                hasher.update(literal.bytes());
            }
            other => encoded = postcard::to_extend(other, encoded).expect("as above"),
        }
    }
    hasher.update(&encoded);
    hasher.finalize().to_hex()[..32].to_string()
}
