//! Each ONNX operator as typed operators, with what differs between opset versions resolved.

mod attention;
mod blocks;
mod cast;
mod channels_last;
mod classes;
mod classical;
mod contrib;
mod contrib_attention;
mod conv;
mod distances;
pub(crate) mod dot_attention;
mod early;
mod elementwise;
mod encoders;
mod fused;
mod gated;
mod generate;
mod group_query;
mod indexing;
pub(crate) mod late;
mod learned;
mod loss;
mod movement;
mod norm;
mod pool;
mod qoperator;
mod quantize;
mod rare;
mod recurrent;
mod reduce;
mod resize;
mod sampling;
mod sequences;
mod slicing;
mod spectrum;
mod state;
mod svm;
mod training;
mod trees;

pub(crate) use training::DOMAIN as TRAINING_DOMAIN;

use crate::error::{OnnxError, shown};
use crate::node::{Ctx, Outputs};

pub(crate) fn lower(c: &mut Ctx, domain: &str) -> Outputs {
    let op = c.node.op_type.as_str();
    sequences::check_operands(c, op, domain)?;
    let mut domain = domain;
    if domain == contrib::DOMAIN
        && let Some(version) = contrib::version_in_the_standard(c, op)?
    {
        (domain, c.version) = ("", version);
    }
    if domain.is_empty() {
        early::modernise(c, op)?;
        if let Some(outputs) = sequences::lower(c, op) {
            return outputs;
        }
        if let Some(outputs) = late::lower(c, op)? {
            return Ok(outputs);
        }
        for family in [
            elementwise::lower,
            movement::lower,
            slicing::lower,
            conv::lower,
            pool::lower,
            norm::lower,
            reduce::lower,
            generate::lower,
            indexing::lower,
            resize::lower,
            attention::lower,
            dot_attention::lower,
            state::lower,
            recurrent::lower,
            quantize::lower,
            qoperator::lower,
            loss::lower,
            rare::lower,
            sampling::lower,
            spectrum::lower,
            learned::lower,
        ] {
            if let Some(outputs) = family(c, op) {
                cast::pass_on(c, op, &outputs);
                return outputs;
            }
        }
    }
    // Exporters have put some of these into the default domain.
    if (domain.is_empty() || domain == contrib::DOMAIN)
        && let Some(outputs) = contrib::lower(c, op)
    {
        return outputs;
    }
    if domain == channels_last::BLOCKED_DOMAIN {
        return Err(channels_last::refused(c));
    }
    if domain == learned::DOMAIN
        && let Some(outputs) = learned::lower_classical(c, op)
    {
        return outputs;
    }
    if domain == training::DOMAIN
        && let Some(outputs) = training::lower(c, op)
    {
        return outputs;
    }
    Err(OnnxError::UnsupportedOp {
        node: shown(c.name),
        op: if domain.is_empty() {
            shown(op)
        } else {
            shown(&format!("{domain}.{op}"))
        },
    })
}
