//! Row bands: a second program over the same packed weights, in which chains of layers with large
//! activations are one node each, so that the most bytes that live at once are fewer.
//!
//! ```text
//!   live bytes   ▁▂███▇▅▃▂▁▁    the highest step's chain becomes one node,
//!                  ╰─┬─╯        if that lowers the profile;
//!   then         ▁▂▃▃▅▃▂▁▁      and again, until nothing does
//! ```

use crate::needs::step_bytes;
use crate::place;
use neap_ir::bands::{BandLayer, Bands, MAX_LAYERS};
use neap_ir::panel::{PanelFormat, StepSize};
use neap_ir::recipe::PackedForm;
use neap_ir::{Const, DType, Graph, Layout, Node, Op, PackedId, Program, ValueId};
use std::cmp::Reverse;
use std::ops::Range;

/// What chains may take.
#[derive(Debug, Clone, Copy)]
pub struct BandLimits {
    /// Weights of a chain, which are all needed at once.
    pub weight_bytes: u64,
    /// Line buffers of a chain, while chains are looked for and at most: taller bands are faster and
    /// are taken where they cost no memory. Exceeded only where bands of one row need more.
    pub least_line_bytes: usize,
    pub most_line_bytes: usize,
    /// Programs whose peak is no higher than this are left as they are.
    pub enough_bytes: u64,
    /// The same of programs with layers in integers, whose tensors are smaller.
    pub enough_in_integers_bytes: u64,
}

impl Default for BandLimits {
    fn default() -> BandLimits {
        BandLimits {
            weight_bytes: 3 << 19,
            least_line_bytes: 192 << 10,
            most_line_bytes: 1 << 20,
            enough_bytes: 2 << 20,
            enough_in_integers_bytes: 1 << 19,
        }
    }
}

/// Row bands must lower the highest step by this share.
const LEAST_GAIN: u64 = 64;

/// The program with row bands; `None` where they would not lower the memory it needs.
pub fn with_bands(program: &Program, limits: &BandLimits) -> Option<Program> {
    let bare = without_names(program);
    let limits = &BandLimits {
        enough_bytes: match program.graph.nodes.iter().any(|n| n.op.is_in_integers()) {
            true => limits.enough_in_integers_bytes,
            false => limits.enough_bytes,
        },
        ..*limits
    };
    let search = Search {
        program: &bare,
        limits,
        lines: lines(&program.graph),
    };
    let mut profile = Profile::of(program);
    let mut kept_bytes = profile.peak_bytes();
    let (mut tried, mut chains): (Vec<Chain>, Vec<Chain>) = (Vec::new(), Vec::new());
    while profile.peak_bytes() > limits.enough_bytes {
        let found = search
            .candidates(&tried, &profile.peak_values)
            .into_iter()
            .filter_map(|chains| Some((Profile::of(&search.program(&chains)?), chains)))
            .min_by(|a, b| a.0.falling_bytes.cmp(&b.0.falling_bytes))
            .filter(|(lower, _)| lower.falling_bytes < profile.falling_bytes);
        let Some((lower, with)) = found else {
            break;
        };
        (profile, tried) = (lower, with);
        // Steps of about the same height must all be lowered before anything is gained.
        if profile.peak_bytes() <= kept_bytes - kept_bytes / LEAST_GAIN {
            kept_bytes = profile.peak_bytes();
            chains.clone_from(&tried);
        }
    }
    if chains.is_empty() {
        return None;
    }
    for at in 0..chains.len() {
        let mut line_bytes = limits.most_line_bytes;
        while line_bytes > limits.least_line_bytes {
            let mut taller = chains.clone();
            taller[at].line_bytes = line_bytes;
            if let Some(made) = search.program(&taller)
                && Profile::of(&made).peak_bytes() <= kept_bytes.max(limits.enough_bytes)
            {
                chains = taller;
                break;
            }
            line_bytes /= 2;
        }
    }
    Search { program, ..search }.program(&chains)
}

/// The same program, which is copied again and again while chains are looked for.
fn without_names(program: &Program) -> Program {
    let mut bare = program.clone();
    bare.graph.values.iter_mut().for_each(|v| v.name.clear());
    bare.graph.nodes.iter_mut().for_each(|n| n.name.clear());
    bare.packed.iter_mut().for_each(|p| p.name.clear());
    bare
}

