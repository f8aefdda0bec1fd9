//! SwapNet's delay coefficients (Section 6.1, Figure 9): linear regression over the blocks of plans that ran.
//!
//! ```text
//!   load lane      ├─ t_in of block 2 ─┤├── t_in of block 3 …
//!   compute lane   ├── t_ex of block 1 ──┤├─ t_ex of block 2 ─┤
//!                                         └ t_out: until block 3 begins to come in
//! ```

use super::observe::median;
use neap_plan::{ExecutionPlan, LaneId, Timeline, Workload};
use neap_sim::BlockDelays;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The coefficients, and how much of what was seen they explain.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DelayFit {
    pub delays: BlockDelays,
    /// R² of t_in, t_ex and t_out: 1 explains everything, 0 no more than the mean does, below 0 less.
    pub input_r2: f64,
    pub execute_r2: f64,
    pub output_r2: f64,
    pub blocks: usize,
}

impl DelayFit {
    /// Whether all numbers are such as a machine could have.
    pub(super) fn is_sane(&self) -> bool {
        let d = &self.delays;
        [
            d.alpha_ns_per_byte,
            d.beta_ns_per_tensor,
            d.gamma_ns_per_flop,
            d.eta_ns_per_tensor,
        ]
        .into_iter()
        .all(|ns| (0.0..1e12).contains(&ns))
    }
}

/// A block as it was seen, medians over runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BlockSeen {
    pub bytes: f64,
    pub tensors: f64,
    pub flops: f64,
    /// Only where the block was waited for.
    pub input_ns: Option<f64>,
    pub execute_ns: f64,
    /// Only where another block waited for its memory.
    pub output_ns: Option<f64>,
}

/// Start, end, and since when it was ready.
type Times = (u64, u64, u64);

/// Samples of the blocks of one plan.
pub(super) struct Blocks {
    blocks: Vec<Block>,
}

struct Block {
    loads: Range<usize>,
    computes: Range<usize>,
    seen: BlockSeen,
    input_ns: Vec<u64>,
    execute_ns: Vec<u64>,
    output_ns: Vec<u64>,
}

impl Blocks {
    /// The blocks of a plan: computes that need the same loads.
    pub fn of(plan: &ExecutionPlan, workload: &Workload) -> Blocks {
        let mut blocks: Vec<Block> = Vec::new();
        for (i, compute) in plan.computes.iter().enumerate() {
            let needs = compute.needs() as usize;
            let step = &workload.steps[compute.step.index()];
            let before = blocks.last().map_or(0, |b| b.loads.end);
            if blocks.is_empty() || needs != before {
                let bytes = plan.loads[before..needs]
                    .iter()
                    .map(|l| l.bytes)
                    .sum::<u64>();
                blocks.push(Block {
                    loads: before..needs,
                    computes: i..i,
                    seen: BlockSeen {
                        bytes: bytes as f64,
                        tensors: 0.0,
                        flops: 0.0,
                        input_ns: None,
                        execute_ns: 0.0,
                        output_ns: None,
                    },
                    input_ns: Vec::new(),
                    execute_ns: Vec::new(),
                    output_ns: Vec::new(),
                });
            }
            if let Some(block) = blocks.last_mut() {
                block.computes.end = i + 1;
                let tables = usize::from(compute.weights.table.is_some());
                let tensors = usize::from(step.panels.is_some()) + step.extents.len() + tables;
                block.seen.tensors += tensors as f64;
                block.seen.flops += step.flops as f64;
            }
        }
        Blocks { blocks }
    }

