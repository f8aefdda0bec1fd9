//! Nodes that an exporter left in training mode.

use super::Replaceable;
use crate::error::OnnxError;
use crate::proto::{AttributeValue, NodeProto};

/// The first opset whose normalisations say their mode by an attribute, and whose dropouts by an input.
const NORM_BY_ATTRIBUTE: i64 = 14;

impl Replaceable {
    /// Has batch normalisations go by the model's statistics, as they do in inference. How many were changed.
    ///
    /// # Errors
    /// The model cannot be read, or something reads what a normalisation gives in training alone.
    pub fn set_norms_to_inference(&mut self) -> Result<usize, OnnxError> {
        let view = self.view()?;
        let mut changed = 0;
        for (index, node) in view.graph.nodes.iter().enumerate() {
            let in_training = node.op_type == "BatchNormalization"
                && (node.outputs.len() > 1
                    || view.opset >= NORM_BY_ATTRIBUTE && flag(node, "training_mode"));
            if !in_training {
                continue;
            }
            if let Some(read) = node.outputs[1..].iter().find(|name| view.is_read(name)) {
                return Err(OnnxError::Unsupported {
                    node: super::graph::name_of(node),
                    op: node.op_type.clone(),
                    reason: format!("a model that reads a normalisation's statistics ('{read}')"),
                });
            }
            self.change_node(index, &node.inputs, &node.outputs[..1], &["training_mode"])?;
            changed += 1;
        }
        Ok(changed)
    }

    /// Has dropouts let everything through, as they do in inference. How many were changed.
    ///
    /// # Errors
    /// The model cannot be read.
    pub fn set_dropouts_to_inference(&mut self) -> Result<usize, OnnxError> {
        let view = self.view()?;
        let mut changed = 0;
        for (index, node) in view.graph.nodes.iter().enumerate() {
            let has_mode = node.op_type == "Dropout" && node.inputs.len() > 2;
            if has_mode {
                self.change_node(index, &node.inputs[..2], &node.outputs, &[])?;
                changed += 1;
            }
        }
        Ok(changed)
    }
}

pub(super) fn flag(node: &NodeProto, name: &str) -> bool {
    let found = node.attributes.iter().find(|a| a.name == name);
    matches!(found.map(|a| &a.value), Some(AttributeValue::Int(value)) if *value != 0)
}
