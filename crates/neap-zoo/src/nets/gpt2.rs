//! GPT-2 (124 M parameters) on 128 tokens, with or without the language-model head.

use crate::graph::{Attr, DType, Graph, Small};
use crate::init::Init;
use crate::nets::transformer::{
    BRANCH_STD, gelu_tanh, layer_norm, linear, reshape, transpose, with_scalar,
};

const WIDTH: usize = 768;
const HEADS: i64 = 12;
const HEAD_WIDTH: i64 = 64;
const LAYERS: usize = 12;
const VOCABULARY: usize = 50_257;
const MAX_POSITIONS: usize = 1024;
/// Tokens per run.
pub(crate) const TOKENS: usize = 128;
const EPSILON: f32 = 1e-5;

pub(crate) fn gpt2(g: &mut Graph, lm_head: bool) {
    let ids = g.sized_input("input_ids", DType::I64, &[TOKENS], &["tokens"]);
    let table = Init::bell(VOCABULARY * WIDTH, 0.0, 0.1);
    let table = g.parameter("transformer.wte.weight", &[VOCABULARY, WIDTH], table);
    let positions = Init::bell(MAX_POSITIONS * WIDTH, 0.0, 0.05);
    let positions = g.parameter("transformer.wpe.weight", &[MAX_POSITIONS, WIDTH], positions);
    let tokens = if g.is_free { MAX_POSITIONS } else { TOKENS };
    let position_ids = Init::I64((0..tokens as i64).collect());
    let mut position_ids = g.buffer("transformer.position_ids", &[1, tokens], position_ids);
    let mut mask = g.buffer(
        "transformer.causal_mask",
        &[1, 1, tokens, tokens],
        Init::CausalMask(tokens),
    );
    if g.is_free {
        let count = dimension(g, &ids, 1);
        position_ids = first_along(g, &position_ids, &count, &[1]);
        mask = first_along(g, &mask, &count, &[2]);
        mask = first_along(g, &mask, &count, &[3]);
    }
    // The most negative f32: masked scores vanish in the softmax.
    let masked = g.buffer("transformer.masked_score", &[], Init::F32(vec![f32::MIN]));

    let embed = |g: &mut Graph, scope: &str, table: &str, ids: &str| {
        g.node(scope, "Gather", &[table, ids], vec![("axis", Attr::Int(0))])
    };
    let x = embed(g, "transformer.wte", &table, &ids);
    let p = embed(g, "transformer.wpe", &positions, &position_ids);
    let mut x = g.node("transformer", "Add", &[&x, &p], vec![]);
    for layer in 0..LAYERS {
        x = block(g, &format!("transformer.h.{layer}"), &x, &mask, &masked);
    }
    let x = layer_norm(g, "transformer.ln_f", &x, WIDTH, EPSILON);
    if lm_head {
        // Tied to the embedding: the same initializer, transposed in the graph.
        let head = transpose(g, "lm_head", &table, &[1, 0]);
        let x = g.node("lm_head", "MatMul", &[&x, &head], vec![]);
        g.sized_output(&x, "output", &[TOKENS, VOCABULARY], "tokens");
    } else {
        g.sized_output(&x, "output", &[TOKENS, WIDTH], "tokens");
    }
}

/// A dimension of `x` as a one-element value, computed in the graph.
fn dimension(g: &mut Graph, x: &str, axis: i64) -> String {
    let shape = g.node("transformer", "Shape", &[x], vec![]);
    let axis = g.constant("transformer", Small::I64s(vec![axis]));
    let attrs = vec![("axis", Attr::Int(0))];
    g.node("transformer", "Gather", &[&shape, &axis], attrs)
}

/// The first `count` of `x` along an axis.
fn first_along(g: &mut Graph, x: &str, count: &str, axis: &[i64]) -> String {
    let zero = g.constant("transformer", Small::I64s(vec![0]));
    let axes = g.constant("transformer", Small::I64s(axis.to_vec()));
    g.node("transformer", "Slice", &[x, &zero, count, &axes], vec![])
}

fn block(g: &mut Graph, scope: &str, input: &str, mask: &str, masked: &str) -> String {
    let x = layer_norm(g, &format!("{scope}.ln_1"), input, WIDTH, EPSILON);
    let x = attention(g, &format!("{scope}.attn"), &x, mask, masked);
    let middle = g.node(scope, "Add", &[&x, input], vec![]);
    let x = layer_norm(g, &format!("{scope}.ln_2"), &middle, WIDTH, EPSILON);
    let x = linear(
        g,
        &format!("{scope}.mlp.c_fc"),
        &x,
        [WIDTH, 4 * WIDTH],
        1.0,
        1.0,
    );
    let x = gelu_tanh(g, &format!("{scope}.mlp.act"), &x);
    // Root mean square of gelu(x) for x of unit variance: 0.65.
    let x = linear(
        g,
        &format!("{scope}.mlp.c_proj"),
        &x,
        [4 * WIDTH, WIDTH],
        0.65,
        BRANCH_STD,
    );
    g.node(scope, "Add", &[&middle, &x], vec![])
}

fn attention(g: &mut Graph, scope: &str, x: &str, mask: &str, masked: &str) -> String {
    let tokens = if g.is_free { -1 } else { TOKENS as i64 };
    let x = linear(
        g,
        &format!("{scope}.c_attn"),
        x,
        [WIDTH, 3 * WIDTH],
        1.0,
        1.0,
    );
    let sizes = g.constant(scope, Small::I64s(vec![WIDTH as i64; 3]));
    let parts = g.node_multi(
        scope,
        "Split",
        &[&x, &sizes],
        vec![("axis", Attr::Int(2))],
        3,
    );
    let mut heads = |part: usize, perm: &[i64]| {
        let x = reshape(g, scope, &parts[part], &[tokens, HEADS, HEAD_WIDTH]);
        transpose(g, scope, &x, perm)
    };
    let q = heads(0, &[0, 2, 1, 3]);
    let k = heads(1, &[0, 2, 3, 1]);
    let v = heads(2, &[0, 2, 1, 3]);
    let scores = g.node(scope, "MatMul", &[&q, &k], vec![]);
    let scores = with_scalar(g, scope, "Div", &scores, (HEAD_WIDTH as f32).sqrt());
    let scores = g.node(scope, "Where", &[mask, &scores, masked], vec![]);
    let weights = g.node(scope, "Softmax", &[&scores], vec![("axis", Attr::Int(-1))]);
    let x = g.node(scope, "MatMul", &[&weights, &v], vec![]);
    let x = transpose(g, scope, &x, &[0, 2, 1, 3]);
    let x = reshape(g, scope, &x, &[tokens, WIDTH as i64]);
    // Averaging over earlier tokens leaves about a quarter of the values' size.
    linear(
        g,
        &format!("{scope}.c_proj"),
        &x,
        [WIDTH, WIDTH],
        0.25,
        BRANCH_STD,
    )
}
