//! Layers between roundings to steps are computed in integers, and hand each other bytes.
//!
//! ```text
//!   Requantize -> PanelConv(I8 panels) -> Requantize      PanelConv in integers: takes steps, gives steps
//!   conv -> Requantize -> Add(residual) -> Requantize     one PanelConv in integers
//! ```
//! A value on steps whose maker cannot give them is quantised, which is exact. Whoever else reads steps reads them dequantised.
//! The largest of several steps is the step of the largest number, so a max pooling behind such a layer hands on bytes, too.

use crate::constants::stored_format;
use crate::edit::Editor;
use crate::fuse::{operands, other};
use crate::quantized::keeps_steps;
use crate::recipes::Recipes;
use crate::steps::byte;
use neap_ir::op::{Activation, Binary, Op, Pool, Unary, Window};
use neap_ir::panel::{ConvForm, Epilogue, Integers, PanelElement, PanelScales, StepSize};
use neap_ir::recipe::Recipe;
use neap_ir::{DType, Literal, Node, TensorType, ValueId};
use neap_kernels::integer::{MOST_K, MOST_TAPS, takes_depthwise};
use std::collections::HashMap;

pub(crate) fn run(editor: &mut Editor, recipes: &Recipes) {
    let mut layers = Vec::new();
    for at in 0..editor.graph.nodes.len() {
        if is_eligible(editor, at, recipes) {
            choose(editor, at);
            layers.extend(editor.node(at).outputs[0]);
        }
    }
    for layer in layers.iter_mut().rev() {
        absorb_sum(editor, layer);
    }
    let mut steps = HashMap::new();
    for &layer in &layers {
        let Some(x) = maker(editor, &steps, layer).and_then(|at| editor.node(at).input(0)) else {
            continue;
        };
        let x = steps_of(editor, x, &mut steps);
        if let Some(at) = maker(editor, &steps, layer) {
            set_input(editor, at, 0, x);
        }
    }
    for &layer in &layers {
        pool_steps(editor, layer, &mut steps);
    }
    for &layer in &layers {
        residual_in_steps(editor, layer, &mut steps);
    }
}

/// The node that makes a layer's output, or its steps.
fn maker(editor: &Editor, steps: &HashMap<ValueId, ValueId>, layer: ValueId) -> Option<usize> {
    let own = steps.get(&layer).and_then(|&steps| editor.producer(steps));
    let of_layer = |&at: &usize| editor.node(at).op.is_in_integers();
    own.filter(of_layer)
        .or_else(|| editor.producer(layer).filter(of_layer))
}

fn epilogue(op: &Op) -> Option<&Epilogue> {
    match op {
        Op::PanelConv(layer) => Some(&layer.epilogue),
        Op::PanelLinear(layer) => Some(&layer.epilogue),
        Op::PanelDepthwise(layer) => Some(&layer.epilogue),
        _ => None,
    }
}

fn epilogue_mut(op: &mut Op) -> Option<&mut Epilogue> {
    match op {
        Op::PanelConv(layer) => Some(&mut layer.epilogue),
        Op::PanelLinear(layer) => Some(&mut layer.epilogue),
        Op::PanelDepthwise(layer) => Some(&mut layer.epilogue),
        _ => None,
    }
}

/// A layer of `I8` panels in floats whose input is on steps that are bytes.
fn is_eligible(editor: &Editor, at: usize, recipes: &Recipes) -> bool {
    let node = editor.node(at);
    let (k, groups, fits) = match &node.op {
        Op::PanelConv(layer) => (
            layer.k(),
            layer.groups,
            layer.form != ConvForm::NarrowGroups && taps(layer.form, &layer.window) <= MOST_TAPS,
        ),
        Op::PanelDepthwise(layer) => (
            layer.k(),
            layer.channels.max(2),
            takes_filters(&layer.window),
        ),
        Op::PanelLinear(layer) => (layer.k, 1, true),
        _ => return false,
    };
    let (Some(panels), Some(x)) = (node.panels, node.input(0)) else {
        return false;
    };
    let recipe = recipes.get(panels);
    let is_bytes = stored_format(&editor.graph, recipe).is_some_and(|format| {
        format.element == PanelElement::I8 && format.scales == PanelScales::PerChannelWithZero
    });
    let has_zeros = match recipe {
        Recipe::Conv { affine, .. } | Recipe::Depthwise { affine, .. } => {
            (affine.zero.iter().flatten()).any(|&z| z != 0.0) || is_unsigned(editor, recipe)
        }
        _ => false,
    };
    fits && k <= MOST_K
        && is_bytes
        && !node.op.is_in_integers()
        && (groups == 1 || !has_zeros)
        && grid(editor, x).is_some()
}

