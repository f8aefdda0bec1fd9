//! Lowers a graph of the tests and looks at what came of it.

use crate::build::Net;
use crate::interpret;
use neap_ir::{Graph, Literal, ValueId};
use neap_rewrite::{BandLimits, ConstReader, Lowered, with_bands};

/// Row bands even where they are hardly worth it.
pub const EAGER: BandLimits = BandLimits {
    weight_bytes: 1 << 20,
    least_line_bytes: 0,
    most_line_bytes: 4096,
    enough_bytes: 0,
};

/// All constants are inline in these tests.
struct NoFiles;

impl ConstReader for NoFiles {
    fn read(&mut self, graph: &Graph, value: ValueId) -> Result<Literal, String> {
        Err(format!("'{}' was to be read", graph.value(value).name))
    }
}

impl Net {
    /// Lowers, and interprets original and program on random inputs: equal within rounding.
    pub fn lower(&mut self) -> Lowered {
        self.graph.check().expect("the test's graph is sound");
        let lowered =
            neap_rewrite::lower(self.graph.clone(), "test".into(), &mut NoFiles).expect("lowers");
        interpret::compare(&self.graph, &lowered, &lowered.program, &mut self.random);
        if let Some(banded) = with_bands(&lowered.program, &EAGER) {
            interpret::compare(&self.graph, &lowered, &banded, &mut self.random);
        }
        lowered
    }
}

/// Names of the operators that remain to be computed, in order.
pub fn steps(lowered: &Lowered) -> Vec<&'static str> {
    let program = &lowered.program;
    let name = |n: &neap_ir::NodeId| program.graph.nodes[n.index()].op.name();
    program.steps.iter().map(name).collect()
}

/// Operators that remain, whether computed or not.
pub fn nodes(lowered: &Lowered) -> Vec<&'static str> {
    let nodes = &lowered.program.graph.nodes;
    nodes.iter().map(|n| n.op.name()).collect()
}
