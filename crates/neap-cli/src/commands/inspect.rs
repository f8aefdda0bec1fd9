//! `neap inspect`: what is in a model, and how much memory it needs.

use super::{gguf, open};
use crate::args::{EngineArgs, ModelArgs};
use crate::failure::Outcome;
use crate::names;
use crate::printed::{Printed, TextOrJson};
use crate::report::bands_text;
use clap::Args;
use neaptide::{
    BandCount, Budget, Bytes, Ledger, Model, RunOptions, TensorInfo, Workload, shape_text,
};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write;

#[derive(Args)]
pub struct InspectArgs {
    #[command(flatten)]
    printed: Printed<TextOrJson>,
    /// List every node as well
    #[arg(long)]
    graph: bool,
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

/// So many of the largest layers are shown.
const LARGEST: usize = 10;

#[derive(Serialize)]
struct Facts {
    model: String,
    /// `None` for a model without weights.
    packed_path: Option<String>,
    graph_digest: String,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    nodes: usize,
    steps: usize,
    /// How often each operator occurs after fusion.
    operators: BTreeMap<&'static str, usize>,
    flops: u64,
    packed_weight_bytes: u64,
    largest_layers: Vec<Layer>,
    threads: usize,
    base_overhead_bytes: u64,
    /// Most bytes of activations and workspaces at any one step, without row bands.
    activations_peak_bytes: u64,
    /// Row bands that the model can run with.
    bands: BandCount,
    smallest_feasible_bytes: u64,
    /// No plan can do with less.
    lower_bound_bytes: u64,
    /// With everything resident: what 100% means.
    unlimited_high_water_bytes: u64,
    /// Part by part.
    smallest_ledger: Ledger,
    unlimited_ledger: Ledger,
    #[serde(skip_serializing_if = "Option::is_none")]
    graph: Option<String>,
}

#[derive(Serialize)]
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
}

#[derive(Serialize)]
struct Layer {
    name: String,
    operator: &'static str,
    weight_bytes: u64,
    /// In which type weights are stored, streamed and kept in memory.
    stored: &'static str,
    /// In which type they are multiplied, where memory does not matter: integers with activations in 8 bits, bfloat16 with those of a
    /// model in bfloat16, or widened in registers.
    computed: &'static str,
    /// Pieces in which the weights may be loaded.
    panels: u32,
}

pub fn run(args: &InspectArgs, quiet: bool) -> Outcome {
    if gguf::is_gguf(&args.model.model) {
        return gguf::inspect(&args.model.model, &args.printed);
    }
    let model = open(&args.model.model, &args.model.open.options()?, quiet)?;
    let facts = gather(args, &model);
    match args.printed.form() {
        TextOrJson::Json => args.printed.print_json(&facts),
        TextOrJson::Text => args.printed.print(&text(&facts)),
    }
}

fn gather(args: &InspectArgs, model: &Model) -> Facts {
    let options = RunOptions {
        reserve_bytes: model.inputs().iter().map(|i| i.len_bytes() as u64).sum(),
        ..args.engine.options(Budget::Unlimited)
    };
    // First, while this process holds no more than a run would.
    let bounds = model.bounds(&options);
    let base_overhead_bytes = bounds.base_overhead_bytes();
    let workload = model.workload(options.threads);
    let (activations_peak_bytes, _) = peaks(&workload);
    let workloads = model.workloads(options.threads, options.bands);
    let lower_bounds = workloads.iter().map(|workload| peaks(workload).1);
    let lower_bound_bytes = lower_bounds.min().unwrap_or(0);
    let program = model.program();
    let mut operators = BTreeMap::new();
    for node in &program.graph.nodes {
        *operators.entry(node.op.name()).or_insert(0) += 1;
    }
    let mut layers: Vec<Layer> = workload
        .steps
        .iter()
        .zip(&program.steps)
        .zip(model.steps_in_bf16(&options))
        .map(|((step, node), in_bf16)| Layer {
            name: step.name.clone(),
            operator: program.graph.nodes[node.index()].op.name(),
            weight_bytes: step.weight_bytes(),
            stored: model.stored_type(*node),
            computed: match &program.graph.nodes[node.index()] {
                node if node.op.is_in_integers() || program.is_rounded(node) => "int8",
                _ if in_bf16 => "bfloat16",
                _ => "float32",
            },
            panels: step.panels.map_or(1, |p| p.panels),
        })
        .filter(|layer| layer.weight_bytes > 0)
        .collect();
    layers.sort_by_key(|layer| std::cmp::Reverse(layer.weight_bytes));
    layers.truncate(LARGEST);
    Facts {
        model: args.model.model.display().to_string(),
        packed_path: model.packed_path().map(|path| path.display().to_string()),
        graph_digest: model.digest().into(),
        inputs: model.inputs().iter().map(tensor).collect(),
        outputs: model.outputs().iter().map(tensor).collect(),
        nodes: program.graph.nodes.len(),
        steps: workload.steps.len(),
        operators,
        flops: workload.steps.iter().map(|s| s.flops).sum(),
        packed_weight_bytes: model.weight_bytes(),
        largest_layers: layers,
        threads: options.threads,
        base_overhead_bytes,
        activations_peak_bytes,
        bands: model.bands(),
        smallest_feasible_bytes: bounds.smallest_feasible_bytes(),
        lower_bound_bytes: base_overhead_bytes + lower_bound_bytes,
        unlimited_high_water_bytes: bounds.unlimited_high_water_bytes(),
        smallest_ledger: bounds.smallest,
        unlimited_ledger: bounds.whole,
        graph: args.graph.then(|| program.graph.to_string()),
    }
}