pub(crate) fn takes_filters(window: &Window) -> bool {
    let sizes = [&window.kernel, &window.strides, &window.dilations];
    let [Ok(kernel), Ok(strides), Ok(dilations)] = sizes.map(|of| <[usize; 2]>::try_from(&of[..]))
    else {
        return false;
    };
    takes_depthwise(kernel, strides, dilations)
}

/// Runs of steps of a window: the kernel's pixels, or its rows where channels lie side by side.
pub(crate) fn taps(form: ConvForm, window: &Window) -> usize {
    match (form, &window.kernel[..], &window.dilations[..]) {
        (ConvForm::FirstLayer, [height, _], [_, 1]) => *height,
        (_, kernel, _) => kernel.iter().product(),
    }
}

/// Stored less 128, such weights have zero points.
fn is_unsigned(editor: &Editor, recipe: &Recipe) -> bool {
    editor.ty(recipe.constant()).dtype == DType::U8
}

/// Steps of bytes on which a value lies, and the activation that rounds to them, as unsigned bytes.
struct Grid {
    size: StepSize,
    activation: Activation,
}

impl Grid {
    fn of(activation: Activation) -> Option<Grid> {
        let Activation::Requantize {
            scale,
            zero,
            low,
            high,
            nan,
        } = activation
        else {
            return None;
        };
        let shift = if low >= 0.0 && high <= 255.0 {
            0.0
        } else if low >= -128.0 && high <= 127.0 {
            128.0
        } else {
            return None;
        };
        let byte = zero + shift;
        let is_byte = (0.0..=255.0).contains(&byte);
        let is_whole = [byte, low, high].iter().all(|x| x.fract() == 0.0);
        // A type of more bits has a step for NaN that no byte is.
        let has_nan = (0.0..=255.0).contains(&(nan + shift));
        (is_byte && is_whole && has_nan).then_some(Grid {
            size: StepSize {
                scale,
                zero: byte as u8,
            },
            activation: Activation::Requantize {
                scale,
                zero: byte,
                low: low + shift,
                high: high + shift,
                nan: nan + shift,
            },
        })
    }
}

impl Grid {
    /// Of what a DequantizeLinear with one scale and zero point gives, both known.
    fn behind(editor: &Editor, node: &Node) -> Option<Grid> {
        let scale = editor.scalar(node.input(1)?)?;
        let zero = match node.input(2) {
            Some(zero) => match editor.graph.literal(zero)?.to_i64_vec()?[..] {
                [zero] => zero,
                _ => return None,
            },
            None => 0,
        };
        let (low, high) = match editor.ty(node.input(0)?).dtype {
            DType::U8 => (0.0, 255.0),
            DType::I8 => (-128.0, 127.0),
            _ => return None,
        };
        let is_sound = scale.is_finite() && scale > 0.0;
        let rounding = Activation::Requantize {
            scale,
            zero: zero as f32,
            low,
            high,
            nan: low,
        };
        is_sound.then(|| Grid::of(rounding))?
    }
}

fn grid(editor: &Editor, mut value: ValueId) -> Option<Grid> {
    /// Nodes that only move steps, one after the other.
    const MOST_MOVES: usize = 16;
    for _ in 0..MOST_MOVES {
        let node = editor.node(editor.producer(value)?);
        if let Op::Unary(Unary::Activation(activation)) = node.op {
            return Grid::of(activation);
        }
        if let Some(epilogue) = epilogue(&node.op) {
            return Grid::of(epilogue.activation);
        }
        let input = node.input(0)?;
        if let Op::Dequantize { .. } = node.op {
            return Grid::behind(editor, node);
        }
        if !keeps_steps(node, input) {
            return None;
        }
        value = input;
    }
    None
}