/// Layers `range` of a line.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chain {
    line: usize,
    range: Range<usize>,
    line_bytes: usize,
}

impl Chain {
    fn meets(&self, other: &Chain) -> bool {
        self.line == other.line
            && self.range.start < other.range.end
            && other.range.start < self.range.end
    }

    fn is_part_of(&self, other: &Chain) -> bool {
        other.range.start <= self.range.start && self.range.end <= other.range.end
    }
}

struct Search<'a> {
    program: &'a Program,
    limits: &'a BandLimits,
    /// Nodes of the plain program that could be one chain, in order.
    lines: Vec<Vec<usize>>,
}

impl Search<'_> {
    /// Sets of chains with one more, or a longer one, at one of the values of the highest step.
    fn candidates(&self, chains: &[Chain], peak_values: &[ValueId]) -> Vec<Vec<Chain>> {
        let nodes = &self.program.graph.nodes;
        let mut found = Vec::new();
        for (line, members) in self.lines.iter().enumerate() {
            let is_at_peak = |i: &usize| {
                let node = &nodes[members[*i]];
                let ends = [node.input(0), node.outputs[0]];
                ends.iter().flatten().any(|v| peak_values.contains(v))
            };
            let at_peak: Vec<usize> = (0..members.len()).filter(is_at_peak).collect();
            let pairs = (0..members.len())
                .flat_map(|begin| (begin + 2..=members.len()).map(move |end| begin..end));
            for range in pairs {
                let touches = at_peak.iter().any(|i| range.contains(i));
                let chain = Chain {
                    line,
                    range,
                    line_bytes: self.limits.least_line_bytes,
                };
                if !touches || chains.contains(&chain) || !self.is_allowed(&chain) {
                    continue;
                }
                // Chains that it meets become part of it.
                let (met, mut with): (Vec<Chain>, Vec<Chain>) = chains
                    .iter()
                    .cloned()
                    .partition(|other| other.meets(&chain));
                if met.iter().all(|other| other.is_part_of(&chain)) {
                    with.push(chain);
                    found.push(with);
                }
            }
        }
        found
    }

    fn is_allowed(&self, chain: &Chain) -> bool {
        let members = &self.lines[chain.line][chain.range.clone()];
        let weights = members.iter().filter_map(|&at| {
            let id = self.program.graph.nodes[at].panels?;
            Some(self.program.packed[id.index()].bytes)
        });
        let ends_there = |&at: &usize| {
            let layer = BandLayer::of(&self.program.graph.nodes[at].op);
            layer.is_none_or(|layer| layer.has_residual())
        };
        members.len() <= MAX_LAYERS
            && weights.sum::<u64>() <= self.limits.weight_bytes
            && !members[..members.len() - 1].iter().any(ends_there)
    }

    fn program(&self, chains: &[Chain]) -> Option<Program> {
        let mut graph = self.program.graph.clone();
        let mut dead = vec![false; graph.nodes.len()];
        for chain in chains {
            let members = &self.lines[chain.line][chain.range.clone()];
            let (&last, inner) = members.split_last()?;
            let node = self.node(&mut graph, members, chain.line_bytes)?;
            graph.nodes[last] = node;
            inner.iter().for_each(|&at| dead[at] = true);
        }
        let mut at = 0;
        graph.nodes.retain(|_| {
            at += 1;
            !dead[at - 1]
        });
        let digest = format!("{}-bands", self.program.digest);
        let mut program = place::run(graph, digest);
        program.packed = self.program.packed.clone();
        Some(program)
    }

    /// One node for a chain; its weights become constants of the graph.
    fn node(&self, graph: &mut Graph, members: &[usize], line_bytes: usize) -> Option<Node> {
        let nodes = &self.program.graph.nodes;
        let (first, last) = (&nodes[*members.first()?], &nodes[*members.last()?]);
        let mut bands = Bands {
            layers: Vec::with_capacity(members.len()),
            formats: Vec::new(),
            first_rows: 1,
            band_rows: 1,
        };
        let x = first.input(0)?;
        let mut inputs = vec![Some(x)];
        for &at in members {
            let layer = layer_of(&self.program.graph, &nodes[at])?;
            if let Some(id) = nodes[at].panels {
                let PackedForm::Panels { format, .. } = self.program.packed[id.index()].form else {
                    return None;
                };
                inputs.push(Some(self.weights(graph, id, &layer, format)?));
                bands.formats.push(format);
            }
            bands.layers.push(layer);
        }
        if bands.residual_input().is_some() {
            inputs.push(Some(last.input(1)?));
        }
        let fits = neap_ops::choose_heights(&mut bands, &graph.ty(x).shape, line_bytes);
        fits.then(|| Node {
            name: format!("{}..{}", first.name, last.name),
            op: Op::Bands(bands),
            inputs,
            outputs: last.outputs.clone(),
            panels: None,
        })
    }

    /// The panels of a layer as a tensor.
    fn weights(
        &self,
        graph: &mut Graph,
        id: PackedId,
        layer: &BandLayer,
        format: PanelFormat,
    ) -> Option<ValueId> {
        let ty = layer.weight_type(format)?;
        let name = format!("{}.panels", self.program.packed[id.index()].name);
        Some(graph.add_const(name, ty, Const::Packed(id)))
    }
}

