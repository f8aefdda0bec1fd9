//! Lowers a graph of the tests and looks at what came of it.

use crate::build::Net;
use crate::interpret;
use neap_ir::{Graph, Literal, Program, ValueId};
use neap_rewrite::{
    BandLimits, ConstReader, Lowered, OrderLimits, step_bytes, with_bands, with_less_memory,
    with_strips,
};

/// Row bands even where they are hardly worth it.
pub const EAGER: BandLimits = BandLimits {
    weight_bytes: 1 << 20,
    least_line_bytes: 0,
    most_line_bytes: 4096,
    enough_bytes: 0,
    enough_in_integers_bytes: 0,
};

/// Other orders even where they gain hardly anything.
pub const ANY_GAIN: OrderLimits = OrderLimits {
    enough_bytes: 0,
    peak_gain: 0.0,
    most_nodes: 4096,
};

/// Strips of single rows, and of several.
pub const STRIP_BYTES: [u64; 4] = [0, 300, 1500, 6000];

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
        let banded = with_bands(&lowered.program, &EAGER);
        if let Some(banded) = &banded {
            interpret::compare(&self.graph, &lowered, banded, &mut self.random);
        }
        for bytes in STRIP_BYTES {
            if let Some(found) = with_strips(&lowered.program, bytes) {
                interpret::compare(&self.graph, &lowered, &found, &mut self.random);
            }
        }
        for given in [Some(&lowered.program), banded.as_ref()]
            .into_iter()
            .flatten()
        {
            if let Some(found) = with_less_memory(given, &ANY_GAIN) {
                let peak_bytes = |p: &Program| step_bytes(p).into_iter().max();
                assert!(peak_bytes(&found) <= peak_bytes(given));
                interpret::compare(&self.graph, &lowered, &found, &mut self.random);
            }
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