fn tensor(info: &TensorInfo) -> Tensor {
    Tensor {
        name: info.name.clone(),
        dtype: info.ty.dtype.name(),
        shape: info.ty.shape.clone(),
    }
}

/// The most bytes that activations and workspaces take at any one step; and the same with the least
/// weights in memory that the step can compute with: one panel and what it needs whole.
fn peaks(workload: &Workload) -> (u64, u64) {
    let mut change = vec![0i64; workload.steps.len() + 1];
    for buffer in &workload.buffers {
        change[buffer.live.begin as usize] += buffer.bytes as i64;
        change[(buffer.live.end as usize).min(workload.steps.len())] -= buffer.bytes as i64;
    }
    let mut live = 0i64;
    let mut peaks = (0, 0);
    for (step, change) in workload.steps.iter().zip(&change) {
        live += change;
        let taken = live as u64 + step.workspace_bytes;
        let weights = step.panels.map_or(0, |p| p.panel_bytes)
            + step.extents.iter().map(|e| e.bytes).sum::<u64>();
        peaks = (taken.max(peaks.0), (taken + weights).max(peaks.1));
    }
    peaks
}

fn text(facts: &Facts) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{label:<11} {value}");
    };
    line("model", facts.model.clone());
    line(
        "packed",
        (facts.packed_path.clone()).unwrap_or_else(|| "no, there are no weights to pack".into()),
    );
    line("digest", facts.graph_digest.clone());
    let tensors = facts.inputs.iter().map(|t| ("input", t));
    for (label, t) in tensors.chain(facts.outputs.iter().map(|t| ("output", t))) {
        line(
            label,
            format!(
                "{}  {} {}",
                names::shown(&t.name),
                t.dtype,
                shape_text(&t.shape)
            ),
        );
    }
    let mut operators: Vec<_> = facts.operators.iter().collect();
    operators.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let operators: Vec<_> = operators
        .iter()
        .map(|(name, count)| format!("{count} {name}"))
        .collect();
    line(
        "graph",
        format!(
            "{} nodes, {} computing, {:.2} GFLOP",
            facts.nodes,
            facts.steps,
            facts.flops as f64 / 1e9
        ),
    );
    line("operators", operators.join(", "));
    line(
        "weights",
        match facts.packed_path {
            Some(_) => format!("{} packed", Bytes(facts.packed_weight_bytes)),
            None => format!("{} if there were any", Bytes(facts.packed_weight_bytes)),
        },
    );
    line(
        "activations",
        format!("{} at their peak", Bytes(facts.activations_peak_bytes)),
    );
    if facts.bands.chains > 0 {
        line("row bands", bands_text(facts.bands));
    }
    line(
        "memory",
        format!(
            "{} smallest feasible budget ({} bytes) with {} thread{}",
            Bytes(facts.smallest_feasible_bytes),
            facts.smallest_feasible_bytes,
            facts.threads,
            if facts.threads == 1 { "" } else { "s" }
        ),
    );
    line("", format!("  = {}", facts.smallest_ledger));
    line(
        "",
        format!(
            "{} with everything resident ({} bytes), which is 100%",
            Bytes(facts.unlimited_high_water_bytes),
            facts.unlimited_high_water_bytes
        ),
    );
    line("", format!("  = {}", facts.unlimited_ledger));
    if !facts.largest_layers.is_empty() {
        let _ = writeln!(
            text,
            "\nlargest layers, their weights as stored, streamed and kept, and as what they are computed"
        );
    }
    for layer in &facts.largest_layers {
        let _ = writeln!(
            text,
            "{:>13} {:<10} {:<8} {:<14} {:>5} piece{}  {}",
            Bytes(layer.weight_bytes).to_string(),
            layer.stored,
            layer.computed,
            layer.operator,
            layer.panels,
            if layer.panels == 1 { " " } else { "s" },
            names::shown(&layer.name)
        );
    }
    if let Some(graph) = &facts.graph {
        let _ = write!(text, "\n{graph}");
    }
    text
}