/// Marks a layer; its input is still in floats.
fn choose(editor: &mut Editor, at: usize) {
    let mut node = editor.node(at).clone();
    let Some(Grid { size, .. }) = node.input(0).and_then(|x| grid(editor, x)) else {
        return;
    };
    if let Some(epilogue) = epilogue_mut(&mut node.op) {
        epilogue.integers = Some(Integers::default());
    }
    let [scale, zero] = literals(editor, &node.name, size);
    node.inputs = vec![node.input(0), node.input(1), Some(scale), Some(zero)];
    editor.replace(at, node, &[]);
}

fn literals(editor: &mut Editor, name: &str, size: StepSize) -> [ValueId; 2] {
    let scale = Literal::from_f32(&[], &[size.scale]);
    let scale = editor.graph.add_literal(format!("{name}.scale"), scale);
    let zero = (editor.graph).add_literal(format!("{name}.zero"), byte(size.zero));
    [scale, zero]
}

fn set_input(editor: &mut Editor, at: usize, index: usize, value: ValueId) {
    let mut node = editor.node(at).clone();
    node.inputs[index] = Some(value);
    editor.replace(at, node, &[]);
}

/// A sum of the layer's result, rounded to steps, and another; and what follows the sum.
fn absorb_sum(editor: &mut Editor, layer: &mut ValueId) {
    let found = (|| {
        let at = editor.producer(*layer)?;
        let own = *epilogue(&editor.node(at).op)?;
        let rounding = own.activation;
        if own.residual || !matches!(rounding, Activation::Requantize { .. }) {
            return None;
        }
        let add = editor.sole_user(*layer)?;
        let residual = other(operands(editor, add, Binary::Add)?, *layer)?;
        let sum = editor.node(add).outputs[0]?;
        let same = editor.ty(residual) == editor.ty(*layer) && editor.ty(sum) == editor.ty(*layer);
        if !same || residual == *layer || editor.is_const(residual) {
            return None;
        }
        let next = editor.sole_user(sum);
        let after = next.and_then(|next| match editor.node(next).op {
            Op::Unary(Unary::Activation(activation)) => Some((next, activation)),
            _ => None,
        });
        Some((at, rounding, add, residual, after))
    })();
    let Some((at, rounding, add, residual, after)) = found else {
        return;
    };
    let mut node = editor.node(at).clone();
    let (last, activation) = after.unwrap_or((add, Activation::None));
    if let Some(epilogue) = epilogue_mut(&mut node.op) {
        epilogue.residual = true;
        epilogue.activation = activation;
        if let Some(integers) = &mut epilogue.integers {
            integers.before_residual = rounding;
        }
    }
    node.inputs[1] = Some(residual);
    node.outputs.clone_from(&editor.node(last).outputs);
    let absorbed: &[usize] = if last == add { &[at] } else { &[at, add] };
    if let Some(output) = node.outputs[0] {
        *layer = output;
    }
    editor.replace(last, node, absorbed);
}

/// The bytes of a value on steps.
fn steps_of(editor: &mut Editor, value: ValueId, known: &mut HashMap<ValueId, ValueId>) -> ValueId {
    if let Some(&steps) = known.get(&value) {
        return steps;
    }
    let Some(grid) = grid(editor, value) else {
        return value;
    };
    let pooled = pooled_steps(editor, value, known);
    let Some(at) = editor.producer(value) else {
        return value;
    };
    let ty = TensorType::new(DType::U8, &editor.ty(value).shape);
    let name = editor.graph.value(value).name.clone();
    let steps = editor.graph.add_value(format!("{name}.steps"), ty);
    known.insert(value, steps);
    let [scale, zero] = literals(editor, &name, grid.size);
    let mut maker = editor.node(at).clone();
    let layer_gives_steps = maker.op.is_in_integers() && !editor.is_output(value);
    let gives_steps = layer_gives_steps || pooled.is_some();
    let (op, from, to) = match gives_steps {
        true => (Op::Dequantize { axis: 0 }, steps, value),
        false => {
            let to = DType::U8;
            let from = unrounded(&maker, &grid).unwrap_or(value);
            (Op::Quantize { axis: 0, to }, from, steps)
        }
    };
    if gives_steps {
        if let Some(from) = pooled {
            maker.inputs = vec![Some(from)];
        }
        maker.outputs = vec![Some(steps)];
        if let Some(epilogue) = epilogue_mut(&mut maker.op) {
            epilogue.activation = grid.activation;
            if let Some(integers) = &mut epilogue.integers {
                integers.gives_steps = true;
            }
        }
        editor.replace(at, maker, &[]);
    }
    let other = Node {
        name: format!("{name}.steps"),
        op,
        inputs: vec![Some(from), Some(scale), Some(zero)],
        outputs: vec![Some(to)],
        panels: None,
    };
    editor.insert(at + 1, other);
    steps
}

