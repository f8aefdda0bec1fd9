//! The model information table: a network as a row of layers that blocks are made of, by index only.
//!
//! ```text
//!   steps    conv1  relu  pool  conv2  add  fc        a step without weights goes with the one before
//!   layers  └───── 0 ────────┘ └─── 1 ───┘ └2┘
//!   points                    1           2           where one may cut
//!   blocks  └──────── 0 ─────────────────┘ └1┘        points = [2]
//! ```
//! (SwapNet, Sections 6.1 and 6.2.2: Table 2, `get_layers`, `create_blocks`.) Activations are placed for
//! the whole network at once, so one may cut between any two layers, also inside a residual connection.

use std::ops::Range;

use neap_plan::{PanelRange, StepId, Workload};
use neap_sim::CostProfile;

use super::delay::DelayModel;
use neap_planner::parts::{BaseLayout, whole_weights};

/// One row of the model information table: what a layer adds to any block that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    pub steps: Range<u32>,
    /// Bytes of its weights in memory: whole storage blocks.
    pub bytes: u64,
    /// Parameter depth: how many weight tensors.
    pub tensors: u32,
    pub flops: u64,
    /// t_in, t_ex and t_out of the layer alone.
    pub input_ns: u64,
    pub execute_ns: u64,
    pub output_ns: u64,
}

/// Neighbouring layers that are in memory together; sums of their rows.
pub type Block = Layer;

/// All layers of a network, on the base layout on which it will run.
pub(crate) fn get_layers(
    w: &Workload,
    base_layout: &BaseLayout,
    model: &DelayModel,
    costs: &CostProfile,
) -> Vec<Layer> {
    let mut layers: Vec<Layer> = Vec::new();
    for (index, step) in w.steps.iter().enumerate() {
        let reads_rows = base_layout.reads_rows[index];
        let weights = whole_weights(step, reads_rows, base_layout.tables)
            .chain(step.panels.map(|p| p.file_range(p.all())));
        let sizes: Vec<u64> = weights.map(|r| r.to_blocks().len()).collect();
        let (bytes, tensors) = (sizes.iter().sum(), sizes.len() as u32);
        let panels = step.panels.map_or(PanelRange::NONE, |p| p.all());
        let execute_ns = match model.is_measured(costs, index) {
            true => costs.slice_ns(w, StepId(index as u32), panels, reads_rows),
            false => model.execute_ns(step.flops),
        };
        let own = Layer {
            steps: index as u32..index as u32 + 1,
            bytes,
            tensors,
            flops: step.flops,
            input_ns: model.input_ns(bytes, tensors),
            execute_ns,
            output_ns: model.output_ns(tensors),
        };
        match layers.last_mut() {
            // What has no weights goes with what is there already.
            Some(last) if tensors == 0 || last.tensors == 0 => last.append(&own),
            _ => layers.push(own),
        }
    }
    layers
}

impl Layer {
    fn append(&mut self, next: &Layer) {
        self.steps.end = next.steps.end;
        self.bytes += next.bytes;
        self.tensors += next.tensors;
        self.flops = self.flops.saturating_add(next.flops);
        self.input_ns = self.input_ns.saturating_add(next.input_ns);
        self.execute_ns = self.execute_ns.saturating_add(next.execute_ns);
        self.output_ns = self.output_ns.saturating_add(next.output_ns);
    }
}

/// The blocks between partition points: ascending indices of layers at which a block begins, without 0.
pub fn create_blocks(points: &[usize], layers: &[Layer]) -> Vec<Block> {
    let ends = points.iter().copied().chain([layers.len()]);
    let mut begin = 0;
    ends.filter_map(|end| {
        let members = layers.get(begin..end)?;
        begin = end;
        joined(members)
    })
    .collect()
}

/// Fewer, larger layers: neighbours joined while they stay below `most_bytes` together.
pub(crate) fn coarsened(layers: &[Layer], most_bytes: u64) -> Vec<Layer> {
    let mut out: Vec<Layer> = Vec::new();
    for layer in layers {
        match out.last_mut() {
            Some(last) if last.bytes + layer.bytes <= most_bytes => last.append(layer),
            _ => out.push(layer.clone()),
        }
    }
    out
}

fn joined(members: &[Layer]) -> Option<Layer> {
    let (first, rest) = members.split_first()?;
    let mut all = first.clone();
    rest.iter().for_each(|layer| all.append(layer));
    Some(all)
}
