//! Layers in which each place looks at others.

use super::SMALL_EPSILON;
use super::blocks::{group_norm, plain_1x1, with};
use crate::graph::{Attr, Graph, Small};
use crate::layers::{Signal, conv};
use crate::nets::transformer::{gelu, layer_norm, linear, product, transpose, with_scalar};

/// Of a transformer over an image's places.
#[derive(Clone, Copy)]
pub(super) struct Looking {
    pub groups: usize,
    pub layers: usize,
    /// The layers at both ends are products over rows, not convolutions of one place each.
    pub linear_ends: bool,
    /// Of rows; the width is the image's.
    pub seen: Attention,
}

impl Looking {
    /// Each place looks at all others and at the text; then a layer on its own.
    pub fn layers(&self, g: &mut Graph, scope: &str, x: &Signal, text: &str) -> Signal {
        let width = x.channels;
        let normed = group_norm(g, &format!("{scope}.norm"), x, self.groups, SMALL_EPSILON);
        let (first, last) = (format!("{scope}.proj_in"), format!("{scope}.proj_out"));
        let (mut rows, shape) = match self.linear_ends {
            true => {
                let (rows, shape) = as_rows(g, scope, &normed);
                (linear(g, &first, &rows, [width; 2], 1.0, 1.0), shape)
            }
            false => {
                let inner = conv(g, &first, &normed, plain_1x1(width));
                as_rows(g, scope, &inner)
            }
        };
        for layer in 0..self.layers {
            let block = format!("{scope}.transformer_blocks.{layer}");
            rows = transformer_layer(g, &block, rows, text, self.seen);
        }
        let value = match self.linear_ends {
            true => {
                // Each layer has added something.
                let rms = (1.0 + 0.5 * self.layers as f64).sqrt();
                rows = linear(g, &last, &rows, [width; 2], rms, 0.5);
                as_image(g, scope, &rows, &shape)
            }
            false => {
                let image = as_image(g, scope, &rows, &shape);
                let half = plain_1x1(width).output_std(0.5);
                conv(g, &last, &with(x, image), half).value
            }
        };
        let value = g.node(scope, "Add", &[&value, &x.value], vec![]);
        with(x, value)
    }
}

fn transformer_layer(
    g: &mut Graph,
    block: &str,
    mut rows: String,
    text: &str,
    seen: Attention,
) -> String {
    let width = seen.width;
    for (number, context) in [(1, None), (2, Some(text))] {
        let normed = layer_norm(g, &format!("{block}.norm{number}"), &rows, width, 1e-5);
        let seen = Attention {
            context: context.map_or(width, |_| seen.context),
            ..seen
        };
        let name = format!("{block}.attn{number}");
        let context = context.unwrap_or(&normed);
        let looked = attention(g, &name, &normed, context, seen, None);
        rows = g.node(block, "Add", &[&looked, &rows], vec![]);
    }
    let normed = layer_norm(g, &format!("{block}.norm3"), &rows, width, 1e-5);
    let gated = gated_gelu(g, &format!("{block}.ff.net.0"), &normed, width);
    let sizes = [4 * width, width];
    let narrow = linear(g, &format!("{block}.ff.net.2"), &gated, sizes, 0.65, 0.5);
    g.node(block, "Add", &[&narrow, &rows], vec![])
}

/// Shazeer 2020, *GLU Variants Improve Transformer*: one half, times the other's GELU.
fn gated_gelu(g: &mut Graph, scope: &str, x: &str, width: usize) -> String {
    let both = linear(g, &format!("{scope}.proj"), x, [width, 8 * width], 1.0, 1.0);
    let sizes = g.constant(scope, Small::I64s(vec![4 * width as i64; 2]));
    let axis = vec![("axis", Attr::Int(-1))];
    let parts = g.node_multi(scope, "Split", &[&both, &sizes], axis, 2);
    let gate = gelu(g, scope, &parts[1]);
    g.node(scope, "Mul", &[&parts[0], &gate], vec![])
}

/// NxCxHxW as Nx(HW)xC, and the shape that leads back.
pub(super) fn as_rows(g: &mut Graph, scope: &str, x: &Signal) -> (String, String) {
    let last = transpose(g, scope, &x.value, &[0, 2, 3, 1]);
    let shape = g.node(scope, "Shape", &[&last], vec![]);
    let rows = g.constant(scope, Small::I64s(vec![0, -1, x.channels as i64]));
    let rows = g.node(scope, "Reshape", &[&last, &rows], vec![]);
    (rows, shape)
}

pub(super) fn as_image(g: &mut Graph, scope: &str, rows: &str, shape: &str) -> String {
    let last = g.node(scope, "Reshape", &[rows, shape], vec![]);
    transpose(g, scope, &last, &[0, 3, 1, 2])
}

/// Widths of rows and of what they look at.
#[derive(Clone, Copy)]
pub(super) struct Attention {
    pub width: usize,
    pub context: usize,
    pub heads: usize,
    /// Of queries, keys and values.
    pub bias: bool,
}

/// Heads, scores and sums as products, as PyTorch exports them.
pub(super) fn attention(
    g: &mut Graph,
    scope: &str,
    x: &str,
    context: &str,
    sizes: Attention,
    mask: Option<&str>,
) -> String {
    let Attention {
        width, context: of, ..
    } = sizes;
    let head = (width / sizes.heads) as i64;
    let heads = |g: &mut Graph, name: &str, from: &str, inputs: usize, perm: &[i64]| {
        let scope = format!("{scope}.{name}");
        let project = if sizes.bias { linear } else { product };
        let x = project(g, &scope, from, [inputs, width], 1.0, 1.0);
        let shape = [0, -1, sizes.heads as i64, head];
        let shape = g.constant(&scope, Small::I64s(shape.to_vec()));
        let x = g.node(&scope, "Reshape", &[&x, &shape], vec![]);
        transpose(g, &scope, &x, perm)
    };
    let q = heads(g, "to_q", x, width, &[0, 2, 1, 3]);
    let k = heads(g, "to_k", context, of, &[0, 2, 3, 1]);
    let v = heads(g, "to_v", context, of, &[0, 2, 1, 3]);
    let scores = g.node(scope, "MatMul", &[&q, &k], vec![]);
    let scores = with_scalar(g, scope, "Div", &scores, (head as f32).sqrt());
    let scores = match mask {
        Some(mask) => g.node(scope, "Add", &[&scores, mask], vec![]),
        None => scores,
    };
    let shares = g.node(scope, "Softmax", &[&scores], vec![("axis", Attr::Int(-1))]);
    let x = g.node(scope, "MatMul", &[&shares, &v], vec![]);
    let x = transpose(g, scope, &x, &[0, 2, 1, 3]);
    let shape = g.constant(scope, Small::I64s(vec![0, -1, width as i64]));
    let x = g.node(scope, "Reshape", &[&x, &shape], vec![]);
    linear(g, &format!("{scope}.to_out"), &x, [width, width], 0.5, 0.5)
}
