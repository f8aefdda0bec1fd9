//! In which type the weights of a step are stored, streamed and kept.

use crate::model::Model;
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, NodeId, Op};

impl Model {
    /// As numpy names it; `float32` for a node without weights.
    pub fn stored_type(&self, node: NodeId) -> &'static str {
        let program = self.program();
        let node = &program.graph.nodes[node.index()];
        let packed = node.panels.map(|id| &program.packed[id.index()].form);
        if let Some(&PackedForm::Panels { format, .. }) = packed {
            return format.element.name();
        }
        if let Op::GatherRows { stored, .. } = node.op {
            return stored.name();
        }
        let constants = node.present_inputs().filter(|&v| {
            let data = program.graph.constant(v);
            matches!(data, Some(Const::Packed(_)))
        });
        let largest = constants.max_by_key(|&v| program.graph.ty(v).len_bytes());
        largest.map_or("float32", |v| {
            let packed = match program.graph.constant(v) {
                Some(Const::Packed(id)) => Some(&program.packed[id.index()].form),
                _ => None,
            };
            match packed {
                Some(PackedForm::Panels { format, .. }) => format.element.name(),
                _ => program.graph.ty(v).dtype.name(),
            }
        })
    }
}
