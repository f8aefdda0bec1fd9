//! ViT-B/16 at 224 × 224.

use crate::graph::{Attr, Graph, Small};
use crate::init::Init;
use crate::layers::{Conv, conv, image_input};
use crate::nets::transformer::{
    BRANCH_STD, gelu, layer_norm, linear, reshape, transpose, with_scalar,
};

const WIDTH: usize = 768;
const HEADS: i64 = 12;
const HEAD_WIDTH: i64 = 64;
const MLP_WIDTH: usize = 3072;
const LAYERS: usize = 12;
const PATCH: usize = 16;
const PATCHES: usize = (224 / PATCH) * (224 / PATCH);
const TOKENS: usize = PATCHES + 1;
const EPSILON: f32 = 1e-6;

pub(crate) fn vit_b_16(g: &mut Graph) {
    let image = image_input(g, 224);
    let patches = Conv::new(WIDTH, PATCH)
        .stride(PATCH)
        .pad(0)
        .bias()
        .output_std(1.0);
    let x = conv(g, "conv_proj", &image, patches).value;
    let x = reshape(g, "", &x, &[WIDTH as i64, PATCHES as i64]);
    let x = transpose(g, "", &x, &[0, 2, 1]);
    let class = g.parameter("class_token", &[1, 1, WIDTH], Init::bell(WIDTH, 0.0, 0.5));
    let class = if g.fixed_batch() == Some(1) {
        class
    } else {
        let shape = g.batch_shape("", &x, &[1, WIDTH as i64]);
        g.node("", "Expand", &[&class, &shape], vec![])
    };
    let x = g.node("", "Concat", &[&class, &x], vec![("axis", Attr::Int(1))]);
    let positions = Init::bell(TOKENS * WIDTH, 0.0, 0.3);
    let positions = g.parameter("encoder.pos_embedding", &[1, TOKENS, WIDTH], positions);
    let mut x = g.node("encoder", "Add", &[&x, &positions], vec![]);
    for layer in 0..LAYERS {
        x = encoder_layer(g, &format!("encoder.layers.encoder_layer_{layer}"), &x);
    }
    let x = layer_norm(g, "encoder.ln", &x, WIDTH, EPSILON);
    let first = g.constant("", Small::I64Scalar(0));
    let x = g.node("", "Gather", &[&x, &first], vec![("axis", Attr::Int(1))]);
    let std = 2.0 / (WIDTH as f64).sqrt();
    let weight = Init::bell(1000 * WIDTH, 0.0, std as f32);
    let weight = g.parameter("heads.head.weight", &[1000, WIDTH], weight);
    let bias = g.parameter("heads.head.bias", &[1000], Init::bell(1000, 0.0, 0.05));
    let attrs = vec![
        ("alpha", Attr::Float(1.0)),
        ("beta", Attr::Float(1.0)),
        ("transB", Attr::Int(1)),
    ];
    let x = g.node("heads.head", "Gemm", &[&x, &weight, &bias], attrs);
    g.output(&x, "output", &[1000]);
}

fn encoder_layer(g: &mut Graph, scope: &str, input: &str) -> String {
    let x = layer_norm(g, &format!("{scope}.ln_1"), input, WIDTH, EPSILON);
    let x = self_attention(g, &format!("{scope}.self_attention"), &x);
    let middle = g.node(scope, "Add", &[&x, input], vec![]);
    let x = layer_norm(g, &format!("{scope}.ln_2"), &middle, WIDTH, EPSILON);
    let x = linear(
        g,
        &format!("{scope}.mlp.0"),
        &x,
        [WIDTH, MLP_WIDTH],
        1.0,
        1.0,
    );
    let x = gelu(g, &format!("{scope}.mlp.1"), &x);
    // Root mean square of gelu(x) for x of unit variance: 0.65.
    let x = linear(
        g,
        &format!("{scope}.mlp.3"),
        &x,
        [MLP_WIDTH, WIDTH],
        0.65,
        BRANCH_STD,
    );
    g.node(scope, "Add", &[&middle, &x], vec![])
}

fn self_attention(g: &mut Graph, scope: &str, x: &str) -> String {
    let tokens = TOKENS as i64;
    let x = linear(
        g,
        &format!("{scope}.in_proj"),
        x,
        [WIDTH, 3 * WIDTH],
        1.0,
        1.0,
    );
    let x = reshape(g, scope, &x, &[tokens, 3, HEADS, HEAD_WIDTH]);
    let x = transpose(g, scope, &x, &[2, 0, 3, 1, 4]);
    let [q, k, v] = [0, 1, 2].map(|part| {
        let index = g.constant(scope, Small::I64Scalar(part));
        g.node(scope, "Gather", &[&x, &index], vec![("axis", Attr::Int(0))])
    });
    let q = with_scalar(g, scope, "Mul", &q, 1.0 / (HEAD_WIDTH as f32).sqrt());
    let k = transpose(g, scope, &k, &[0, 1, 3, 2]);
    let scores = g.node(scope, "MatMul", &[&q, &k], vec![]);
    let weights = g.node(scope, "Softmax", &[&scores], vec![("axis", Attr::Int(-1))]);
    let x = g.node(scope, "MatMul", &[&weights, &v], vec![]);
    let x = transpose(g, scope, &x, &[0, 2, 1, 3]);
    let x = reshape(g, scope, &x, &[tokens, WIDTH as i64]);
    // Averaging over tokens leaves about a fifth of the values' size.
    linear(
        g,
        &format!("{scope}.out_proj"),
        &x,
        [WIDTH, WIDTH],
        0.2,
        BRANCH_STD,
    )
}