/// The node as a layer of a chain, in which the steps of its input are part of it.
fn layer_of(graph: &Graph, node: &Node) -> Option<BandLayer> {
    let layer = BandLayer::of(&node.op)?;
    if layer.integers().is_none() {
        return Some(layer);
    }
    let known = |index: usize| graph.literal(node.input(index)?);
    let (&[scale], &[zero]) = (known(2)?.as_f32()?, known(3)?.bytes()) else {
        return None;
    };
    Some(layer.with_input_steps(StepSize { scale, zero }))
}

/// The longest runs of nodes each of which could be computed in bands with the next: its result is
/// that one's input and nobody else's.
fn lines(graph: &Graph) -> Vec<Vec<usize>> {
    let (uses, producers) = (graph.use_counts(), graph.producers());
    let mut line_of: Vec<Option<usize>> = vec![None; graph.nodes.len()];
    let mut found: Vec<Vec<usize>> = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let is_image = |v: ValueId| {
            let ty = graph.ty(v);
            ty.shape.len() == 4 && matches!(ty.dtype, DType::F32 | DType::U8)
        };
        let (Some(layer), Some(x), &[Some(y)]) =
            (layer_of(graph, node), node.input(0), &node.outputs[..])
        else {
            continue;
        };
        // Layers in integers hand each other steps; a pooling of steps is by itself.
        let is_steps = layer.integers().is_some();
        if (graph.ty(x).dtype == DType::U8) != is_steps
            || !is_image(x)
            || !is_image(y)
            || graph.value(y).layout != Layout::Blocked
        {
            continue;
        }
        let before = producers[x.index()].filter(|_| uses[x.index()] == 1);
        let line = before
            .filter(|producer| graph.nodes[producer.index()].op.is_in_integers() == is_steps)
            .and_then(|producer| line_of[producer.index()])
            .unwrap_or(found.len());
        if line == found.len() {
            found.push(Vec::new());
        }
        found[line].push(at);
        line_of[at] = Some(line);
    }
    found
}

/// What each step needs in memory at the least, and where that is most.
struct Profile {
    /// From the highest on.
    falling_bytes: Vec<u64>,
    /// Inputs and outputs of the first step that is as high as any.
    peak_values: Vec<ValueId>,
}

impl Profile {
    fn of(program: &Program) -> Profile {
        let mut step_bytes = step_bytes(program);
        let highest = (0..step_bytes.len()).min_by_key(|&step| (Reverse(step_bytes[step]), step));
        let peak_values = highest.map_or(Vec::new(), |step| {
            let node = &program.graph.nodes[program.steps[step].index()];
            node.present_inputs()
                .chain(node.present_outputs())
                .collect()
        });
        step_bytes.sort_unstable_by_key(|&bytes| Reverse(bytes));
        Profile {
            falling_bytes: step_bytes,
            peak_values,
        }
    }

    fn peak_bytes(&self) -> u64 {
        self.falling_bytes.first().copied().unwrap_or(0)
    }
}
