// What attention is told.

struct Shape {
    keys: u32,
    depth: u32,
    value_depth: u32,
    // Query heads that share a head of keys.
    shared_by: u32,
    scale: f32,
    rules: u32,
    // 1: it is added, 2: bytes, of which zeros hide their key
    has_mask: u32,
    q_batch: u32,
    q_head: u32,
    q_row: u32,
    q_depth: u32,
    k_batch: u32,
    k_head: u32,
    k_row: u32,
    k_depth: u32,
    v_batch: u32,
    v_head: u32,
    v_row: u32,
    v_depth: u32,
    y_batch: u32,
    y_head: u32,
    y_row: u32,
    y_depth: u32,
    mask_batch: u32,
    mask_head: u32,
    mask_row: u32,
    mask_col: u32,
    // Where operands begin in their tensors.
    q_first: u32,
    k_first: u32,
    v_first: u32,
    queries: u32,
}

// Bits of `rules`.
const CAUSAL = 1u;
// Weights of a row that would be NaN are zeros.
const NAN_IS_ZERO = 2u;

const LOWEST: f32 = -3.402823466e38;

