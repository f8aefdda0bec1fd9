//! From a graph to programs, for whoever packs weights and whoever finds them packed.

use crate::error::{Error, Result};
use neap_compile::{Kernels, Programs, StepOrder, Target, check_supported, workload};
use neap_ir::{Const, Graph, Program};
use neap_kernels::simd::Isa;
use neap_rewrite::{ConstReader, Lowered};

/// Changes with the code that makes what packed files hold, from which the build script derives it; part of every file.
pub(crate) const CODE_VERSION: u32 = number(env!("NEAPTIDE_CODE_VERSION"));

/// The same of weights, their table and the skeleton alone. Programs can be made of these in another build too.
pub(crate) const WEIGHTS_VERSION: u32 = number(env!("NEAPTIDE_WEIGHTS_VERSION"));

const fn number(text: &str) -> u32 {
    match u32::from_str_radix(text, 10) {
        Ok(version) => version,
        Err(_) => panic!("the build script gives a number"),
    }
}

/// Lowers a graph whose constants `constants` reads; its weights have no offsets yet.
///
/// # Errors
/// [`Error::BadInput`] for what is not supported or cannot be read.
pub(crate) fn lower(graph: Graph, constants: &mut dyn ConstReader) -> Result<Lowered> {
    let digest = digest(&graph);
    let lowered = neap_rewrite::lower(graph, digest, constants)?;
    check_supported(&lowered.program)?;
    // Before hours are spent on weights that no plan could be made of.
    let target = Target {
        threads: 1,
        isa: Isa::detect(),
    };
    let workload = workload(&lowered.program, target, Kernels::Direct);
    neap_plan::check_workload(&workload)
        .map_err(|reason| Error::BadInput(format!("the model cannot be planned: {reason}")))?;
    Ok(lowered)
}

/// Of a program whose weights have their offsets.
pub(crate) fn finished(program: Program, order: StepOrder) -> Result<Programs> {
    program.check()?;
    let programs = Programs::new(program, order);
    if let Some(banded) = &programs.banded {
        banded.check()?;
        check_supported(banded)?;
    }
    Ok(programs)
}

/// Of the graph and its shapes, wherever its files lie.
pub(crate) fn digest(graph: &Graph) -> String {
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