/// The steps that a max pooling picks from, where they are steps already or a layer in integers gives them.
fn pooled_steps(
    editor: &mut Editor,
    value: ValueId,
    known: &mut HashMap<ValueId, ValueId>,
) -> Option<ValueId> {
    let node = editor.node(editor.producer(value)?);
    let x = node.input(0)?;
    let is_near = known.contains_key(&x)
        || !editor.is_output(x) && editor.node(editor.producer(x)?).op.is_in_integers();
    let takes = picks_steps(node, x) && !editor.is_output(value) && is_near;
    takes.then(|| steps_of(editor, x, known))
}

fn picks_steps(node: &Node, x: ValueId) -> bool {
    let is_max = matches!(
        node.op,
        Op::Pool {
            kind: Pool::Max { .. },
            ..
        }
    );
    is_max && keeps_steps(node, x)
}

/// A pooling of a layer's steps is of bytes, whoever reads it: the layer's result, often the largest there is, takes a quarter of
/// the memory.
fn pool_steps(editor: &mut Editor, layer: ValueId, known: &mut HashMap<ValueId, ValueId>) {
    if editor.is_output(layer) || maker(editor, known, layer).is_none() {
        return;
    }
    let users = editor.users(layer).iter().map(|&at| editor.node(at));
    let pooled = users.filter(|node| picks_steps(node, layer));
    let pooled: Vec<ValueId> = pooled.filter_map(|node| node.outputs[0]).collect();
    for value in pooled {
        if !editor.is_output(value) {
            steps_of(editor, value, known);
        }
    }
}

/// What a rounding to all steps of a byte rounds: taking the steps of it rounds, too.
fn unrounded(maker: &Node, grid: &Grid) -> Option<ValueId> {
    let is_rounding = matches!(maker.op, Op::Unary(Unary::Activation(_)));
    let is_whole = matches!(grid.activation, Activation::Requantize { low, high, .. }
        if low == 0.0 && high == 255.0);
    maker.input(0).filter(|_| is_rounding && is_whole)
}

/// A residual that a layer in integers makes, or that others read in steps, is added from its steps.
fn residual_in_steps(editor: &mut Editor, layer: ValueId, steps: &mut HashMap<ValueId, ValueId>) {
    let Some(at) = maker(editor, steps, layer) else {
        return;
    };
    let Some(residual) = editor.node(at).input(1) else {
        return;
    };
    let in_integers = |editor: &Editor, value: ValueId| {
        let made = editor.producer(value);
        made.is_some_and(|at| editor.node(at).op.is_in_integers())
    };
    let is_near = steps.contains_key(&residual)
        || in_integers(editor, residual) && !editor.is_output(residual);
    let Some(Grid { size, .. }) = grid_of_steps(editor, residual, steps).filter(|_| is_near) else {
        return;
    };
    let from = steps_of(editor, residual, steps);
    let Some(at) = maker(editor, steps, layer) else {
        return;
    };
    let mut node = editor.node(at).clone();
    node.inputs[1] = Some(from);
    if let Some(integers) = epilogue_mut(&mut node.op).and_then(|e| e.integers.as_mut()) {
        integers.residual_steps = Some(size);
    }
    editor.replace(at, node, &[]);
}

/// The grid of a value that may be dequantised from steps by now.
fn grid_of_steps(
    editor: &Editor,
    value: ValueId,
    steps: &HashMap<ValueId, ValueId>,
) -> Option<Grid> {
    let own = steps.get(&value).and_then(|&steps| editor.producer(steps));
    match own.map(|at| editor.node(at)) {
        Some(node) if node.op.is_in_integers() => Grid::of(epilogue(&node.op)?.activation),
        _ => grid(editor, value),
    }
}
