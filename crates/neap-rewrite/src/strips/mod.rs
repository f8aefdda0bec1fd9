//! Strips: a program over the same packed weights in which no large image is ever whole. Each strip of rows is a value of its own,
//! which may leave memory and come back as any other.
//!
//! ```text
//!   conv ─► norm ─► silu ─► conv          x0   x1   x2      strips of x, each made by a conv of its own
//!                                          │╲   │   ╱│
//!                                    moments, factors       sums over all strips; then rows are normalised as they are read
//!                                          ▼    ▼    ▼
//!                                          y0   y1   y2      y1 reads x1 and a row of x0 and of x2
//! ```
//! What is cheap is not kept: it is computed again for each reader, of just the rows that the reader wants. Results are the same
//! bits as without strips where the kernels are.

mod emit;
mod keys;
mod kinds;
mod part;

use crate::place;
use neap_ir::Program;

/// The program in strips of about `strip_bytes`; `None` where nothing is longer.
pub fn with_strips(program: &Program, strip_bytes: u64) -> Option<Program> {
    // What survives runs is changed where it lies.
    if !program.graph.states.is_empty() {
        return None;
    }
    let kinds = kinds::Kinds::of(program, strip_bytes)?;
    let graph = emit::emit(program, &kinds);
    let digest = format!("{}-strips-{strip_bytes}", program.digest);
    let mut made = place::run(graph, digest);
    made.packed = program.packed.clone();
    Some(made)
}
