//! What transformers share: linear layers and layer norms as PyTorch exports them.

use crate::graph::{Attr, Graph, Small};
use crate::init::{Dist, Init};

/// Size of the residual branches: 24 of them add about two to the stream's variance.
pub(crate) const BRANCH_STD: f64 = 0.3;

/// `x · W + b` as `MatMul` and `Add`, the weight stored input-major. For inputs of root mean
/// square `input_rms` the output has standard deviation `output_std`.
pub(crate) fn linear(
    g: &mut Graph,
    scope: &str,
    x: &str,
    sizes: [usize; 2],
    input_rms: f64,
    output_std: f64,
) -> String {
    let product = product(g, scope, x, sizes, input_rms, output_std);
    let outputs = sizes[1];
    let bias = Init::bell(outputs, 0.0, 0.05);
    let bias = g.parameter(format!("{scope}.bias"), &[outputs], bias);
    g.node(scope, "Add", &[&bias, &product], vec![])
}

/// As [`linear`], without a bias.
pub(crate) fn product(
    g: &mut Graph,
    scope: &str,
    x: &str,
    [inputs, outputs]: [usize; 2],
    input_rms: f64,
    output_std: f64,
) -> String {
    let std = output_std / (input_rms * (inputs as f64).sqrt());
    let init = Init::bell(inputs * outputs, 0.0, std as f32);
    let weight = g.parameter(format!("{scope}.weight"), &[inputs, outputs], init);
    g.node(scope, "MatMul", &[x, &weight], vec![])
}

pub(crate) fn layer_norm(
    g: &mut Graph,
    scope: &str,
    x: &str,
    width: usize,
    epsilon: f32,
) -> String {
    let scale = Init::Pieces(vec![(
        width,
        Dist::Ratio {
            center: 1.0,
            spread: 0.2,
        },
    )]);
    let scale = g.parameter(format!("{scope}.weight"), &[width], scale);
    let bias = g.parameter(
        format!("{scope}.bias"),
        &[width],
        Init::bell(width, 0.0, 0.05),
    );
    let attrs = vec![("axis", Attr::Int(-1)), ("epsilon", Attr::Float(epsilon))];
    g.node(scope, "LayerNormalization", &[x, &scale, &bias], attrs)
}

pub(crate) fn transpose(g: &mut Graph, scope: &str, x: &str, perm: &[i64]) -> String {
    g.node(
        scope,
        "Transpose",
        &[x],
        vec![("perm", Attr::Ints(perm.to_vec()))],
    )
}

/// Reshape to `[batch, rest...]`.
pub(crate) fn reshape(g: &mut Graph, scope: &str, x: &str, rest: &[i64]) -> String {
    let shape = g.batch_shape(scope, x, rest);
    g.node(scope, "Reshape", &[x, &shape], vec![])
}

/// A binary operator with a scalar constant on the right.
pub(crate) fn with_scalar(
    g: &mut Graph,
    scope: &str,
    op: &'static str,
    x: &str,
    scalar: f32,
) -> String {
    let scalar = g.constant(scope, Small::F32Scalar(scalar));
    g.node(scope, op, &[x, &scalar], vec![])
}

/// The exact GELU, `x/2 · (1 + erf(x/√2))`, spelled out as PyTorch does.
pub(crate) fn gelu(g: &mut Graph, scope: &str, x: &str) -> String {
    let scaled = with_scalar(g, scope, "Div", x, std::f32::consts::SQRT_2);
    let erf = g.node(scope, "Erf", &[&scaled], vec![]);
    let shifted = with_scalar(g, scope, "Add", &erf, 1.0);
    let product = g.node(scope, "Mul", &[x, &shifted], vec![]);
    with_scalar(g, scope, "Mul", &product, 0.5)
}

/// GELU's tanh approximation, `x/2 · (1 + tanh(√(2/π)·(x + 0.044715·x³)))`, spelled out.
pub(crate) fn gelu_tanh(g: &mut Graph, scope: &str, x: &str) -> String {
    let half = with_scalar(g, scope, "Mul", x, 0.5);
    let cube = with_scalar(g, scope, "Pow", x, 3.0);
    let cube = with_scalar(g, scope, "Mul", &cube, 0.044_715);
    let sum = g.node(scope, "Add", &[x, &cube], vec![]);
    let inner = with_scalar(g, scope, "Mul", &sum, 0.797_884_6);
    let tanh = g.node(scope, "Tanh", &[&inner], vec![]);
    let shifted = with_scalar(g, scope, "Add", &tanh, 1.0);
    g.node(scope, "Mul", &[&half, &shifted], vec![])
}
