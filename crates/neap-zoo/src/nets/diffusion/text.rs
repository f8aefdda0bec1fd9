//! CLIP's text encoder: token ids to what they mean.

use super::PLACES;
use super::attention::{Attention, attention};
use super::family::{Activation, Text};
use crate::graph::{Attr, DType, Dim, Graph, Port, Small};
use crate::init::Init;
use crate::nets::transformer::{gelu, layer_norm, linear, product, with_scalar};
use half::f16;

const TO_I32: i64 = 6;

/// Each token is seen with those before it.
pub(crate) fn text_encoder(g: &mut Graph, text: &Text, vocabulary: usize) {
    let width = text.width;
    let rows = [PLACES, width];
    let mut x = embeddings(g, text, vocabulary);
    let mask = causal_mask(g);
    let mut hidden = vec![x.clone()];
    for layer in 0..text.layers {
        x = encoder_layer(g, &format!("text_model.layers.{layer}"), x, text, &mask);
        hidden.push(x.clone());
    }
    let x = layer_norm(g, "text_model.final_layer_norm", &x, width, 1e-5);
    let pooled = at_end(g, &x);
    match text.projection {
        None => {
            g.output(&x, "last_hidden_state", &rows);
            g.output(&pooled, "pooler_output", &[width]);
        }
        Some(to) => {
            let pooled = product(g, "text_projection", &pooled, [width, to], 1.0, 1.0);
            g.output(&pooled, "text_embeds", &[to]);
            g.output(&x, "last_hidden_state", &rows);
        }
    }
    if text.all_layers {
        for (layer, x) in hidden.iter().enumerate() {
            g.output(x, &format!("hidden_states.{layer}"), &rows);
        }
    }
}

fn embeddings(g: &mut Graph, text: &Text, vocabulary: usize) -> String {
    let width = text.width;
    let tokens = vocabulary.max(text.tokens);
    g.inputs.push(Port {
        name: "input_ids".into(),
        dtype: DType::I64,
        dims: vec![Dim::Batch, Dim::Fixed(PLACES as i64)],
    });
    let scope = "text_model.embeddings";
    let table = Init::bell(tokens * width, 0.0, 1.0);
    let table = g.parameter("token_embedding.weight", &[tokens, width], table);
    let places = Init::bell(PLACES * width, 0.0, 0.3);
    let places = g.parameter("position_embedding.weight", &[PLACES, width], places);
    let axis = || vec![("axis", Attr::Int(0))];
    let x = g.node(scope, "Gather", &[&table, "input_ids"], axis());
    g.node(scope, "Add", &[&x, &places], vec![])
}

/// Added to scores: what comes later counts for nothing.
fn causal_mask(g: &mut Graph) -> String {
    let least = match g.is_half {
        true => f16::MIN.to_f32(),
        false => f32::MIN,
    };
    let ahead = (0..PLACES * PLACES).map(|at| match at % PLACES > at / PLACES {
        true => least,
        false => 0.0,
    });
    let mask = Init::F32(ahead.collect());
    g.buffer("causal_mask", &[1, 1, PLACES, PLACES], mask)
}

fn encoder_layer(g: &mut Graph, scope: &str, x: String, text: &Text, mask: &str) -> String {
    let width = text.width;
    let normed = layer_norm(g, &format!("{scope}.layer_norm1"), &x, width, 1e-5);
    let seen = Attention {
        width,
        context: width,
        heads: text.heads,
        bias: true,
    };
    let scope_of = format!("{scope}.self_attn");
    let attended = attention(g, &scope_of, &normed, &normed, seen, Some(mask));
    let x = g.node(scope, "Add", &[&x, &attended], vec![]);
    let normed = layer_norm(g, &format!("{scope}.layer_norm2"), &x, width, 1e-5);
    let sizes = [width, 4 * width];
    let wide = linear(g, &format!("{scope}.mlp.fc1"), &normed, sizes, 1.0, 1.0);
    let wide = match text.activation {
        Activation::Gelu => gelu(g, scope, &wide),
        Activation::QuickGelu => {
            let gate = with_scalar(g, scope, "Mul", &wide, 1.702);
            let gate = g.node(scope, "Sigmoid", &[&gate], vec![]);
            g.node(scope, "Mul", &[&wide, &gate], vec![])
        }
    };
    let sizes = [4 * width, width];
    let narrow = linear(g, &format!("{scope}.mlp.fc2"), &wide, sizes, 0.65, 0.3);
    g.node(scope, "Add", &[&x, &narrow], vec![])
}

/// What the end of a prompt means, with all that was before it: the end's id is the largest of all, and its first place is taken.
fn at_end(g: &mut Graph, x: &str) -> String {
    let scope = "text_model";
    let shape = g.node(scope, "Shape", &[x], vec![]);
    let [zero, one] = [0, 1].map(|n| g.constant(scope, Small::I64Scalar(n)));
    let axis = |axis| vec![("axis", Attr::Int(axis))];
    let batch = g.node(scope, "Gather", &[&shape, &zero], axis(0));
    let samples = g.node(scope, "Range", &[&zero, &batch, &one], vec![]);
    let ids = vec![("to", Attr::Int(TO_I32))];
    let ids = g.node(scope, "Cast", &["input_ids"], ids);
    let first = vec![("axis", Attr::Int(-1)), ("keepdims", Attr::Int(0))];
    let ends = g.node(scope, "ArgMax", &[&ids], first);
    let last = g.constant(scope, Small::I64s(vec![-1]));
    let [samples, ends] =
        [samples, ends].map(|index| g.node(scope, "Unsqueeze", &[&index, &last], vec![]));
    let at = g.node(scope, "Concat", &[&samples, &ends], axis(-1));
    g.node(scope, "GatherND", &[x, &at], vec![])
}
