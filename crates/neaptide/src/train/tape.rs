//! From a step's program to what the choice of recomputed activations sees of it.

use neap_ir::{Graph, NodeId, Program, ValueId};
use neap_plan::Workload;
use neap_planner::recompute::{Tape, TapeNode, TapeValue};
use neap_sim::CostProfile;

/// A tape, and which values of the graph are each of its values: what the operator made, and all views of it.
pub(super) struct StepTape {
    pub tape: Tape,
    values: Vec<Vec<ValueId>>,
}

impl StepTape {
    /// Of a step whose first output is its loss. `cheap` values cost next to nothing.
    pub fn of(
        program: &Program,
        workload: &Workload,
        costs: &CostProfile,
        cheap: &[ValueId],
    ) -> StepTape {
        let graph = &program.graph;
        let makes_loss = |id: &NodeId| {
            let mut outputs = graph.nodes[id.index()].present_outputs();
            outputs.any(|v| graph.outputs.first() == Some(&v))
        };
        let loss = program.steps.iter().position(makes_loss);
        let mut found = StepTape {
            tape: Tape {
                forward: loss.map_or(0, |at| at + 1),
                nodes: nodes(workload, costs),
                values: Vec::new(),
                states_bytes: states_bytes(workload),
            },
            values: Vec::new(),
        };
        found.follow(program, cheap);
        found
    }

    /// The graph's values behind those of the tape.
    pub fn values(&self, of_tape: &[usize]) -> Vec<ValueId> {
        let mut found: Vec<ValueId> = (of_tape.iter())
            .flat_map(|&v| self.values[v].iter().copied())
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Who makes values, and who reads them.
    fn follow(&mut self, program: &Program, cheap: &[ValueId]) {
        let graph = &program.graph;
        let is_kept = kept(graph);
        // By value of the graph: the tape's values that it is or views.
        let mut of_tape: Vec<Vec<usize>> = vec![Vec::new(); graph.values.len()];
        let mut steps = program.steps.iter().enumerate().peekable();
        for (at, node) in graph.nodes.iter().enumerate() {
            let mut read: Vec<usize> = (node.present_inputs())
                .flat_map(|v| of_tape[v.index()].iter().copied())
                .collect();
            read.sort_unstable();
            read.dedup();
            let step = steps.next_if(|(_, id)| id.index() == at).map(|(s, _)| s);
            let Some(step) = step else {
                // A view, also of several values at once.
                for output in node.present_outputs() {
                    for &value in &read {
                        self.values[value].push(output);
                    }
                    of_tape[output.index()].clone_from(&read);
                }
                continue;
            };
            self.tape.nodes[step].reads = read;
            if step >= self.tape.forward {
                continue;
            }
            for output in node.present_outputs().filter(|v| !is_kept[v.index()]) {
                of_tape[output.index()] = vec![self.values.len()];
                self.values.push(vec![output]);
                self.tape.values.push(TapeValue {
                    made_by: step,
                    bytes: graph.value(output).len_bytes() as u64,
                    is_cheap: cheap.contains(&output),
                });
            }
        }
    }
}

/// By value: whether it outlives the step.
fn kept(graph: &Graph) -> Vec<bool> {
    let mut is_kept = vec![false; graph.values.len()];
    let next = graph.states.iter().filter_map(|s| s.next);
    for value in graph.outputs.iter().copied().chain(next) {
        is_kept[value.index()] = true;
    }
    is_kept
}

fn nodes(workload: &Workload, costs: &CostProfile) -> Vec<TapeNode> {
    let is_state = |b: usize| workload.states.iter().any(|s| s.index() == b);
    let mut live = vec![0i64; workload.steps.len() + 1];
    for (b, buffer) in workload.buffers.iter().enumerate() {
        if !is_state(b) && !buffer.live.is_empty() {
            live[buffer.live.begin as usize] += buffer.bytes as i64;
            live[buffer.live.end as usize] -= buffer.bytes as i64;
        }
    }
    let mut now = 0;
    let steps = workload.steps.iter().zip(live).enumerate();
    steps
        .map(|(at, (step, change))| {
            now += change;
            let mut states = workload.states.clone();
            states.retain(|s| step.reads.contains(s) || step.writes.contains(s));
            let bytes = |b: &neap_plan::BufferId| workload.buffers[b.index()].bytes;
            TapeNode {
                ns: costs.step_ns(at, step) + costs.compute_overhead_ns,
                live_bytes: now as u64 + step.workspace_bytes,
                states_bytes: states.iter().map(bytes).sum(),
                reads: Vec::new(),
            }
        })
        .collect()
}

fn states_bytes(workload: &Workload) -> u64 {
    let states = workload.states.iter();
    states.map(|s| workload.buffers[s.index()].bytes).sum()
}
