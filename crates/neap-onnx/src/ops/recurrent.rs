//! LSTM, GRU and RNN.

use crate::error::OnnxError;
use crate::node::{Ctx, Outputs};
use crate::proto::AttributeValue;
use neap_ir::Op;
use neap_ir::op::{Direction, Recurrent, RecurrentActivation};

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "LSTM" => recurrent(c, &["Sigmoid", "Tanh", "Tanh"], |_, r| Ok(Op::Lstm(r))),
        "GRU" => recurrent(c, &["Sigmoid", "Tanh"], |c, recurrent| {
            Ok(Op::Gru {
                recurrent,
                linear_before_reset: c.flag("linear_before_reset", false)?,
            })
        }),
        "RNN" => recurrent(c, &["Tanh"], |_, r| Ok(Op::Rnn(r))),
        _ => return None,
    })
}

fn recurrent(
    c: &mut Ctx,
    defaults: &[&str],
    make: impl Fn(&Ctx, Recurrent) -> Result<Op, OnnxError>,
) -> Outputs {
    c.input(0)?;
    c.input(1)?;
    let r = c.input(2)?;
    let direction = match c.string("direction", "forward")? {
        "forward" => Direction::Forward,
        "reverse" => Direction::Reverse,
        "bidirectional" => Direction::Bidirectional,
        _ => return Err(c.bad("attribute 'direction' is unknown")),
    };
    let weights = c.shape_of_rank(r, 3)?;
    let hidden = c.size("hidden_size", weights[2])?;
    let clip = match c.attribute("clip") {
        Some(_) => Some(c.float("clip", 0.0)?),
        None => None,
    };
    let attributes = Recurrent {
        hidden,
        direction,
        activations: activations(c, defaults, direction)?,
        clip,
        couple_input_forget: c.flag("input_forget", false)?,
        batch_first: c.flag("layout", false)?,
    };
    let op = make(c, attributes)?;
    let inputs = c.inputs.clone();
    c.emit_outputs(op, &inputs)
}

/// Each direction's activations; those with parameters take them from the lists in turn.
fn activations(
    c: &Ctx,
    defaults: &[&str],
    direction: Direction,
) -> Result<Vec<RecurrentActivation>, OnnxError> {
    let directions = match direction {
        Direction::Bidirectional => 2,
        _ => 1,
    };
    let names: Vec<String> = match c.attribute("activations") {
        Some(AttributeValue::Strings(names)) => names
            .iter()
            .map(|n| String::from_utf8_lossy(n).into_owned())
            .collect(),
        Some(_) => return Err(c.bad("attribute 'activations' has the wrong type")),
        None => defaults
            .repeat(directions)
            .iter()
            .map(|n| n.to_string())
            .collect(),
    };
    if names.len() != defaults.len() * directions {
        return Err(c.bad(format!(
            "it has {} activations instead of {}",
            names.len(),
            defaults.len() * directions
        )));
    }
    let mut alphas = c
        .floats("activation_alpha")?
        .unwrap_or_default()
        .into_iter();
    let mut betas = c.floats("activation_beta")?.unwrap_or_default().into_iter();
    let mut result = Vec::with_capacity(names.len());
    for name in &names {
        let mut alpha = |default: f32| alphas.next().unwrap_or(default);
        let mut beta = |default: f32| betas.next().unwrap_or(default);
        use RecurrentActivation as A;
        result.push(match name.to_ascii_lowercase().as_str() {
            "sigmoid" => A::Sigmoid,
            "tanh" => A::Tanh,
            "relu" => A::Relu,
            "softsign" => A::Softsign,
            "softplus" => A::Softplus,
            "leakyrelu" => A::LeakyRelu(alpha(0.01)),
            "thresholdedrelu" => A::ThresholdedRelu(alpha(1.0)),
            "elu" => A::Elu(alpha(1.0)),
            "hardsigmoid" => A::HardSigmoid(alpha(0.2), beta(0.5)),
            "affine" => A::Affine(alpha(1.0), beta(0.0)),
            "scaledtanh" => A::ScaledTanh(alpha(1.0), beta(1.0)),
            _ => return Err(c.unsupported(format!("activation '{}'", crate::error::shown(name)))),
        });
    }
    Ok(result)
}