    /// All runs of a recording but the first, whose first loads began before it.
    pub fn add(&mut self, timeline: &Timeline) {
        let loads = self.blocks.last().map_or(0, |b| b.loads.end);
        let computes = self.blocks.last().map_or(0, |b| b.computes.end);
        for run in 1..timeline.runs.len() as u32 {
            let mut load = vec![None; loads];
            let mut compute = vec![None; computes];
            for span in timeline.spans.iter().filter(|s| s.run == run) {
                let list = match span.lane {
                    LaneId::LOAD => &mut load,
                    LaneId::COMPUTE => &mut compute,
                    _ => continue,
                };
                if let Some(slot) = list.get_mut(span.action as usize) {
                    *slot = Some((span.start_ns, span.end_ns, span.ready_ns));
                }
            }
            let mut lane_free_ns = 0;
            for i in 0..self.blocks.len() {
                let next_but_one = self.blocks.get(i + 2).map(|b| b.loads.start);
                let block = &mut self.blocks[i];
                let came: Option<Vec<Times>> = load[block.loads.clone()].iter().copied().collect();
                let ran: Option<Vec<Times>> =
                    compute[block.computes.clone()].iter().copied().collect();
                let ready_ns = ran
                    .as_ref()
                    .and_then(|r| r.first())
                    .map_or(u64::MAX, |r| r.2);
                if let Some(came) = came.filter(|c| !c.is_empty()) {
                    let begin = came
                        .iter()
                        .map(|c| c.0)
                        .min()
                        .unwrap_or(0)
                        .max(lane_free_ns);
                    let end = came.iter().map(|c| c.1).max().unwrap_or(0);
                    lane_free_ns = lane_free_ns.max(end);
                    // What arrives while something computes is noticed late.
                    if ready_ns < end {
                        block.input_ns.push(end.saturating_sub(begin));
                    }
                }
                let Some(ran) = ran else { continue };
                block.execute_ns.push(ran.iter().map(|r| r.1 - r.0).sum());
                let end = ran.last().map_or(0, |r| r.1);
                let follows = next_but_one.and_then(|l| load.get(l).copied().flatten());
                if let Some((start, ..)) = follows.filter(|(start, ..)| *start >= end) {
                    block.output_ns.push(start - end);
                }
            }
        }
    }

    pub fn finish(self) -> Vec<BlockSeen> {
        let blocks = self.blocks.into_iter();
        let blocks = blocks.filter(|b| !b.execute_ns.is_empty());
        blocks
            .map(|mut b| BlockSeen {
                input_ns: (!b.input_ns.is_empty()).then(|| median(&mut b.input_ns) as f64),
                execute_ns: median(&mut b.execute_ns) as f64,
                output_ns: (!b.output_ns.is_empty()).then(|| median(&mut b.output_ns) as f64),
                ..b.seen
            })
            .collect()
    }
}

/// Fewer blocks than this tell nothing.
const FEWEST: usize = 4;

/// Least squares without constant terms, none negative.
pub(super) fn fit(blocks: &[BlockSeen]) -> Option<DelayFit> {
    let inputs: Vec<([f64; 2], f64)> = blocks
        .iter()
        .filter_map(|b| b.input_ns.map(|ns| ([b.bytes, b.tensors], ns)))
        .collect();
    if inputs.len() < FEWEST {
        return None;
    }
    let (alpha, beta) = two(&inputs);
    let executes: Vec<(f64, f64)> = blocks.iter().map(|b| (b.flops, b.execute_ns)).collect();
    let gamma = one(&executes);
    let outputs: Vec<(f64, f64)> = blocks
        .iter()
        .filter_map(|b| b.output_ns.map(|ns| (b.tensors, ns)))
        .collect();
    let eta = one(&outputs);
    let input = |x: &[f64; 2]| alpha * x[0] + beta * x[1];
    Some(DelayFit {
        input_r2: r2(inputs.iter().map(|(x, y)| (input(x), *y))),
        execute_r2: r2(executes.iter().map(|(x, y)| (gamma * x, *y))),
        output_r2: r2(outputs.iter().map(|(x, y)| (eta * x, *y))),
        delays: BlockDelays {
            alpha_ns_per_byte: alpha,
            beta_ns_per_tensor: beta,
            gamma_ns_per_flop: gamma,
            eta_ns_per_tensor: eta,
        },
        blocks: blocks.len(),
    })
}

