//! LSTM, GRU and RNN.

use super::quantize::{Quantized, dynamic_steps};
use crate::error::OnnxError;
use crate::node::{Ctx, Outputs};
use crate::proto::AttributeValue;
use neap_ir::op::{Direction, Recurrent, RecurrentActivation, SliceRange};
use neap_ir::{Op, ValueId};

const LSTM: [&str; 3] = ["Sigmoid", "Tanh", "Tanh"];

pub(super) fn lower(c: &mut Ctx, op: &str) -> Option<Outputs> {
    Some(match op {
        "LSTM" => recurrent(c, &LSTM, |_, r| Ok(Op::Lstm(r))),
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
    let attributes = attributes(c, defaults)?;
    let op = make(c, attributes)?;
    let inputs = c.inputs.clone();
    c.emit_outputs(op, &inputs)
}

fn attributes(c: &mut Ctx, defaults: &[&str]) -> Result<Recurrent, OnnxError> {
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
    if clip.is_some_and(|clip| clip.is_nan() || clip <= 0.0) {
        return Err(c.bad("attribute 'clip' is not above 0"));
    }
    Ok(Recurrent {
        hidden,
        direction,
        activations: activations(c, defaults, direction)?,
        clip,
        couple_input_forget: c.flag("input_forget", false)?,
        batch_first: c.flag("layout", false)?,
        rounds_state: false,
        in_panels: false,
    })
}

/// onnxruntime's LSTM with weights of 8 bits, transposed. Its input is rounded to steps of its own, and so is its state.
pub(super) fn dynamic_quantize_lstm(c: &mut Ctx) -> Outputs {
    let x = c.input(0)?;
    let steps = dynamic_steps(c, x)?;
    let mut inputs = vec![Some(steps.value(c)?)];
    for (weights, scale, zero) in [(1, 8, 9), (2, 10, 11)] {
        inputs.push(Some(transposed_weights(c, weights, scale, zero)?));
    }
    inputs.extend((3..8).map(|at| c.optional(at)));
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    let recurrent = {
        let mut inner = Ctx {
            builder: &mut *c.builder,
            node: c.node,
            name: c.name,
            version: 7,
            inputs: inputs.clone(),
        };
        attributes(&mut inner, &LSTM)?
    };
    let op = Op::Lstm(Recurrent {
        rounds_state: true,
        ..recurrent
    });
    c.emit_outputs(op, &inputs)
}

/// Weights `[directions][k][gates]` as an LSTM takes them, `[directions][gates][k]` of f32. Scales and zero points are of
/// each direction, or of each of its gates' rows.
fn transposed_weights(
    c: &mut Ctx,
    weights: usize,
    scale: usize,
    zero: usize,
) -> Result<ValueId, OnnxError> {
    let (w, scale, zero) = (c.input(weights)?, c.input(scale)?, c.optional(zero));
    let shape = c.shape_of_rank(w, 3)?;
    let &[directions, _, rows] = &shape[..] else {
        return Err(c.bad(format!("weights of shape {shape:?} have no directions")));
    };
    let mut parts = Vec::new();
    for direction in 0..directions {
        let of = |c: &mut Ctx, v: ValueId| of_direction(c, v, direction, directions, rows);
        let matrix = slice(c, w, direction)?;
        let part = Quantized {
            x: matrix,
            scale: of(c, scale)?,
            zero: match zero {
                Some(zero) => Some(of(c, zero)?),
                None => None,
            },
            axis: 2,
        };
        let part = part.value(c)?;
        parts.push(c.emit(
            Op::Transpose {
                perm: vec![0, 2, 1],
            },
            &[part],
        )?);
    }
    match &parts[..] {
        [one] => Ok(*one),
        _ => c.emit(Op::Concat { axis: 0 }, &parts),
    }
}

/// Scales or zero points of one direction: one, or one for each row of its gates.
fn of_direction(
    c: &mut Ctx,
    v: ValueId,
    direction: usize,
    directions: usize,
    rows: usize,
) -> Result<ValueId, OnnxError> {
    let elements = c.ty(v).elements();
    let each = match elements / directions.max(1) {
        1 => 1,
        n if n == rows => rows,
        _ => {
            return Err(c.bad(format!(
                "{elements} scales or zero points do not fit {directions} directions of {rows} rows"
            )));
        }
    };
    let parted = c.reshape(v, &[directions, each])?;
    let own = slice(c, parted, direction)?;
    c.reshape(own, &[each])
}

/// The part of one direction, with a first dimension of 1.
fn slice(c: &mut Ctx, v: ValueId, direction: usize) -> Result<ValueId, OnnxError> {
    let mut ranges: Vec<SliceRange> = c
        .shape(v)
        .iter()
        .map(|&len| SliceRange {
            start: 0,
            step: 1,
            len,
        })
        .collect();
    if ranges[0].len == 1 {
        return Ok(v);
    }
    (ranges[0].start, ranges[0].len) = (direction, 1);
    c.emit(Op::Slice { ranges }, &[v])
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
