//! SwapNet's delay model: what bringing in, executing and giving up a block takes (Section 6.1).
//!
//! ```text
//!   t_in  = α · bytes + β · tensors         reading, and referring to each tensor where it lies
//!   t_ex  = γ · operations
//!   t_out = η · tensors                     nothing is written back
//! ```

use neap_sim::CostProfile;

use super::layers::Block;

/// The four device-dependent coefficients.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DelayModel {
    pub alpha_ns_per_byte: f64,
    pub beta_ns_per_tensor: f64,
    pub gamma_ns_per_flop: f64,
    pub eta_ns_per_tensor: f64,
}

impl DelayModel {
    /// What a cost profile says in these terms. t_out is nothing, since memory that a block gives up is simply used
    /// by the next one.
    pub fn of(costs: &CostProfile) -> Self {
        Self {
            alpha_ns_per_byte: 1e9 / costs.storage_bytes_per_second,
            beta_ns_per_tensor: costs.load_handling_ns as f64,
            gamma_ns_per_flop: 1e9 / costs.flops_per_second,
            eta_ns_per_tensor: 0.0,
        }
    }

    pub fn input_ns(&self, bytes: u64, tensors: u32) -> u64 {
        let bytes_ns = self.alpha_ns_per_byte * bytes as f64;
        to_ns(bytes_ns + self.beta_ns_per_tensor * f64::from(tensors))
    }

    pub fn execute_ns(&self, flops: u64) -> u64 {
        to_ns(self.gamma_ns_per_flop * flops as f64)
    }

    pub fn output_ns(&self, tensors: u32) -> u64 {
        to_ns(self.eta_ns_per_tensor * f64::from(tensors))
    }

    /// A step's time was measured, which is better than γ.
    pub(crate) fn is_measured(&self, costs: &CostProfile, step: usize) -> bool {
        costs.step_ns.get(step).is_some_and(|&ns| ns > 0)
    }
}

/// No block takes longer, so that sums do not overflow, whatever the coefficients were.
const LONGEST_NS: f64 = 1e12;

fn to_ns(ns: f64) -> u64 {
    ns.round().clamp(0.0, LONGEST_NS) as u64
}

/// What is to be least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Objective {
    /// Equation 4: the delays that executing does not cover, from the second block on.
    Residual,
    /// Equation 2: all of one run, the first block's input included.
    Latency,
}

/// The delay after a block's predecessor that executing block `i` leaves uncovered:
/// `(t_out(i−1) + t_in(i+1)) − (t_ex(i) + t_ov(i−1))`, where 0 is covered.
///
/// The next block comes in once the one before is out, which was `t_ov(i−1)` before this one started. A
/// residual below zero is no head start: the next block has to wait for its place all the same.
pub(crate) fn residual_ns(
    before_output_ns: u64,
    next_input_ns: u64,
    execute_ns: u64,
    before_ns: u64,
) -> u64 {
    (before_output_ns + next_input_ns).saturating_sub(execute_ns + before_ns)
}

/// The objective's value for a row of blocks.
pub fn evaluate(blocks: &[Block], objective: Objective) -> u64 {
    let mut sum = 0;
    let mut before_ns = 0;
    for (i, block) in blocks.iter().enumerate() {
        let output_ns = i.checked_sub(1).map_or(0, |p| blocks[p].output_ns);
        let input_ns = blocks.get(i + 1).map_or(0, |next| next.input_ns);
        // The first two blocks of a run come in before it, in Equation 4.
        before_ns = match (i, objective) {
            (0, Objective::Residual) => 0,
            _ => residual_ns(output_ns, input_ns, block.execute_ns, before_ns),
        };
        sum += before_ns;
        if objective == Objective::Latency {
            sum += block.execute_ns + if i == 0 { block.input_ns } else { 0 };
        }
    }
    sum
}