/// y ≈ k · x.
fn one(rows: &[(f64, f64)]) -> f64 {
    let xx: f64 = rows.iter().map(|(x, _)| x * x).sum();
    let xy: f64 = rows.iter().map(|(x, y)| x * y).sum();
    if xx > 0.0 { (xy / xx).max(0.0) } else { 0.0 }
}

/// y ≈ a · x0 + b · x1; where both together would make one negative, the better one alone.
fn two(rows: &[([f64; 2], f64)]) -> (f64, f64) {
    let sum = |of: &dyn Fn(&[f64; 2], f64) -> f64| rows.iter().map(|(x, y)| of(x, *y)).sum::<f64>();
    let (aa, bb, ab) = (
        sum(&|x, _| x[0] * x[0]),
        sum(&|x, _| x[1] * x[1]),
        sum(&|x, _| x[0] * x[1]),
    );
    let (ay, by) = (sum(&|x, y| x[0] * y), sum(&|x, y| x[1] * y));
    let determinant = aa * bb - ab * ab;
    if determinant > 1e-9 * aa * bb {
        let (a, b) = (
            (ay * bb - by * ab) / determinant,
            (by * aa - ay * ab) / determinant,
        );
        if a >= 0.0 && b >= 0.0 {
            return (a, b);
        }
    }
    let alone = |xx: f64, xy: f64| if xx > 0.0 { (xy / xx).max(0.0) } else { 0.0 };
    let (a, b) = (alone(aa, ay), alone(bb, by));
    // What each explains: squares less squares of what is left.
    if a * ay >= b * by { (a, 0.0) } else { (0.0, b) }
}

/// Of (predicted, seen); 0 where there is nothing to explain.
fn r2(rows: impl Iterator<Item = (f64, f64)> + Clone) -> f64 {
    let count = rows.clone().count().max(1) as f64;
    let mean = rows.clone().map(|(_, y)| y).sum::<f64>() / count;
    let all: f64 = rows.clone().map(|(_, y)| (y - mean).powi(2)).sum();
    let left: f64 = rows.map(|(p, y)| (y - p).powi(2)).sum();
    if all > 0.0 { 1.0 - left / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(bytes: f64, tensors: f64, flops: f64) -> BlockSeen {
        BlockSeen {
            bytes,
            tensors,
            flops,
            input_ns: Some(0.4 * bytes + 5e3 * tensors),
            execute_ns: 0.01 * flops,
            output_ns: Some(300.0 * tensors),
        }
    }

    fn blocks() -> Vec<BlockSeen> {
        (1..10)
            .map(|i| {
                let i = f64::from(i);
                block(
                    1e6 * (i % 4.0 + 1.0),
                    3.0 * (i % 5.0) + 1.0,
                    1e8 * (i % 3.0 + 1.0),
                )
            })
            .collect()
    }

    #[test]
    fn exact_coefficients_are_found() {
        let found = fit(&blocks()).unwrap();
        let delays = found.delays;
        assert!((delays.alpha_ns_per_byte - 0.4).abs() < 1e-9);
        assert!((delays.beta_ns_per_tensor - 5e3).abs() < 1e-3);
        assert!((delays.gamma_ns_per_flop - 0.01).abs() < 1e-12);
        assert!((delays.eta_ns_per_tensor - 300.0).abs() < 1e-6);
        for r2 in [found.input_r2, found.execute_r2, found.output_r2] {
            assert!((r2 - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn nothing_is_negative_and_noise_is_not_explained() {
        let mut blocks = blocks();
        for (i, b) in blocks.iter_mut().enumerate() {
            // More tensors seem to make it faster; executing has nothing to do with operations.
            b.input_ns = Some(0.4 * b.bytes - 1e3 * b.tensors);
            b.execute_ns = if i % 2 == 0 { 1e6 } else { 9e6 };
            b.output_ns = None;
        }
        let found = fit(&blocks).unwrap();
        assert_eq!(found.delays.beta_ns_per_tensor, 0.0);
        assert_eq!(found.delays.eta_ns_per_tensor, 0.0);
        assert!(found.execute_r2 < 0.2, "{found:?}");
        assert!(fit(&blocks[..3]).is_none());
    }
}
